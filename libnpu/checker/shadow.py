"""Shadow memory: who accessed each byte range of an allocation, and whether that is ordered.

Accesses are put in by an order in which each comes behind everything that it must come behind. Two accesses are ordered
when the clock of the later one covers the earlier one. What all that is still to come must come behind is forgotten; so each
pair that is in conflict is found, not only the last ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from libnpu.checker.ranges import Ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from libnpu.checker.steps import Act

Clock = dict[int, int]  # actor -> epoch: everything that the actor did up to it is known to have happened


@dataclass(frozen=True, slots=True)
class Access:
    """One access of an actor in an epoch of it; `act` is what is said of it."""

    actor: int
    epoch: int
    write: bool
    act: Act

    def is_before(self, clock: Mapping[int, int]) -> bool:
        """Whether whoever has the clock comes behind it."""
        return clock.get(self.actor, -1) >= self.epoch


@dataclass(frozen=True, slots=True)
class State:
    """What was done with some bytes: whether somebody wrote them, and the accesses that a later one may be in conflict with."""

    is_written: bool
    accesses: tuple[Access, ...] = ()


FRESH = State(False)
MOST = 16  # accesses of a state; of more, those of an actor that are the same call of the program are one, the last
Conflict = tuple[Access, int, int]  # the earlier access, and the bytes [start, end) of it that are concerned


class Shadow(Ranges[State]):
    """The bytes of an allocation."""

    __slots__ = ()

    def __init__(self, size: int, state: State = FRESH) -> None:
        super().__init__(size, state)

    def touch(
        self, start: int, end: int, access: Access, clock: Mapping[int, int], floor: Mapping[int, int]
    ) -> list[Conflict]:
        """Put in an access to [start, end) and return with what it is in conflict, by byte range; FRESH bytes that are
        read are not among them (`unwritten`). `floor`: what all accesses that are still to come cover.
        """
        found = self.conflicts(start, end, access, clock)
        self.change(start, end, lambda state: _after(state, access, clock, floor))
        return found

    def conflicts(self, start: int, end: int, access: Access, clock: Mapping[int, int]) -> list[Conflict]:
        """Return what `touch` would, and put nothing in."""
        return [
            (old, low, high)
            for low, high, state in self.parts(start, end)
            for old in state.accesses
            if (old.write or access.write) and not old.is_before(clock)
        ]

    def unwritten(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of [start, end) that nobody has written."""
        return [(low, high) for low, high, state in self.parts(start, end) if not state.is_written]

    def writes(self, start: int, end: int) -> Iterator[Access]:
        """Yield the writes to [start, end) that are not forgotten."""
        return (old for _, _, state in self.parts(start, end) for old in state.accesses if old.write)


def _after(state: State, access: Access, clock: Mapping[int, int], floor: Mapping[int, int]) -> State:
    kept = [
        old
        for old in state.accesses
        if not (old.is_before(clock) and (old.is_before(floor) or (old.act.is_allocation and access.write)))
    ]  # who comes behind a write behind the allocation comes behind both
    own = next((old for old in kept if old.act is access.act), None)
    if own is None or own.write < access.write:  # of an act that reads and writes the bytes, the write counts
        kept = [*(old for old in kept if old is not own), access]
    if len(kept) > MOST:
        kept = [*{(old.actor, old.write, old.act.what, old.act.site): old for old in kept}.values()]
    return State(state.is_written or access.write, tuple(kept))
