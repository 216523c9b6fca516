"""Places for all buffers before anything is scheduled, so that nothing has to leave CMX: for programs that linear scan makes spill.

Time is the level of program order. Buffers whose lives meet get different bytes, the largest first; who lives later on the same
bytes waits for who lives sooner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npu_abi import C

if TYPE_CHECKING:
    from libnpu.compiler.program import Buffer
    from libnpu.compiler.schedule.memory_scheduler import FeasibleMemoryScheduler

# Chosen by trials:
_MOST = 2000  # buffers of a program that is packed
_AHEAD = (
    (64, 32),
    (64, 16),
    (32, 16),
    (32, 8),
    (16, 8),
    (16, 4),
    (8, 4),
    (8, 2),
    (4, 2),
    (4, 1),
    (2, 1),
    (1, 0),
    (0, 0),
)  # levels, of loads and of results
_PARTS = (1, 4, 8, 16, 32)  # of a tile: what is larger is there no sooner than it must
_TRIES = 3  # that fit, of each part
_NEAR = 32  # levels within which it matters who lives before or after on the same bytes


@dataclass(slots=True, frozen=True)
class Place:
    """Where a buffer may lie, offsets in its tiles and levels, the last included, and which buffers must have been used before."""

    offset: int
    end: int
    tiles: range
    first: int
    last: int
    after: list[Buffer] = field(default_factory=list)

    @property
    def address(self) -> int:
        return self.tiles.start * int(C.NPU_CMX_TILE_STRIDE) + self.offset

    def shares(self, other: Place) -> bool:
        """Whether they have a byte in common."""
        return self.offset < other.end and other.offset < self.end and _meet(self.tiles, other.tiles)

    def distance(self, other: Place) -> int:
        """Levels from the life of one to that of the other."""
        return max(self.first - other.last, other.first - self.last)


def packings(plan: FeasibleMemoryScheduler) -> Iterator[dict[Buffer, Place]]:
    """Yield places for all buffers, with room for less and less, and for smaller ones alone, to be there ahead of time."""
    room = plan.allocator().size_bytes // plan.tiles
    for part in _PARTS if len(plan.spans) <= _MOST else ():
        left = _TRIES
        for loads_ahead, results_ahead in _AHEAD:
            spans = {}
            for buffer, (first, last) in plan.spans.items():
                ahead = loads_ahead if plan.is_load[plan.uses[buffer][0]] else results_ahead
                spans[buffer] = (max(first - ahead, 0) if plan.rounded[buffer] <= room // part else first), last
            found = _pack(plan, spans, True) or _pack(plan, spans, False)
            if found is not None:
                yield found
                left -= 1
            if not left:
                break


def _pack(
    plan: FeasibleMemoryScheduler, spans: dict[Buffer, tuple[int, int]], spread: bool
) -> dict[Buffer, Place] | None:
    """Place every buffer, None where one has no room: lowest, or with `spread` where those before and after live farthest away."""
    allocator = plan.allocator()
    sizes = {buffer: allocator.rounded(buffer.size_bytes) for buffer in spans}
    places: dict[Buffer, Place] = {}
    by_level: list[list[Place]] = [[] for _ in plan.live_bytes]
    for buffer in sorted(spans, key=lambda b: (b.copies == 1, -sizes[b])):
        first, last = spans[buffer]
        near = _at(by_level, first - _NEAR * spread, last + _NEAR * spread)
        groups = [range(plan.tiles)] if buffer.copies > 1 else [range(tile, tile + 1) for tile in range(plan.tiles)]
        choices = []
        for tiles in groups:
            around = [place for place in near if _meet(place.tiles, tiles)]
            met = sorted((p.offset, p.end) for p in around if p.first <= last and first <= p.last)
            for offset in _offsets(met, sizes[buffer], allocator.size_bytes // plan.tiles):
                place = Place(offset, offset + sizes[buffer], tiles, first, last)
                distance = min((place.distance(p) for p in around if place.shares(p)), default=_NEAR) if spread else 0
                choices.append((-distance, offset, tiles.start, place))
        if not choices:
            return None
        places[buffer] = min(choices, key=lambda choice: choice[:3])[3]
        for level in by_level[first : last + 1]:
            level.append(places[buffer])
    by_start = sorted(places.items(), key=lambda item: item[1].first)
    for n, (_, place) in enumerate(by_start):
        first, offset, end = place.first, place.offset, place.end
        earlier = [(b, p) for b, p in by_start[:n] if p.last < first and p.offset < end and offset < p.end]
        place.after.extend(b for b, p in earlier if _meet(p.tiles, place.tiles))
    return places


def _at(by_level: list[list[Place]], first: int, last: int) -> list[Place]:
    """Return what lives at some levels, each once."""
    return list({id(place): place for level in by_level[max(first, 0) : last + 1] for place in level}.values())


def _offsets(met: list[tuple[int, int]], size: int, room: int) -> list[int]:
    """Return the lowest and the highest offset in each gap between `met`, in order, that has `size` bytes."""
    found, low = [], 0
    for start, end in [*met, (room, room)]:
        if low + size <= start:
            found += [low, start - size]
        low = max(low, end)
    return found


def _meet(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop
