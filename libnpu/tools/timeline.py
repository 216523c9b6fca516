"""What happened when: trace records become slices per engine unit, and the questions that one asks of them.

A slice is one task on one unit, from START to END. Analysis is over a span of time, usually one job's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npu_abi import C, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

ENGINES = ("DMA", "DPU", "SHAVE")


@dataclass(frozen=True, slots=True)
class Slice:
    """One task on one unit. `track` is "DMA 0", "DPU 1", "SHAVE 0.1"; `amount` is bytes or MACs, as the engine traced it."""

    track: str
    name: str
    layer: str
    start_ps: int
    end_ps: int
    task_id: int = 0
    job_id: int = 0
    amount: int = 0

    @property
    def engine(self) -> str:
        """ "DMA", "DPU" or "SHAVE"."""
        return self.track.split()[0]


@dataclass(frozen=True, slots=True)
class Instant:
    """Something without duration: a doorbell, an interrupt, a barrier."""

    track: str
    name: str
    time_ps: int


@dataclass(frozen=True, slots=True)
class Usage:
    """How long an engine was at work in a span; `units` of them, so that 100 % is `units * span_ps`."""

    name: str
    units: int
    tasks: int
    busy_ps: int
    utilisation: float  # 0 to 1


@dataclass(frozen=True, slots=True)
class LayerUsage:
    """Engine time of one layer; `first_ps` and `last_ps` bound it."""

    name: str
    busy_ps: dict[str, int]  # by engine
    first_ps: int
    last_ps: int


def slices_of(records: NDArray[np.void], tasks: Sequence[dict[str, Any]] = ()) -> list[Slice]:
    """Return the tasks in trace `records` (struct npu_trace_record) in order of their end.

    `tasks` are blob.debug's, by task_id: `name` and `layer`. A task without its END (a fault, a reset) is left out.
    """
    running: dict[tuple[int, int], tuple[int, int, int]] = {}
    found: list[Slice] = []
    engines = (C.NPU_ENGINE_DMA, C.NPU_ENGINE_DPU, C.NPU_ENGINE_SHAVE)
    start, end = C.NPU_TRACE_START, C.NPU_TRACE_END
    columns = ("kind", "engine", "unit", "task_id", "job_id", "time_ps", "value")
    for kind, engine, unit, task_id, job_id, time_ps, value in zip(
        *(records[c].tolist() for c in columns), strict=True
    ):
        if engine not in engines or kind not in (start, end):
            continue
        if kind == start:
            running[engine, unit] = (task_id, time_ps, value)
            continue
        started = running.pop((engine, unit), None)
        if started is not None and started[0] == task_id:
            name, layer = _names(tasks, task_id)
            found.append(Slice(track_name(engine, unit), name, layer, started[1], time_ps, task_id, job_id, started[2]))
    return found


def instants_of(records: NDArray[np.void]) -> list[Instant]:
    """Return what the management core did: everything in `records` but tasks' starts and ends."""
    skip = (C.NPU_TRACE_START, C.NPU_TRACE_END, C.NPU_TRACE_BARRIER_READY)
    found = []
    for kind, task_id, time_ps in zip(*(records[c].tolist() for c in ("kind", "task_id", "time_ps")), strict=True):
        if kind not in skip:
            name = name_of("npu_trace_kind", kind).removeprefix("NPU_TRACE_").lower().replace("_", " ")
            found.append(Instant("core", f"{name} {task_id}", time_ps))
    return found


def _names(tasks: Sequence[dict[str, Any]], task_id: int) -> tuple[str, str]:
    entry = tasks[task_id] if task_id < len(tasks) else {}
    name = str(entry.get("name", f"task {task_id}"))
    return name, str(entry.get("layer", "") or name)


def track_name(engine: int, unit: int) -> str:
    """Return the name of an engine unit of the trace: a SHAVE is "tile.shave"."""
    name = name_of("npu_engine", engine).removeprefix("NPU_ENGINE_")
    return f"{name} {unit >> 4}.{unit & 15}" if engine == C.NPU_ENGINE_SHAVE else f"{name} {unit}"


def usage(slices: Iterable[Slice], span_ps: int, units: dict[str, int]) -> list[Usage]:
    """Return the usage of each engine over `span_ps`. `units` says how many of each the job could use."""
    busy = dict.fromkeys(ENGINES, 0)
    count = dict.fromkeys(ENGINES, 0)
    tracks: dict[str, set[str]] = {name: set() for name in ENGINES}
    for s in slices:
        busy[s.engine] += s.end_ps - s.start_ps
        count[s.engine] += 1
        tracks[s.engine].add(s.track)
    found = []
    for name in ENGINES:
        n = max(units.get(name, 0), len(tracks[name]))
        found.append(Usage(name, n, count[name], busy[name], busy[name] / (n * span_ps) if n and span_ps else 0.0))
    return found


def overlap(slices: Iterable[Slice], start_ps: int, end_ps: int) -> dict[frozenset[str], int]:
    """Return how long exactly these engines were busy together, by set of engines, over [start_ps, end_ps).

    An engine is busy when any of its units is. The empty set is the time in which nothing ran; the values add up to the span.
    """
    edges = []
    for s in slices:
        first, past = max(s.start_ps, start_ps), min(s.end_ps, end_ps)
        if first < past:
            edges += [(first, 1, s.engine), (past, -1, s.engine)]
    edges.sort()
    active: dict[str, int] = {}
    found: dict[frozenset[str], int] = {}
    now = start_ps
    for time_ps, change, engine in [*edges, (end_ps, 0, "")]:
        if time_ps > now:
            together = frozenset(name for name, count in active.items() if count)
            found[together] = found.get(together, 0) + time_ps - now
            now = time_ps
        if change:
            active[engine] = active.get(engine, 0) + change
    return found


def overlap_by_count(together: dict[frozenset[str], int]) -> list[float]:
    """Return the share of time with 0, 1, 2 and 3 engines busy; adds up to 1."""
    span = sum(together.values()) or 1
    return [sum(ps for names, ps in together.items() if len(names) == n) / span for n in range(len(ENGINES) + 1)]


def layers(slices: Iterable[Slice]) -> list[LayerUsage]:
    """Return the engine time of every layer, in order of their first task."""
    found: dict[str, LayerUsage] = {}
    for s in slices:
        known = found.get(s.layer)
        if known is None:
            found[s.layer] = LayerUsage(s.layer, {s.engine: s.end_ps - s.start_ps}, s.start_ps, s.end_ps)
        else:
            known.busy_ps[s.engine] = known.busy_ps.get(s.engine, 0) + s.end_ps - s.start_ps
            found[s.layer] = LayerUsage(
                s.layer, known.busy_ps, min(known.first_ps, s.start_ps), max(known.last_ps, s.end_ps)
            )
    return sorted(found.values(), key=lambda layer: (layer.first_ps, layer.name))


def span(slices: Sequence[Slice]) -> tuple[int, int]:
    """Return the first start and the last end; (0, 0) of nothing."""
    if not slices:
        return 0, 0
    return min(s.start_ps for s in slices), max(s.end_ps for s in slices)
