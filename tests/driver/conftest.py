"""A machine with one device of profile `unit`, and processes that make raw system calls on it."""

from __future__ import annotations

import npu_abi
import pytest
from npu_abi import C, ffi
from npu_device import Device
from npu_driver import Kernel

from tests.driver.calls import Calls


class Process(Calls):
    """A process of a kernel that is called in place."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel.syscall)
        self.kernel = kernel

    def bo(self, size=4096, flags=C.NPU_BO_MAPPABLE):
        """Make a buffer object: (handle, device address)."""
        made = self.create(size, flags)
        return made.handle, made.npu_va

    def commands(self, *commands, fence_heap_va=0, handle=None):
        """Make (or refill) a command buffer with `commands`, cffi pointers: its handle."""
        if handle is None:
            handle, _ = self.bo(flags=C.NPU_BO_MAPPABLE)
        body = b"".join(npu_abi.pack(command) for command in commands)
        header = npu_abi.new(
            "npu_cmd_buffer_header",
            cmd_buffer_size=64 + len(body),
            cmd_offset=64,
            api_version=C.NPU_CMD_API_VERSION,
            fence_heap_va=fence_heap_va,
        )
        memory = self.map(handle)
        memory[: 64 + len(body)] = npu_abi.pack(header) + body
        return handle

    def submit(self, queue, *handles, offset=0, **fields):
        """Submit a command buffer and its buffers: ret."""
        segment = bytes(ffi.buffer(ffi.new("uint32_t[]", handles)))
        given = {"buffers_ptr": 1, "buffer_count": len(handles), "cmdq_id": queue, "commands_offset": offset} | fields
        return self.call(C.NPU_IOCTL_CMDQ_SUBMIT, "npu_cmdq_submit", [segment], **given)[0]

    def wait(self, handle, deadline_ps=(1 << 63) - 1):
        """Wait for the job of a command buffer: (ret, struct npu_bo_wait)."""
        ret, arg, _ = self.call(C.NPU_IOCTL_BO_WAIT, "npu_bo_wait", handle=handle, deadline_ps=deadline_ps)
        return ret, arg


def command(struct, kind, **fields):
    """A command for `Process.commands`."""
    made = npu_abi.new(struct, **fields)
    made.h.type, made.h.size = kind, npu_abi.sizeof(struct)
    return made


@pytest.fixture
def kernel():
    """The driver of a device that nobody has opened."""
    return Kernel(Device("unit"))


@pytest.fixture
def process_type():
    """Opens a node: a process of a kernel."""
    return Process


@pytest.fixture
def process(kernel):
    """A process with the node open."""
    return Process(kernel)


@pytest.fixture
def another(kernel):
    """Opens the node once more."""
    return lambda: Process(kernel)


@pytest.fixture
def nop():
    """A command that does nothing."""
    return npu_abi.new("npu_cmd_header", type=C.NPU_CMD_NOP, size=npu_abi.sizeof("npu_cmd_header"))


@pytest.fixture(name="command")
def command_fixture():
    """Makes a command."""
    return command
