"""Shadow memory: who wrote and who read each byte range of an allocation last, and whether that is ordered.

Accesses are put in by an order in which each comes behind everything that it must come behind. Two accesses are ordered
when the clock of the later one covers the earlier one; a byte's last write and the reads since then are all that a later
access can be in conflict with, for what they cover was compared with them before.
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
    """The last write of some bytes, None when nobody wrote them, and the reads since then that no later one covers."""

    write: Access | None
    reads: tuple[Access, ...] = ()


FRESH = State(None)
Conflict = tuple[Access, int, int]  # the earlier access, and the bytes [start, end) of it that are concerned


class Shadow(Ranges[State]):
    """The bytes of an allocation."""

    __slots__ = ()

    def __init__(self, size: int, state: State = FRESH) -> None:
        super().__init__(size, state)

    def touch(self, start: int, end: int, access: Access, clock: Mapping[int, int]) -> list[Conflict]:
        """Put in an access to [start, end) and return with what it is in conflict, by byte range; FRESH bytes that are
        read are not among them (`unwritten`).
        """
        found = self.conflicts(start, end, access, clock)
        self.change(start, end, lambda state: _after(state, access, clock))
        return found

    def conflicts(self, start: int, end: int, access: Access, clock: Mapping[int, int]) -> list[Conflict]:
        """Return what `touch` would, and put nothing in."""
        parts = self.parts(start, end)
        return [(old, low, high) for low, high, state in parts for old in _conflicts(state, access, clock)]

    def unwritten(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of [start, end) that nobody has written."""
        return [(low, high) for low, high, state in self.parts(start, end) if state.write is None]

    def writes(self, start: int, end: int) -> Iterator[Access]:
        """Yield the last writes to [start, end)."""
        return (state.write for _, _, state in self.parts(start, end) if state.write is not None)


def _conflicts(state: State, access: Access, clock: Mapping[int, int]) -> Iterator[Access]:
    if state.write is not None and not state.write.is_before(clock):
        yield state.write
    if access.write:
        for read in state.reads:
            if not read.is_before(clock):
                yield read


def _after(state: State, access: Access, clock: Mapping[int, int]) -> State:
    if access.write:
        return State(access)
    return State(state.write, (*(read for read in state.reads if not read.is_before(clock)), access))
