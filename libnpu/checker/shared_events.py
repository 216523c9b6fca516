"""What contexts and processes do with each other: memory and events that are exported and opened, and the records of such events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.checker.shared_log import SharedLog
from libnpu.checker.steps import HOST, Act
from libnpu.checker.stream_events import StreamEvents
from libnpu.runtime.buffer import Buffer
from libnpu.runtime.ipc import ImportedBuffer
from libnpu.runtime.ipc_event import IpcEvent
from libnpu.runtime.stream import Stream

if TYPE_CHECKING:
    from typing import Any

    from libnpu.checker.allocations import Allocation
    from libnpu.checker.guarded import Pages
    from libnpu.checker.shadow import Access, Clock
    from libnpu.runtime.job import Job


class SharedEvents(StreamEvents):
    """Is told of what has a handle."""

    def __init__(self, *, lint: bool = False, guard: Pages | None = None) -> None:
        super().__init__(lint=lint, guard=guard)
        self._log = SharedLog()
        self._shared_memory: list[Allocation] = []

    def shared(self) -> dict[str, Any]:
        """Return what other processes are to know, as `processes.compare` takes it."""
        return self._log.content(
            self._shared_memory, ((key[1], records) for key, records in self._shared.events.items())
        )

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
            self._log.record(self._shared.records_of(event), number, step)

    def taken_back(self, event: IpcEvent, number: int) -> None:
        """As Observer."""
        act = self._act(event.context, "reset of an event")
        self._resets[self._known_as(event)] = self._shared.record(event, number), act

    def passed(self, event: IpcEvent, number: int, by: Job | Stream | None) -> None:
        """As Observer."""
        record = self._shared.record(event, number)
        records = [record] if record is not None else self._shared.ended(self._next_order())
        if record is None:
            self._log_wait(event, number, by)
        if by is None:
            self._see_faults()
            self._come_behind(records)
        elif isinstance(by, Stream):
            self._history(self._watched[by.context], by).behind += records
        elif (step := self._step_of(by)) is not None and step.clock is None:
            step.is_behind_others = record is None
            step.befores += records

    # ---- inside ----

    def _log_wait(self, event: IpcEvent, number: int, by: Job | Stream | None) -> None:
        """Note a wait for another process's record, as `passed` has it."""
        if by is None:
            self._learn({**self._clock, HOST: self._clock[HOST] + 1})  # what the host does from now on
            actor, epoch = HOST, self._clock[HOST]
        elif isinstance(by, Stream):
            watched = self._watched[by.context]
            history = self._history(watched, by)
            act = Act("wait for an event", history.name, "", self._next_order(), watched.context.node.now_ps)
            point = self._point(history, watched, act)
            actor, epoch = point.actor, point.epoch
        else:
            actor, epoch = self._history(self._watched[by.stream.context], by.stream).actor, by.number
        self._log.wait(self._shared.records_of(event), number, actor, epoch)

    def _touch(self, allocation: Allocation, start: int, end: int, access: Access, clock: Clock) -> None:
        """As Comparison; of shared memory other processes are to know."""
        super()._touch(allocation, start, end, access, clock)
        if allocation.handle:
            self._log.access(allocation, start, min(end, allocation.size), access, clock)

    def _learn(self, clock: Clock) -> None:
        """As Program."""
        super()._learn(clock)
        self._log.told(clock)

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
            allocation.handle, allocation.is_opened = handle, isinstance(thing, ImportedBuffer)
            self._shared_memory.append(allocation)
