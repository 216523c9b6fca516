"""What the device can reach: mapped, writable memory of its own context, and nothing else.

Every access is an engine's.
"""

from __future__ import annotations

import pytest
from npu_abi import C

PATTERN = 0x11223344


def fill(process, command, va, size=64, handles=()):
    """Let the device fill memory: struct npu_bo_wait of the job."""
    made = command("npu_cmd_fill", C.NPU_CMD_MEMORY_FILL, start_va=va, size=size, pattern=PATTERN)
    handle, queue = process.commands(made), process.queue()
    assert process.submit(queue, handle, *handles) == 0
    ret, done = process.wait(handle)
    assert ret == 0
    return done


def test_a_fill_writes_mapped_memory(process, command):
    handle, va = process.bo()
    assert fill(process, command, va + 64, 8).job_status == C.NPU_JOB_SUCCESS
    assert bytes(process.map(handle)[60:76]).hex() == "ffffffff" + "44332211" * 2 + "ffffffff"


def test_a_write_to_a_read_only_object_is_a_violation(process, kernel, command):
    handle, va = process.bo(4096, C.NPU_BO_READ_ONLY | C.NPU_BO_MAPPABLE)
    done = fill(process, command, va)
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_CTX_VIOLATION, va)
    assert any("NPU_MMU_EVT_PERMISSION" in line for line in kernel.log)
    assert bytes(process.map(handle)[:64]) == b"\xff" * 64


def test_an_overrun_ends_at_the_guard_page(process, command):
    _, va = process.bo(4096)
    neighbour, neighbour_va = process.bo(4096)
    assert neighbour_va == va + 8192
    assert fill(process, command, va, 8192 + 64).job_status == C.NPU_JOB_CTX_VIOLATION
    assert bytes(process.map(neighbour)[:64]) == b"\xff" * 64


def test_a_freed_object_is_out_of_reach_even_when_its_translation_was_cached(process, command):
    handle, va = process.bo()
    commands = process.commands(command("npu_cmd_fill", C.NPU_CMD_MEMORY_FILL, start_va=va, size=64))
    queue = process.queue()
    for expected in (C.NPU_JOB_SUCCESS, C.NPU_JOB_CTX_VIOLATION):
        assert process.submit(queue, commands) == 0
        assert process.wait(commands)[1].job_status == expected
        process.call(C.NPU_IOCTL_BO_FREE, "npu_bo_free", handle=handle)


def test_the_same_address_is_other_memory_in_another_context(process, another, command):
    other = another()
    (mine, va), (theirs, their_va) = process.bo(), other.bo()
    assert va == their_va
    assert fill(process, command, va).job_status == C.NPU_JOB_SUCCESS
    assert bytes(process.map(mine)[:4]).hex() == "44332211"
    assert bytes(other.map(theirs)[:4]) == b"\xff" * 4


@pytest.mark.parametrize("va", [0, 0x80000000, 0x8000_0000_0000 - 4096, 0x1_0000_0000 - 64])
def test_nothing_is_mapped_elsewhere(process, command, va):
    assert fill(process, command, va).job_status in (C.NPU_JOB_CTX_VIOLATION, C.NPU_JOB_PARSING_ERR)


def test_job_rings_and_messages_are_out_of_reach(process, kernel, command):
    ring = kernel.create_queue(kernel.contexts[2], 99, 0)
    assert fill(process, command, ring.va).job_status == C.NPU_JOB_CTX_VIOLATION
