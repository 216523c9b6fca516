"""What a schedule takes beside its lower bound, and where the time goes that no engine works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from libnpu.compiler.program import Engine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libnpu.compiler.quality.bound import LowerBound
    from libnpu.compiler.schedule import Queue, Schedule, ScheduledOp


def measures(schedule: Schedule, bound: LowerBound) -> dict[str, Any]:
    """Return the statistics of a blob that say how good its schedule is; times in picoseconds, all predicted."""
    compute = [s for s in schedule.ops if s.queue.engine != Engine.DMA]
    return {
        "lower_bound_ps": bound.bound_ps,
        "makespan_over_bound": round(schedule.makespan_ps / bound.bound_ps, 3) if bound.bound_ps else 1.0,
        "binding_resource": bound.binding,
        "bound_ps": bound.ps,
        "compulsory_ddr_bytes": bound.ddr_bytes,
        "exposed_dma_ps": _covered_ps(schedule.ops) - _covered_ps(compute),
        "barrier_stall_ps": _stalls_ps(schedule),
    }


def _covered_ps(ops: Iterable[ScheduledOp]) -> int:
    """Return how long at least one of `ops` runs."""
    total = end = 0
    for start_ps, end_ps in sorted((s.start_ps, s.end_ps) for s in ops):
        total += max(0, end_ps - max(start_ps, end))
        end = max(end, end_ps)
    return total


def _stalls_ps(schedule: Schedule) -> dict[str, int]:
    """Return by engine how long its units have tasks left and wait for the barriers of the next one."""
    free: dict[Queue, int] = {}
    found = {engine.name.lower(): 0 for engine in Engine}
    for scheduled in schedule.ops:
        found[scheduled.queue.engine.name.lower()] += scheduled.start_ps - free.get(scheduled.queue, 0)
        free[scheduled.queue] = scheduled.end_ps
    return found
