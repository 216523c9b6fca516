"""From a schedule to its synchronisation: the orders that the placed bytes need, as barriers; and a check that nothing is missing."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from npu_model.footprint import box, overlaps

from libnpu.compiler.program import Access, Buffer
from libnpu.compiler.schedule.barriers import BarrierPlan, assign_barriers
from libnpu.compiler.schedule.dependences import Touch, kept_dependences
from libnpu.compiler.schedule.schedule import Schedule, ScheduledOp


def synchronise(schedule: Schedule, id_count: int) -> BarrierPlan:
    """Return the barriers that keep `schedule` correct whatever its operations' real durations are.

    Orders follow from the bytes at their final addresses, so data flow, reuse of CMX and spills need no rule of their own.
    """
    ops = schedule.ops
    queues = {queue: number for number, queue in enumerate(sorted({op.queue for op in ops}))}
    kept = kept_dependences([touches(op) for op in ops], [queues[op.queue] for op in ops])
    return assign_barriers(kept, [op.start_ps for op in ops], [op.end_ps for op in ops], id_count)


def touches(scheduled: ScheduledOp) -> list[Touch]:
    """Return the accesses of an operation at its final addresses."""

    def of(access: Access, write: bool) -> Iterator[Touch]:
        target = access.target
        space: Hashable = target
        bases: list[int] = [0]
        if isinstance(target, Buffer):
            space, bases = "cmx", scheduled.places(target, write)
        for base in bases:
            yield Touch(space, box(base + access.offset, access.width, access.dims), write)

    op = scheduled.op
    found = [touch for access in op.reads for touch in of(access, False)]
    return found + [touch for access in op.writes for touch in of(access, True)]


def unordered_pairs(schedule: Schedule, plan: BarrierPlan) -> list[tuple[int, int]]:
    """Return the pairs of operations that share a byte, one writing it, and that queues and barriers leave unordered.

    Independent of how the plan was made: it looks at every pair, and only at what the device will enforce. Quadratic; for tests.
    """
    ops = schedule.ops
    before = _enforced(ops, plan)
    every = [touches(op) for op in ops]
    return [
        (i, j)
        for j in range(len(ops))
        for i in range(j)
        if not before[j] >> i & 1
        and any(
            (a.write or b.write) and a.space == b.space and overlaps(a.box, b.box) for a in every[i] for b in every[j]
        )
    ]


def _enforced(ops: Sequence[ScheduledOp], plan: BarrierPlan) -> list[int]:
    """Bit i of element j: the device runs i to its end before j starts."""
    waits: dict[int, list[int]] = {}
    for barrier in plan.barriers:
        for consumer in barrier.consumers:
            waits.setdefault(consumer, []).extend(barrier.producers)
    last: dict[object, int] = {}
    before: list[int] = []
    for index, op in enumerate(ops):
        known = 0
        for other in [*waits.get(index, []), *([last[op.queue]] if op.queue in last else [])]:
            known |= before[other] | 1 << other
        before.append(known)
        last[op.queue] = index
    return before
