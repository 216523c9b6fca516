"""Barriers for a schedule: every kept dependence becomes a wait on a virtual barrier; virtual barriers share physical ids.

One virtual barrier stands for one set of producers; the operations that wait for exactly that set are its consumers, so
grouping adds no order. An id is reused only by a barrier whose first producer comes, in schedule order, after the last
consumer of the one before: then every constraint (queue order, waits, id reuse) points forward in schedule order, so that no
timing can deadlock. Where the schedule holds more barriers open at once than there are ids, barriers merge whose producers
have all ended, in the predicted schedule, when the consumers start: the added orders cost no predicted time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

from npu_abi import C


class OutOfBarriers(ValueError):
    """A schedule that holds more orders open at once, when its operation number `operation` comes, than the ids can express."""

    def __init__(self, open_count: int, id_count: int, operation: int) -> None:
        super().__init__(f"{open_count} orders are open at operation {operation}; there are {id_count} barrier ids")
        self.operation = operation


@dataclass(slots=True, frozen=True)
class VirtualBarrier:
    """An entry of the barrier configuration array."""

    real_id: int
    next_same_id: int  # NPU_BARRIER_NONE when last
    producers: tuple[int, ...]  # operation indices in schedule order
    consumers: tuple[int, ...]


@dataclass(slots=True, eq=False)
class BarrierPlan:
    """Barriers in array order, and each operation's masks and `start_after`."""

    barriers: list[VirtualBarrier]
    wait_masks: list[int]
    post_masks: list[int]
    start_after: list[int]
    ids_used: int
    merged: int  # merges that lack of ids forced


@dataclass(slots=True, eq=False)
class _Group:
    producers: set[int]
    consumers: set[int] = field(default_factory=set)

    @property
    def first(self) -> int:
        return min(self.producers)

    @property
    def last(self) -> int:
        return max(self.consumers)


def assign_barriers(
    dependences: Sequence[Sequence[int]], starts_ps: Sequence[int], ends_ps: Sequence[int], id_count: int
) -> BarrierPlan:
    """Return the barriers for operations in schedule order; `dependences[i]` are the operations that i must wait for.

    `starts_ps` and `ends_ps` are predicted; operation i's dependences have ended when it starts. Raises OutOfBarriers.
    """
    groups = [part for group in _grouped(dependences) for part in _split_counts(group)]
    merged = _fit(groups, starts_ps, ends_ps, id_count)
    groups.sort(key=lambda g: (g.last, g.first))
    order = sorted(range(len(groups)), key=lambda k: groups[k].first)
    open_until: list[tuple[int, int, int]] = []  # (last consumer, id, barrier), of each id in use
    real = [0] * len(groups)
    previous: list[int | None] = [None] * len(groups)
    following = [C.NPU_BARRIER_NONE] * len(groups)
    used = 0
    for k in order:
        first = groups[k].first
        reusable = [entry for entry in open_until if entry[0] < first]
        if used < id_count:
            real[k] = used
            used += 1
        elif reusable:
            entry = min(reusable)  # retired longest ago
            open_until.remove(entry)
            real[k], previous[k] = entry[1], entry[2]
            following[entry[2]] = k
        else:
            raise OutOfBarriers(len(open_until) + 1, id_count, first)
        open_until.append((groups[k].last, real[k], k))
    count = len(dependences)
    waits, posts, after = [0] * count, [0] * count, [-1] * count
    for k, group in enumerate(groups):
        for op in group.consumers:
            waits[op] |= 1 << real[k]
        for op in group.producers:
            posts[op] |= 1 << real[k]
        before = previous[k]
        if before is not None:
            for op in group.consumers | group.producers:
                after[op] = max(after[op], before)
    barriers = [
        VirtualBarrier(real[k], following[k], tuple(sorted(g.producers)), tuple(sorted(g.consumers)))
        for k, g in enumerate(groups)
    ]
    return BarrierPlan(barriers, waits, posts, [a if a >= 0 else C.NPU_BARRIER_NONE for a in after], used, merged)


def _grouped(dependences: Sequence[Sequence[int]]) -> Iterator[_Group]:
    by_producers: dict[frozenset[int], _Group] = {}
    for op, before in enumerate(dependences):
        if before:
            key = frozenset(before)
            by_producers.setdefault(key, _Group(set(key))).consumers.add(op)
    yield from by_producers.values()


def _split_counts(group: _Group) -> Iterator[_Group]:
    """Split a group whose counts exceed what a barrier can hold."""
    limit = C.NPU_MAX_BARRIER_COUNT
    producers, consumers = sorted(group.producers), sorted(group.consumers)
    for i in range(0, len(producers), limit):
        for j in range(0, len(consumers), limit):
            yield _Group(set(producers[i : i + limit]), set(consumers[j : j + limit]))


def _fit(groups: list[_Group], starts: Sequence[int], ends: Sequence[int], id_count: int) -> int:
    """Merge groups in place until at no operation more than `id_count` are open; return how many merges it took."""
    merged = 0
    pending = [(-g.first, -serial, g) for serial, g in enumerate(groups)]  # by first producer, next one last
    pending.sort()
    serial = len(groups)
    active: list[_Group] = []
    kept: list[_Group] = []
    while pending:
        group = pending.pop()[2]
        first = group.first
        kept += [g for g in active if g.last < first]
        active = [g for g in active if g.last >= first] + [group]
        now = starts[first]
        if len(active) > id_count:
            for later in _split_waiting(active, starts, ends, now):
                insort(pending, (-later.first, -serial, later))
                serial += 1
        while len(active) > id_count:
            if not _merge_waiting(active, starts, ends, now):
                raise OutOfBarriers(len(active), id_count, group.first)
            merged += 1
    groups[:] = kept + active
    return merged


def _split_waiting(active: list[_Group], starts: Sequence[int], ends: Sequence[int], now: int) -> list[_Group]:
    """Split groups with ended and other producers, so that the ended parts can merge; return the parts that open later."""
    later: list[_Group] = []
    for group in list(active):
        done = {p for p in group.producers if ends[p] <= now}
        if not done or done == group.producers or any(starts[c] < now for c in group.consumers):
            continue
        rest = _Group(group.producers - done, set(group.consumers))
        group.producers = done
        if starts[rest.first] > now:
            later.append(rest)
        else:
            active.append(rest)
    return later


def _merge_waiting(active: list[_Group], starts: Sequence[int], ends: Sequence[int], now: int) -> bool:
    """Merge two groups whose producers have ended by `now`, at no predicted cost; False when there are none.

    All producers of the two must end before any consumer starts: a consumer that started sooner may be what a producer of
    the other group waits for.
    """

    def mergeable(a: _Group, b: _Group) -> bool:
        producers, consumers = a.producers | b.producers, a.consumers | b.consumers
        counts = max(len(producers), len(consumers)) <= C.NPU_MAX_BARRIER_COUNT
        return counts and max(ends[p] for p in producers) <= min(starts[c] for c in consumers)

    waiting = [g for g in active if max(ends[p] for p in g.producers) <= now]
    waiting.sort(key=lambda g: (g.last, g.first))
    pairs = [(a, b) for a, b in pairwise(waiting) if mergeable(a, b)]
    if not pairs:
        pairs = [(a, b) for a, b in combinations(waiting, 2) if mergeable(a, b)]
    if not pairs:
        return False
    # The pair that is consumed closest together: the merged barrier stays open no longer than it must.
    a, b = min(pairs, key=lambda pair: pair[1].last - pair[0].last)
    active.remove(b)
    a.producers |= b.producers
    a.consumers |= b.consumers
    return True
