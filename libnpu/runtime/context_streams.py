"""The streams of a context: the default one, those that programs made, and those that were closed with work in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.arguments import instance_of, truth, whole
from libnpu.runtime.buffer_object import BufferObject
from libnpu.runtime.guard import public
from libnpu.runtime.stream import Priority, Stream
from libnpu.runtime.time import FOR_EVER_PS, timeout_ps
from libnpu.syscalls import Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libnpu.runtime.commands import CommandPool
    from libnpu.runtime.context import Context
    from libnpu.runtime.fences import Signal
    from libnpu.runtime.job import Job
    from libnpu.runtime.observer import Observer
    from libnpu.runtime.semantics import Semantics
    from libnpu.syscalls import Node

NORMAL = int(C.NPU_PRIORITY_NORMAL)
NO_MEMORY = (C.NPU_ERROR_OUT_OF_DEVICE_MEMORY, C.NPU_ERROR_OUT_OF_HOST_MEMORY)


class ContextStreams:
    """The part of `Context` that is about streams."""

    node: Node
    semantics: Semantics
    commands: CommandPool
    is_alive: bool
    observer: Observer | None

    def __init__(self) -> None:
        self.orphans: list[Stream] = []  # of executable graphs that are gone
        self.waiting_streams: list[Stream] = []  # of `create_waiting_stream`
        self._streams: list[Stream] = []
        self._draining: list[Stream] = []  # closed with work in flight
        self._stream_ids = 0
        self._default: Stream | None = None
        self._preemption_bytes: int | None = None  # of a preemption buffer, once somebody has asked

    if TYPE_CHECKING:  # the rest of a Context

        def enter(self) -> None: ...

    @public
    def create_stream(self, *, blocking: bool = True, priority: int = NORMAL) -> Stream:
        """Create a stream. `blocking`: a legacy default stream waits for it, and it for that one. `priority` is of enum
        npu_priority.

        Raises OUT_OF_RESOURCES when no queue is left, INVALID_VALUE for another priority (under `cuda` it is clamped).
        """
        priority, blocking = whole(priority, "priority"), truth(blocking, "blocking")
        self.enter()
        self._reap_draining()
        least, most = min(Priority), max(Priority)
        if self.semantics.clamp_priority:
            priority = max(least, min(most, priority))
        if not least <= priority <= most:
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"priority {priority}; {least:d} to {most:d} are allowed")
        stream = Stream(cast("Context", self), self._stream_ids + 1, blocking=blocking, priority=priority)
        self._stream_ids += 1
        self._streams.append(stream)
        return stream

    @property
    @public
    def default_stream(self) -> Stream:
        """The stream of whoever names none, made on first use."""
        if self._default is None:
            self._default = self.create_stream()
        return self._default

    @public
    def synchronize(self, timeout_ns: float | None = None) -> None:
        """Wait for all streams, in the order of their creation, for `timeout_ns` at most (None, infinity: for ever), then
        raise the first error that was not raised before, or TIMEOUT. STALE_HANDLE is the error of work that another thread has
        broken off by ending the context.
        """
        duration_ps = timeout_ps(timeout_ns)
        self.enter()
        deadline_ps = FOR_EVER_PS if duration_ps is None else self.node.now_ps + duration_ps
        if not self.finish(self.streams, deadline_ps):
            raise NpuError(C.NPU_TIMEOUT, f"work of the context has not finished after {timeout_ns} ns")

    def finish(self, streams: Sequence[Stream], deadline_ps: int = FOR_EVER_PS) -> bool:
        """Wait for what `streams`, all that there were when the wait began, have to do, then raise as `synchronize`. False when
        the deadline passes. Meanwhile another thread may close one of them, or end the context.
        """
        for stream in streams:
            if not stream.finish_all(deadline_ps) and self.node.now_ps >= deadline_ps:
                return False
        if self.is_alive:
            self._reap_draining()
        for stream in streams:
            if stream.is_open:
                stream.synchronize()
            elif not self.is_alive:
                stream.raise_failed()
        return True

    def finish_all(self) -> None:
        """Wait for the work of all streams, and keep its errors for the calls that ask for them."""
        for stream in self.streams:
            stream.finish_all()

    # ---- for the other modules of the runtime ----

    @property
    def streams(self) -> tuple[Stream, ...]:
        """All streams, and those that were closed with work in flight."""
        return (*self._streams, *self._draining)

    @property
    def created_streams(self) -> int:
        """How many streams the program has made and not closed."""
        return len(self._streams) - (self._default is not None)

    def is_default(self, stream: Stream) -> bool:
        """Whether `stream` is the default stream."""
        return stream is self._default

    def stream_of(self, stream: Stream | None, what: str) -> Stream:
        """Return a stream that `what` was given, the default stream for None. Raises WRONG_CONTEXT, TypeError."""
        if stream is None:
            return self.default_stream
        instance_of(stream, Stream, "stream").check_context(self, what)
        return stream

    def create_waiting_stream(self) -> Stream:
        """Return a stream of the library's own, for waits of the host: it is none of `streams`, so that nobody else waits
        for what is in it. Raises OUT_OF_RESOURCES.
        """
        self._reap_draining()
        stream = Stream(cast("Context", self), self._stream_ids + 1, blocking=False, priority=NORMAL)
        self._stream_ids += 1
        self.waiting_streams.append(stream)
        return stream

    def give_up(self, stream: Stream) -> None:
        """End a stream of `create_waiting_stream`, with the work that is in it."""
        if stream in self.waiting_streams:
            self.waiting_streams.remove(stream)
        stream.give_up()

    def implicit_signals(self, stream: Stream) -> Iterator[Signal]:
        """What the next operation of a blocking stream waits for by the rules of a legacy default stream."""
        others = [self._default] if stream is not self._default else self._streams
        for other in others:
            if other is not None and other is not stream and other.blocking:
                job = other.last_job
                if job is not None:
                    yield other.signal_of(job)

    def oldest_submitted(self) -> Job | None:
        """Return the job that has been with the driver the longest, of all streams."""
        heads = [s.jobs[0] for s in self.streams if s.jobs and s.jobs[0].submitted]
        return min(heads, key=lambda job: job.submitted_ps, default=None)

    def jobs_using(self, handle: int) -> list[Job]:
        """Return the jobs in flight that touch the buffer object `handle`."""
        return [job for stream in self.streams for job in stream.jobs if job.touches(handle)]

    def create_preemption_buffer(self) -> BufferObject | None:
        """Return a new preemption buffer; None when the firmware preempts nothing, and when there is no memory for it."""
        if self._preemption_bytes is None:
            ask = Request(C.NPU_IOCTL_GET_PARAM, "npu_param_arg", "GET_PARAM")
            ask.arg.param = C.NPU_PARAM_PREEMPT_BUFFER_SIZE
            self.node.ioctl(ask)
            self._preemption_bytes = ask.arg.value
        if not self._preemption_bytes:
            return None
        try:
            return BufferObject(self.node, self._preemption_bytes, C.NPU_BO_DMA_MEM)
        except NpuError as error:
            if error.result not in NO_MEMORY:
                raise
            return None

    def ring_waiting(self) -> None:
        """Let the firmware look again at the fences that the streams' jobs wait for: the host wrote one. A context that is lost has
        nobody who waits.
        """
        for stream in self.streams:
            if stream.jobs and stream.jobs[0].submitted:
                ring = Request(C.NPU_IOCTL_CMDQ_RING, "npu_cmdq_ring", "CMDQ_RING")
                ring.arg.cmdq_id = stream.cmdq_id
                self.node.try_ioctl(ring)

    def drain(self, stream: Stream) -> None:
        """Keep a closed stream until its work has ended."""
        self._draining.append(stream)
        self.forget_stream(stream)

    def _reap_draining(self) -> None:
        while self.orphans:
            self.orphans.pop().close_later()
        for stream in tuple(self._draining):
            if stream.drained():
                self._draining.remove(stream)
                stream.release()

    def forget_stream(self, stream: Stream) -> None:
        """Drop a closed stream."""
        if self.observer is not None:
            self.observer.closed(stream)
        if stream in self._streams:
            self._streams.remove(stream)
        if stream is self._default:
            self._default = None
        if not self._streams and not self._draining:
            self.commands.free()

    def forget_streams(self) -> None:
        """Drop all streams: the context has ended."""
        self._default = None
        self._streams.clear()
        self._draining.clear()
        self.waiting_streams.clear()
