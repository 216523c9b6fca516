"""The library speaks to the driver in bytes only, so the two may live in different processes."""

from __future__ import annotations

import errno

import numpy as np
import pytest
from npu_abi import C
from npu_device import Device as Hardware
from npu_driver import Kernel
from npu_model.profile import load_profile

import libnpu
from libnpu.errors import errno_error
from libnpu.runtime import Device
from libnpu.syscalls import Machine, Node


def test_every_call_is_numbers_and_bytes(blob_bytes):
    kernel = Kernel(Hardware("npu-37xx"))
    calls = []

    def over_the_wire(number, arg, segments, now_ps):
        assert (type(number), type(arg), type(now_ps)) == (int, bytes, int)
        assert number < 1 << 64
        assert [type(segment) for segment in segments] == [bytes] * len(segments)
        ret, out, replies, now_ps = kernel.syscall(number, arg, segments, now_ps)
        assert (type(ret), type(out), type(now_ps)) == (int, bytes, int)
        mapped = number & 0xFF == C.NPU_SYS_MMAP
        assert [type(reply) for reply in replies] == [memoryview if mapped else bytes] * len(replies)
        calls.append(number & 0xFF)
        return ret, out, replies, now_ps

    with Device(Node(Machine(over_the_wire, load_profile("npu-37xx"))), compute=True) as device:
        x = np.arange(1024).astype(np.uint8)
        assert device.load(blob_bytes()).run({"x": x})["y"].tolist() == x.tolist()
        device.counters()
        device.trace()
        device.info()
    assert {C.NPU_SYS_OPEN, C.NPU_SYS_MMAP, C.NPU_IOCTL_CMDQ_SUBMIT, C.NPU_IOCTL_BO_WAIT, C.NPU_SYS_CLOSE} <= set(calls)


def test_what_the_driver_lacks_is_unimplemented():
    error = errno_error(95, "USERPTR")
    assert isinstance(error, libnpu.Unimplemented)
    assert "USERPTR" in error.message


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (errno.ENOMEM, C.NPU_ERROR_OUT_OF_DEVICE_MEMORY),
        (errno.ENOSPC, C.NPU_ERROR_OUT_OF_DEVICE_MEMORY),
        (errno.ENOBUFS, C.NPU_ERROR_OUT_OF_HOST_MEMORY),
        (errno.ETIMEDOUT, C.NPU_ERROR_DEVICE_LOST),
        (errno.EBADMSG, C.NPU_ERROR_DEVICE_LOST),
        (errno.EDEADLK, C.NPU_ERROR_BARRIER_DEADLOCK),
        (errno.ENOENT, C.NPU_ERROR_INVALID_HANDLE),
        (errno.EFAULT, C.NPU_ERROR_BAD_ADDRESS),
        (errno.EXDEV, C.NPU_ERROR_INTERNAL),
    ],
)
def test_an_errno_becomes_a_result_and_the_log_says_why(code, result):
    error = errno_error(code, "CALL", [f"[0.1] npu: NPU_CALL: {errno.errorcode[code]}: the reason"])
    assert (error.result, error.errno) == (result, code)
    assert error.message == f"CALL: the reason ({errno.errorcode[code]})"


def test_host_memory_that_runs_out_is_not_the_device_s(device, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    assert device.primary.is_alive  # made, with what it needs for itself
    monkeypatch.setattr(device.node.machine.syscall.__self__.device.dram, "alloc", refuse)
    with pytest.raises(libnpu.NpuError, match="no 1048576 bytes of host memory") as caught:
        device.alloc(1 << 20)
    assert caught.value.result == C.NPU_ERROR_OUT_OF_HOST_MEMORY
