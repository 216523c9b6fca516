"""What streams have from the driver: a queue, and the jobs in it from the submit until their ends are seen."""

from __future__ import annotations

import enum
import errno
from collections import deque
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.errors import NpuError, errno_error
from libnpu.runtime.arguments import shown
from libnpu.runtime.fences import Signal
from libnpu.runtime.guard import public
from libnpu.runtime.room import queue_is_full
from libnpu.runtime.time import FOR_EVER_PS
from libnpu.syscalls import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libnpu.runtime.buffer_object import BufferObject
    from libnpu.runtime.context import Context
    from libnpu.runtime.graph import Capture
    from libnpu.runtime.job import Job

HIGHEST = int(C.NPU_PRIORITY_REALTIME)


class FailureMode(enum.Enum):
    """What becomes of later work when an operation of the stream has failed."""

    CONTINUE = enum.auto()
    STOP = enum.auto()  # no later operation of the context runs: each ends as ABORTED_BY_PRIOR_ERROR


class StreamQueue:
    """The part of `Stream` that is about the driver's queue, its jobs and their errors."""

    def __init__(self, context: Context, priority: int) -> None:
        self.context = context
        self.guard = context.guard
        self.priority = priority
        self.failure_mode = FailureMode.CONTINUE
        self.capturing: Capture | None = None
        self._node = context.node
        self._machine = context.node.machine
        self._submit = Request(C.NPU_IOCTL_CMDQ_SUBMIT, "npu_cmdq_submit", "CMDQ_SUBMIT")
        self._submit.arg.buffers_ptr = 1  # the handles travel as a segment
        self._waits: list[Request] = []  # BO_WAIT, of no wait that is under way
        self._preemption: BufferObject | None = None  # made for the first inference
        self.cmdq_id = 0  # of the driver's queue; 0: there is none, because no new one could be had in its place
        self._cell = context.fences.alloc()
        try:
            self._create_queue()
        except NpuError:
            context.fences.release(self._cell)
            raise
        self._first = self._cell.last  # its first operation has the number behind this one
        self._jobs: deque[Job] = deque()  # not yet seen to have ended, oldest first
        self._failed: deque[Job] = deque()  # errors that no call has raised yet
        self._broken_off: NpuError | None = None  # of what ended with the context: for whoever waits for it
        self._api_ps = context.api_ps
        self._aborting = False
        self._open = True
        self._closers = 0  # threads that wait in `close`

    def _create_queue(self) -> None:
        create = Request(C.NPU_IOCTL_CMDQ_CREATE, "npu_cmdq_create", "CMDQ_CREATE")
        create.arg.priority = self.priority
        if self.failure_mode is FailureMode.STOP:
            create.arg.flags = C.NPU_CMDQ_STOP_ON_FAILURE
        self._node.ioctl(create)
        self.cmdq_id = self._submit.arg.cmdq_id = create.arg.cmdq_id

    def _destroy_queue(self, flags: int = 0) -> None:
        """Give the queue back, if there is one. Without another one the next job, or the next `abort`, asks for one again."""
        if self.cmdq_id:
            destroy = Request(C.NPU_IOCTL_CMDQ_DESTROY, "npu_cmdq_destroy", "CMDQ_DESTROY")
            destroy.arg.cmdq_id, destroy.arg.flags = self.cmdq_id, flags
            self._node.ioctl(destroy)
            self.cmdq_id = 0

    @public
    def set_failure_mode(self, mode: FailureMode) -> None:
        """Choose what a failed operation means for later ones. Raises IN_USE when the stream has work in flight,
        BAD_STATE to take STOP back, INVALID_VALUE for no FailureMode.
        """
        if not isinstance(mode, FailureMode):
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"failure mode {shown(mode)}; there are CONTINUE and STOP")
        self._enter("the failure mode of a stream of it")
        self._reap()
        if self._jobs:
            why = f"{len(self._jobs)} operations of the stream have not finished"
            raise NpuError(C.NPU_ERROR_IN_USE, f"the failure mode cannot change: {why}")
        if mode is self.failure_mode:
            return
        if self.failure_mode is FailureMode.STOP:
            raise NpuError(C.NPU_ERROR_BAD_STATE, "a stream that stops on failure cannot go back")
        self._destroy_queue()
        self.failure_mode = mode
        try:
            self._create_queue()
        except NpuError:
            self.failure_mode = FailureMode.CONTINUE
            raise
        self.context.can_stop = True

    def release(self) -> None:
        """Free the queue of a stream without work."""
        self._open = False
        self._destroy_queue()
        self._give_back()

    def _give_back(self) -> None:
        """Give back what the stream has besides the queue; no job is left."""
        self.context.fences.release(self._cell)
        if self._preemption is not None:
            self._preemption.free()

    def preemption_buffer(self) -> int:
        """Return the handle of the buffer that an inference of the stream brings for its state while work of a higher band
        has its tiles. 0 for none: nothing is higher, the firmware preempts nothing, or no memory is left for it.
        """
        if self._preemption is None:
            if self.priority == HIGHEST:
                return 0
            self._preemption = self.context.create_preemption_buffer()
            if self._preemption is None:
                return 0
        return self._preemption.handle

    # ---- jobs ----

    def submit(self, job: Job, deadline_ps: int = FOR_EVER_PS) -> bool:
        """Hand a job, and what is before it in the stream, to the driver (for `Dispatcher`).

        A full queue makes it wait for the oldest job; another thread may hand the job over meanwhile, or end it. False
        when the deadline passes first.
        """
        request, jobs = self._submit, self._jobs
        arg = request.arg
        if not self.cmdq_id:
            self._create_queue()
        while not (job.submitted or job.done):
            in_order = job is jobs[-1] and (len(jobs) == 1 or jobs[-2].submitted)
            first = job if in_order else next(held for held in jobs if not held.submitted)
            arg.buffer_count = len(first.segment) // 4
            arg.commands_offset, arg.preempt_buffer_index, arg.job_id = first.commands_offset, first.preempt_index, 0
            before_ps = self._machine.now_ps
            ret = self._node.try_ioctl(request, [first.segment])
            if ret >= 0:
                first.submitted = True
                first.submitted_ps = self._machine.now_ps
                if self.context.observer is not None:
                    self.context.observer.submitted(first, arg.job_id, before_ps)
                continue
            oldest = jobs[0] if jobs[0].submitted else self.context.oldest_submitted()
            if ret != -errno.EBUSY or oldest is None:
                raise errno_error(-ret, request.name, self._node.log)
            finished = oldest.stream.finish(oldest, deadline_ps)
            if finished is False:
                return job.submitted or job.done
            if finished is None and not (job.submitted or job.done):
                raise queue_is_full(oldest)
        return True

    def finish(self, job: Job, deadline_ps: int) -> bool | None:
        """Wait for the oldest job. False when the deadline passes, None when nothing is left that could end it."""
        if (
            not job.submitted
        ):  # another thread enqueued it, a full queue has not taken it, or what comes before it cannot run
            self.context.dispatcher.need(job)
            if job.done:
                return True
            try:
                in_time = self.submit(job, deadline_ps)
            except NpuError as refusal:
                if refusal.errno == errno.EBUSY:
                    return None
                self.refuse(job, refusal)
                return True
            if job.done or not in_time:
                return in_time
        assert job.bo is not None
        request = self._waits.pop() if self._waits else Request(C.NPU_IOCTL_BO_WAIT, "npu_bo_wait", "BO_WAIT")
        arg = request.arg
        arg.handle = job.bo.handle
        ret = self._node.wait(request, deadline_ps)
        self._waits.append(request)
        if job.done or ret == -errno.EAGAIN:  # another thread was faster
            return True
        if ret < 0:
            if ret == -errno.ETIMEDOUT:
                return False
            if ret == -errno.EDEADLK:
                return None
            self._jobs.popleft()
            self._retire(job, errno_error(-ret, request.name, self._node.log))
            self._failed.append(job)
            return True
        self._jobs.popleft()
        job.start_ps, job.end_ps = arg.start_ps, arg.end_ps
        self.context.note_job(arg.job_id, job)
        if arg.job_status:
            error = job.describe(arg.job_id, arg.job_status, arg.error_detail, arg.error_info)
            self._retire(job, error)
            self._failed.append(job)
            if not (self._aborting and arg.job_status == C.NPU_JOB_ABORTED):
                self.context.note_failure(error)
        else:
            self._retire(job, None)
        return True

    def _reap(self) -> None:
        """Take note of jobs that have finished by now."""
        while self._jobs and self._jobs[0].submitted and self.finish(self._jobs[0], self._node.now_ps):
            pass

    def drained(self) -> bool:
        """Whether a stream that was closed with work in flight has none any more."""
        self._reap()
        return not self._jobs

    def _retire(self, job: Job, error: NpuError | None) -> None:
        bo = job.bo
        job.end(error)
        if bo is not None:
            self.context.commands.give(bo)

    def refuse(self, job: Job, error: NpuError) -> None:
        """End a job that was held and that the driver does not take, unless another thread has ended it."""
        if job.done:
            return
        self._jobs.remove(job)
        self._retire(job, error)
        self.keep_error(job)

    @property
    def last_job(self) -> Job | None:
        """The newest job that has not been seen to end."""
        return self._jobs[-1] if self._jobs else None

    @property
    def jobs(self) -> Sequence[Job]:
        """The jobs that have not been seen to end, oldest first."""
        return self._jobs

    def signal_of(self, job: Job) -> Signal:
        """Return the signal that says that `job` of this stream has ended."""
        return Signal(self._cell, job.number, f"{job.operation.name!r}{job.where}", job)

    # ---- errors of jobs ----

    def take_error(self, job: Job) -> NpuError | None:
        """Return the error of a job that has ended; somebody else reports it."""
        self._reap()
        if job.error is not None and not job.reported:
            job.reported = True
            self._failed.remove(job)
        return job.error

    @property
    def untold(self) -> Sequence[Job]:
        """The failed jobs whose errors no call has raised yet."""
        return self._failed

    def keep_error(self, job: Job) -> None:
        """Let the next wait or query raise the error of `job`, which has ended."""
        self._failed.append(job)

    def raise_failed_until(self, job: Job) -> None:
        """Raise the first error that was not raised before, of `job` and what was enqueued before it."""
        failed = next((found for found in self._failed if found.number <= job.number), None)
        if failed is not None:
            self._raise_error_of(failed)

    def _raise_error_of(self, job: Job) -> None:
        if job.error is not None:
            if not job.reported:
                job.reported = True
                self._failed.remove(job)
            raise job.error

    def raise_failed(self) -> None:
        """Raise the first error that was not raised before, and in any case that of work which the context's end has ended."""
        if self._failed:
            job = self._failed.popleft()
            job.reported = True
            assert job.error is not None
            raise job.error
        if self._broken_off is not None:
            raise self._broken_off

    # ---- what calls look at first ----

    @property
    def is_open(self) -> bool:
        """Whether neither it was closed nor its context has ended."""
        return self._open

    def check_open(self) -> None:
        """Raise STALE_HANDLE after `close`, and the context's sticky error."""
        if not self._open:
            raise NpuError(C.NPU_ERROR_STALE_HANDLE, "the stream is closed")
        if self._node.down is not None or self.context.has_failed:
            self.context.check()  # raises

    def check_context(self, context: object, what: str) -> None:
        """Raise WRONG_CONTEXT unless `context`, of `what`, is the stream's."""
        if context is not self.context:
            raise NpuError(C.NPU_ERROR_WRONG_CONTEXT, f"{what} is another context's")

    def _check_waitable(self, what: str = "a wait or query, for nothing runs that could end") -> None:
        if self._failed and self.context.has_failed:
            self.raise_failed()  # its own errors come before what sticks to the context
        self.check_open()
        if self.capturing is not None:
            raise self.capturing.refusal(what)

    def _enter(self, what: str = "a query, for nothing runs that could end") -> None:
        """Let the host make a call that asks; none may while operations are captured."""
        self._check_waitable(what)
        self._node.advance(self._api_ps)
