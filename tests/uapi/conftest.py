"""A device of profile `unit` with a process that has one of everything, and a neighbour."""

from __future__ import annotations

import hashlib

import npu_abi
import pytest
from npu_abi import C, ffi
from npu_device import Device
from npu_driver import Kernel

from tests.driver.calls import Calls

FOREIGN = 40  # a handle and queue that only the neighbour has


class File(Calls):
    """One open file."""

    def bo(self, size=4096, flags=C.NPU_BO_MAPPABLE):
        """Make a buffer object: its handle."""
        return self.create(size, flags).handle

    def nop(self):
        """Make a command buffer of one command that does nothing."""
        handle = self.bo()
        size = npu_abi.sizeof("npu_cmd_header")
        header = npu_abi.new(
            "npu_cmd_buffer_header", cmd_buffer_size=64 + size, cmd_offset=64, api_version=C.NPU_CMD_API_VERSION
        )
        data = npu_abi.pack(header) + npu_abi.pack(npu_abi.new("npu_cmd_header", type=C.NPU_CMD_NOP, size=size))
        self.map(handle)[: len(data)] = data
        return handle

    def submit(self, queue, handle):
        return self.call(
            C.NPU_IOCTL_CMDQ_SUBMIT, "npu_cmdq_submit", [handle.to_bytes(4, "little")],
            buffers_ptr=1, buffer_count=1, cmdq_id=queue,
        )[0]  # fmt: skip

    def run(self, queue, handle):
        """Run a job and return its status."""
        assert self.submit(queue, handle) == 0
        ret, arg, _ = self.call(C.NPU_IOCTL_BO_WAIT, "npu_bo_wait", handle=handle, deadline_ps=(1 << 63) - 1)
        assert ret == 0
        return arg.job_status


class Scene:
    """What the matrix speaks of by name."""

    def __init__(self):
        self.kernel = Kernel(Device("unit"))
        self.file, self.neighbour = File(self.kernel.syscall), File(self.kernel.syscall)
        self.bo = self.file.bo(8192, C.NPU_BO_MAPPABLE | C.NPU_BO_SHAREABLE)
        self.command, self.queue = self.file.nop(), self.file.queue()
        self.freed = self.file.bo()
        assert self.file.call(C.NPU_IOCTL_BO_FREE, "npu_bo_free", handle=self.freed)[0] == 0
        self.offset = self.file.info(self.bo).mmap_offset
        while max(self.neighbour.bo(), self.neighbour.queue()) < FOREIGN:
            pass
        self.foreign = FOREIGN
        self.file.now_ps = self.neighbour.now_ps

    def fingerprint(self):
        """Everything that a refused call must leave alone."""
        kernel = self.kernel
        memory = kernel.memory
        found = [memory.free_bytes, sorted(memory._sizes.items()), sorted(memory._shares.items()), kernel.params.text()]
        found += [sorted(kernel.files), sorted((d, q.cmdq_id) for d, q in kernel.doorbells.items())]
        clients = range(len(kernel.device.clients))
        found += [
            sorted(kernel.firmware.noc_priorities.items()),
            [kernel.device.bus.read32(C.NPU_REG_NOC_QOS_BASE + 4 * c) for c in clients],
        ]
        for ssid, context in sorted(kernel.contexts.items()):
            found.append(
                (
                    ssid,
                    context.lost,
                    context.faults,
                    sorted(context.queues),
                    sorted(context.jobs),
                    sorted(context.unwaited),
                )
            )
            found.append(
                [(b.handle, b.flags, b.va, b.pa, b.size, b.mmap_offset, b.jobs) for b in context.objects.values()]
            )
            tables = [(key, bytes(table.entries)) for key, table in sorted(context.space._tables.items())]
            found.append(hashlib.sha256(repr(tables).encode()).hexdigest())
        return found


@pytest.fixture(scope="module")
def scene():
    return Scene()


@pytest.fixture
def file_type():
    return File


@pytest.fixture(scope="session")
def structure():
    """Return a function that makes a structure's bytes of fields by name."""

    def make(struct, **fields):
        return bytes(ffi.buffer(npu_abi.new(struct, **fields)))

    return make
