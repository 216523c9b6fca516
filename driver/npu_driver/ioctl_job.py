"""Handlers: command queues, submit and wait.

Order of the checks of a submit: engine, priority, count, flags, alignment, lost context, copied handles (EFAULT comes
before the handler), each buffer object, offset, queue, room. Nothing has changed when one of them fails.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from npu_abi import C

from npu_driver import clock
from npu_driver.error import KernelError
from npu_driver.job import Job
from npu_driver.queue import FIRST_QUEUE_ID, LEGACY_QUEUE, priority_band
from npu_driver.watchdog import NEVER_PS

if TYPE_CHECKING:
    from npu_driver.bo import BufferObject
    from npu_driver.file import Context
    from npu_driver.kernel import Completion, Kernel
    from npu_driver.queue import CommandQueue

MAX_QUEUE_ID = 255
COMMAND_ALIGNMENT = 64
NO_BUFFER = 0, 0


def cmdq_create(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Make a queue. EINVAL for priority or flags, ENOMEM, EBUSY when the context has 254."""
    if arg.cmdq_id:
        raise KernelError(errno.EINVAL, "cmdq_id is an output and must be zero")
    if arg.flags & ~C.NPU_CMDQ_STOP_ON_FAILURE:
        raise KernelError(errno.EINVAL, f"unknown queue flags {arg.flags:#x}")
    _check_priority(arg.priority)
    context.check_usable()
    cmdq_id = next((i for i in range(FIRST_QUEUE_ID, MAX_QUEUE_ID + 1) if i not in context.queues), None)
    if cmdq_id is None:
        raise KernelError(errno.EBUSY, f"context {context.ssid} has all {MAX_QUEUE_ID - 1} queues")
    stop = arg.flags & C.NPU_CMDQ_STOP_ON_FAILURE
    kernel.create_queue(context, cmdq_id, arg.priority, C.NPU_JOBQ_STOP_ON_FAILURE if stop else 0)
    arg.cmdq_id = cmdq_id
    return 0, []


def cmdq_destroy(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """End a queue; NPU_CMDQ_ABORT aborts its jobs. ENOENT for an unknown id or the queue of NPU_IOCTL_SUBMIT, EINVAL
    for flags, EBUSY with jobs in flight.
    """
    queue = _own_queue(context, arg.cmdq_id)
    if arg.flags & ~C.NPU_CMDQ_ABORT:
        raise KernelError(errno.EINVAL, f"unknown flags {arg.flags:#x}")
    if queue.jobs:
        if not arg.flags & C.NPU_CMDQ_ABORT:
            raise KernelError(errno.EBUSY, f"queue {arg.cmdq_id} has {len(queue.jobs)} jobs in flight")
        kernel.abort_queue(context, queue)
    kernel.destroy_queue(context, queue)
    return 0, []


def cmdq_ring(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Ring the doorbell of a queue, if it has one already. ENOENT for an unknown id."""
    queue = _own_queue(context, arg.cmdq_id)
    context.check_usable()
    if queue.registered:
        if kernel.caches.active:
            kernel.caches.before_doorbell(context.owner)
        queue.ring(kernel.registers)
    return 0, []


def _own_queue(context: Context, cmdq_id: int) -> CommandQueue:
    """Return a queue of CMDQ_CREATE. ENOENT for an unknown id or the queue of NPU_IOCTL_SUBMIT."""
    queue = context.queues.get(cmdq_id)
    if queue is None or cmdq_id >= LEGACY_QUEUE:
        raise KernelError(errno.ENOENT, f"context {context.ssid} has no queue {cmdq_id}")
    return queue


def submit(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Submit to the context's queue for the band of the priority, which exists from its first submit on. See `_submit`."""
    if arg.engine:
        raise KernelError(errno.EINVAL, f"engine {arg.engine}; there is only engine 0")
    _check_priority(arg.priority)
    buffers = _check_submit(context, arg, segments)
    number = LEGACY_QUEUE + priority_band(arg.priority)
    known = context.queues.get(number)
    queue = known or kernel.create_queue(context, number, arg.priority)
    try:
        _submit(kernel, context, queue, buffers, arg.commands_offset)
    except KernelError:
        if known is None:
            kernel.destroy_queue(context, queue)
        raise
    return 0, []


def cmdq_submit(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Submit to a queue of CMDQ_CREATE. EINVAL for an unknown queue, and when an output is not zero; see `_submit`."""
    if arg.job_id:
        raise KernelError(errno.EINVAL, "job_id is an output and must be zero")
    buffers = _check_submit(context, arg, segments)
    queue = context.queues.get(arg.cmdq_id)
    if queue is None or arg.cmdq_id >= LEGACY_QUEUE:
        raise KernelError(errno.EINVAL, f"context {context.ssid} has no queue {arg.cmdq_id}")
    index = arg.preempt_buffer_index
    preempt = _preempt_buffer(kernel, buffers, index) if index else NO_BUFFER
    arg.job_id = _submit(kernel, context, queue, buffers, arg.commands_offset, preempt).job_id
    return 0, []


def _preempt_buffer(kernel: Kernel, buffers: list[BufferObject], index: int) -> tuple[int, int]:
    """Return address and bytes of the preemption buffer at an index of the list. EINVAL for an index or object that cannot be one."""
    if index >= len(buffers):
        raise KernelError(errno.EINVAL, f"preempt_buffer_index {index}; the list has {len(buffers)} buffers")
    bo = buffers[index]
    if bo.preempt is None:
        _check_preempt_buffer(kernel, bo)
        bo.preempt = bo.va, min(bo.size, 0xFFFFFFFF)
    return bo.preempt


def _check_preempt_buffer(kernel: Kernel, bo: BufferObject) -> None:
    if bo.flags & (C.NPU_BO_MAPPABLE | C.NPU_BO_READ_ONLY | C.NPU_BO_READONLY_WEIGHT):
        raise KernelError(errno.EINVAL, f"object {bo.handle} is MAPPABLE or READ_ONLY: no preemption buffer")
    needed = preempt_bytes(kernel)
    if bo.size < needed:
        raise KernelError(
            errno.EINVAL,
            f"preemption buffer {bo.handle} has {bo.size} bytes; NPU_PARAM_PREEMPT_BUFFER_SIZE is {needed}",
        )


def preempt_bytes(kernel: Kernel) -> int:
    """Return the bytes of a preemption buffer: what the firmware wants and the CMX of all tiles; 0 when it preempts nothing."""
    state = int(kernel.firmware_header.preemption_buffer_size)
    return state + kernel.tile_config.bit_count() * kernel.profile.cmx.workspace_bytes if state else 0


def _check_priority(priority: int) -> None:
    if priority > C.NPU_JOB_PRIORITY_REALTIME:
        raise KernelError(errno.EINVAL, f"priority {priority} is above NPU_JOB_PRIORITY_REALTIME")


def _check_submit(context: Context, arg: Any, segments: list[bytes]) -> list[Any]:
    if not 0 < arg.buffer_count <= C.NPU_MAX_SUBMIT_BUFFERS:
        raise KernelError(errno.EINVAL, f"{arg.buffer_count} buffers; 1 to NPU_MAX_SUBMIT_BUFFERS are allowed")
    if arg.flags:
        raise KernelError(errno.EINVAL, f"unknown submit flags {arg.flags:#x}")
    if arg.commands_offset % COMMAND_ALIGNMENT:
        raise KernelError(errno.EINVAL, f"commands_offset {arg.commands_offset} is not a multiple of 64")
    context.check_usable()
    handles = memoryview(segments[0]).cast("I")
    objects = context.objects
    try:
        buffers = [objects[handle] for handle in handles]
    except KeyError as error:
        raise KernelError(errno.ENOENT, f"context {context.ssid} has no buffer object {error}") from None
    if len(set(handles)) != len(buffers):
        raise KernelError(errno.EALREADY, "a handle is in the list twice")
    command = buffers[0]
    if command.job is not None and not command.job.finished:
        raise KernelError(
            errno.EBUSY, f"command buffer {command.handle} still has job {command.job.job_id:#x} in flight"
        )
    if arg.commands_offset >= command.size:
        raise KernelError(errno.EINVAL, f"commands_offset {arg.commands_offset} is outside of {command.size} bytes")
    return buffers


def _submit(
    kernel: Kernel,
    context: Context,
    queue: CommandQueue,
    buffers: list[Any],
    offset: int,
    preempt: tuple[int, int] = NO_BUFFER,
) -> Job:
    """Put a job in the ring, and return it. EBUSY when ring, job ids or doorbells are used up; errors of the registration."""
    queue.check_room()
    job_id = context.next_job_id()
    if not queue.registered:
        kernel.register(context, queue)
    job = Job(job_id, queue, buffers)
    command = buffers[0]
    command.job = job
    context.unwaited.pop(command.handle, None)
    for bo in buffers:
        bo.jobs += 1
    context.jobs[job_id] = job
    if kernel.caches.active:
        kernel.caches.before_submit(context.owner)
    queue.push(job, command.va + offset, kernel.now_ps, kernel.registers, preempt)
    if kernel.due_ps == NEVER_PS:
        kernel.watchdog.arm()
    return job


def bo_wait(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Wait for the last job of a command buffer and tell how it ended; without one it succeeds at once.

    EINVAL for an unknown handle (as the public driver), ETIMEDOUT when the deadline passes, EDEADLK when the wait has
    no deadline and nothing in the device will ever finish the job.
    """
    if arg.flags:
        raise KernelError(errno.EINVAL, f"unknown wait flags {arg.flags:#x}")
    bo = context.object(arg.handle, errno.EINVAL)
    job = bo.job
    if job is None:
        return 0, []
    deadline = clock.deadline(arg.deadline_ps)
    if not job.finished and not wait(kernel, context, job, deadline):
        kernel.now_ps = max(kernel.now_ps, deadline)
        raise KernelError(errno.ETIMEDOUT, f"job {job.job_id:#x} still runs at {kernel.now_ps} ps")
    if job.done_ps > max(deadline, kernel.now_ps):
        kernel.now_ps = max(kernel.now_ps, deadline)
        raise KernelError(errno.ETIMEDOUT, f"job {job.job_id:#x} ends at {job.done_ps} ps")
    kernel.now_ps = max(kernel.now_ps, job.done_ps)
    job.waited = True
    context.unwaited.pop(bo.handle, None)
    arg.job_status, arg.job_id = job.status, job.job_id
    arg.error_detail, arg.error_info = job.error_detail, job.error_info
    arg.start_ps, arg.end_ps = job.start_ps, job.end_ps
    return 0, []


def wait(kernel: Kernel, context: Context, until: Completion, deadline_ps: int) -> bool:
    """Run the device until `until` is finished. False when the deadline passes first.

    When nothing is left to happen, a faulted context's jobs are aborted; else the firmware is asked whether it lives
    (a reset if not, which aborts all jobs). The question wakes it, so that it also looks again at fences that the host
    wrote. A wait without deadline that gets no further then fails with EDEADLK.
    """
    asked = False
    while not kernel.run_device(until, deadline_ps):
        kernel.after_interrupts()
        if until.finished:
            return True
        next_ps = kernel.device.next_event_ps()
        if next_ps is not None and next_ps > deadline_ps:
            return False
        if context.lost is not None:
            kernel.abort_jobs(context)
            return until.finished
        if deadline_ps <= kernel.now_ps:
            return False  # a poll asks nobody
        if asked:
            if kernel.watchdog.await_hang(deadline_ps):
                continue
            if until.finished:
                break
            if deadline_ps < clock.FOR_EVER:
                return False
            why = "the device is idle and the job waits for something that nothing will signal"
            raise KernelError(errno.EDEADLK, why)
        try:
            kernel.firmware.heartbeat()
        except KernelError as error:
            kernel.note(f"heartbeat: {error}")
            kernel.after_interrupts()
            if kernel.removed:
                raise
        asked = True
    kernel.after_interrupts()
    return True
