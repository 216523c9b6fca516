"""A stream: a command queue of the driver. Operations run in order; streams are independent of each other.

What is enqueued is a job: a command buffer of fence waits, the operation's commands, and a FENCE_SIGNAL that writes
the number of the operation to the stream's cell, however the operation ended.
"""

from __future__ import annotations

import enum
import errno
from collections import deque
from typing import TYPE_CHECKING, Any

import npu_abi
from npu_abi import C

from libnpu.errors import NpuError, errno_error
from libnpu.runtime import copies, host_functions
from libnpu.runtime.arguments import instance_of, whole, wrong
from libnpu.runtime.command_formats import FENCE, SIGNAL
from libnpu.runtime.commands import CommandWriter
from libnpu.runtime.event import Event
from libnpu.runtime.fences import Signal
from libnpu.runtime.graph import Capture, CaptureStatus
from libnpu.runtime.guard import failures_yield_to, public
from libnpu.runtime.job import Job
from libnpu.runtime.operation import FenceWait, ModuleLaunch, NotifyWait
from libnpu.runtime.room import queue_is_full
from libnpu.runtime.semantics import InFlight
from libnpu.runtime.time import LAST_PS, timeout_ps
from libnpu.syscalls import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from libnpu.runtime.buffer import Buffer, DeviceSpan
    from libnpu.runtime.context import Context
    from libnpu.runtime.graph import Graph
    from libnpu.runtime.module import Module
    from libnpu.runtime.operation import Operation

FOR_EVER_PS = (1 << 63) - 1
REAP_AT = 32  # jobs in flight from which an operation first looks for finished ones
Priority: type[enum.IntEnum] = npu_abi.enum("npu_priority")


class FailureMode(enum.Enum):
    """What becomes of later work when an operation of the stream has failed."""

    CONTINUE = enum.auto()
    STOP = enum.auto()  # no later operation of the context runs: each ends as ABORTED_BY_PRIOR_ERROR


class Stream:
    """Made by `Context.create_stream`; a context manager. Enqueuing returns at once, `synchronize` waits.

    `blocking`: it takes part in the order of a legacy default stream. `capturing`: the capture that takes operations
    instead of the queue, None while there is none. `id` is unique in its context.

    >>> memory, pinned = device.alloc(64), device.alloc_host(64)
    >>> with device.create_stream() as stream:
    ...     fill, copy = stream.fill(memory, 3), stream.copy(pinned, memory)  # both calls return at once
    ...     print(pinned.array[0], end=", ")
    ...     stream.synchronize()
    ...     print(pinned.array[0])
    255, 3
    """

    def __init__(self, context: Context, stream_id: int, *, blocking: bool, priority: int) -> None:
        self.context = context
        self.guard = context.guard
        self.id = stream_id
        self.blocking = blocking
        self.priority = priority
        self.failure_mode = FailureMode.CONTINUE
        self.capturing: Capture | None = None
        self._node = context.node
        self._machine = context.node.machine
        self._submit = Request(C.NPU_IOCTL_CMDQ_SUBMIT, "npu_cmdq_submit", "CMDQ_SUBMIT")
        self._submit.arg.buffers_ptr = 1  # the handles travel as a segment
        self._waits: list[Request] = []  # BO_WAIT, of no wait that is under way
        self._cell = context.fences.alloc()
        try:
            self._create_queue()
        except NpuError:
            context.fences.release(self._cell)
            raise
        self._first = self._cell.last  # its first operation has the number behind this one
        self._jobs: deque[Job] = deque()  # not yet seen to have ended, oldest first
        self._failed: deque[Job] = deque()  # errors that no call has raised yet
        self._api_ps = context.api_ps
        self._aborting = False
        self._ordered = blocking and context.semantics.legacy_default_stream
        self._launch_blocking = context.device.launch_blocking
        self._open = True

    def _create_queue(self) -> None:
        create = Request(C.NPU_IOCTL_CMDQ_CREATE, "npu_cmdq_create", "CMDQ_CREATE")
        create.arg.priority = self.priority
        if self.failure_mode is FailureMode.STOP:
            create.arg.flags = C.NPU_CMDQ_STOP_ON_FAILURE
        self._node.ioctl(create)
        self.cmdq_id: int = create.arg.cmdq_id
        self._submit.arg.cmdq_id = self.cmdq_id

    def _destroy_queue(self, flags: int = 0) -> None:
        destroy = Request(C.NPU_IOCTL_CMDQ_DESTROY, "npu_cmdq_destroy", "CMDQ_DESTROY")
        destroy.arg.cmdq_id, destroy.arg.flags = self.cmdq_id, flags
        self._node.ioctl(destroy)

    # ---- enqueuing ----

    def enqueue(self, operation: Operation, *, settle: bool = True) -> Job:
        """Enqueue `operation` and return at once; a full queue makes it wait for the oldest job. The one way in, for
        the library's modules, inside a public call. Who has to take note of the job before it ends says `settle=False`
        and calls `settle` then.

        What happens on the device comes from the wait. Raises what `Operation.encode` raises, STALE_HANDLE for a closed
        stream, OUT_OF_RESOURCES when the queue is full and cannot get empty; with `launch_blocking` as `settle`.
        """
        self.check_open()
        if self.capturing is not None:
            return self.capturing.add(self, operation)
        context, machine, cell, jobs = self.context, self._machine, self._cell, self._jobs
        entered_ps = machine.now_ps
        self._node.advance(self._api_ps)
        if len(jobs) >= REAP_AT:
            self._reap()
        number = cell.last + 1
        job = Job(self, operation, number, entered_ps, context.device.call_site())
        if type(operation) is ModuleLaunch and not self._ordered:
            operation.encode_alone(job, cell)
        else:
            self._encode(job)
        job.packed_ps = machine.now_ps
        cell.last = number
        jobs.append(job)
        try:
            context.dispatcher.submit(job)
        except BaseException as error:
            if job.submitted or job.done:  # by another thread, while this one waited in a full queue
                raise
            jobs.remove(job)
            if cell.last == number:  # else another thread enqueued behind it meanwhile
                cell.last = number - 1
            self._retire(job, error if isinstance(error, NpuError) else None)
            raise
        if operation.kind:
            context.operation_count += 1
            if context.profiler.is_active:
                context.profiler.note(job)
        if self._launch_blocking and settle:
            self.settle(job)
        return job

    def settle(self, job: Job) -> None:
        """On a device with `launch_blocking`, wait for `job`, which was just enqueued, unless it waits for a notify that
        has no record: only a later call can give that. Raises its error, and BARRIER_DEADLOCK.
        """
        if self._launch_blocking and not _waits_for_a_record(job):
            self._await(job, FOR_EVER_PS)
            while not job.done:
                self._finish_in_time(self._jobs[0], FOR_EVER_PS, None)
            self._raise_error_of(job)

    def _encode(self, job: Job) -> None:
        """Write the job's command buffer. When that fails, nothing is left of it."""
        context = self.context
        bo = context.commands.take()
        while True:
            writer = CommandWriter(context, job, bo)
            try:
                if self._ordered:
                    for signal in context.implicit_signals(self):
                        writer.wait(signal)
                job.operation.encode(writer)
                writer.command(FENCE.pack(SIGNAL, FENCE.size, self._cell.offset, job.number))
                content = writer.pack()
                if len(content) <= bo.size:
                    break
                larger = context.commands.take(len(content))
            except BaseException:
                _undo(job)
                context.commands.give(bo)
                raise
            _undo(job)
            context.commands.give(bo)
            bo = larger
        assert bo.view is not None
        bo.view[: len(content)] = content
        job.bo, job.segment, job.commands_offset = bo, writer.segment, writer.commands_offset
        if writer.copied_bytes:
            context.charge_copy(writer.copied_bytes)

    def submit(self, job: Job, deadline_ps: int = FOR_EVER_PS) -> bool:
        """Hand a job, and what is before it in the stream, to the driver (for `Dispatcher`).

        A full queue makes it wait for the oldest job; another thread may hand the job over meanwhile, or end it. False
        when the deadline passes first.
        """
        request, jobs = self._submit, self._jobs
        arg = request.arg
        while not (job.submitted or job.done):
            in_order = job is jobs[-1] and (len(jobs) == 1 or jobs[-2].submitted)
            first = job if in_order else next(held for held in jobs if not held.submitted)
            arg.buffer_count = len(first.segment) // 4
            arg.commands_offset = first.commands_offset
            ret = self._node.try_ioctl(request, [first.segment])
            if ret >= 0:
                first.submitted = True
                first.submitted_ps = self._machine.now_ps
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

    @public
    def launch(
        self,
        module: Module,
        inputs: Mapping[str, Buffer | DeviceSpan],
        outputs: Mapping[str, Buffer | DeviceSpan],
        *,
        dynamic: bool = False,
    ) -> Job:
        """Enqueue a compiled model on device memory by tensor name, and return at once.

        `dynamic`: the core chooses the order of tasks at run time instead of walking through their lists; same values.
        The buffers must stay until the job is done. Raises INVALID_VALUE for names, ARG_SIZE for a buffer that is too
        small, MISALIGNED, STALE_HANDLE for a freed one, WRONG_CONTEXT for another context's.
        """
        try:
            operation = module.operation
        except AttributeError:
            raise wrong(module, "module", "a Module") from None
        return self.enqueue(operation(self, inputs, outputs, dynamic))

    @public
    def launch_addresses(self, module: Module, addresses: Sequence[int]) -> Job:
        """Enqueue a compiled model on device addresses, its inputs' and then its outputs', all in buffers of this
        context. As `launch`.
        """
        try:
            operation = module.operation_at
        except AttributeError:
            raise wrong(module, "module", "a Module") from None
        return self.enqueue(operation(self, [whole(address, "an address") for address in addresses]))

    @public
    def copy(self, dst: Any, src: Any, size: int | None = None) -> Job | None:
        """Copy `size` bytes (default: all of `src`) in stream order. Ends are buffers, pinned and registered memory, parts
        of them, and arrays or other buffers of the host.

        Between memory that the device sees, arrays in pinned memory included, it is a DMA job: returns at once, and the
        bytes are read and written when the stream comes to it. Pageable memory: `Semantics.pageable`; None is returned
        when the copy is complete. Raises OUT_OF_RANGE, OVERLAP, STALE_HANDLE, WRONG_CONTEXT, NOT_PERMITTED, INVALID_VALUE
        for what is no contiguous memory, Unsupported from pageable to pageable memory.
        """
        return copies.copy(self, dst, src, size)

    @public
    def copy_2d(self, dst: Any, dst_pitch: int, src: Any, src_pitch: int, width: int, height: int) -> Job | None:
        """Copy `height` rows of `width` bytes that are the pitches apart; otherwise as `copy`. Raises INVALID_SIZE for a
        pitch below the width.
        """
        return copies.copy_2d(self, dst, dst_pitch, src, src_pitch, width, height)

    @public
    def fill(self, dst: Any, value: int) -> Job | None:
        """Set every byte of memory that the device sees to the low eight bits of `value`, in stream order: a DMA job.

        None is returned for no bytes. Raises STALE_HANDLE, WRONG_CONTEXT, INVALID_VALUE for pageable memory.
        """
        return copies.fill(self, dst, value)

    @public
    def wait_event(self, event: Event) -> None:
        """Let later operations of this stream wait for what `event` was last recorded behind, as of now.

        Raises NOT_RECORDED when it never was, under `strict`, WRONG_CONTEXT for an event of another context.
        """
        instance_of(event, Event, "event").enqueue_wait(self)

    @public
    def add_host_function(self, function: Callable[..., object], *arguments: object) -> Job:
        """Enqueue `function(*arguments)`, which runs on a thread of its own when everything before it in the stream has
        ended; later operations wait until it has returned. It may not call the API. The job ends when it has returned.

        When it raises, the next wait or query of the stream raises HOST_FUNCTION, and the stream goes on. Raises
        CAPTURE_UNSUPPORTED while the stream is captured.
        """
        return host_functions.add(self, function, arguments)

    def wait_signal(self, signal: Signal) -> Job | None:
        """Let later operations wait for `signal`; None when it is known to be over."""
        return None if signal.over else self.enqueue(FenceWait(signal))

    def signal_of(self, job: Job) -> Signal:
        """Return the signal that says that `job` of this stream has ended."""
        return Signal(self._cell, job.number, f"{job.operation.name!r}{job.where}", job)

    @property
    def last_job(self) -> Job | None:
        """The newest job that has not been seen to end."""
        return self._jobs[-1] if self._jobs else None

    @property
    def jobs(self) -> Sequence[Job]:
        """The jobs that have not been seen to end, oldest first."""
        return self._jobs

    # ---- capture ----

    @public
    def capture(self) -> Capture:
        """Begin to capture what is enqueued here as a graph, until the end of the `with` block or `end_capture`.

            with stream.capture() as capture:
                kernel.launch(stream, x, y)
            graph = capture.graph

        Raises BAD_STATE when the stream is being captured, CAPTURE_UNSUPPORTED for the default stream.
        """
        self.check_open()
        self.context.enter()
        if self.capturing is not None:
            raise NpuError(C.NPU_ERROR_BAD_STATE, "the stream is being captured already")
        if self.context.is_default(self):
            raise NpuError(C.NPU_ERROR_CAPTURE_UNSUPPORTED, "the default stream cannot be captured")
        return Capture(self)

    @public
    def end_capture(self) -> Graph:
        """End the capture that began on this stream and return its graph. Raises BAD_STATE when none did, and
        CAPTURE_INVALIDATED: the streams are as before, and there is no graph.
        """
        self.check_open()
        self.context.enter()
        if self.capturing is None or self.capturing.origin is not self:
            raise NpuError(C.NPU_ERROR_BAD_STATE, "no capture began on this stream")
        return self.capturing.end()

    @property
    def capture_status(self) -> CaptureStatus:
        """Whether the stream is being captured, and whether the capture can still become a graph."""
        if self.capturing is None:
            return CaptureStatus.NONE
        return CaptureStatus.INVALID if self.capturing.problem else CaptureStatus.ACTIVE

    # ---- waiting ----

    @public
    def synchronize(self, timeout_ns: float | None = None) -> None:
        """Wait for everything enqueued, for `timeout_ns` at most (None, infinity: for ever).

        Raises the first error of that work which was not raised before, or TIMEOUT; INVALID_VALUE for a negative time;
        BARRIER_DEADLOCK when it waits for something that nothing will signal.
        """
        self._check_waitable()
        deadline = self._deadline(timeout_ns)
        if self._jobs:
            self._await(self._jobs[-1], deadline)
        while self._jobs:
            job = self._jobs[0]
            finished = self.finish(job, deadline)
            if not finished:
                self._raise_unfinished(job, finished, timeout_ns)
        if self._failed:
            self._raise_failed()

    @public
    def synchronize_to(self, job: Job) -> None:
        """As `synchronize`, for what was enqueued up to `job`; INVALID_VALUE for another stream's."""
        self._check_own(job)
        self._check_waitable()
        deadline = self._deadline(None)
        if not job.done:
            self.context.dispatcher.need(job)
        while not job.done:
            self._finish_in_time(self._jobs[0], deadline, None)
        self._raise_failed()

    def __await__(self) -> Generator[Any, None, None]:
        """Let the task wait for everything enqueued so far; raises as `synchronize`."""
        from libnpu.runtime.aio import wait_stream  # asyncio takes long to import

        return wait_stream(self).__await__()

    @public
    def wait(self, job: Job, timeout_ns: float | None = None) -> None:
        """Wait for one job of this stream, and raise its error, each time, or TIMEOUT; INVALID_VALUE for another's job."""
        self._check_own(job)
        timeout_ps(timeout_ns)  # raises
        if self.capturing is not None:
            self._check_waitable()
        if not job.done:
            self.context.check()
            deadline = self._deadline(timeout_ns)
            self._await(job, deadline)
            while not job.done:
                self._finish_in_time(self._jobs[0], deadline, timeout_ns)
        self._raise_error_of(job)

    @public
    def query(self) -> bool:
        """Return whether all work has finished. Raises the first error of it which was not raised before."""
        self._enter()
        if self._jobs:
            self.context.dispatcher.need(self._jobs[-1])
        self._reap()
        self._raise_failed()
        return not self._jobs

    @public
    def query_job(self, job: Job) -> bool:
        """Return whether one job of this stream has finished. Raises its error, each time; INVALID_VALUE for another's job."""
        self._check_own(job)
        self.context.enter()
        if not job.done:
            self.context.dispatcher.need(job)
            self._reap()
        self._raise_error_of(job)
        return job.done

    @property
    @public
    def fence(self) -> int:
        """How many operations of the stream have ended, as the device wrote it to the stream's cell."""
        self.check_open()
        self._node.catch_up()
        return self.context.fences.value(self._cell) - self._first

    # ---- the rest of its life ----

    @public
    def set_failure_mode(self, mode: FailureMode) -> None:
        """Choose what a failed operation means for later ones. Raises IN_USE when the stream has work in flight,
        BAD_STATE to take STOP back, INVALID_VALUE for no FailureMode.
        """
        try:
            mode = FailureMode(mode)
        except ValueError:
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"failure mode {mode!r}; there are CONTINUE and STOP") from None
        self._enter("the failure mode of a stream of it")
        self._reap()
        if self._jobs:
            why = f"{len(self._jobs)} operations of the stream have not finished"
            raise NpuError(C.NPU_ERROR_IN_USE, f"the failure mode cannot change: {why}")
        if mode is self.failure_mode:
            return
        if self.failure_mode is FailureMode.STOP:
            raise NpuError(C.NPU_ERROR_BAD_STATE, "a stream that stops on failure cannot go back")
        before, self.failure_mode = self.failure_mode, mode
        old = self.cmdq_id
        try:
            self._create_queue()
        except NpuError:
            self.failure_mode = before
            raise
        self.context.can_stop = True
        new, self.cmdq_id = self.cmdq_id, old
        self._destroy_queue()
        self.cmdq_id = new

    @public
    def abort(self) -> None:
        """Take all work of the stream off the device: what has not ended ends as ABORTED_BY_PRIOR_ERROR, whoever waits
        for it goes on, and the stream can be used again. The errors come from the next wait or query.
        """
        self._enter("the abort of a stream of it")
        self._abort_work()
        self._create_queue()

    def _abort_work(self) -> None:
        """End the queue with all its work."""
        context = self.context
        context.dispatcher.discard(self)
        self._aborting = True  # what ends as aborted is no failure of the context
        self._destroy_queue(C.NPU_CMDQ_ABORT)
        for job in self._jobs:
            for signal in job.written:
                context.fences.write(signal.cell, max(signal.value, context.fences.value(signal.cell)))
        context.fences.write(self._cell, self._cell.last)
        while self._jobs:
            job = self._jobs[0]
            if not job.submitted or self.finish(job, self._node.now_ps) is not True:
                self._jobs.popleft()
                self._retire(
                    job, job.failure(C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR, f"{job.operation.name!r} was aborted")
                )
                self._failed.append(job)
        self._aborting = False
        context.ring_waiting()

    @public
    def close(self) -> None:
        """End the stream. Work in flight: `Semantics.destroy_stream`; its errors are dropped. Twice is allowed."""
        if not self._open:
            return
        if self.capturing is not None and self._node.is_usable:
            raise self.capturing.refusal("the end of a stream of it")
        rule = self.context.semantics.destroy_stream
        if self._node.is_usable and rule is not InFlight.WAIT:
            self._reap()
            if self._jobs and rule is InFlight.REFUSE:
                why = f"{len(self._jobs)} operations of the stream have not finished"
                raise NpuError(C.NPU_ERROR_IN_USE, f"the stream cannot be closed: {why}")
            if self._jobs:
                self._open = False
                self.context.drain(self)
                return
        if not self._node.is_usable:  # the queue went with the device
            self.abandon()
        elif self.finish_all():
            self.release()
        else:
            self._abort_work()  # which ends the queue
            self.context.fences.release(self._cell)
        self._open = False
        self.context.forget_stream(self)

    def release(self) -> None:
        """Free the queue of a stream without work."""
        self._open = False
        self._destroy_queue()
        self.context.fences.release(self._cell)

    def finish_all(self, deadline_ps: int = FOR_EVER_PS) -> bool:
        """Wait for the work, and keep its errors for the call that asks for them. False when it cannot end, or has not
        by the deadline.
        """
        if self._jobs:
            self._await(self._jobs[-1], deadline_ps)
        while self._jobs:
            if not self.finish(self._jobs[0], deadline_ps):
                return False
        return True

    def drained(self) -> bool:
        """Whether a stream that was closed with work in flight has none any more."""
        self._reap()
        return not self._jobs

    def abandon(self) -> None:
        """Become stale: its context has ended, and what is in flight has failed."""
        self._open = False
        self.context.dispatcher.discard(self)
        for job in self._jobs:
            bo = job.bo
            job.end(job.failure(C.NPU_ERROR_STALE_HANDLE, f"the context of {job.operation.name!r} has ended"))
            if bo is not None:
                bo.free()
        self._failed.extend(self._jobs)
        self._jobs.clear()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with failures_yield_to(kind):
            self.close()

    # ---- inside ----

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

    def _check_own(self, job: Job) -> None:
        if instance_of(job, Job, "job").stream is not self:
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, "the job is another stream's")

    def _check_waitable(self, what: str = "a wait or query, for nothing runs that could end") -> None:
        if self._failed and self.context.has_failed:
            self._raise_failed()  # its own errors come before what sticks to the context
        self.check_open()
        if self.capturing is not None:
            raise self.capturing.refusal(what)

    def _enter(self, what: str = "a query, for nothing runs that could end") -> None:
        """Let the host make a call that asks; none may while operations are captured."""
        self._check_waitable(what)
        self._node.advance(self._api_ps)

    def _deadline(self, timeout_ns: float | None) -> int:
        """Let the host make a call that waits, and return the time at which it gives up."""
        duration_ps = timeout_ps(timeout_ns)
        self._node.advance(self._api_ps)
        if duration_ps is None:
            return FOR_EVER_PS
        deadline = self._machine.now_ps + duration_ps
        return deadline if deadline <= LAST_PS else FOR_EVER_PS

    def _reap(self) -> None:
        """Take note of jobs that have finished by now."""
        while self._jobs and self._jobs[0].submitted and self.finish(self._jobs[0], self._node.now_ps):
            pass

    def _await(self, job: Job, deadline_ps: int) -> None:
        """Say that `job` and what is before it will be waited for."""
        self.context.dispatcher.need(job)
        if job.submitted and not job.done and job.bo is not None:
            self._node.wait_ahead(job.bo.handle, deadline_ps)

    def _finish_in_time(self, job: Job, deadline_ps: int, timeout_ns: float | None) -> None:
        """Wait for the oldest job. Raises TIMEOUT, BARRIER_DEADLOCK."""
        finished = self.finish(job, deadline_ps)
        if not finished:
            self._raise_unfinished(job, finished, timeout_ns)

    def _raise_unfinished(self, job: Job, finished: bool | None, timeout_ns: float | None) -> None:
        """Raise what `finish` has found."""
        if finished is None:
            raise NpuError(
                C.NPU_ERROR_BARRIER_DEADLOCK,
                f"the device is idle and {job.operation.name!r}{job.where} cannot end: {_waits_for(job)}",
                errno=errno.EDEADLK,
                job=job,
                operation=job.operation.name,
                enqueue_site=job.site or None,
            )
        raise NpuError(C.NPU_TIMEOUT, f"{len(self._jobs)} operations have not finished after {timeout_ns} ns")

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

    def _retire(self, job: Job, error: NpuError | None) -> None:
        bo = job.bo
        job.end(error)
        if bo is not None:
            self.context.commands.give(bo)

    def take_error(self, job: Job) -> NpuError | None:
        """Return the error of a job that has ended; somebody else reports it."""
        self._reap()
        if job.error is not None and not job.reported:
            job.reported = True
            self._failed.remove(job)
        return job.error

    def close_later(self) -> None:
        """End the stream; work in flight goes on."""
        self._reap()
        self._open = False
        if self._jobs:
            self.context.drain(self)
        else:
            self.release()
            self.context.forget_stream(self)

    def keep_error(self, job: Job) -> None:
        """Let the next wait or query raise the error of `job`, which has ended."""
        self._failed.append(job)

    def refuse(self, job: Job, error: NpuError) -> None:
        """End a job that was held and that the driver does not take, unless another thread has ended it."""
        if job.done:
            return
        self._jobs.remove(job)
        self._retire(job, error)
        self.keep_error(job)

    def _raise_error_of(self, job: Job) -> None:
        if job.error is not None:
            if not job.reported:
                job.reported = True
                self._failed.remove(job)
            raise job.error

    def raise_failed_until(self, job: Job) -> None:
        """Raise the first error that was not raised before, of `job` and what was enqueued before it."""
        failed = next((found for found in self._failed if found.number <= job.number), None)
        if failed is not None:
            self._raise_error_of(failed)

    def _raise_failed(self) -> None:
        if self._failed:
            job = self._failed.popleft()
            job.reported = True
            assert job.error is not None
            raise job.error


def _undo(job: Job) -> None:
    """Take back what operations noted about a job that will not run as they wrote it."""
    ends, job.ends, job.signals, job.written = job.ends, [], (), ()
    for function in ends:
        function(job)


def _waits_for_a_record(job: Job) -> bool:
    """Whether `job`, or what must end before it, waits for a notify that has no record yet."""
    seen: set[Job] = set()
    open_jobs = [job]
    while open_jobs:
        last = open_jobs.pop()
        if last.done or last in seen:
            continue
        for before in last.stream.jobs:
            seen.add(before)
            for signal in before.signals:
                if signal.job is not None:
                    open_jobs.append(signal.job)
                elif isinstance(before.operation, NotifyWait):
                    return True
            if before is last:
                break
    return False


def _waits_for(job: Job) -> str:
    """Say what `job` waits for, and what that waits for in turn, as far as the streams tell."""
    chain, seen = [], {job}
    while job.signals:
        signal = next((signal for signal in job.signals if not signal.over), job.signals[0])
        chain.append(signal.what)
        head = signal.job.stream.jobs[0] if signal.job is not None and signal.job.stream.jobs else None
        if head is None or head in seen:
            if head is not None:
                chain.append("it")
            break
        chain[-1] += f" in stream {head.stream.id}, where {head.operation.name!r} is at the head"
        seen.add(head)
        job = head
    return f"it waits for {', which waits for '.join(chain)}" if chain else "nothing will signal it"
