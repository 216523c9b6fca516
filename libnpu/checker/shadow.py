"""Shadow memory: who wrote and who read each byte range of an allocation last, and whether that is ordered.

Accesses are put in by an order in which each comes behind everything that it must come behind. Two accesses are ordered
when the clock of the later one covers the earlier one; a byte's last write and the reads since then are all that a later
access can be in conflict with, for what they cover was compared with them before.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

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


class Shadow:
    """The bytes of an allocation, [0, size)."""

    __slots__ = ("_starts", "_states", "size")

    def __init__(self, size: int, state: State = FRESH) -> None:
        self.size = size
        self._starts = [0]
        self._states = [state]

    def touch(self, start: int, end: int, access: Access, clock: Mapping[int, int]) -> list[Conflict]:
        """Put in an access to [start, end) and return with what it is in conflict, by byte range; FRESH bytes that are
        read are not among them (`unwritten`).
        """
        first, last = self._cut(start), self._cut(end)
        found: list[Conflict] = []
        changed: dict[State, State] = {}
        for index in range(first, last):
            state = self._states[index]
            low, high = self._starts[index], self._end(index)
            found += [(old, low, high) for old in _conflicts(state, access, clock)]
            after = changed.get(state)
            if after is None:
                after = changed[state] = _after(state, access, clock)
            self._states[index] = after
        self._join(first, last)
        return found

    def conflicts(self, start: int, end: int, access: Access, clock: Mapping[int, int]) -> list[Conflict]:
        """Return what `touch` would, and put nothing in."""
        found, index = [], max(bisect_left(self._starts, start + 1) - 1, 0)
        while index < len(self._starts) and self._starts[index] < end:
            low, high = max(start, self._starts[index]), min(end, self._end(index))
            found += [(old, low, high) for old in _conflicts(self._states[index], access, clock)]
            index += 1
        return found

    def unwritten(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of [start, end) that nobody has written."""
        index = max(bisect_left(self._starts, start + 1) - 1, 0)
        while index < len(self._starts) and self._starts[index] < end:
            if self._states[index].write is None:
                yield max(start, self._starts[index]), min(end, self._end(index))
            index += 1

    def writes(self, start: int, end: int) -> Iterator[Access]:
        """Yield the last writes to [start, end)."""
        index = max(bisect_left(self._starts, start + 1) - 1, 0)
        while index < len(self._starts) and self._starts[index] < end:
            write = self._states[index].write
            if write is not None:
                yield write
            index += 1

    def _end(self, index: int) -> int:
        return self._starts[index + 1] if index + 1 < len(self._starts) else self.size

    def _cut(self, at: int) -> int:
        """Let a range begin at `at`, and return its index."""
        index = bisect_left(self._starts, at)
        if at < self.size and (index == len(self._starts) or self._starts[index] != at):
            self._starts.insert(index, at)
            self._states.insert(index, self._states[index - 1])
        return index

    def _join(self, first: int, last: int) -> None:
        """Join ranges [first - 1, last] with the same state."""
        low, high = max(first, 1), min(last + 1, len(self._starts))
        keep = [index for index in range(low, high) if self._states[index] != self._states[index - 1]]
        if len(keep) < high - low:
            self._starts[low:high] = [self._starts[index] for index in keep]
            self._states[low:high] = [self._states[index] for index in keep]


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
