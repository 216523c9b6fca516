"""Problems for the solver, out of schedules: a whole program, or the tasks of one that start one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.compiler.program import Engine
from libnpu.compiler.schedule.dependences import kept_dependences
from libnpu.compiler.schedule.solver import Hold, Job, Problem, solve
from libnpu.compiler.schedule.synchronise import touches

if TYPE_CHECKING:
    from libnpu.compiler.schedule.memory_scheduler import FeasibleMemoryScheduler
    from libnpu.compiler.schedule.schedule import Schedule, ScheduledOp

_TASKS = 60  # of a window
_EFFORT = 0.2  # of the solver, for each window


def improve(plan: FeasibleMemoryScheduler, schedule: Schedule) -> Schedule:
    """Return a schedule that ends no later: windows that overlap by half, each in the order that ends soonest, where that helps the whole."""
    for first in range(0, len(schedule.ops), _TASKS // 2):
        window = Window(plan, schedule, first)
        answer = solve(window.problem, _EFFORT) if window.problem else None
        if window.problem and answer and answer.end_ps < window.problem.end_ps:
            order = window.order(answer.starts_ps)
            found = plan.in_order(order, keeps_loads=True).of_this_order(schedule.makespan_ps)
            if found is not None and found.spill_out_bytes <= schedule.spill_out_bytes:
                schedule = found
    return schedule


class Window:
    """The tasks of a schedule from number `first` on, and those that run when it starts; no problem where something is spilled.

    What comes later stays in its order behind them: each task has as tail the longest chain, over data, places and queues, of what
    follows it outside.
    """

    def __init__(self, plan: FeasibleMemoryScheduler, schedule: Schedule, first: int = 0, tasks: int = _TASKS) -> None:
        self._plan = plan
        self._ops = ops = schedule.ops
        self._inside = range(first, min(first + tasks, len(ops)))
        numbers = {id(op): index for index, op in enumerate(plan.program.ops)}
        self._index = [numbers.get(id(scheduled.op), -1) for scheduled in ops]  # in the program; of a spill -1
        running = [i for i in range(first) if ops[i].end_ps > ops[first].start_ps]
        self._members = [*running, *self._inside]
        self._job_of = {self._index[i]: job for job, i in enumerate(self._members)}
        self.problem = None if any(ops[i].kind != "op" for i in self._members) else self._problem()

    def order(self, starts_ps: list[int]) -> list[int]:
        """Return all operations of the program by start, those of the window by `starts_ps`."""
        jobs = sorted(range(len(starts_ps)), key=lambda job: (starts_ps[job], job))
        moved = iter([self._members[job] for job in jobs if self._members[job] in self._inside])
        order = [
            next(moved) if i in self._inside else i for i, scheduled in enumerate(self._ops) if scheduled.kind == "op"
        ]
        return [self._index[i] for i in order]

    def _problem(self) -> Problem:
        plan = self._plan
        tails = _tails(self._ops, self._inside.stop)
        holds, taken = self._holds()
        return Problem(
            [self._job(i, tails[i]) for i in self._members],
            holds,
            {engine: sum(queue.engine == engine for queue in plan.queues) for engine in Engine},
            plan.allocator().size_bytes - taken,
            plan.profile.cmx.alignment_bytes,
        )

    def _job(self, i: int, tail_ps: int) -> Job:
        scheduled, begin_ps = self._ops[i], self._ops[self._members[0]].start_ps
        is_fixed = i not in self._inside
        is_transfer = scheduled.queue.engine == Engine.DMA and not is_fixed
        before = [] if is_fixed else [o for o in self._plan.predecessors[self._index[i]] if o in self._job_of]
        return Job(
            scheduled.queue.engine,
            scheduled.op.cost_ps if is_transfer else _lasts(scheduled),
            sorted(self._job_of[other] for other in before),
            scheduled.start_ps - begin_ps,
            int(self._plan.profile.ddr.latency_ns * 1000),
            scheduled.op.path_ps,
            0 if is_fixed else self._ops[self._inside.start].start_ps - begin_ps,
            tail_ps,
            is_fixed,
        )

    def _holds(self) -> tuple[list[Hold], int]:
        """Return the buffers that the jobs use, and the bytes of those that stay meanwhile."""
        earlier = set(self._index[: self._inside.start])
        later = set(self._index[self._inside.stop :])
        holds: list[Hold] = []
        taken = 0
        for buffer, uses in self._plan.uses.items():
            users = [self._job_of[use] for use in uses if use in self._job_of]
            before, after = any(use in earlier for use in uses), any(use in later for use in uses)
            size = self._plan.rounded[buffer]
            if users:
                holds.append(Hold(size, users, before and len(users) < len(uses), after))
            elif before and after:
                taken += size
        return holds, taken


def _lasts(scheduled: ScheduledOp) -> int:
    return scheduled.end_ps - scheduled.start_ps


def _tails(ops: list[ScheduledOp], end: int) -> list[int]:
    """Return for each operation the longest chain behind it of operations from number `end` on."""
    queues = {queue: number for number, queue in enumerate(sorted({op.queue for op in ops}))}
    kept = kept_dependences([touches(op) for op in ops], [queues[op.queue] for op in ops])
    tails = [0] * len(ops)
    following = [0] * len(queues)
    for i in range(len(ops) - 1, -1, -1):
        queue = queues[ops[i].queue]
        tails[i] = max(tails[i], following[queue])
        if i < end:
            continue
        chain = tails[i] + _lasts(ops[i])
        following[queue] = max(following[queue], chain)
        for other in kept[i]:
            tails[other] = max(tails[other], chain)
    return tails
