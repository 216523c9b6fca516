"""Bytes [0, size) in ranges that have a state each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

S = TypeVar("S")


class Ranges(Generic[S]):
    """States can be hashed; neighbours with equal ones are one range."""

    __slots__ = ("_starts", "_states", "size")

    def __init__(self, size: int, state: S) -> None:
        self.size = size
        self._starts = [0]
        self._states = [state]

    def parts(self, start: int, end: int) -> Iterator[tuple[int, int, S]]:
        """Yield (start, end, state) of what lies in [start, end)."""
        index = max(bisect_right(self._starts, start) - 1, 0)
        while index < len(self._starts) and self._starts[index] < end:
            yield max(start, self._starts[index]), min(end, self._end(index)), self._states[index]
            index += 1

    def change(self, start: int, end: int, after: Callable[[S], S]) -> None:
        """Give the bytes of [start, end), which is not empty, the state that `after` says for the one they have."""
        first, last = self._cut(start), self._cut(end)
        changed: dict[S, S] = {}
        for index in range(first, last):
            state = self._states[index]
            if state not in changed:
                changed[state] = after(state)
            self._states[index] = changed[state]
        self._join(first, last)

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
