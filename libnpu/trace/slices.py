"""Trace records (struct npu_trace_record) as slices: one task on one unit, from START to END; and as instants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from npu_abi import C, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

ENGINES = ("DMA", "DPU", "SHAVE")
CORE, JOBS, INTERRUPTS = "core", "jobs", "interrupts"  # the tracks of the device that are no engine's
RETIRED = "barrier retire "  # how the name of an instant begins at which a barrier retires


class Slice(NamedTuple):
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


def slices_of(records: NDArray[np.void], tasks: Sequence[dict[str, Any]] = ()) -> list[Slice]:
    """Return the tasks in trace `records` (struct npu_trace_record) in order of their end.

    `tasks` are blob.debug's, by task_id: `name` and `layer`. A task without its END (a fault, a reset) is left out.
    """
    running: dict[tuple[int, int, int, int], tuple[int, int]] = {}  # DMA ports change between tasks of several jobs
    found: list[Slice] = []
    tracks: dict[tuple[int, int], str] = {}
    known = len(tasks)
    named = [_names(entry, task_id) for task_id, entry in enumerate(tasks)]
    start = int(C.NPU_TRACE_START)
    kept = np.isin(records["kind"], (start, C.NPU_TRACE_END))
    kept &= np.isin(records["engine"], (C.NPU_ENGINE_DMA, C.NPU_ENGINE_DPU, C.NPU_ENGINE_SHAVE))
    columns = ("kind", "engine", "unit", "task_id", "job_id", "time_ps", "value")
    for kind, engine, unit, task_id, job_id, time_ps, value in zip(
        *(records[c][kept].tolist() for c in columns), strict=True
    ):
        if kind == start:
            running[engine, unit, task_id, job_id] = (time_ps, value)
            continue
        started = running.pop((engine, unit, task_id, job_id), None)
        if started is not None:
            name, layer = named[task_id] if task_id < known else _names({}, task_id)
            track = tracks.get((engine, unit))
            if track is None:
                track = tracks[engine, unit] = track_name(engine, unit)
            found.append(Slice(track, name, layer, started[0], time_ps, task_id, job_id, started[1]))
    return found


def units_of(slices: Iterable[Slice]) -> list[str]:
    """Return the tracks of `slices`, engine by engine."""
    return sorted({s.track for s in slices}, key=lambda name: (ENGINES.index(name.split()[0]), name))


def jobs_of(records: NDArray[np.void]) -> list[Slice]:
    """Return the jobs that began and ended in `records`, in order of their end, on the track "jobs"."""
    started: dict[int, int] = {}
    found = []
    records = records[np.isin(records["kind"], (C.NPU_TRACE_JOB_START, C.NPU_TRACE_JOB_END))]
    for kind, job_id, time_ps in zip(*(records[c].tolist() for c in ("kind", "job_id", "time_ps")), strict=True):
        if kind == C.NPU_TRACE_JOB_START:
            started[job_id] = time_ps
        elif job_id in started:
            name = f"job {job_id:#x}"
            found.append(Slice(JOBS, name, name, started.pop(job_id), time_ps, job_id=job_id))
    return found


def instants_of(records: NDArray[np.void]) -> list[Instant]:
    """Return what the management core did, and its interrupts: everything in `records` but tasks, jobs, ready barriers and
    sums of cycles.
    """
    skip = (
        C.NPU_TRACE_START, C.NPU_TRACE_END, C.NPU_TRACE_BARRIER_READY, C.NPU_TRACE_JOB_START, C.NPU_TRACE_JOB_END, C.NPU_TRACE_CANCEL,
        C.NPU_TRACE_BARRIER_WAIT, C.NPU_TRACE_CODE_LOADED, C.NPU_TRACE_MEM_PENDING, C.NPU_TRACE_MEM_STALL,
    )  # fmt: skip
    found = []
    columns = ("kind", "task_id", "time_ps", "value")
    records = records[~np.isin(records["kind"], skip)]
    for kind, task_id, time_ps, value in zip(*(records[c].tolist() for c in columns), strict=True):
        if kind == C.NPU_TRACE_FENCE_WRITE:
            found.append(Instant(CORE, f"fence_write value={value}", time_ps))
            continue
        name = name_of("npu_trace_kind", kind).removeprefix("NPU_TRACE_").lower().replace("_", " ")
        found.append(Instant(INTERRUPTS if kind == C.NPU_TRACE_IRQ else CORE, f"{name} {task_id}", time_ps))
    return found


def _names(entry: dict[str, Any], task_id: int) -> tuple[str, str]:
    """Return the name and the layer of a task of which blob.debug says so much."""
    name = str(entry.get("name", f"task {task_id}"))
    return name, str(entry.get("layer", "") or name)


def track_name(engine: int, unit: int) -> str:
    """Return the name of an engine unit of the trace: a SHAVE is "tile.shave"."""
    name = name_of("npu_engine", engine).removeprefix("NPU_ENGINE_")
    return f"{name} {unit >> 4}.{unit & 15}" if engine == C.NPU_ENGINE_SHAVE else f"{name} {unit}"
