"""What SHAVE tasks of a blob touch, from runs without values."""

import struct

import pytest
from npu_abi import C
from npu_model.footprint import Box
from npu_model.profile import load_profile
from npu_model.shave_faults import ShaveFault
from npu_model.shave_isa import assemble

from libnpu.blob.shave_tasks import ShaveTasks

CMX = C.NPU_CMX_BASE
TURNS = """
    ldm r8, r1, 0, 2
    li r2, 1
    setvl r2, r2
    li r5, 4
    li r3, 24000
loop:
    vld.f32 v0, r8, r5, r5, 0
    mov r6, r8
    mov r8, r9
    mov r9, r6
    addi r4, r4, 1
    blt r4, r3, loop
    halt
"""


def test_accesses_that_continue_each_other_are_one_to_the_watchdog_in_the_proof_as_well(image):
    """With its pointers apart the program is too much; where they are it is not."""
    image.text = assemble(TURNS)
    image.tasks[".npu.tasks.shave_range"]["code_bytes"] = len(image.text)
    image.relocations.pop()  # of the argument block
    image.shave_args = struct.pack("<QQ", CMX, CMX + 4)
    reads, writes = ShaveTasks(image, load_profile("npu-37xx")).touched(0)
    assert (reads, writes) == ([Box(CMX, 8)], [])
    image.shave_args = struct.pack("<QQ", CMX, CMX + 64)
    with pytest.raises(ShaveFault, match="WATCHDOG"):
        ShaveTasks(image, load_profile("npu-37xx")).touched(0)
