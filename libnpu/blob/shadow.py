"""Shadow memory of an address range: who has touched which bytes, while the tasks of a blob pass by in one legal order.

A segment of the range keeps only what later tasks can still be in conflict with: a write that covers it takes the place of all before it, a read of the reads before it, when it is
ordered after them; whoever is ordered after the new one is ordered after the old. So the work is near linear, and every byte
that two unordered tasks share is found with one such pair.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from math import gcd
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np
from npu_model import footprint

if TYPE_CHECKING:
    from npu_model.footprint import Box
    from numpy.typing import NDArray

    from libnpu.blob.order import Order


T = TypeVar("T")  # what a segment has


class Entry(NamedTuple):
    """An access that later ones may be in conflict with. `stay`: which buffer's it is, in the order of their first tasks; -1 = not known."""

    task: int
    writes: bool
    box: Box
    stay: int


class Conflict(NamedTuple):
    """Two accesses of the same bytes, one of the two writing."""

    earlier: Entry
    later: Entry


class _Ranges(ABC, Generic[T]):
    """[first, past) in segments; cut wherever an access that is one run begins or ends, joined again by one that covers the cut."""

    def __init__(self, first: int, past: int, segment: T) -> None:
        self._cuts = [first]
        self._segments = [segment]
        self._past = past

    def _span(self, box: Box) -> tuple[int, int]:
        """Return the segments that the span of a box meets, as a range; cut at its ends first when it is one run."""
        if box.dims:
            return bisect_right(self._cuts, box.addr) - 1, bisect_left(self._cuts, box.end)
        return self._cut(box.addr), self._cut(box.end)

    def _cut(self, at: int) -> int:
        """Return the segment that begins at an address; cut there first. Past the end: the number of segments."""
        cuts = self._cuts
        number = bisect_left(cuts, at)
        if at < self._past and (number == len(cuts) or cuts[number] != at):
            cuts.insert(number, at)
            self._segments.insert(number, self._copy(self._segments[number - 1]))
        return number

    def _become(self, first: int, past: int, segment: T) -> None:
        """Put one segment in the place of a range of them."""
        if past > first:
            self._segments[first:past] = [segment]
            del self._cuts[first + 1 : past]

    @abstractmethod
    def _copy(self, segment: T) -> T:
        """Return a segment of its own with the same content."""


class Shadow(_Ranges[list[Entry]]):
    """The accesses of the bytes [first, past), which come in the order of their tasks.

    `used` collects the tasks of whose writes somebody has read a byte, if it `counts_uses`. If not, accesses have no stay, and only those are
    compared whose tasks may run at once: what is in runs, of which there may be as many as bytes allow, is kept apart from the segments.
    """

    def __init__(self, first: int, past: int, order: Order, counts_uses: bool = True) -> None:
        super().__init__(first, past, [])
        self._order = order
        self._counts_uses = counts_uses
        self._in_runs: list[Entry] = []
        self.used: set[int] = set()

    def read(self, entry: Entry) -> tuple[list[Conflict], Entry | None]:
        """Note a read; return what it is not ordered after, and a write that has put a later buffer's bytes over its own."""
        unordered: list[Conflict] = []
        over: Entry | None = None
        task, _, box, stay = entry
        used, engine, position = self.used, self._order.engine, self._order.position
        ended = self._order.ended[task]
        apart: set[int] = set()  # entries, which are in several segments, that share no byte with this one
        first, past = self._span(box)
        for segment in self._met(first, past, task):
            for place, other in enumerate(segment):
                if not other.writes or other.task == task:
                    continue
                is_late, stranger = position[other.task] >= ended[engine[other.task]], other.stay > stay
                if not (is_late or stranger or other.task not in used) or id(other) in apart:
                    continue
                if not footprint.overlaps(other.box, box):
                    apart.add(id(other))
                else:
                    used.add(other.task)
                    if is_late:
                        unordered.append(Conflict(other, entry))
                    elif stranger and _shows(other, segment[place + 1 :], entry):
                        over = other
        if not box.dims:
            for segment in self._segments[first:past]:
                segment[:] = [e for e in segment if e.writes or position[e.task] >= ended[engine[e.task]]]
        self._note(first, past, entry)
        return unordered, over

    def write(self, entry: Entry) -> list[Conflict]:
        """Note a write; return what it is not ordered after."""
        unordered: list[Conflict] = []
        task, _, box, _ = entry
        engine, position, ended = self._order.engine, self._order.position, self._order.ended[task]
        compared: set[int] = set()  # entries, which are in several segments
        first, past = self._span(box)
        for segment in self._met(first, past, task):
            for other in segment:
                late = position[other.task] >= ended[engine[other.task]]
                if late and other.task != task and id(other) not in compared:
                    compared.add(id(other))
                    if footprint.overlaps(other.box, box):
                        unordered.append(Conflict(other, entry))
        if box.dims:
            self._note(first, past, entry)
        elif not unordered:
            self._become(first, past, [entry])
        else:
            for segment in self._segments[first:past]:
                segment[:] = [*(e for e in segment if position[e.task] >= ended[engine[e.task]]), entry]
        return unordered

    def _met(self, first: int, past: int, task: int) -> list[list[Entry]]:
        """Return the accesses that one of `task` has to be compared with, which meets some segments."""
        segments = self._segments[first:past]
        if self._counts_uses:
            return segments
        oldest = self._order.oldest(task)
        return [s[bisect_left(s, (oldest,)) :] for s in (*segments, self._in_runs) if s and s[-1].task >= oldest]

    def _note(self, first: int, past: int, entry: Entry) -> None:
        if entry.box.dims and not self._counts_uses:
            self._in_runs.append(entry)
        else:
            for segment in self._segments[first:past]:
                segment.append(entry)

    def _copy(self, segment: list[Entry]) -> list[Entry]:
        return segment.copy()


class Filled(_Ranges["list[Box] | None"]):
    """Which of the bytes [first, past) have been written: a segment has the writes to some of its bytes; None: all are written."""

    def __init__(self, first: int, past: int) -> None:
        super().__init__(first, past, [])

    def write(self, box: Box) -> None:
        """Note a write."""
        first, past = self._span(box)
        if not box.dims:
            self._become(first, past, None)
            return
        for parts in self._segments[first:past]:
            if parts is not None:
                parts.append(box)

    def copy_in(self, box: Box, parts: list[Box]) -> None:
        """Note a write of one run of bytes of which only `parts`, which may reach beyond it, have values."""
        self._become(*self._span(box), parts)

    def gap(self, box: Box, least: int = 1) -> tuple[int, int] | None:
        """Return the first run of `least` bytes or more of a box that nobody has written; None when there is none."""
        first, past = self._span(box)
        for number in range(first, past):
            parts = self._segments[number]
            if parts is None:
                continue
            low = self._cuts[number]
            high = self._cuts[number + 1] if number + 1 < len(self._cuts) else self._past
            self._segments[number] = parts = coalesce(parts)
            if any(not part.dims and part.addr <= low and part.end >= high for part in parts):
                self._segments[number] = None
            elif not any(footprint.surely_covers(part, box) for part in parts):
                gap = _gap(parts, box, max(low, box.addr), min(high, box.end), least)
                if gap is not None:
                    return gap
                if low >= box.addr and high <= box.end and not box.dims:
                    self._segments[number] = None
        return None

    def pieces(self, box: Box) -> list[Box]:
        """Return boxes of all that has been written of one run of bytes; they may reach beyond it."""
        found: dict[Box, None] = {}
        first, past = self._span(box)
        for number in range(first, past):
            parts = self._segments[number]
            high = self._cuts[number + 1] if number + 1 < len(self._cuts) else self._past
            whole = footprint.Box(self._cuts[number], high - self._cuts[number])
            found |= dict.fromkeys([whole] if parts is None else parts)
        return list(found)

    def whole_gap(self) -> tuple[int, int] | None:
        """Return the first run of all bytes that nobody has written; None when there is none."""
        return self.gap(footprint.Box(self._cuts[0], self._past - self._cuts[0]))

    def _copy(self, segment: list[Box] | None) -> list[Box] | None:
        return None if segment is None else segment.copy()


def _shows(writer: Entry, later: list[Entry], reader: Entry) -> bool:
    """Tell whether a read meets bytes of a write that no later write of the reader's own buffer has replaced."""
    box, own = writer.box, [entry.box for entry in later if entry.writes and entry.stay == reader.stay]
    low, high = max(box.addr, reader.box.addr), min(box.end, reader.box.end)
    unit = _unit(low, high, [box, reader.box, *own])
    met = _marked([box], low, high, unit) & _marked([reader.box], low, high, unit)
    return bool((met & ~_marked(own, low, high, unit)).any())


def _gap(parts: list[Box], box: Box, low: int, high: int, least: int) -> tuple[int, int] | None:
    """Return the first run of `least` bytes or more of `box` within [low, high) that no part has."""
    boxes = [part for part in parts if part.addr < high and part.end > low]
    unit = _unit(low, high, [box, *boxes])
    missing = np.flatnonzero(_marked([box], low, high, unit) & ~_marked(boxes, low, high, unit))
    breaks = np.flatnonzero(np.diff(missing) != 1)
    firsts, ends = missing[np.append(0, breaks + 1)[: missing.size]], missing[np.append(breaks, -1)[: missing.size]] + 1
    for run in np.flatnonzero((ends - firsts) * unit >= least)[:1]:
        return low + int(firsts[run]) * unit, low + int(ends[run]) * unit
    return None


def _unit(low: int, high: int, boxes: list[Box]) -> int:
    """Return the largest number of bytes that divides [low, high) so that each is whole in a box or not at all."""
    return gcd(high - low, *(n for box in boxes for n in (box.addr - low, box.width, *(step for _, step in box.dims))))


def _marked(boxes: list[Box], low: int, high: int, unit: int) -> NDArray[np.bool_]:
    """Return, for each `unit` of bytes in [low, high), whether a box has it."""
    steps = np.zeros((high - low) // unit + 1, np.int64)
    for box in boxes:
        runs = (np.clip(footprint.runs(box), low, high) - low) // unit
        steps += np.bincount(runs[:, 0], minlength=len(steps)) - np.bincount(runs[:, 1], minlength=len(steps))
    return np.cumsum(steps[:-1]) > 0


def coalesce(boxes: list[Box]) -> list[Box]:
    """Return boxes of the same bytes, those joined that continue each other in their runs or in their outermost dimension."""
    before = len(boxes) + 1
    while 1 < len(boxes) < before:
        before = len(boxes)
        boxes = _stacked(_widened(boxes))
    return boxes


def _widened(boxes: list[Box]) -> list[Box]:
    """Join boxes of the same dimensions whose runs touch."""
    groups: dict[footprint.Dims, list[Box]] = {}
    for box in boxes:
        groups.setdefault(box.dims, []).append(box)
    if len(groups) == len(boxes):
        return boxes
    found: list[Box] = []
    for dims, group in groups.items():
        group.sort(key=_addr)
        addr, end = group[0].addr, group[0].addr
        for box in group:
            if box.addr > end:
                found.append(footprint.box(addr, end - addr, dims))
                addr = box.addr
            end = max(end, box.addr + box.width)
        found.append(footprint.box(addr, end - addr, dims))
    return found


def _stacked(boxes: list[Box]) -> list[Box]:
    """Join boxes whose outermost dimensions continue each other."""
    groups: dict[tuple[int, footprint.Dims, int], list[Box]] = {}
    for box in boxes:
        if box.dims:
            groups.setdefault((box.width, box.dims[1:], box.dims[0][1]), []).append(box)
    found = [box for box in boxes if not box.dims]
    for (width, inner, stride), group in groups.items():
        group.sort(key=_addr)
        addr, count = group[0].addr, 0
        for box in group:
            if box.addr != addr + count * stride:
                found.append(footprint.box(addr, width, ((count, stride), *inner)))
                addr, count = box.addr, 0
            count += box.dims[0][0]
        found.append(footprint.box(addr, width, ((count, stride), *inner)))
    return found


def _addr(box: Box) -> int:
    return box.addr
