"""A stream: a command queue of the driver. Operations run in order; streams are independent of each other.

What is enqueued is a job: a command buffer of fence waits, the operation's commands, and a FENCE_SIGNAL that writes
the number of the operation to the stream's cell, however the operation ended.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import npu_abi
from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime import copies, host_functions, room
from libnpu.runtime.arguments import instance_of, truth, wholes, wrong
from libnpu.runtime.commands import write_commands
from libnpu.runtime.dependencies import waits_for_a_record
from libnpu.runtime.event import Event
from libnpu.runtime.fences import Signal
from libnpu.runtime.graph import Capture, CaptureStatus
from libnpu.runtime.guard import failures_yield_to, public
from libnpu.runtime.job import Job
from libnpu.runtime.operation import FenceWait, ModuleLaunch
from libnpu.runtime.semantics import InFlight
from libnpu.runtime.stream_waits import StreamWaits
from libnpu.runtime.time import FOR_EVER_PS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from libnpu.runtime.buffer import Buffer
    from libnpu.runtime.context import Context
    from libnpu.runtime.graph import Graph
    from libnpu.runtime.module import Module
    from libnpu.runtime.operation import Operation
    from libnpu.runtime.spans import DeviceSpan

REAP_AT = 32  # jobs in flight from which an operation first looks for finished ones
Priority: type[enum.IntEnum] = npu_abi.enum("npu_priority")


class Stream(StreamWaits):
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
        super().__init__(context, priority)
        self.id = stream_id
        self.blocking = blocking
        self._ordered = blocking and context.semantics.legacy_default_stream
        self._launch_blocking = context.device.launch_blocking
        self._position = 0  # of the last operation, waits for events not counted

    # ---- enqueuing ----

    def enqueue(self, operation: Operation, *, settle: bool = True) -> Job:
        """Enqueue `operation` and return at once; a full queue makes it wait for the oldest job. The one way in, for
        the library's modules, inside a public call. Who has to take note of the job before it ends says `settle=False`
        and calls `settle` then.

        What happens on the device comes from the wait. Raises what `Operation.encode` raises, STALE_HANDLE for a closed
        stream, OUT_OF_RESOURCES when the queue is full and cannot get empty; with `launch_blocking` as `settle`.
        """
        self.check_open()
        if self._closers:
            raise NpuError(C.NPU_ERROR_STALE_HANDLE, "another thread is closing the stream")
        if self.capturing is not None:
            return self.capturing.add(self, operation)
        context, machine, cell, jobs = self.context, self._machine, self._cell, self._jobs
        entered_ps = machine.now_ps
        self._node.advance(self._api_ps)
        if len(jobs) >= REAP_AT:
            self._reap()
        number = cell.last + 1
        job = Job(self, operation, number, entered_ps, context.device.call_site())
        if operation.kind != "event_wait":
            job.position = self._position = self._position + 1
        if type(operation) is ModuleLaunch and not self._ordered:
            operation.encode_alone(job, cell)
        else:
            implicit = context.implicit_signals(self) if self._ordered else ()
            write_commands(job, self._cell, implicit)
        job.packed_ps = machine.now_ps
        if context.observer is not None:
            context.observer.prepared(job)
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
        if context.observer is not None:
            context.observer.enqueued(job)
        if operation.kind:
            context.operation_count += 1
            if context.profiler.is_active:
                context.profiler.note(job)
        if self._launch_blocking and settle:
            self.settle(job)
        return job

    def make_room(self) -> None:
        """Wait until the queue takes one more job. A wait lets other threads in, so who looks at something that they may change, and
        then enqueues, makes room before the look. Raises STALE_HANDLE, OUT_OF_RESOURCES as `enqueue`.
        """
        self.check_open()
        if self.capturing is None:
            room.make_room(self.context, {self: 1})
            self.check_open()

    def settle(self, job: Job) -> None:
        """On a device with `launch_blocking`, wait for `job`, which was just enqueued, unless it waits for a notify that
        has no record: only a later call can give that. Raises its error, and BARRIER_DEADLOCK.
        """
        if self._launch_blocking and not waits_for_a_record(job):
            self._await(job, FOR_EVER_PS)
            while not job.done:
                self._finish_in_time(self._jobs[0], FOR_EVER_PS, None)
            self.note_known(job.number)
            self._raise_error_of(job)

    def wait_signal(self, signal: Signal) -> Job | None:
        """Let later operations wait for `signal`; None when it is known to be over."""
        if not signal.over:
            return self.enqueue(FenceWait(signal))
        if self.context.observer is not None and signal.job is not None:
            self.context.observer.ordered(self, signal.job)
        return None

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
        launch = getattr(module, "launch_in", None)
        if not callable(launch):
            raise wrong(module, "module", "a Module")
        job: Job = launch(self, inputs, outputs, truth(dynamic, "dynamic"))
        return job

    @public
    def launch_addresses(self, module: Module, addresses: Sequence[int]) -> Job:
        """Enqueue a compiled model on device addresses, its inputs' and then its outputs', all in buffers of this
        context. As `launch`.
        """
        launch = getattr(module, "launch_at", None)
        if not callable(launch):
            raise wrong(module, "module", "a Module")
        job: Job = launch(self, wholes(addresses, "addresses"))
        return job

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

    # ---- capture ----

    @public
    def capture(self) -> Capture:
        """Begin to capture what is enqueued here as a graph, until the end of the `with` block or `end_capture`.

            with stream.capture() as capture:
                kernel.launch(stream, x, y)
            graph = capture.graph

        Raises BAD_STATE when the stream is being captured, or closed by another thread, CAPTURE_UNSUPPORTED for the default stream.
        """
        self.check_open()
        self.context.enter()
        if self.capturing is not None:
            raise NpuError(C.NPU_ERROR_BAD_STATE, "the stream is being captured already")
        if self._closers:
            raise NpuError(C.NPU_ERROR_BAD_STATE, "another thread is closing the stream")
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

    # ---- the rest of its life ----

    @public
    def abort(self) -> None:
        """Take all work of the stream off the device: what has not ended ends as ABORTED_BY_PRIOR_ERROR, whoever waits
        for it goes on, and the stream can be used again. The errors come from the next wait or query.

        Raises DEVICE_LOST, each time, when the context is lost: the work has ended all the same.
        """
        self._enter("the abort of a stream of it")
        last = self._cell.last
        self._abort_work()
        self.note_known(last)
        self._create_queue()

    def _abort_work(self) -> None:
        """End the queue with all its work."""
        context = self.context
        self._destroy_queue(C.NPU_CMDQ_ABORT)
        context.dispatcher.discard(self)
        for job in self._jobs:
            for signal in job.written:
                context.fences.write(signal.cell, max(signal.value, context.fences.value(signal.cell)))
        context.fences.write(self._cell, self._cell.last)
        self._aborting = True  # what ends as aborted is no failure of the context
        try:
            while self._jobs:
                job = self._jobs[0]
                if not job.submitted or self.finish(job, self._node.now_ps) is not True:
                    self._jobs.popleft()
                    self._retire(
                        job, job.failure(C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR, f"{job.operation.name!r} was aborted")
                    )
                    self._failed.append(job)
        finally:
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
        self._closers += 1
        try:
            ended = not self._node.is_usable or self.finish_all()
        finally:
            self._closers -= 1
        if not self._open:
            return  # another thread has closed it meanwhile
        if not self._node.is_usable:  # the queue went with the device
            self.abandon()
        elif ended:
            self.release()
        else:
            self._abort_work()  # which ends the queue
            self._give_back()
        self._open = False
        self.context.forget_stream(self)

    def give_up(self) -> None:
        """End the stream at once, with the work that is in it."""
        if self._node.is_usable:
            self._abort_work()  # which ends the queue
            self._give_back()
        else:
            self.abandon()
        self._open = False
        self.context.forget_stream(self)

    def abandon(self) -> None:
        """Become stale: its context has ended, and what is in flight has failed."""
        self._open = False
        self.context.dispatcher.discard(self)
        for job in self._jobs:
            bo = job.bo
            error = job.failure(C.NPU_ERROR_STALE_HANDLE, f"the context of {job.operation.name!r} has ended")
            self._broken_off = self._broken_off or error
            job.end(error)
            job.reported = True
            if bo is not None:
                bo.free()
        self._jobs.clear()
        if self._preemption is not None:
            self._preemption.free()

    def close_later(self) -> None:
        """End the stream; work in flight goes on."""
        self._reap()
        self._open = False
        if self._jobs:
            self.context.drain(self)
        else:
            self.release()
            self.context.forget_stream(self)

    def __enter__(self) -> Stream:
        return self

    @public
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with failures_yield_to(kind):
            self.close()
