"""The seam itself: numbers, sizes, reserved fields, descriptors, time."""

from __future__ import annotations

import errno

import npu_abi
import pytest
from npu_abi import C, ioctl_request
from npu_driver.ioctls import TABLE


def test_unknown_number_is_enotty(process):
    assert process.raw(ioctl_request(0x99, None))[0] == -errno.ENOTTY


def test_known_number_with_another_structure_size_is_einval(process):
    assert process.raw(C.NPU_IOCTL_BO_INFO | 16 << 16, bytes(16))[0] == -errno.EINVAL


def test_structure_shorter_than_the_request_says_is_einval(process):
    assert process.raw(ioctl_request(C.NPU_IOCTL_BO_INFO, "npu_bo_info"), bytes(31))[0] == -errno.EINVAL


def test_descriptor_that_is_not_open_is_ebadf(kernel, process):
    ret, *_ = kernel.syscall(99 << 32 | ioctl_request(C.NPU_SYS_CLOSE, None), b"", [], 0)
    assert ret == -errno.EBADF


@pytest.mark.parametrize("request_word", sorted(TABLE))
def test_reserved_bytes_that_are_not_zero_are_einval(process, request_word):
    row = TABLE[request_word]
    for start, _ in row.reserved:
        arg = bytearray(row.size)
        arg[start] = 1
        assert process.raw(request_word, bytes(arg))[0] == -errno.EINVAL


@pytest.mark.parametrize("request_word", sorted(TABLE))
def test_every_call_with_a_structure_of_ones_answers_an_errno(process, request_word):
    row = TABLE[request_word]
    if row.struct is not None:
        ret, _, _ = process.raw(request_word, b"\xff" * row.size)
        assert ret < 0


def test_a_failed_call_returns_the_structure_unchanged(process):
    arg = npu_abi.pack(npu_abi.new("npu_bo_info", handle=77))
    assert process.raw(ioctl_request(C.NPU_IOCTL_BO_INFO, "npu_bo_info"), arg)[1] == arg


def test_handle_list_that_is_not_readable_is_efault(process, nop):
    handle, queue = process.commands(nop), process.queue()
    fields = {"buffers_ptr": 0, "buffer_count": 2, "cmdq_id": queue}
    assert process.call(C.NPU_IOCTL_CMDQ_SUBMIT, "npu_cmdq_submit", [], **fields)[0] == -errno.EFAULT
    short = handle.to_bytes(4, "little")
    assert process.call(C.NPU_IOCTL_CMDQ_SUBMIT, "npu_cmdq_submit", [short], **fields)[0] == -errno.EFAULT


@pytest.mark.parametrize(
    "request_word",
    sorted(
        word for word, row in TABLE.items() if row.pointers and row.struct != "npu_bo_userptr"
    ),  # there it is EINVAL
)
def test_a_null_pointer_with_bytes_behind_it_is_efault(process, request_word):
    row = TABLE[request_word]
    length = {"npu_emu_counters": "count", "npu_submit": "buffer_count", "npu_cmdq_submit": "buffer_count"}
    length["npu_module"] = "params_bytes"
    arg = npu_abi.new(row.struct, **{length.get(row.struct, "buffer_bytes"): 1})
    assert process.raw(request_word, npu_abi.pack(arg), [bytes(4)])[0] == -errno.EFAULT


def test_every_call_costs_the_host_time(process):
    before = process.now_ps
    process.param(C.NPU_PARAM_DEVICE_ID)
    assert process.now_ps == before + 1000  # profile unit: ioctl_ns 1, mmio_ns 0


def test_the_device_never_lags_behind_the_caller(kernel, process):
    process.call(C.NPU_IOCTL_EMU_ADVANCE, "npu_emu_advance", until_ps=process.now_ps + 5_000_000)
    assert kernel.device.now_ps == process.now_ps


def test_advance_into_the_past_is_einval(process):
    assert process.call(C.NPU_IOCTL_EMU_ADVANCE, "npu_emu_advance", until_ps=0)[0] == -errno.EINVAL


def test_refusals_are_in_the_kernel_log(kernel, process):
    process.call(C.NPU_IOCTL_BO_INFO, "npu_bo_info", handle=77)
    assert "NPU_IOCTL_BO_INFO: ENOENT: context 2 has no buffer object 77" in kernel.log[-1]
