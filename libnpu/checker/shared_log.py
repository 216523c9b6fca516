"""What a process notes of memory and events that it shares, for a comparison with other processes that `npu check` watches
(`processes.py`): accesses, records and waits, each with its place in the order of this process, and when the host was told.

Times are the machine's, not the device's: what the host of one process knows, it may tell the others from then on, by means that
are not seen.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from libnpu.checker.steps import HOST
from libnpu.checker.symbols import place_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libnpu.checker.allocations import Allocation
    from libnpu.checker.shadow import Access, Clock
    from libnpu.checker.shared import Records
    from libnpu.checker.steps import Act, Step

MOST = 1000  # that are noted of each kind; who comes later is not compared


@dataclass(slots=True)
class Noted:
    """An access of shared memory, or a wait for a record of another process, by an actor in an epoch. `told_ns`: when the host was told
    of its end.
    """

    actor: int
    epoch: int
    of: Allocation | Records
    what: dict[str, Any]
    told_ns: int | None = None


class SharedLog:
    """Is empty in a process that shares nothing."""

    def __init__(self) -> None:
        self.begun_ns = time.monotonic_ns()
        self._full_ns: int | None = None  # since when there is more than is noted
        self._accesses: list[Noted] = []
        self._waits: list[Noted] = []
        self._records: list[tuple[Records, int, Step, int]] = []
        self._untold: list[Noted] = []

    def access(self, allocation: Allocation, start: int, end: int, access: Access, clock: Clock) -> None:
        """Note an access of bytes [start, end) of shared memory."""
        what = {"start": start, "end": end, "write": access.write, "clock": clock, "act": access.act}
        self._note(self._accesses, Noted(access.actor, access.epoch, allocation, what))

    def wait(self, records: Records, number: int, actor: int, epoch: int) -> None:
        """Note that what comes behind an actor's epoch comes behind a record of another process."""
        what = {"number": number, "clock": {}, "at_ns": time.monotonic_ns()}
        self._note(self._waits, Noted(actor, epoch, records, what))

    def record(self, records: Records, number: int, step: Step) -> None:
        """Note a record of this process."""
        if self._has_room(self._records):
            self._records.append((records, number, step, time.monotonic_ns()))

    def told(self, clock: Clock) -> None:
        """The host knows what is in the clock from now on."""
        now_ns, untold = time.monotonic_ns(), []
        for noted in self._untold:
            if clock.get(noted.actor, -1) >= noted.epoch:
                noted.told_ns = now_ns
            else:
                untold.append(noted)
        self._untold = untold

    def content(self, memory: Iterable[Allocation], events: Iterable[tuple[bytes, Records]]) -> dict[str, Any]:
        """Return all as JSON has it, by handles in hex. `memory` is what was shared; `events` by handle."""
        handles = {records: handle.hex() for handle, records in events}
        return {
            "begun_ns": self.begun_ns,
            "full_ns": self._full_ns,
            "memory": [_memory(allocation) for allocation in memory],
            "accesses": [_noted(each, _handle(each.of)) | {"act": _act(each.what["act"])} for each in self._accesses],
            "waits": [_noted(each, handles[each.of]) for each in self._waits if each.of in handles],
            "records": [_record(handles[each[0]], *each[1:]) for each in self._records if each[0] in handles],
        }

    def _note(self, among: list[Noted], noted: Noted) -> None:
        if not self._has_room(among):
            return
        among.append(noted)
        if noted.actor == HOST:
            noted.told_ns = time.monotonic_ns()
        else:
            self._untold.append(noted)

    def _has_room(self, among: list[Any]) -> bool:
        has_room = len(among) < MOST
        if not has_room and self._full_ns is None:
            self._full_ns = time.monotonic_ns()
        return has_room


def _noted(noted: Noted, handle: str) -> dict[str, Any]:
    return noted.what | {"of": handle, "actor": noted.actor, "epoch": noted.epoch, "told_ns": noted.told_ns}


def _handle(allocation: Any) -> str:
    handle: bytes = allocation.handle
    return handle.hex()


def _memory(allocation: Allocation) -> dict[str, Any]:
    size, is_opened = allocation.size, allocation.is_opened
    return {"of": _handle(allocation), "bytes": size, "made": _act(allocation.made), "is_opened": is_opened}


def _record(handle: str, number: int, step: Step, at_ns: int) -> dict[str, Any]:
    clock = step.clock if step.clock is not None else step.known
    place = {"actor": step.actor, "epoch": step.epoch, "clock": clock}
    return {"of": handle, "number": number, "at_ns": at_ns} | place


def _act(act: Act) -> dict[str, Any]:
    sites = {name: place_of(at) for name in ("site", "captured") if isinstance(at := getattr(act, name), int)}
    return asdict(act) | sites
