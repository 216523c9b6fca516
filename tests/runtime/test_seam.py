"""The library speaks to the driver in bytes only, so the two may live in different processes."""

from __future__ import annotations

import numpy as np
from npu_abi import C
from npu_device import Device as Hardware
from npu_driver import Kernel
from npu_model.profile import load_profile

import libnpu
from libnpu.errors import errno_error
from libnpu.runtime import Device
from libnpu.syscalls import Node


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

    with Device(Node(over_the_wire, load_profile("npu-37xx")), compute=True) as device:
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
