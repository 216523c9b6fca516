"""What contexts and processes do with each other: memory and events that are exported and opened, and the records of such events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.checker.stream_events import StreamEvents
from libnpu.runtime.buffer import Buffer
from libnpu.runtime.ipc_event import IpcEvent
from libnpu.runtime.stream import Stream

if TYPE_CHECKING:
    from libnpu.runtime.job import Job


class SharedEvents(StreamEvents):
    """Is told of what has a handle."""

    def exported(self, thing: Buffer | IpcEvent, handle: bytes) -> None:
        """As Observer."""
        self._share(thing, handle)

    def opened(self, thing: Buffer | IpcEvent, handle: bytes) -> None:
        """As Observer."""
        self._share(thing, handle)

    def signalled(self, event: IpcEvent, number: int, job: Job) -> None:
        """As Observer."""
        step = self._step_of(job)
        if step is not None:
            self._shared.records_of(event).add(number, step)

    def taken_back(self, event: IpcEvent, number: int) -> None:
        """As Observer."""
        act = self._act(event.context, "reset of an event")
        self._resets[self._known_as(event)] = self._shared.record(event, number), act

    def passed(self, event: IpcEvent, number: int, by: Job | Stream | None) -> None:
        """As Observer."""
        record = self._shared.record(event, number)
        records = [record] if record is not None else self._shared.ended(self._next_order())
        if by is None:
            self._see_faults()
            self._come_behind(records)
        elif isinstance(by, Stream):
            self._history(self._watched[by.context], by).behind += records
        elif (step := self._step_of(by)) is not None and step.clock is None:
            step.is_behind_others = record is None
            step.befores += records

    # ---- inside ----

    def _known_as(self, event: object) -> object:
        """All that this process has of an event are one."""
        return self._shared.records_of(event) if isinstance(event, IpcEvent) else event

    def _share(self, thing: Buffer | IpcEvent, handle: bytes) -> None:
        """Take what is known of the thing that a handle of the device means."""
        key = thing.context.device, handle  # type: ignore[attr-defined]
        if not isinstance(thing, Buffer):
            self._shared.records[thing] = self._shared.events.setdefault(key, self._shared.records_of(thing))
        elif (allocation := self._allocation_of(thing)) is not None:
            allocation.shadow = self._shared.memory.setdefault(key, allocation.shadow)
            allocation.is_shared = True
