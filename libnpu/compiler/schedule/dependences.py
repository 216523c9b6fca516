"""Which operations must stay ordered, from the bytes they touch; and which of those orders others already imply.

An order is needed between two operations that touch a common byte when at least one writes it. Boxes are exact, so two
operations that interleave without sharing a byte (channel tiles of one tensor) stay independent.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from npu_model.footprint import Box, overlaps

_BUCKET = 15  # log2 of the bytes that share a bucket of the search structure


@dataclass(slots=True, frozen=True)
class Touch:
    """An access in one address space (a CMX tile, or one DDR tensor): `box` in bytes of that space."""

    space: Hashable
    box: Box
    write: bool


class _Space:
    """The accesses of one address space that later ones may still conflict with, by address bucket."""

    __slots__ = ("buckets",)

    def __init__(self) -> None:
        self.buckets: dict[int, dict[int, tuple[int, Box, bool, int, int]]] = {}  # bucket -> serial -> record

    def conflicts(self, box: Box, write: bool, low: int, high: int) -> set[int]:
        found: set[int] = set()
        seen: set[int] = set()
        for bucket in range(low >> _BUCKET, ((high - 1) >> _BUCKET) + 1):
            for serial, (op, other, other_write, other_low, other_high) in self.buckets.get(bucket, {}).items():
                if serial in seen or not (write or other_write) or other_low >= high or other_high <= low:
                    continue
                seen.add(serial)
                if op not in found and overlaps(box, other):
                    found.add(op)
        return found

    def add(self, serial: int, op: int, box: Box, write: bool, low: int, high: int) -> None:
        record = (op, box, write, low, high)
        contiguous = write and not box.dims
        for bucket in range(low >> _BUCKET, ((high - 1) >> _BUCKET) + 1):
            records = self.buckets.setdefault(bucket, {})
            if contiguous:  # whoever conflicts with a covered access conflicts with this write too
                for old in [s for s, r in records.items() if low <= r[3] and r[4] <= high]:
                    self._drop(old, records[old])
            records[serial] = record

    def _drop(self, serial: int, record: tuple[int, Box, bool, int, int]) -> None:
        for bucket in range(record[3] >> _BUCKET, ((record[4] - 1) >> _BUCKET) + 1):
            self.buckets[bucket].pop(serial, None)


def byte_dependences(touches: Iterable[Sequence[Touch]]) -> list[set[int]]:
    """Return, for each operation, the earlier operations that it must follow; `touches[i]` are operation i's accesses.

    Operations come in an order in which they would run correctly one after the other. Spaces that nobody writes cost nothing.
    An order that a later write covers completely is left out when the covering write itself is ordered.
    """
    lists = [list(t) for t in touches]
    written = {touch.space for one in lists for touch in one if touch.write}
    spaces: dict[Hashable, _Space] = {}
    predecessors: list[set[int]] = []
    serial = 0
    for op, accesses in enumerate(lists):
        found: set[int] = set()
        live = [(t, t.box.addr, t.box.end) for t in accesses if t.space in written]
        for touch, low, high in live:
            if touch.space in spaces:
                found |= spaces[touch.space].conflicts(touch.box, touch.write, low, high)
        for touch, low, high in sorted(live, key=lambda item: item[0].write):
            space = spaces.setdefault(touch.space, _Space())
            space.add(serial, op, touch.box, touch.write, low, high)
            serial += 1
        found.discard(op)
        predecessors.append(found)
    return predecessors


def reduce_dependences(predecessors: Sequence[Iterable[int]], queue_of: Sequence[int]) -> list[list[int]]:
    """Keep only the orders that queue order and the other kept orders do not imply.

    `queue_of[i]` is the queue of operation i; a queue runs its operations one after the other, in list order.
    """
    queues = max(queue_of, default=-1) + 1
    position: list[int] = []
    lengths = [0] * queues
    last: list[int | None] = [None] * queues
    clocks: list[list[int]] = []  # clocks[i][q]: operations of queue q that have ended when i has ended
    kept: list[list[int]] = []
    for op, queue in enumerate(queue_of):
        before = last[queue]
        clock = list(clocks[before]) if before is not None else [0] * queues
        needed: list[int] = []
        for other in sorted(predecessors[op], reverse=True):
            if position[other] < clock[queue_of[other]]:
                continue
            needed.append(other)
            clock = [max(a, b) for a, b in zip(clock, clocks[other], strict=True)]
        position.append(lengths[queue])
        lengths[queue] += 1
        clock[queue] = lengths[queue]
        last[queue] = op
        clocks.append(clock)
        kept.append(needed)
    return kept
