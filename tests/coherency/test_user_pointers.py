"""User memory for the device: at an address of the device's, or at the user's own."""

from __future__ import annotations

import errno
import mmap

import numpy as np
import pytest
from npu_abi import C
from npu_device import Device
from npu_driver import Kernel
from npu_driver.params import parse

import libnpu
from tests.driver.conftest import Process, command

USER = 0x7F12_3456_7000
SUCCESS, VIOLATION = C.NPU_JOB_SUCCESS, C.NPU_JOB_CTX_VIOLATION


@pytest.fixture
def process():
    return Process(Kernel(Device("unit")))


def userptr(process, ptr=USER, size=8192, flags=0, content=None, **fields):
    """BO_CREATE_FROM_USERPTR: (ret, struct, memory)."""
    segments = [bytes(size) if content is None else content]
    fields = {"ptr": ptr, "size": size, "flags": flags} | fields
    ret, arg, replies = process.call(C.NPU_IOCTL_BO_CREATE_FROM_USERPTR, "npu_bo_userptr", segments, **fields)
    return ret, arg, replies


def fill(process, va, byte):
    """Let the device fill 16 bytes: (job status, error detail)."""
    commands = command("npu_cmd_fill", C.NPU_CMD_MEMORY_FILL, start_va=va, size=16, pattern=byte * 0x01010101)
    handle = process.commands(commands)
    assert process.submit(process.queue(), handle) == 0
    _, wait = process.wait(handle)
    return wait.job_status, wait.error_detail


def test_the_memory_of_the_object_has_the_content_and_is_the_devices(process):
    ret, arg, (memory,) = userptr(process, content=b"user" * 2048)
    assert (ret, arg.handle >= 1, arg.npu_va % 4096) == (0, True, 0)
    assert bytes(memory) == b"user" * 2048
    assert fill(process, arg.npu_va + 4, 0x41) == (SUCCESS, 0)
    assert bytes(memory[:24]) == b"user" + b"A" * 16 + b"user"


def test_with_sva_the_device_has_it_at_the_users_address(process):
    ret, arg, (memory,) = userptr(process, flags=C.NPU_BO_SVA)
    assert (ret, arg.npu_va) == (0, USER)
    assert fill(process, USER + 4096, 0x41) == (SUCCESS, 0)
    assert bytes(memory[4090:4100]) == bytes(6) + b"AAAA"


@pytest.mark.parametrize("flags", [0, C.NPU_BO_SVA])
def test_a_pointer_that_nobody_registered_faults_with_its_address(process, flags):
    assert userptr(process, flags=flags)[0] == 0
    assert fill(process, USER + 0x10_0008, 0x41) == (VIOLATION, USER + 0x10_0008)


def test_without_sva_the_users_address_is_none_of_the_devices(process):
    assert userptr(process)[0] == 0
    assert fill(process, USER, 0x41) == (VIOLATION, USER)


def test_read_only_memory_is_not_written(process):
    _, arg, (memory,) = userptr(process, flags=C.NPU_BO_READ_ONLY)
    assert fill(process, arg.npu_va, 0x41) == (VIOLATION, arg.npu_va)
    assert bytes(memory[:16]) == bytes(16)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"ptr": 0}, errno.EINVAL),
        ({"ptr": USER + 1}, errno.EINVAL),
        ({"ptr": 1 << 48}, errno.EINVAL),
        ({"ptr": (1 << 64) - 4096}, errno.EINVAL),
        ({"size": 0}, errno.EINVAL),
        ({"size": 4095}, errno.EINVAL),
        ({"size": C.NPU_MAX_USERPTR_BYTES + 4096, "content": b""}, errno.EINVAL),
        ({"flags": C.NPU_BO_MAPPABLE}, errno.EINVAL),
        ({"flags": C.NPU_BO_WC}, errno.EINVAL),
        ({"flags": 1 << 31}, errno.EINVAL),
        ({"handle": 1}, errno.EINVAL),
        ({"npu_va": 4096}, errno.EINVAL),
        ({"content": bytes(100)}, errno.EFAULT),
        ({"size": C.NPU_MAX_USERPTR_BYTES, "content": b""}, errno.EFAULT),
        ({"flags": C.NPU_BO_SVA, "ptr": C.NPU_CMX_BASE}, errno.EBUSY),
        ({"flags": C.NPU_BO_SVA, "ptr": C.NPU_VA_LOW_BASE - 4096}, errno.EBUSY),
        ({"flags": C.NPU_BO_SVA, "ptr": C.NPU_VA_USER_END - 4096}, errno.EBUSY),
    ],
)
def test_bad_requests_change_nothing(process, fields, code):
    free = process.kernel.memory.free_bytes
    assert userptr(process, **fields)[0] == -code
    assert process.kernel.memory.free_bytes == free
    assert userptr(process)[1].handle == 1


def test_sva_addresses_in_use_are_ebusy_until_they_are_freed(process):
    _, arg, _ = userptr(process, flags=C.NPU_BO_SVA)
    assert userptr(process, USER + 4096, flags=C.NPU_BO_SVA)[0] == -errno.EBUSY
    assert userptr(process, USER + 8192, flags=C.NPU_BO_SVA)[0] == 0
    assert process.call(C.NPU_IOCTL_BO_FREE, "npu_bo_free", handle=arg.handle)[0] == 0
    assert userptr(process, USER, flags=C.NPU_BO_SVA)[0] == 0


def test_freeing_gives_the_memory_back(process):
    free = process.kernel.memory.free_bytes
    _, arg, replies = userptr(process)
    assert process.kernel.memory.free_bytes < free
    tables = free - process.kernel.memory.free_bytes - 8192
    replies.clear()
    assert process.call(C.NPU_IOCTL_BO_FREE, "npu_bo_free", handle=arg.handle)[0] == 0
    process.param(C.NPU_PARAM_DEVICE_ID)
    _, again, _ = userptr(process)
    assert again.npu_va != arg.npu_va
    assert process.kernel.memory.free_bytes == free - 8192 - tables


def test_on_a_board_without_snooping_the_user_sees_a_shadow():
    process = Process(Kernel(Device("unit"), params=parse("coherent=0")))
    _, arg, (memory,) = userptr(process, content=b"user" * 2048)
    commands = command("npu_cmd_fill", C.NPU_CMD_MEMORY_FILL, start_va=arg.npu_va, size=16, pattern=0x41414141)
    handle, _ = process.bo(4096, C.NPU_BO_MAPPABLE)
    process.commands(commands, handle=handle)
    sync = {"handle": handle, "direction": C.NPU_SYNC_TO_DEVICE, "size": 4096}
    assert process.call(C.NPU_IOCTL_BO_SYNC, "npu_bo_sync", **sync)[0] == 0
    assert process.submit(process.queue(), handle) == 0
    assert process.wait(handle)[1].job_status == SUCCESS
    assert bytes(memory[:4]) == b"user"
    sync = {"handle": arg.handle, "direction": C.NPU_SYNC_FROM_DEVICE, "size": 8192}
    assert process.call(C.NPU_IOCTL_BO_SYNC, "npu_bo_sync", **sync)[0] == 0
    assert bytes(memory[:20]) == b"A" * 16 + b"user"


# ---- through the library


def private(pages):
    return mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


@pytest.mark.parametrize("sva", [False, True])
def test_a_program_lends_its_memory(load, sva):
    device = load()
    memory = np.frombuffer(private(2), np.float32)
    memory[:8] = np.arange(-4, 4)
    with device.register(memory, sva=sva) as registered:
        assert (registered.device_address == memory.ctypes.data) is sva
        found = device.primary.find(memory.ctypes.data + 4)
        assert (found.kind, found.offset) == (C.NPU_MEMORY_REGISTERED, 4)
        result = device.alloc(32)
        device.copy(result, registered[:32])
        assert result.read(np.float32).tolist() == [-4, -3, -2, -1, 0, 1, 2, 3]
        device.primary.fill(registered[:4], 0)
    assert memory[:3].tolist() == [0, -3, -2]


def test_addresses_of_the_devices_own_are_refused_for_sva(load):
    device = load()
    buffer = device.alloc(4096)
    with pytest.raises(libnpu.NpuError):
        device.register(buffer.device_address, 4096, sva=True)
