"""Which operations must stay ordered, from the bytes they touch; and which of those orders others already imply.

An order is needed between two operations that touch a common byte when at least one writes it. Boxes are exact, so two
operations that interleave without sharing a byte (channel tiles of one tensor) stay independent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from npu_model.footprint import Box, overlaps

_BUCKET = 15  # log2 of the bytes that share a bucket of the search structure, at least
_MANY = (
    64  # boxes at one distance, at least, that make it the pitch of a space, which then has so many buckets, as log2:
)
_ROW_BITS, _COLUMN_BITS = 6, 8
_SOME = 1 << 11  # accesses after which to look for those that nobody can be in conflict with any more, at least


@dataclass(slots=True, frozen=True)
class Touch:
    """An access in one address space (a CMX tile, or one DDR tensor): `box` in bytes of that space."""

    space: Hashable
    box: Box
    write: bool


def byte_dependences(touches: Iterable[Sequence[Touch]]) -> list[set[int]]:
    """Return, for each operation, the earlier operations that it must follow; `touches[i]` are operation i's accesses.

    Operations come in an order in which they would run correctly one after the other. Spaces that nobody writes cost nothing.
    An order that a later write covers completely is left out when the covering write itself is ordered.
    """
    history = _History([list(t) for t in touches])
    predecessors: list[set[int]] = []
    for op in range(len(history.touches)):
        candidates = history.candidates(op)
        predecessors.append({other for other, pairs in candidates.items() if any(overlaps(a, b) for a, b in pairs)})
        history.add(op)
    return predecessors


def reduce_dependences(predecessors: Sequence[Iterable[int]], queue_of: Sequence[int]) -> list[list[int]]:
    """Keep only the orders that queue order and the other kept orders do not imply.

    `queue_of[i]` is the queue of operation i; a queue runs its operations one after the other, in list order.
    """
    known = _KnownOrders(queue_of)
    for op, before in enumerate(predecessors):
        known.begin(op)
        for other in sorted(before, reverse=True):
            if not known.implied(other):
                known.keep(other)
        known.end()
    return known.kept


def kept_dependences(touches: Sequence[Sequence[Touch]], queue_of: Sequence[int]) -> list[list[int]]:
    """Return `reduce_dependences(byte_dependences(touches), queue_of)`, comparing bytes only where no order is known."""
    history, known = _History(touches), _KnownOrders(queue_of)
    for op in range(len(touches)):
        known.begin(op)
        candidates = history.candidates(op, known.implied)
        for other in sorted(candidates, reverse=True):
            if not known.implied(other) and any(overlaps(a, b) for a, b in candidates[other]):
                known.keep(other)
        known.end()
        history.add(op)
        if history.full:
            history.forget(known.ended())
    return known.kept


_Record = tuple[int, Box, bool, int, int]  # operation, bytes, write, first byte, byte after the last


_Buckets = dict[int, dict[int, _Record]]  # place -> serial -> record


class _Space:
    """The accesses to one address space, in buckets of addresses.

    Where most boxes repeat short runs at one distance (the channel tiles of a tensor, whose spans all meet), that is the pitch of
    the space, and a bucket holds but some of the columns between two rows.
    """

    def __init__(self, boxes: Sequence[Box]) -> None:
        mean = sum(box.end - box.addr for box in boxes) // max(len(boxes), 1)
        self._shift, self._pitch, self._column_shift = max(_BUCKET, mean.bit_length() - 1), 0, 0
        self._buckets: tuple[_Buckets, _Buckets] = ({}, {})  # of reads, of writes
        pitches = Counter(box.dims[-1][1] for box in boxes if box.dims and 2 * box.width <= box.dims[-1][1])
        for pitch, count in pitches.most_common(1):
            if count >= _MANY and 2 * count >= len(boxes):
                columns = len({box.addr % pitch for box in boxes if box.dims})
                self._pitch = pitch
                self._column_shift = max(0, pitch.bit_length() - min(columns.bit_length(), _COLUMN_BITS))
                self._shift = max(_BUCKET, max(box.end for box in boxes).bit_length() - _ROW_BITS)

    def _places(self, box: Box) -> Iterable[int]:
        """Return the buckets of a box: two boxes that share a byte share one."""
        rows = range(box.addr >> self._shift, ((box.end - 1) >> self._shift) + 1)
        if not self._pitch:
            return rows
        first, end = box.addr % self._pitch, box.addr % self._pitch + box.width
        if end > self._pitch or any(stride % self._pitch for _, stride in box.dims):
            first, end = 0, self._pitch
        columns = range(first >> self._column_shift, ((end - 1) >> self._column_shift) + 1)
        return [row << _COLUMN_BITS + 1 | column for row in rows for column in columns]

    def meeting(self, box: Box, write: bool) -> Iterator[tuple[int, _Record]]:
        """Yield (serial, record) of what may conflict with a read or write of a box, some several times."""
        reads, writes = self._buckets
        for place in self._places(box):
            yield from writes.get(place, {}).items()
            if write:
                yield from reads.get(place, {}).items()

    def drop_covered(self, box: Box) -> None:
        """Drop what lies between the first and the last byte of a box."""
        low, high = box.addr, box.end
        for serial, record in dict(self.meeting(box, True)).items():
            if low <= record[3] and record[4] <= high:
                buckets = self._buckets[record[2]]
                for place in self._places(record[1]):
                    del buckets[place][serial]

    def forget(self, ended: Callable[[int], bool]) -> int:
        """Drop the accesses of operations of which `ended` is true; return how many entries are left."""
        left = 0
        for buckets in self._buckets:
            for place, records in buckets.items():
                buckets[place] = {serial: record for serial, record in records.items() if not ended(record[0])}
                left += len(buckets[place])
        return left

    def add(self, serial: int, record: _Record) -> None:
        """Add an access."""
        buckets = self._buckets[record[2]]
        for place in self._places(record[1]):
            buckets.setdefault(place, {})[serial] = record


class _History:
    """The accesses that later operations may still conflict with."""

    def __init__(self, touches: Sequence[Sequence[Touch]]) -> None:
        self.touches = touches
        written = {touch.space for one in touches for touch in one if touch.write}
        boxes: dict[Hashable, list[Box]] = {}
        for one in touches:
            for touch in one:
                if touch.space in written:
                    boxes.setdefault(touch.space, []).append(touch.box)
        self._spaces = {space: _Space(found) for space, found in boxes.items()}
        self._serial = 0
        self._limit = _SOME

    @property
    def full(self) -> bool:
        """Whether it may have grown to twice what was left of it the last time."""
        return self._serial >= self._limit

    def forget(self, ended: Callable[[int], bool]) -> None:
        """Drop the accesses of operations that every later one is known to follow."""
        left = sum(space.forget(ended) for space in self._spaces.values())
        self._limit = self._serial + max(left, _SOME)

    def candidates(
        self, op: int, skip: Callable[[int], bool] = lambda other: False
    ) -> dict[int, list[tuple[Box, Box]]]:
        """Return the earlier operations whose spans meet one of `op` (one of the two writing), with the pairs of boxes."""
        found: dict[int, list[tuple[Box, Box]]] = {}
        skipped: set[int] = {op}
        for touch in self.touches[op]:
            if touch.space not in self._spaces:
                continue
            box, write = touch.box, touch.write
            low, high = box.addr, box.end
            seen: set[int] = set()
            for serial, (other, other_box, _, other_low, other_high) in self._spaces[touch.space].meeting(box, write):
                if other_low >= high or other_high <= low or other in skipped:
                    continue
                if other not in found and skip(other):
                    skipped.add(other)
                elif serial not in seen:
                    seen.add(serial)
                    found.setdefault(other, []).append((box, other_box))
        return found

    def add(self, op: int) -> None:
        """Put the accesses of `op` into the history, its writes last."""
        for touch in sorted(self.touches[op], key=_is_write):
            space = self._spaces.get(touch.space)
            if space is None:
                continue
            box = touch.box
            if touch.write and not box.dims:  # whoever conflicts with a covered access conflicts with this write too
                space.drop_covered(box)
            space.add(self._serial, (op, box, touch.write, box.addr, box.end))
            self._serial += 1


def _is_write(touch: Touch) -> bool:
    return touch.write


class _KnownOrders:
    """Vector clocks over queues: which operations have surely ended when the current one starts."""

    def __init__(self, queue_of: Sequence[int]) -> None:
        self.kept: list[list[int]] = []
        self._queue_of = queue_of
        self._final = {queue: op for op, queue in enumerate(queue_of)}
        queues = max(queue_of, default=-1) + 1
        self._lengths = [0] * queues
        self._last: list[int | None] = [None] * queues
        self._position: list[int] = []
        self._clocks: list[list[int]] = []  # [i][q]: operations of queue q that have ended when i has ended
        self._clock: list[int] = []  # of the current operation
        self._queue = 0

    def begin(self, op: int) -> None:
        """Make `op`, the next operation, the current one: the one before it in its queue has ended."""
        self._queue = self._queue_of[op]
        before = self._last[self._queue]
        self._clock = list(self._clocks[before]) if before is not None else [0] * len(self._last)
        self._last[self._queue] = op
        self.kept.append([])

    def implied(self, other: int) -> bool:
        """Tell whether `other` has surely ended when the current operation starts."""
        return self._position[other] < self._clock[self._queue_of[other]]

    def ended(self) -> Callable[[int], bool]:
        """Return the test of whether an operation has surely ended when any later one starts."""
        now = len(self._position)
        clocks = [self._clocks[last] if last is not None else [0] * len(self._last) for last in self._open(now)]
        bounds = [min(column) for column in zip(*clocks, strict=True)]
        position, queue_of = self._position, self._queue_of
        return lambda other: not bounds or position[other] < bounds[queue_of[other]]

    def _open(self, now: int) -> list[int | None]:
        """Return the latest operation of every queue that has more to come from operation `now` on."""
        return [last for queue, last in enumerate(self._last) if self._final.get(queue, -1) >= now]

    def keep(self, other: int) -> None:
        """Order the current operation after `other`."""
        self.kept[-1].append(other)
        self._clock = list(map(max, self._clock, self._clocks[other]))

    def end(self) -> None:
        """Finish the current operation."""
        self._position.append(self._lengths[self._queue])
        self._lengths[self._queue] += 1
        self._clock[self._queue] = self._lengths[self._queue]
        self._clocks.append(self._clock)
