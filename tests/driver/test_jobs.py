"""Queues, submit, wait, poll: each use, each misuse, and what a job leaves behind."""

from __future__ import annotations

import errno
import struct

import pytest
from npu_abi import C
from npu_device import Device
from npu_driver import Kernel

FOR_EVER = (1 << 63) - 1


def test_an_empty_job_succeeds(process, nop):
    handle, queue = process.commands(nop), process.queue()
    assert process.submit(queue, handle) == 0
    ret, done = process.wait(handle)
    assert (ret, done.job_status, done.job_id) == (0, C.NPU_JOB_SUCCESS, 2 << 8 | 1)
    assert done.start_ps <= done.end_ps <= process.now_ps


def test_submit_has_a_queue_for_each_band(process, kernel, nop):
    """DEFAULT and NORMAL share the one of band 1; none of them is a queue of CMDQ_SUBMIT."""
    for priority in (0, 2, 1, 3, 4):
        handle = process.commands(nop)
        segment = handle.to_bytes(4, "little")
        arg = {"buffers_ptr": 1, "buffer_count": 1, "priority": priority}
        assert process.call(C.NPU_IOCTL_SUBMIT, "npu_submit", [segment], **arg)[0] == 0
        assert process.wait(handle)[1].job_status == C.NPU_JOB_SUCCESS
    assert list(kernel.contexts[2].queues) == [257, 256, 258, 259]
    arg = {"buffers_ptr": 1, "buffer_count": 1, "cmdq_id": 257}
    assert process.call(C.NPU_IOCTL_CMDQ_SUBMIT, "npu_cmdq_submit", [segment], **arg)[0] == -errno.EINVAL


@pytest.mark.parametrize(
    "fields", [{"engine": 1}, {"priority": 5}, {"flags": 1}, {"commands_offset": 8}, {"buffer_count": 0}]
)
def test_bad_legacy_submits_are_einval(process, nop, fields):
    segment = process.commands(nop).to_bytes(4, "little")
    given = {"buffers_ptr": 1, "buffer_count": 1} | fields
    assert process.call(C.NPU_IOCTL_SUBMIT, "npu_submit", [segment], **given)[0] == -errno.EINVAL


def test_queue_ids_begin_at_2(process):
    assert [process.queue(), process.queue()] == [2, 3]


def test_queue_with_unknown_priority_is_einval(process):
    assert process.call(C.NPU_IOCTL_CMDQ_CREATE, "npu_cmdq_create", priority=5)[0] == -errno.EINVAL


def test_submit_to_destroyed_queue_is_einval(process, nop):
    handle, queue = process.commands(nop), process.queue()
    assert process.call(C.NPU_IOCTL_CMDQ_DESTROY, "npu_cmdq_destroy", cmdq_id=queue)[0] == 0
    assert process.submit(queue, handle) == -errno.EINVAL


@pytest.mark.parametrize("cmdq_id", [0, 1, 2, 256])
def test_destroying_a_queue_that_does_not_exist_is_enoent(process, cmdq_id):
    assert process.call(C.NPU_IOCTL_CMDQ_DESTROY, "npu_cmdq_destroy", cmdq_id=cmdq_id)[0] == -errno.ENOENT


def test_unknown_handle_is_enoent(process, nop):
    handle, queue = process.commands(nop), process.queue()
    assert process.submit(queue, handle, 99) == -errno.ENOENT


def test_the_same_handle_twice_is_ealready(process, nop):
    handle, queue = process.commands(nop), process.queue()
    assert process.submit(queue, handle, handle) == -errno.EALREADY


@pytest.mark.parametrize(("offset", "code"), [(8, errno.EINVAL), (4096, errno.EINVAL), (1 << 31, errno.EINVAL)])
def test_bad_command_offsets_are_einval(process, nop, offset, code):
    handle, queue = process.commands(nop), process.queue()
    assert process.submit(queue, handle, offset=offset) == -code


def test_too_many_buffers_are_einval(process):
    queue = process.queue()
    fields = {"buffers_ptr": 1, "buffer_count": 4097, "cmdq_id": queue}
    assert process.call(C.NPU_IOCTL_CMDQ_SUBMIT, "npu_cmdq_submit", [bytes(4 * 4097)], **fields)[0] == -errno.EINVAL


def test_a_command_buffer_in_flight_is_ebusy(process, command):
    handle, queue, *_ = blocked(process, command)
    assert process.submit(queue, handle) == -errno.EBUSY
    assert process.submit(process.queue(), handle) == -errno.EBUSY


def test_a_full_ring_is_ebusy_and_accepts_again_after_a_wait(process, command):
    fence, fence_va = process.bo()
    process.map(fence)[:8] = bytes(8)
    queue = process.queue()
    wait = command("npu_cmd_fence", C.NPU_CMD_FENCE_WAIT, offset=0, value=1)
    first = process.commands(wait, fence_heap_va=fence_va)
    assert process.submit(queue, first, fence) == 0
    handles = [process.commands(wait, fence_heap_va=fence_va) for _ in range(64)]
    answers = [process.submit(queue, handle, fence) for handle in handles]
    assert -errno.EBUSY in answers
    full = answers.index(-errno.EBUSY)
    assert full >= 61  # 62 slots; the firmware may have read the first one
    assert set(answers[full:]) == {-errno.EBUSY}


def test_wait_on_an_unknown_handle_is_einval(process):
    assert process.wait(99)[0] == -errno.EINVAL


def test_wait_on_an_object_without_a_job_succeeds_at_once(process):
    handle, _ = process.bo()
    assert process.wait(handle)[0] == 0


def test_a_deadline_that_passes_is_etimedout_at_the_deadline(process, command):
    handle, _queue, _, _ = blocked(process, command)
    deadline = process.now_ps + 50_000_000
    assert process.wait(handle, deadline)[0] == -errno.ETIMEDOUT
    assert deadline <= process.now_ps <= deadline + 1000  # the call itself costs 1 ns


def test_a_deadline_in_the_past_polls(process, command):
    handle, *_ = blocked(process, command)
    before = process.now_ps
    assert process.wait(handle, 0)[0] == -errno.ETIMEDOUT
    assert process.now_ps == before + 1000


def test_polls_of_a_blocked_job_do_not_disturb_the_firmware(process_type, command):
    kernel = Kernel(Device("npu-37xx"))
    process = process_type(kernel)
    handle, *_ = blocked(process, command)
    process.call(C.NPU_IOCTL_EMU_ADVANCE, "npu_emu_advance", until_ps=process.now_ps + 10**9)
    busy = kernel.device.counters()[C.NPU_PMU_CORE_BUSY]
    for _ in range(3):
        assert process.wait(handle, 0)[0] == -errno.ETIMEDOUT
    assert kernel.device.counters()[C.NPU_PMU_CORE_BUSY] == busy


def test_a_wait_for_ever_on_what_nothing_signals_is_edeadlk(process, command):
    handle, *_ = blocked(process, command)
    assert process.wait(handle)[0] == -errno.EDEADLK


def test_after_edeadlk_another_job_signals_and_both_succeed(process, command):
    handle, _, fence, fence_va = blocked(process, command)
    assert process.wait(handle)[0] == -errno.EDEADLK
    signal = command("npu_cmd_fence", C.NPU_CMD_FENCE_SIGNAL, offset=0, value=1)
    other, second = process.commands(signal, fence_heap_va=fence_va), process.queue()
    assert process.submit(second, other, fence) == 0
    assert process.wait(other)[1].job_status == C.NPU_JOB_SUCCESS
    assert process.wait(handle)[1].job_status == C.NPU_JOB_SUCCESS


def test_a_wait_sees_a_fence_that_the_host_wrote(process, command):
    handle, _, fence, _ = blocked(process, command)
    assert process.wait(handle, process.now_ps + 10**9)[0] == -errno.ETIMEDOUT
    process.map(fence)[:8] = (1).to_bytes(8, "little")
    ret, done = process.wait(handle, process.now_ps + 10**9)
    assert (ret, done.job_status) == (0, C.NPU_JOB_SUCCESS)


def test_fences_in_a_row_that_the_host_wrote_end_in_one_wait(process, command):
    fence, fence_va = process.bo()
    process.map(fence)[:16] = bytes(16)
    waits = [command("npu_cmd_fence", C.NPU_CMD_FENCE_WAIT, offset=8 * i, value=1) for i in range(2)]
    handle, queue = process.commands(*waits, fence_heap_va=fence_va), process.queue()
    assert process.submit(queue, handle, fence) == 0
    assert process.wait(handle)[0] == -errno.EDEADLK
    process.map(fence)[:16] = (1).to_bytes(8, "little") * 2
    assert process.wait(handle)[1].job_status == C.NPU_JOB_SUCCESS


def blocked(process, command):
    """Submit a job that waits for a fence: (handle, queue, fence handle, fence address)."""
    fence, fence_va = process.bo()
    process.map(fence)[:8] = bytes(8)
    wait = command("npu_cmd_fence", C.NPU_CMD_FENCE_WAIT, offset=0, value=1)
    handle, queue = process.commands(wait, fence_heap_va=fence_va), process.queue()
    assert process.submit(queue, handle, fence) == 0
    return handle, queue, fence, fence_va


def test_a_signal_is_seen_in_memory_after_the_wait(process, command):
    fence, fence_va = process.bo()
    memory = process.map(fence)
    memory[:16] = bytes(16)
    signal = command("npu_cmd_fence", C.NPU_CMD_FENCE_SIGNAL, offset=8, value=77)
    handle, queue = process.commands(signal, fence_heap_va=fence_va), process.queue()
    process.submit(queue, handle, fence)
    assert process.wait(handle)[1].job_status == C.NPU_JOB_SUCCESS
    assert struct.unpack("<2Q", memory[:16]) == (0, 77)


def test_a_freed_object_stays_mapped_until_its_job_ends(process, kernel, command):
    _handle, _, fence, _fence_va = blocked(process, command)
    free = kernel.memory.free_bytes
    process.call(C.NPU_IOCTL_BO_FREE, "npu_bo_free", handle=fence)
    assert kernel.memory.free_bytes == free
    process.call(C.NPU_SYS_CLOSE)
    assert kernel.memory.free_bytes > free


def test_close_ends_a_job_that_never_would(process, kernel, command, another, nop):
    blocked(process, command)
    assert process.call(C.NPU_SYS_CLOSE)[0] == 0
    other = another()
    handle, queue = other.commands(nop), other.queue()
    assert other.submit(queue, handle) == 0
    assert other.wait(handle)[1].job_status == C.NPU_JOB_SUCCESS


def test_a_context_fault_ends_the_context_and_no_other(process, another, command, nop):
    neighbour = another()
    fill = command("npu_cmd_fill", C.NPU_CMD_MEMORY_FILL, start_va=0x3F_0000_0000, size=64)
    handle, queue = process.commands(fill), process.queue()
    assert process.submit(queue, handle) == 0
    ret, done = process.wait(handle)
    assert (ret, done.job_status) == (0, C.NPU_JOB_CTX_VIOLATION)
    assert done.error_detail == 0x3F_0000_0000
    assert process.submit(queue, handle) == -errno.EBADFD
    good, other_queue = neighbour.commands(nop), neighbour.queue()
    assert neighbour.submit(other_queue, good) == 0
    assert neighbour.wait(good)[1].job_status == C.NPU_JOB_SUCCESS


def test_jobs_behind_a_context_fault_are_aborted(process, command, nop):
    fence, fence_va = process.bo()
    process.map(fence)[:8] = bytes(8)
    wait = command("npu_cmd_fence", C.NPU_CMD_FENCE_WAIT, offset=0, value=1)
    fill = command("npu_cmd_fill", C.NPU_CMD_MEMORY_FILL, start_va=0x3F_0000_0000, size=64)
    signal = command("npu_cmd_fence", C.NPU_CMD_FENCE_SIGNAL, offset=0, value=1)
    bad, good = process.commands(wait, fill, fence_heap_va=fence_va), process.commands(nop)
    starter = process.commands(signal, fence_heap_va=fence_va)
    queue = process.queue()
    assert process.submit(queue, bad, fence) == 0
    assert process.submit(queue, good) == 0
    assert process.submit(process.queue(), starter, fence) == 0
    assert process.wait(bad)[1].job_status == C.NPU_JOB_CTX_VIOLATION
    assert process.wait(good)[1].job_status == C.NPU_JOB_ABORTED


def test_a_command_buffer_that_makes_no_sense_is_a_parsing_error(process):
    handle, _ = process.bo()
    process.map(handle)[:] = b"\xff" * 4096
    queue = process.queue()
    assert process.submit(queue, handle) == 0
    ret, done = process.wait(handle)
    assert (ret, done.job_status) == (0, C.NPU_JOB_PARSING_ERR)
    assert done.error_detail == C.NPU_PARSE_BAD_API_VERSION


def test_after_a_parsing_error_the_queue_still_works(process, nop):
    handle, _ = process.bo()
    queue = process.queue()
    process.submit(queue, handle)
    process.wait(handle)
    process.commands(nop, handle=handle)
    assert process.submit(queue, handle) == 0
    assert process.wait(handle)[1].job_status == C.NPU_JOB_SUCCESS


def test_poll_is_ready_when_a_job_has_finished_and_until_it_was_waited_for(process, nop):
    handle, queue = process.commands(nop), process.queue()
    process.submit(queue, handle)
    ret, arg, _ = process.call(C.NPU_SYS_POLL, "npu_poll", deadline_ps=FOR_EVER)
    assert (ret, arg.ready_jobs) == (1, 1)
    process.wait(handle)
    ret, arg, _ = process.call(C.NPU_SYS_POLL, "npu_poll", deadline_ps=0)
    assert (ret, arg.ready_jobs) == (0, 0)


def test_poll_returns_0_at_its_deadline(process, command):
    blocked(process, command)
    deadline = process.now_ps + 1_000_000
    assert process.call(C.NPU_SYS_POLL, "npu_poll", deadline_ps=deadline)[0] == 0
    assert deadline <= process.now_ps <= deadline + 1000


@pytest.mark.parametrize("deadline", [FOR_EVER - 1, 3 << 61 | 1])
def test_a_deadline_beyond_the_end_of_the_clock_never_passes(process, deadline):
    before = process.now_ps
    assert process.call(C.NPU_SYS_POLL, "npu_poll", deadline_ps=deadline)[0] == 0
    assert process.now_ps - before <= 2000


@pytest.mark.parametrize("until", [FOR_EVER, (1 << 64) - 2, 3 << 61 | 1])
def test_a_run_beyond_the_end_of_the_clock_ends_when_the_device_is_idle(kernel, process, until):
    assert process.call(C.NPU_IOCTL_EMU_RUN, "npu_emu_run", until_ps=until)[0] == 0
    assert kernel.device.now_ps <= process.now_ps


def test_recover_aborts_everything_and_the_device_works_again(process, another, command, nop):
    handle, *_ = blocked(process, command)
    other = another()
    stuck, *_ = blocked(other, command)
    assert process.call(C.NPU_IOCTL_RECOVER, "npu_recover", kind=C.NPU_RECOVER_FULL)[0] == 0
    assert process.wait(handle)[1].job_status == C.NPU_JOB_ABORTED
    assert other.wait(stuck)[1].job_status == C.NPU_JOB_ABORTED
    for p in (process, other):
        good, queue = p.commands(nop), p.queue()
        assert p.submit(queue, good) == 0
        assert p.wait(good)[1].job_status == C.NPU_JOB_SUCCESS


def test_counters_are_read_through_the_driver(process, nop):
    handle, queue = process.commands(nop), process.queue()
    process.submit(queue, handle)
    process.wait(handle)
    ret, _, replies = process.call(C.NPU_IOCTL_EMU_COUNTERS, "npu_emu_counters", buffer_ptr=1, count=C.NPU_PMU_COUNT)
    assert ret == 0
    assert struct.unpack(f"<{C.NPU_PMU_COUNT}Q", replies[0])[C.NPU_PMU_DOORBELLS] == 1


@pytest.mark.parametrize("count", [0, C.NPU_PMU_COUNT + 1])
def test_bad_counter_counts_are_einval(process, count):
    assert process.call(C.NPU_IOCTL_EMU_COUNTERS, "npu_emu_counters", buffer_ptr=1, count=count)[0] == -errno.EINVAL


def test_unknown_schedule_is_einval(process):
    assert process.call(C.NPU_IOCTL_EMU_SET_SCHEDULE, "npu_emu_schedule", kind=2)[0] == -errno.EINVAL


@pytest.mark.parametrize(
    ("index", "size", "flags"),
    [
        (2, 1 << 23, 0),  # beyond the list
        (1, 4096, 0),  # too small
        (1, 1 << 23, C.NPU_BO_MAPPABLE),
        (1, 1 << 23, C.NPU_BO_READ_ONLY),
    ],
)
def test_an_object_that_can_be_no_preemption_buffer_is_einval(process, kernel, nop, index, size, flags):
    handle, queue = process.commands(nop), process.queue()
    buffer, _ = process.bo(size, flags)
    arg = {"buffers_ptr": 1, "buffer_count": 2, "cmdq_id": queue, "preempt_buffer_index": index}
    segment = struct.pack("<II", handle, buffer)
    assert process.call(C.NPU_IOCTL_CMDQ_SUBMIT, "npu_cmdq_submit", [segment], **arg)[0] == -errno.EINVAL
    assert kernel.contexts[2].jobs == {}
