"""Events that several processes record, wait for and ask about.

Such an event is a page of memory that all of them have: fences, which the device writes when recorded work has ended, and how
often it was recorded and which record counts, which the host writes when it records. A record is the next number, and has the next
fence; who waits afterwards waits for that of the record which counts then. The host waits with a job of its own that waits for the
fence; a wait that times out leaves it there for the next one.

A schedule that holds jobs back hands a record over when a context of this process needs it, and at once when all who may wait for it
are in other processes, which do not tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.buffer_object import BufferObject
from libnpu.runtime.command_formats import FENCE, SIGNAL, WAIT
from libnpu.runtime.event import Event
from libnpu.runtime.guard import public
from libnpu.runtime.ipc import EVENT, make_handle, open_handle
from libnpu.runtime.operation import Operation
from libnpu.runtime.time import timeout_ps

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from libnpu.runtime.commands import CommandWriter
    from libnpu.runtime.context import Context
    from libnpu.runtime.job import Job
    from libnpu.runtime.stream import Stream

EVENT_BYTES = 4096
FENCES = 504  # a record that so many later ones have overtaken is lost
BO_FLAGS = int(C.NPU_BO_MAPPABLE | C.NPU_BO_SHAREABLE)
COUNT_OFFSET = 4032  # a cache line of its own: the device writes the fences'
CURRENT_OFFSET = 4040  # the number of the last record, 0 after a reset


def _fence_of(number: int) -> int:
    """Return where the fence of a record is in the event's page."""
    return number % FENCES * 8


class Records:
    """The records of an event that contexts of this process have made and that have not been seen to end, by number. `events`: those of
    the process that share them, each in its context.
    """

    def __init__(self) -> None:
        self.events: WeakSet[IpcEvent] = WeakSet()
        self._jobs: dict[int, Job] = {}

    def add(self, number: int, job: Job) -> None:
        """Note a record, until it ends."""
        if not job.done:
            self._jobs[number] = job
            job.ends.append(lambda _: self._forget(number))

    def get(self, number: int) -> Job | None:
        """Return the job of a record, None for another process's and for one that has ended."""
        return self._jobs.get(number)

    def _forget(self, number: int) -> None:
        self._jobs.pop(number, None)


class _HostWait:
    """A job that waits for a record, in a stream of its own. `waiters`: threads that wait for it."""

    __slots__ = ("job", "stream", "waiters")

    def __init__(self, stream: Stream, job: Job) -> None:
        self.stream = stream
        self.job = job
        self.waiters = 0


class _Record(Operation):
    """Write `value`, the number of a record, to its fence when everything before it in its stream has ended."""

    __slots__ = ("_event", "_value")
    kind = "event_record"
    capturable = False
    command = SIGNAL

    def __init__(self, event: IpcEvent, value: int) -> None:
        self.name = "event record" if self.command == SIGNAL else "wait for an event of several processes"
        self._event = event
        self._value = value

    def encode(self, writer: CommandWriter) -> None:
        """Write a FENCE_SIGNAL or FENCE_WAIT on the event's page."""
        bo = self._event.bo
        writer.touch((bo.handle,))
        offset = bo.va + _fence_of(self._value) - writer.context.fences.va
        writer.command(FENCE.pack(self.command, FENCE.size, offset, self._value))


class _Wait(_Record):
    """Let the stream wait for the record `value`."""

    __slots__ = ("record",)
    kind = "event_wait"
    command = WAIT

    def __init__(self, event: IpcEvent, value: int) -> None:
        super().__init__(event, value)
        self.record = event.records.get(value)


class IpcEvent(Event):
    """Made by `Context.create_event(timing=False, interprocess=True)` and `Context.open_ipc_event`. It keeps no time and cannot
    be captured. An `Event` otherwise, whose record by one process the others see.
    """

    def __init__(self, context: Context, handle: bytes | None = None) -> None:
        super().__init__(context, timing=False)
        self.opened = handle is not None
        self._waits: dict[int, _HostWait] = {}  # by the number of the record
        self._own: tuple[int, Job] | None = None  # the last record from here
        self._is_exported = False
        self.records = Records()
        if handle is None:
            self.bo = _above(context, lambda: BufferObject(context.node, EVENT_BYTES, BO_FLAGS))
            self._memory[:EVENT_BYTES] = bytes(EVENT_BYTES)
        else:
            self.bo = _above(context, lambda: open_handle(context.node, EVENT, handle)[0])
            self.records = context.device.records.setdefault(bytes(handle), self.records)
            if context.observer is not None:
                context.observer.opened(self, bytes(handle))
        self.records.events.add(self)

    @public
    def ipc_handle(self) -> bytes:
        """Return the handle for `Context.open_ipc_event`. Raises INVALID_VALUE for an event that was opened itself."""
        self._check()
        self.context.enter()
        if self.opened:
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, "the event was opened by a handle: that is the one to pass on")
        handle = make_handle(self.context.node, EVENT, self.bo, EVENT_BYTES)
        self._is_exported = True
        self.context.device.records[handle] = self.records
        self._hand_over(self._get(CURRENT_OFFSET))
        if self.context.observer is not None:
            self.context.observer.exported(self, handle)
        return handle

    @public
    def record(self, stream: Stream | None = None) -> None:
        """As `Event.record`. Raises CAPTURE_UNSUPPORTED for a stream that is being captured."""
        self._check()
        stream = self.context.stream_of(stream, "the event")
        stream.make_room()
        self._check()
        number = (self._get(COUNT_OFFSET) + 1) % 2**64  # whatever another process has written there
        job = stream.enqueue(_Record(self, number), settle=False)
        self._set(COUNT_OFFSET, number)
        self._set(CURRENT_OFFSET, number)
        self._own = number, job
        self.records.add(number, job)
        if (self.opened or self._is_exported) and len(self.records.events) == 1:
            self._hand_over(number)
        if self.context.observer is not None:
            self.context.observer.signalled(self, number, job)
        stream.settle(job)

    def enqueue_wait(self, stream: Stream) -> None:
        """As `Event.enqueue_wait`."""
        self._check()
        stream.check_context(self.context, "the event")
        stream.check_open()
        if stream.capturing is not None:
            raise stream.capturing.refusal("a wait for an event of several processes")
        number = self._number(stream)
        self.context.enter()
        own = self._own_job(number)
        if own is not None:
            if own.stream is not stream:
                stream.wait_signal(own.stream.signal_of(own))
        elif not self._has_happened(number):
            self._note_passed(number, stream.enqueue(_Wait(self, number)))
        elif number:
            self._note_passed(number, stream)

    @public
    def query(self) -> bool:
        """As `Event.query`; of the work itself it knows that it has ended, not how."""
        self._check()
        number = self._number(asks=True)
        self.context.enter()
        is_told, record = self._is_told_of(number), self.records.get(number)
        if not is_told and record is not None:
            record.stream.asked_in_vain()
        return is_told

    @public
    def synchronize(self, timeout_ns: float | None = None) -> None:
        """As `Event.synchronize`; of the work itself it knows that it has ended, not how."""
        self._check()
        timeout_ps(timeout_ns)  # raises
        number = self._number()
        if self._is_told_of(number):
            self.context.enter()
            return
        wait = self._wait_for(number)
        wait.waiters += 1
        try:
            wait.stream.wait(wait.job, timeout_ns)
        finally:
            wait.waiters -= 1
            self._give_back()

    def _wait_for(self, number: int) -> _HostWait:
        """Return the wait for a record; those for others that no thread waits for any more end."""
        if number not in self._waits:
            stream = None
            for other, wait in [(other, wait) for other, wait in self._waits.items() if not wait.waiters]:
                del self._waits[other]
                if stream is None and wait.job.done:
                    stream = wait.stream
                else:
                    self.context.give_up(wait.stream)
            stream = stream or self.context.create_waiting_stream()
            try:
                job = stream.enqueue(_Wait(self, number), settle=False)
                self._note_passed(number, job)
                self._waits[number] = _HostWait(stream, job)
            except NpuError:
                self.context.give_up(stream)
                raise
        return self._waits[number]

    def __await__(self) -> Generator[Any, None, None]:
        raise NpuError(C.NPU_ERROR_NOT_SUPPORTED, "an event of several processes cannot be awaited; `query` asks")

    @public
    def reset(self) -> None:
        """As `Event.reset`, for all processes."""
        self._check()
        self.context.enter()
        number = self._get(CURRENT_OFFSET)
        if number and self.context.observer is not None:
            self.context.observer.taken_back(self, number)
        self._set(CURRENT_OFFSET, 0)

    @public
    def destroy(self) -> None:
        """As `Event.destroy`; other processes keep what they have opened."""
        super().destroy()
        self.records.events.discard(self)
        self._give_back()

    def _give_back(self) -> None:
        """Free what a destroyed event has, unless a thread waits for it: then the last one does it."""
        if self._open or not self.bo.handle or any(wait.waiters for wait in self._waits.values()):
            return
        while self._waits:
            self.context.give_up(self._waits.popitem()[1].stream)
        self.context.free_object(self.bo)

    @property
    def job(self) -> Job | None:
        """None: its records may be others'."""
        return None

    @property
    def _memory(self) -> memoryview:
        assert self.bo.view is not None
        return self.bo.view

    def _get(self, offset: int) -> int:
        return int.from_bytes(self._memory[offset : offset + 8], "little")

    def _set(self, offset: int, value: int) -> None:
        self._memory[offset : offset + 8] = value.to_bytes(8, "little")

    @property
    def was_recorded(self) -> bool:
        """Whether any process has ever recorded it."""
        return self._get(COUNT_OFFSET) > 0

    def _number(self, stream: Stream | None = None, *, asks: bool = False) -> int:
        """Return the number of the last record, 0 for none, for a wait of a stream or the host (None), or a query (`asks`). Raises
        NOT_RECORDED where that is an error.
        """
        number = self._get(CURRENT_OFFSET)
        if number:
            return number
        if self.context.semantics.unrecorded_event_is_error:
            raise NpuError(C.NPU_ERROR_NOT_RECORDED, "the event was never recorded")
        if self.context.observer is not None:
            self.context.observer.waited(self, None, stream, asks=asks)
        return 0

    def _own_job(self, number: int) -> Job | None:
        """Return the job of a record, if it is the last from here."""
        return self._own[1] if self._own is not None and self._own[0] == number else None

    def has_signalled(self, number: int) -> bool:
        """Whether the device has written a record's fence, or that of a later one; False of an event that is gone."""
        return self.bo.view is not None and self._get(_fence_of(number)) >= number

    def _note_passed(self, number: int, by: Job | Stream | None) -> None:
        if self.context.observer is not None:
            self.context.observer.passed(self, number, by)

    def _is_told_of(self, number: int) -> bool:
        """Whether a record has happened, of which the host is told."""
        happened = self._has_happened(number)
        if happened and number:
            self._note_passed(number, None)
        return happened

    def _has_happened(self, number: int) -> bool:
        own = self._own_job(number)
        self._hand_over(number)
        self.context.node.catch_up()
        return not number or (own is not None and own.done) or self._get(_fence_of(number)) >= number

    def _hand_over(self, number: int) -> None:
        """Let a record of this process reach the device."""
        record = self.records.get(number)
        if record is not None:
            record.stream.context.dispatcher.need(record)


def _above(context: Context, make: Callable[[], BufferObject]) -> BufferObject:
    """Return an object above the fence heap, from which the device counts the places of fences."""
    below: list[BufferObject] = []
    try:
        while (bo := make()).va < context.fences.va:
            below.append(bo)
        return bo
    finally:
        for bo in below:
            bo.free()
