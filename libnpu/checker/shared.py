"""What several contexts have: memory and events that were opened by a handle, and what the records of such events come behind.

Records of another process are not seen. It may have waited for whatever this one has recorded: so one comes behind all of that which has
ended before it is seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from libnpu.runtime.ipc_event import FENCES

if TYPE_CHECKING:
    from libnpu.checker.shadow import Shadow
    from libnpu.checker.steps import Step
    from libnpu.runtime.ipc_event import IpcEvent


Key = tuple[object, bytes]  # a device and a handle


class Records:
    """The records of an event that were made in this process, by number; the last of them."""

    def __init__(self) -> None:
        self._steps: dict[int, Step] = {}

    def add(self, number: int, step: Step) -> None:
        """Note a record. One that so many later ones have overtaken is lost to the device, too."""
        self._steps[number] = step
        if len(self._steps) > FENCES:
            del self._steps[next(iter(self._steps))]

    def get(self, number: int) -> Step | None:
        """Return a record, None for one of another process."""
        return self._steps.get(number)

    def ended(self, event: IpcEvent, order: int) -> Step | None:
        """Return the newest one before act number `order` that has ended; None when none has, and when the event is gone."""
        steps = reversed(self._steps.items())
        return next((step for number, step in steps if step.act.order < order and event.has_signalled(number)), None)


class Shared:
    """By handle. `records`: of the events that this process has made or opened."""

    def __init__(self) -> None:
        self.memory: dict[Key, Shadow] = {}
        self.events: dict[Key, Records] = {}
        self.records: WeakKeyDictionary[IpcEvent, Records] = WeakKeyDictionary()

    def records_of(self, event: IpcEvent) -> Records:
        """Return the records of an event."""
        return self.records.setdefault(event, Records())

    def record(self, event: IpcEvent, number: int) -> Step | None:
        """Return the record of an event, None for another process's."""
        return self.records[event].get(number) if event in self.records else None

    def ended(self, order: int) -> list[Step]:
        """Return, by event, the newest record of this process before act number `order` that has ended."""
        found = (records.ended(event, order) for event, records in self.records.items())
        return [step for step in found if step is not None]
