"""The critical path of a run: the chain of tasks, each of which the next one waited for, and the time between them.

Found backwards from the end of the job. A task waited for what was before it in its engine's queue, for those that post the
barriers that it waits for, and for those that post the barriers that had to retire before it was dispatched; of these the one
that ended last held it up. What is between that end and the start is waiting: the management core's work, and queues.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from libnpu.tools.console import ToolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libnpu.blob import BlobImage
    from libnpu.blob.walk import Step
    from libnpu.trace.slices import Slice


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the run: a task on the path, or waiting (None). `step` is the task's place in the blob."""

    start_ps: int
    end_ps: int
    task: Slice | None = None
    step: Step | None = None


def critical_path(
    image: BlobImage, slices: Sequence[Slice], start_ps: int, end_ps: int, fifo_depth: int
) -> list[Segment]:
    """Return segments in order of time that cover the job's time [start_ps, end_ps) without gap or overlap."""
    steps = _steps(image, fifo_depth)
    by_task = {s.task_id: s for s in slices}
    tasks = [by_task.get(int(image.tasks[step.section]["task_id"][step.index])) for step in steps]
    before = _predecessors(steps, tasks)
    at = max((n for n, task in enumerate(tasks) if task is not None), key=lambda n: _end(tasks[n]), default=None)
    found: list[Segment] = []
    now = end_ps
    while at is not None:
        task = tasks[at]
        assert task is not None
        last = min(task.end_ps, now)
        first = max(task.start_ps, start_ps)
        if last < now:
            found.append(Segment(last, now))
        if first < last:
            found.append(Segment(first, last, task, steps[at]))
        now = min(first, now)
        at = before[at]
    if start_ps < now:
        found.append(Segment(start_ps, now))
    return found[::-1]


def _end(task: Slice | None) -> int:
    return -1 if task is None else task.end_ps


def _steps(image: BlobImage, fifo_depth: int) -> list[Step]:
    from libnpu.blob.walk import walk

    steps: list[Step] = []
    problems = walk(image, fifo_depth, steps)
    if problems:
        raise ToolError(f"{image.name}: {problems[0].where}: {problems[0].message}")
    return steps


def _predecessors(steps: list[Step], tasks: list[Slice | None]) -> list[int | None]:
    """Return for each step, which come in an order in which they may run, the one that held it up."""
    found: list[int | None] = []
    on_engine: dict[tuple[int, int], int] = {}
    posted: dict[int, int] = {}  # virtual barrier -> the last of those that post it to end
    list_after: dict[str, int] = {}
    retired: list[int | None] = [None]  # [n]: the last to end of those that post virtual barriers below n

    def later(a: int | None, b: int | None) -> int | None:
        if a is None or b is None:
            return b if a is None else a
        return b if _end(tasks[b]) > _end(tasks[a]) else a

    for number, step in enumerate(steps):
        after = list_after[step.section] = max(step.start_after, list_after.get(step.section, -1))
        while len(retired) <= after + 1:
            retired.append(later(retired[-1], posted.get(len(retired) - 1)))
        held = later(on_engine.get(step.engine), retired[after + 1])
        for virtual in step.waits:
            held = later(held, posted.get(virtual))
        found.append(held)
        on_engine[step.engine] = number
        for virtual in step.posts:
            latest = later(posted.get(virtual), number)
            assert latest is not None
            posted[virtual] = latest
    return found
