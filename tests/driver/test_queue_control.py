"""Queues beyond submit: stop on failure, abort, the doorbell; and stepping the device from interrupt to interrupt."""

from __future__ import annotations

import errno

import npu_abi
import pytest
from npu_abi import C

NEVER = (1 << 64) - 1


@pytest.fixture
def fence(process, command):
    """A cell and makers of command buffers that wait for it and signal it: (memory, wait, signal)."""
    handle, va = process.bo()
    memory = process.map(handle)
    memory[:8] = bytes(8)

    def wait(value):
        waiting = command("npu_cmd_fence", C.NPU_CMD_FENCE_WAIT, offset=0, value=value)
        return process.commands(waiting, fence_heap_va=va), handle

    return memory, wait


def ring(process, queue):
    return process.call(C.NPU_IOCTL_CMDQ_RING, "npu_cmdq_ring", cmdq_id=queue)[0]


def run(process, until_ps=NEVER):
    ret, arg, _ = process.call(C.NPU_IOCTL_EMU_RUN, "npu_emu_run", until_ps=until_ps)
    assert ret == 0
    return arg


def job(process, handle):
    ret, arg, _ = process.call(C.NPU_IOCTL_EMU_JOB, "npu_emu_job", handle=handle)
    assert ret == 0
    return arg


def test_a_fence_that_the_host_wrote_counts_after_the_doorbell_rang(process, fence):
    memory, wait = fence
    queue = process.queue()
    command, cell = wait(1)
    assert process.submit(queue, command, cell) == 0
    assert run(process).next_ps == NEVER
    assert job(process, command).finished == 0
    memory[:8] = (1).to_bytes(8, "little")
    run(process)
    assert job(process, command).finished == 0
    assert ring(process, queue) == 0
    assert process.wait(command)[1].job_status == C.NPU_JOB_SUCCESS


def test_ringing_a_queue_without_a_doorbell_does_nothing_and_an_unknown_one_is_enoent(process):
    assert ring(process, process.queue()) == 0
    assert ring(process, 99) == -errno.ENOENT


def test_abort_takes_the_jobs_of_the_queue_off_the_device_and_of_no_other(process, fence, nop):
    memory, wait = fence
    queue, other = process.queue(), process.queue()
    first, cell = wait(1)
    second = process.commands(nop)
    third, _ = wait(2)
    assert process.submit(queue, first, cell) == process.submit(queue, second) == 0
    assert process.submit(other, third, cell) == 0
    destroy = {"number": C.NPU_IOCTL_CMDQ_DESTROY, "struct": "npu_cmdq_destroy", "cmdq_id": queue}
    assert process.call(**destroy)[0] == -errno.EBUSY
    assert process.call(**destroy, flags=2)[0] == -errno.EINVAL
    assert process.call(**destroy, flags=C.NPU_CMDQ_ABORT)[0] == 0
    assert [process.wait(handle)[1].job_status for handle in (first, second)] == [C.NPU_JOB_ABORTED] * 2
    memory[:8] = (2).to_bytes(8, "little")
    assert ring(process, other) == 0
    assert process.wait(third)[1].job_status == C.NPU_JOB_SUCCESS


def test_the_ring_of_a_queue_tells_the_firmware_to_stop_on_failure(process, kernel, nop):
    ret, arg, _ = process.call(C.NPU_IOCTL_CMDQ_CREATE, "npu_cmdq_create", flags=C.NPU_CMDQ_STOP_ON_FAILURE)
    assert ret == 0
    queue = kernel.contexts[2].queues[arg.cmdq_id]
    header = npu_abi.view("npu_job_queue_header", kernel.memory.view(queue.pa, 64))
    assert header.flags == C.NPU_JOBQ_STOP_ON_FAILURE
    queue.reset()
    assert header.flags == C.NPU_JOBQ_STOP_ON_FAILURE
    assert process.call(C.NPU_IOCTL_CMDQ_CREATE, "npu_cmdq_create", flags=2)[0] == -errno.EINVAL


def test_run_stops_at_the_interrupt_and_costs_nothing(process, command):
    target, va = process.bo(1 << 20)
    fill = command("npu_cmd_fill", C.NPU_CMD_MEMORY_FILL, start_va=va, size=1 << 20)
    handle, queue = process.commands(fill), process.queue()
    assert process.submit(queue, handle, target) == 0
    assert job(process, handle).finished == 0
    before, edges = process.now_ps, run(process, 0).edges
    stopped = run(process)
    assert (stopped.interrupts, stopped.edges) == (1, edges + 1)
    assert run(process, 0).edges == edges + 1
    assert process.now_ps == before
    found = job(process, handle)
    assert (found.finished, found.job_status) == (1, C.NPU_JOB_SUCCESS)
    assert found.done_ps >= stopped.now_ps
    assert run(process, 10**13).now_ps == 10**13
    assert process.wait(handle)[1].job_status == C.NPU_JOB_SUCCESS


def test_a_job_may_be_looked_at_only_by_its_handle(process):
    assert process.call(C.NPU_IOCTL_EMU_JOB, "npu_emu_job", handle=9)[0] == -errno.ENOENT
    assert process.call(C.NPU_IOCTL_EMU_JOB, "npu_emu_job", handle=1, done_ps=1)[0] == -errno.EINVAL
    assert process.call(C.NPU_IOCTL_EMU_RUN, "npu_emu_run", now_ps=1)[0] == -errno.EINVAL
    assert process.call(C.NPU_IOCTL_EMU_RUN, "npu_emu_run", edges=1)[0] == -errno.EINVAL
    handle, _ = process.bo()
    assert job(process, handle).finished == 1
