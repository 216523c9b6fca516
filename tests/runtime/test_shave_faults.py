"""A SHAVE program that stops: the error says why, where and in which task, and everything works afterwards."""

from __future__ import annotations

import npu_abi
import numpy as np
import pytest
from npu_abi import C
from npu_model.shave_isa import assemble

import libnpu
from libnpu.blob import Relocation, write

NONE = 0xFFFFFFFF


@pytest.fixture
def blob_of(image):
    """Makes the bytes of a blob that runs a program beside its copies; its task is the third."""

    def make(text):
        one = image()
        code = assemble(text)
        ranges = np.zeros(1, npu_abi.dtype("npu_shave_range"))
        ranges["code_bytes"] = len(code)
        invocations = np.zeros(1, npu_abi.dtype("npu_shave_invocation"))
        invocations["sched_start_after"] = NONE
        invocations["task_id"] = 2
        one.tasks.update({".npu.tasks.shave_range": ranges, ".npu.tasks.shave_invocation": invocations})
        one.text = code
        one.relocations.append(Relocation(".npu.tasks.shave_range", 0, ".text.shave", 0))
        one.debug["tasks"].append({"name": "program", "op": "vector"})
        return write(one)

    return make


VALUES = np.arange(1024).astype(np.uint8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nop\ntrap 5\nhalt", "NPU_SHAVE_FAULT_TRAP at pc 0x10, task 'program'"),
        ("top:\njmp top", "NPU_SHAVE_FAULT_WATCHDOG at pc 0x0"),
        ("vneg.f32 v0, v1\nhalt", "NPU_SHAVE_FAULT_UNDEFINED_REGISTER at pc 0x0"),
        ("li r2, 771751936\ndmastart r2, 0, 0\nhalt", "NPU_SHAVE_FAULT_BAD_DESCRIPTOR at pc 0x10"),
    ],
)
def test_a_fault_of_a_program_is_named(device, blob_of, blob_bytes, text, message, monkeypatch):
    monkeypatch.setattr("npu_model.shave_machine.MAX_WORK", 1 << 20)
    blob = device.load(blob_of(text))
    with pytest.raises(libnpu.NpuError, match=f"NPU_JOB_SHAVE_FAULT, {message}") as caught:
        blob.run({"x": VALUES})
    assert caught.value.result == C.NPU_ERROR_KERNEL_FAULT
    assert device.load(blob_bytes()).run({"x": VALUES})["y"].tolist() == VALUES.tolist()


def test_what_needs_values_is_not_supported_without_them(blob_of):
    with libnpu.open("npu-37xx", compute=False) as device:
        blob = device.load(blob_of("li r2, 771751936\nld.i32 r3, r2, 0\nhalt"))
        with pytest.raises(libnpu.NpuError, match="NPU_SHAVE_FAULT_NEEDS_VALUES at pc 0x10") as caught:
            blob.run({"x": VALUES})
    assert caught.value.result == C.NPU_ERROR_NOT_SUPPORTED
