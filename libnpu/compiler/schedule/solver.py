"""The one place that asks CP-SAT: in which order a few tasks end soonest. Needs the package ortools.

The model is a relaxation of a schedule: tasks follow those that they must, no unit runs two of them, transfers share the memory
path after their latency, and the buffers in use at any time are no more bytes than there are. Addresses are left out, which no
model of this size can have; who places the buffers may thus find that an order takes longer. Times are rounded down to a
20,000th of the sum, so that what is proved to be shortest is a lower bound.

The same problem gives the same answer: one worker, a fixed seed, and a limit that counts work, not seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from libnpu.compiler.program import Engine

_STEPS = 20_000  # of time


@dataclass(slots=True)
class Job:
    """A task; times in picoseconds. `tail_ps` is what must still run after its end, `start_ps` when it starts in the schedule there is."""

    engine: Engine
    cost_ps: int
    before: list[int]  # jobs that end before it starts
    start_ps: int
    latency_ps: int = 0  # of a transfer: the first part of `cost_ps`, in which others may use the memory path
    path_ps: int = 0  # for which a transfer keeps the memory path from others, in the rest of it
    release_ps: int = 0
    tail_ps: int = 0
    is_fixed: bool = False  # it has started, and stays


@dataclass(slots=True)
class Hold:
    """Bytes that are taken from the start of the first user (or from the beginning) to the end of the last (or for ever)."""

    size_bytes: int
    users: list[int]
    from_beginning: bool = False
    for_ever: bool = False


@dataclass(slots=True)
class Problem:
    """Jobs on `units` of each engine, in `capacity_bytes`."""

    jobs: list[Job]
    holds: list[Hold]
    units: dict[Engine, int]
    capacity_bytes: int
    alignment_bytes: int = 64

    @property
    def end_ps(self) -> int:
        """When the last tail ends in the schedule there is."""
        return max(job.start_ps + job.cost_ps + job.tail_ps for job in self.jobs)


@dataclass(slots=True, frozen=True)
class Answer:
    """Starts of the jobs, when the last tail ends, and whether no order ends sooner."""

    starts_ps: list[int] = field(repr=False)
    end_ps: int
    is_shortest: bool


def solve(problem: Problem, effort: float) -> Answer | None:
    """Return the best order that `effort` (about a second each) finds, None where it finds none."""
    from ortools.sat.python import cp_model

    step = max(1, problem.end_ps // _STEPS)
    horizon = problem.end_ps // step + 1
    model = cp_model.CpModel()
    starts: list[Any] = []
    ends: list[Any] = []
    lanes: dict[Engine, list[Any]] = {}
    path = []
    for job in problem.jobs:
        first = job.start_ps // step if job.is_fixed else job.release_ps // step
        start = model.new_int_var(first, first if job.is_fixed else horizon, "")
        end = model.new_int_var(0, horizon, "")
        cost = job.cost_ps // step
        if job.engine == Engine.DMA and not job.is_fixed:
            lane = model.new_interval_var(start, model.new_int_var(cost, horizon, ""), end, "")
            sent = job.path_ps // step
            if sent:
                first_byte = end - sent
                if job.latency_ps + job.path_ps < job.cost_ps:  # the port is slower: others use the path in between
                    first_byte = model.new_int_var(0, horizon, "")
                    model.add(first_byte >= start + job.latency_ps // step)
                    model.add(first_byte + sent <= end)
                path.append(model.new_fixed_size_interval_var(first_byte, sent, ""))
        else:
            lane = model.new_interval_var(start, cost, end, "")
        lanes.setdefault(job.engine, []).append(lane)
        for other in job.before:
            model.add(start >= ends[other])
        model.add_hint(start, job.start_ps // step)
        starts.append(start)
        ends.append(end)
    for engine, lane in lanes.items():
        if problem.units[engine] == 1:
            model.add_no_overlap(lane)
        else:
            model.add_cumulative(lane, [1] * len(lane), problem.units[engine])
    model.add_no_overlap(path)
    _add_memory(model, problem, starts, ends, horizon)
    last = model.new_int_var(0, horizon, "")
    for job, end in zip(problem.jobs, ends, strict=True):
        model.add(last >= end + job.tail_ps // step)
    model.minimize(last)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    solver.parameters.max_deterministic_time = effort
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return Answer(
        [solver.value(start) * step for start in starts], solver.value(last) * step, status == cp_model.OPTIMAL
    )


def _add_memory(model: Any, problem: Problem, starts: list[Any], ends: list[Any], horizon: int) -> None:
    """Limit the bytes in use at any time."""
    spans, sizes = [], []
    unit = problem.alignment_bytes
    for hold in problem.holds:
        users = set(hold.users)
        followed = {other for user in users for other in problem.jobs[user].before}
        firsts = [user for user in hold.users if not users.intersection(problem.jobs[user].before)]
        lasts = [user for user in hold.users if user not in followed]
        begin = 0 if hold.from_beginning else _extreme(model, [starts[user] for user in firsts], horizon, least=True)
        end = horizon if hold.for_ever else _extreme(model, [ends[user] for user in lasts], horizon, least=False)
        spans.append(model.new_interval_var(begin, model.new_int_var(0, horizon, ""), end, ""))
        sizes.append(-(-hold.size_bytes // unit))
    model.add_cumulative(spans, sizes, problem.capacity_bytes // unit)


def _extreme(model: Any, times: list[Any], horizon: int, least: bool) -> Any:
    if len(times) == 1:
        return times[0]
    found = model.new_int_var(0, horizon, "")
    (model.add_min_equality if least else model.add_max_equality)(found, times)
    return found
