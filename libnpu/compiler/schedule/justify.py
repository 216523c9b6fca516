"""Another order of operations, out of a schedule: by when each starts at the latest.

The schedule is made once more from its end backward, what ends last first, without a limit of CMX. What others wait for then comes early, and
what nothing waits for comes late; program order knows neither.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from libnpu.compiler.program import Engine

if TYPE_CHECKING:
    from libnpu.compiler.schedule.memory_scheduler import FeasibleMemoryScheduler
    from libnpu.compiler.schedule.schedule import Schedule


def late_order(plan: FeasibleMemoryScheduler, schedule: Schedule) -> list[int]:
    """Return the operations of a plan, of which `schedule` is one, by their latest start; it is a correct order."""
    ops = plan.program.ops
    number = {id(op): index for index, op in enumerate(ops)}
    end_ps = {number[id(s.op)]: s.end_ps for s in schedule.ops if s.kind == "op"}
    ready: dict[Engine, list[tuple[int, int]]] = {engine: [] for engine in Engine}
    idle = {engine: sum(queue.engine == engine for queue in plan.queues) for engine in Engine}
    waited_for = [len(after) for after in plan.successors]
    lasts_ps = [0] * len(ops)  # from an operation's start to the end of all
    running: list[tuple[int, int]] = []
    now = path_free = 0

    def add(index: int) -> None:
        heappush(ready[ops[index].engine], (-end_ps[index], -index))

    for index, count in enumerate(waited_for):
        if not count:
            add(index)
    while True:
        for engine, waiting in ready.items():
            while waiting and idle[engine]:
                index = -heappop(waiting)[1]
                start_ps, path_ps = now, ops[index].path_ps
                if path_ps:
                    start_ps = max(now, path_free)  # backward, the latency comes last
                    path_free = start_ps + path_ps
                lasts_ps[index] = start_ps + max(ops[index].cost_ps, 1)
                idle[engine] -= 1
                heappush(running, (lasts_ps[index], index))
        if not running:
            return sorted(range(len(ops)), key=lambda index: (-lasts_ps[index], index))
        now = running[0][0]
        while running and running[0][0] <= now:
            index = heappop(running)[1]
            idle[ops[index].engine] += 1
            for other in plan.predecessors[index]:
                waited_for[other] -= 1
                if not waited_for[other]:
                    add(other)
