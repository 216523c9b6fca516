"""A management core that stops, and resources of the firmware that run out."""

from __future__ import annotations

import errno

import npu_abi
import pytest
from npu_abi import C

HALF_A_SECOND_PS = 500 * 10**9


def test_registration_that_the_firmware_does_not_answer_is_etimedout(process, kernel, nop):
    handle, queue = process.commands(nop), process.queue()
    kernel.device.core.reset()
    before = process.now_ps
    assert process.submit(queue, handle) == -errno.ETIMEDOUT
    assert process.now_ps >= before + HALF_A_SECOND_PS
    assert not kernel.doorbells


def test_a_firmware_that_stopped_is_noticed_by_a_wait_and_started_again(process, kernel, nop):
    handle, queue = process.commands(nop), process.queue()
    assert process.submit(queue, handle) == 0
    assert process.wait(handle)[1].job_status == C.NPU_JOB_SUCCESS
    kernel.device.core.reset()
    assert process.submit(queue, handle) == 0
    ret, done = process.wait(handle)
    assert (ret, done.job_status) == (0, C.NPU_JOB_ABORTED)
    assert process.submit(queue, handle) == 0
    assert process.wait(handle)[1].job_status == C.NPU_JOB_SUCCESS


def test_close_ends_although_the_firmware_stopped(process, kernel, another, nop):
    handle, queue = process.commands(nop), process.queue()
    assert process.submit(queue, handle) == 0
    kernel.device.core.reset()
    assert process.call(C.NPU_SYS_CLOSE)[0] == 0
    assert not kernel.contexts


def test_a_timed_wait_on_a_firmware_that_stopped_ends(process, kernel, nop):
    handle, queue = process.commands(nop), process.queue()
    assert process.submit(queue, handle) == 0
    assert process.wait(handle)[1].job_status == C.NPU_JOB_SUCCESS
    kernel.device.core.reset()
    assert process.submit(queue, handle) == 0
    assert process.wait(handle, 0)[0] == -errno.ETIMEDOUT  # a poll asks nobody
    ret, done = process.wait(handle, process.now_ps + 10**9)
    assert (ret, done.job_status) == (0, C.NPU_JOB_ABORTED)


def test_a_poll_with_a_deadline_on_a_firmware_that_stopped_ends(process, kernel, nop):
    handle, queue = process.commands(nop), process.queue()
    assert process.submit(queue, handle) == 0
    assert process.wait(handle)[1].job_status == C.NPU_JOB_SUCCESS
    kernel.device.core.reset()
    assert process.submit(queue, handle) == 0
    for _ in range(2):
        ret, arg, _ = process.call(C.NPU_SYS_POLL, "npu_poll", deadline_ps=process.now_ps + 10**9)
    assert (ret, arg.ready_jobs) == (1, 1)


def test_the_256th_doorbell_is_ebusy_and_changes_nothing(process, kernel, another, nop):
    handle = process.commands(nop)
    for _ in range(254):
        assert process.submit(process.queue(), handle) == 0
        assert process.wait(handle)[1].job_status == C.NPU_JOB_SUCCESS
    assert process.call(C.NPU_IOCTL_CMDQ_CREATE, "npu_cmdq_create")[0] == -errno.EBUSY
    other = another()
    fine, late = other.commands(nop), other.commands(nop)
    assert other.submit(other.queue(), fine) == 0
    free = kernel.memory.free_bytes
    segment = late.to_bytes(4, "little")
    assert other.call(C.NPU_IOCTL_SUBMIT, "npu_submit", [segment], buffers_ptr=1, buffer_count=1)[0] == -errno.EBUSY
    assert kernel.memory.free_bytes == free
    assert len(kernel.doorbells) == 255


def test_messages_that_are_not_in_a_slot_are_dropped(process, kernel, nop):
    kernel.device.fabric.interrupts.push_host(0xDEADBEEF)
    assert "0xdeadbeef is not a slot" in kernel.ipc.dropped[-1]
    handle, queue = process.commands(nop), process.queue()
    assert process.submit(queue, handle) == 0
    assert process.wait(handle)[1].job_status == C.NPU_JOB_SUCCESS


def test_a_message_that_claims_to_be_huge_is_cut(process, kernel, nop):
    slot = npu_abi.view("npu_ipc_slot", kernel.ipc._rx.memory, 9 * 192)
    slot.hdr.data_size, slot.hdr.status = 0xFFFFFFFF, C.NPU_IPC_ALLOCATED
    slot.msg.type = C.NPU_JSM_JOB_DONE
    kernel.device.fabric.interrupts.push_host(kernel.ipc._rx.va + 9 * 192)
    assert "which is not in flight" in kernel.log[-1]
    assert slot.hdr.status == C.NPU_IPC_FREE


def taken(kernel):
    """Slots of messages to the driver, and to the firmware, that are not FREE."""
    return [
        sum(area.memory[at] != 0 for at in range(6, area.count * 192, 192)) for area in (kernel.ipc._rx, kernel.ipc._tx)
    ]


def lose(process, point="JOB_DONE", kind="MESSAGE_LOST", count=1):
    """Let the next messages at a point get lost."""
    given = {"point": getattr(C, f"NPU_POINT_{point}"), "kind": getattr(C, f"NPU_FAULT_{kind}"), "count": count}
    assert process.call(C.NPU_IOCTL_EMU_INJECT, "npu_emu_inject", action=C.NPU_INJECT_ARM, **given)[0] == 0


def run_idle(process):
    """Run the device until it is idle."""
    assert process.call(C.NPU_IOCTL_EMU_RUN, "npu_emu_run", until_ps=(1 << 64) - 1)[0] == 0


@pytest.mark.parametrize("kind", ["MESSAGE_LOST", "MESSAGE_TWICE", "MESSAGE_GARBAGE"])
def test_slots_of_messages_that_got_lost_are_free_when_the_queue_is_aborted(process, kernel, another, nop, kind):
    handle = process.commands(nop)
    for _ in range(100):  # more than there are slots
        lose(process, kind=kind)
        queue = process.queue()
        assert process.submit(queue, handle) == 0
        run_idle(process)
        gone = process.call(C.NPU_IOCTL_CMDQ_DESTROY, "npu_cmdq_destroy", cmdq_id=queue, flags=C.NPU_CMDQ_ABORT)
        assert gone[0] == 0
        assert taken(kernel) == [0, 0]
    assert kernel.recovery.full_resets == 0
    other = another()
    fine = other.commands(nop)
    assert other.submit(other.queue(), fine) == 0
    assert other.wait(fine)[1].job_status == C.NPU_JOB_SUCCESS


def test_slots_of_messages_that_got_lost_are_free_when_the_file_is_closed(process, kernel, another, nop):
    other = another()
    queue = other.queue()
    lose(process, count=5)
    handles = [other.commands(nop) for _ in range(5)]
    assert [other.submit(queue, handle) for handle in handles] == [0] * 5
    run_idle(process)
    assert taken(kernel)[0] == 5
    assert other.call(C.NPU_SYS_CLOSE)[0] == 0
    assert taken(kernel) == [0, 0]


def test_the_next_message_frees_the_slots_of_those_before_it(process, kernel, nop):
    first, second = process.queue(), process.queue()
    lost, fine = process.commands(nop), process.commands(nop)
    lose(process)
    assert process.submit(first, lost) == 0
    run_idle(process)
    assert taken(kernel) == [1, 0]
    assert process.submit(second, fine) == 0  # its doorbell is registered
    assert taken(kernel) == [0, 0]
    assert "was not announced" in kernel.ipc.dropped[-1]
    assert process.wait(fine)[1].job_status == C.NPU_JOB_SUCCESS
    done = process.wait(lost)[1]
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_ABORTED, C.NPU_ABORT_NOT_REPORTED)
