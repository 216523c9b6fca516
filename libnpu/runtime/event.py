"""Points in the work of streams: `Event`, which others wait for, and `Notify`, which releases one wait per record.

An event is a snapshot: recording it enqueues a job, and whoever waits afterwards waits for that job, whatever happens
to the event later. A notify pairs its records and waits in the order in which they are enqueued, each pair with a fence
of its own; so a wait may come first.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.arguments import instance_of
from libnpu.runtime.fences import Signal
from libnpu.runtime.guard import public
from libnpu.runtime.operation import FenceSignal, Marker, NotifyWait, Passed, Timestamp
from libnpu.runtime.time import timeout_ps

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from libnpu.runtime.context import Context
    from libnpu.runtime.graph import Capture
    from libnpu.runtime.job import Job
    from libnpu.runtime.operation import Operation
    from libnpu.runtime.stream import Stream


class Event:
    """Made by `Context.create_event`. `timing`: it keeps the time. Waiting and asking cost host time, as all calls.

    >>> one, two, filled = device.create_stream(), device.create_stream(), device.create_event()
    >>> memory, result = device.alloc(64), device.alloc(64)
    >>> job = one.fill(memory, 7)
    >>> filled.record(one)
    >>> two.wait_event(filled)  # what is enqueued in `two` from here on comes behind the fill
    >>> job = two.copy(result, memory)
    >>> two.synchronize()
    >>> filled.query(), int(result.read()[0])
    (True, 7)
    """

    def __init__(self, context: Context, *, timing: bool = True) -> None:
        self.context = context
        self.guard = context.guard
        self.timing = timing
        self._job: Job | None = None  # of the last record
        self._time_ps = 0  # device time of the last record, once a wait or query has seen its end
        self._open = True
        self.captured: Capture | None = None  # in which it was recorded last, while that goes on

    @property
    def job(self) -> Job | None:
        """The job of the last record, None when there was none, or `reset` forgot it."""
        return self._job

    def operation(self) -> Operation:
        """Return what a record enqueues."""
        return Timestamp("event record", self._take) if self.timing else Marker("event record")

    @public
    def record(self, stream: Stream | None = None) -> None:
        """Take a snapshot of the work of `stream` (default: the default stream); an earlier one is forgotten.

        Raises WRONG_CONTEXT for a stream of another context.
        """
        self._check()
        stream = self.context.stream_of(stream, "the event")
        if stream.capturing is not None:
            stream.capturing.record_event(stream, self)
            return
        job = stream.enqueue(self.operation(), settle=False)
        self.note_record(job)
        stream.settle(job)

    def note_record(self, job: Job) -> None:
        """Take `job`, which runs `operation`, as the last record."""
        if self.context.observer is not None:
            self.context.observer.recorded(self, self._job, job)
        self._job, self._time_ps = job, 0
        self.captured = None

    @property
    def snapshot(self) -> tuple[Job | None, int]:
        """What `take_back` needs to undo the next `note_record`."""
        return self._job, self._time_ps

    def take_back(self, snapshot: tuple[Job | None, int]) -> None:
        """Forget a record that was refused; the one before counts."""
        self._job, self._time_ps = snapshot

    def enqueue_wait(self, stream: Stream) -> None:
        """Let later operations of `stream` wait for the snapshot; see `Stream.wait_event`."""
        self._check()
        stream.check_context(self.context, "the event")
        capturing = self.captured if self.captured is not None else stream.capturing
        if capturing is not None:
            capturing.wait_event(stream, self)
            return
        job = self.recorded()
        stream.check_open()
        if self.context.observer is not None:
            self.context.observer.waited(self, job, stream)
        if job is None or job.done or job.stream is stream:
            self.context.enter()
            if job is not None and self.context.observer is not None:
                self.context.observer.ordered(stream, job)
            if self.context.semantics.legacy_default_stream and self.context.is_default(stream):
                stream.enqueue(Passed("event wait"))  # an action there comes between what blocking streams do
        else:
            stream.wait_signal(job.stream.signal_of(job))

    @public
    def query(self) -> bool:
        """Return whether the work of the snapshot has finished; True when nothing was recorded, but NOT_RECORDED under
        `strict`. Raises the error of the record itself.
        """
        self._check()
        job = self.asked(asks=True)
        if job is None:
            self.context.enter()
            return True
        if job.done:
            self.context.enter()
            job.stream.note_known(job.number)
            return job.stream.query_job(job) if job.error else True
        return job.stream.query_job(job)

    @public
    def synchronize(self, timeout_ns: float | None = None) -> None:
        """Wait for the work of the snapshot. Raises TIMEOUT, as `query`, and before that the first error of the
        snapshot's work that was not raised before.
        """
        self._check()
        timeout_ps(timeout_ns)  # raises
        job = self.asked()
        if job is None or job.done:
            self.context.enter()
        if job is not None:
            try:
                job.stream.wait(job, timeout_ns)
            finally:
                job.stream.raise_failed_until(job)

    def __await__(self) -> Generator[Any, None, None]:
        """Let the task wait for the work of the snapshot; raises as `synchronize`."""
        from libnpu.runtime.aio import wait_event  # asyncio takes long to import

        return wait_event(self).__await__()

    @property
    @public
    def timestamp_ps(self) -> int:
        """Device time at which the work of the snapshot had finished.

        Raises NO_TIMING, NOT_RECORDED, and NOT_READY while the work has not finished.
        """
        self._check()
        if not self.timing:
            raise NpuError(C.NPU_ERROR_NO_TIMING, "the event was made without timing")
        if self._job is None:
            raise NpuError(C.NPU_ERROR_NOT_RECORDED, "the event was never recorded")
        if not self.query():
            raise NpuError(C.NPU_NOT_READY, "the work before the event has not finished")
        return self._time_ps

    @public
    def elapsed_ns(self, end: Event) -> float:
        """Return the device time from this event to `end`, in nanoseconds. Raises as `timestamp_ps`, and WRONG_CONTEXT."""
        if instance_of(end, Event, "end").context is not self.context:
            raise NpuError(C.NPU_ERROR_WRONG_CONTEXT, "the other event is another context's")
        return (end.timestamp_ps - self.timestamp_ps) / 1000

    @public
    def reset(self) -> None:
        """Forget the record, as if there had been none; who waits already goes on waiting for it."""
        self._check()
        self.context.enter()
        if self._job is not None and self.context.observer is not None:
            self.context.observer.reset(self, self._job)
        self._job = None

    @public
    def destroy(self) -> None:
        """End the event; who waits already is not disturbed. Twice is allowed."""
        self._open = False
        self._job = None
        self.context.events.discard(self)

    def _check(self) -> None:
        if not self._open:
            raise NpuError(C.NPU_ERROR_STALE_HANDLE, "the event was destroyed")
        self.context.check()

    def recorded(self) -> Job | None:
        """Return the job of the last record. Raises NOT_RECORDED under semantics for which that is an error, and
        CAPTURE_UNSUPPORTED while it is recorded in a capture.
        """
        if self.captured is not None:
            raise self.captured.refusal("a wait or query of an event that was recorded in it")
        if self._job is None and self.context.semantics.unrecorded_event_is_error:
            raise NpuError(C.NPU_ERROR_NOT_RECORDED, "the event was never recorded")
        return self._job

    def asked(self, *, asks: bool = False) -> Job | None:
        """As `recorded`, for a call of the host that waits for it, or `asks` about it."""
        job = self.recorded()
        if self.context.observer is not None:
            self.context.observer.waited(self, job, None, asks=asks)
        return job

    def _take(self, job: Job, time_ps: int) -> None:
        if job is self._job:
            self._time_ps = time_ps


class Notify:
    """Made by `Context.create_notify`. One record releases one wait, in the order in which they are enqueued.

    >>> waiting, token = device.create_stream(), device.create_notify()
    >>> token.wait(waiting)  # a wait may come first
    >>> token.record()
    >>> waiting.synchronize()
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.guard = context.guard
        self._records: deque[Signal] = deque()  # that no wait has taken
        self._waits: deque[Signal] = deque()  # that no record has released
        self._open = True

    @public
    def record(self, stream: Stream | None = None) -> None:
        """Release one wait, the first that was enqueued without a record, or else the next, when the work before it in
        `stream` (default: the default stream) has finished. Raises WRONG_CONTEXT.
        """
        stream = self._enter(stream)
        if self._waits:
            signal = self._waits[0]
            signal.job = stream.enqueue(FenceSignal(signal), settle=False)
            self._waits.popleft()
        else:
            signal = self._new_signal()
            try:
                signal.job = stream.enqueue(FenceSignal(signal), settle=False)
            except NpuError:
                self.context.fences.release(signal.cell)
                raise
            self._records.append(signal)
        stream.settle(signal.job)

    @public
    def wait(self, stream: Stream | None = None) -> None:
        """Let later operations of `stream` wait for a record of their own. Raises WRONG_CONTEXT."""
        stream = self._enter(stream)
        signal = self._records[0] if self._records else self._new_signal()
        try:
            job = stream.enqueue(NotifyWait(signal), settle=False)
        except NpuError:
            if not self._records:
                self.context.fences.release(signal.cell)
            raise
        if self._records:
            self._records.popleft()
        else:
            self._waits.append(signal)
        job.ends.append(lambda _: self._wait_ended(signal))
        stream.settle(job)

    @public
    def reset(self) -> None:
        """Forget the records that no wait has taken."""
        self._check()
        self.context.enter()
        self._forget_records()

    @public
    def destroy(self) -> None:
        """End the notify; records that were enqueued still release their waits. Twice is allowed.

        Raises IN_USE while a wait has no record: nothing could release it.
        """
        if not self._open:
            return
        waiting = sum(not signal.over for signal in self._waits)
        if waiting and self.context.is_alive:
            raise NpuError(C.NPU_ERROR_IN_USE, f"{waiting} waits for the notify have no record yet")
        self._open = False
        self._forget_records()
        self.context.notifies.discard(self)

    def __del__(self) -> None:
        """Leave the fences of records that no wait has taken to the heap; nothing else may be done from here."""
        self.context.fences.drop(self._records)

    def _new_signal(self) -> Signal:
        cell = self.context.fences.alloc()
        cell.last += 1
        return Signal(cell, cell.last, "a notify")

    def _wait_ended(self, signal: Signal) -> None:
        if signal.job is None:  # it was aborted before it had a record
            self._waits.remove(signal)
            self.context.fences.release(signal.cell)
        else:
            self.context.fences.release_after(signal)

    def _forget_records(self) -> None:
        for signal in self._records:
            self.context.fences.release_after(signal)
        self._records.clear()

    def _check(self) -> None:
        if not self._open:
            raise NpuError(C.NPU_ERROR_STALE_HANDLE, "the notify was destroyed")
        self.context.check()

    def _enter(self, stream: Stream | None) -> Stream:
        """Return the stream, with room for a job: nobody comes between the look at records and waits and their change."""
        self._check()
        stream = self.context.stream_of(stream, "the notify")
        stream.make_room()
        self._check()
        return stream
