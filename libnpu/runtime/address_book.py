"""Which memory is where: the ranges of a context by address, live or freed. One book for device addresses, one for the
host's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Generic, TypeVar

from npu_abi import C

from libnpu.errors import NpuError

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")
REMEMBERED = 4096  # chosen: freed ranges that are still recognised


class AddressBook(Generic[T]):
    """Ranges that do not overlap, with what is there; None is in memory that was freed."""

    __slots__ = ("_freed", "_ranges", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []  # sorted
        self._ranges: dict[int, tuple[int, T | None]] = {}  # start -> end, what is there
        self._freed: dict[int, None] = {}  # starts, oldest first

    def __iter__(self) -> Iterator[T]:
        return iter([found for _, found in self._ranges.values() if found is not None])

    def add(self, start: int, size: int, what: T) -> None:
        """Note what is at `start` now. What was freed there is forgotten."""
        for old in self._overlapping(start, size):
            self._forget(old)
        self._starts.insert(bisect_left(self._starts, start), start)
        self._ranges[start] = (start + size, what)

    def remove(self, start: int) -> None:
        """Note that what began at `start` is gone. Twice is allowed."""
        end, what = self._ranges.get(start, (0, None))
        if what is None:
            return
        self._ranges[start] = (end, None)
        self._freed[start] = None
        if len(self._freed) > REMEMBERED:
            self._forget(next(iter(self._freed)))

    def erase(self, start: int) -> None:
        """Forget what begins at `start`: its addresses mean something else now. Twice is allowed."""
        if start in self._ranges:
            self._forget(start)

    def find(self, address: int) -> T | None:
        """Return what is at `address`, None for nothing. Raises STALE_HANDLE in memory that was freed."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        start = self._starts[at]
        end, what = self._ranges[start]
        if address >= end:
            return None
        if what is None:
            message = f"{address:#x} lies in memory at {start:#x} that was freed"
            raise NpuError(C.NPU_ERROR_STALE_HANDLE, message, gone=start)
        return what

    def before(self, address: int) -> T | None:
        """Return what begins last before an address, None for nothing, or for what was freed."""
        at = bisect_right(self._starts, address) - 1
        return self._ranges[self._starts[at]][1] if at >= 0 else None

    def overlaps(self, start: int, size: int) -> bool:
        """Whether something live is in the `size` bytes from `start`."""
        return any(self._ranges[old][1] is not None for old in self._overlapping(start, size))

    def _overlapping(self, start: int, size: int) -> list[int]:
        first = bisect_right(self._starts, start)
        if first and self._ranges[self._starts[first - 1]][0] > start:
            first -= 1
        return self._starts[first : bisect_left(self._starts, start + size)]

    def _forget(self, start: int) -> None:
        del self._ranges[start], self._starts[bisect_left(self._starts, start)]
        self._freed.pop(start, None)
