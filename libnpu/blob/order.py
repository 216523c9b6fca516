"""What the device surely keeps in order: for each task of a blob, the tasks that have ended when it starts.

A task starts after the task before it on its engine, whose FIFO keeps the order of the list; after the producers of the
barriers that it waits for; and after every virtual barrier up to its `start_after` has retired, which takes the end of the
barrier's producers and the start of its consumers. Nothing else is relied on: neither the depth of a FIFO nor which list the
core looks at first, which differ between profiles and between INFERENCE and INFERENCE_DYNAMIC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from libnpu.blob.walk import Step

Clock = list[int]  # by engine: how many of its tasks; those of one engine start and end in order, so a count names them


class Order:
    """The order of `steps`, tasks in an order in which they may run. Tasks are named by their place in `steps`."""

    def __init__(self, steps: Sequence[Step]) -> None:
        engines = {engine: number for number, engine in enumerate(dict.fromkeys(step.engine for step in steps))}
        self._engine = [engines[step.engine] for step in steps]
        self._position: list[int] = []  # of a task on its engine
        self._ended: list[Clock] = []  # when a task starts
        nothing = [0] * len(engines)
        ends = [nothing] * len(engines)  # by engine: what has ended when its latest task has
        posted: dict[int, Clock] = {}  # virtual barrier -> what has ended when it is ready
        taken: dict[int, Clock] = {}  # ... when all who wait for it have started, which they do when it is ready
        prefix: list[Clock] = [nothing]  # [n]: what has ended when all virtual barriers below n have retired
        for step, engine in zip(steps, self._engine, strict=True):
            while len(prefix) <= step.start_after + 1:
                virtual = len(prefix) - 1
                prefix.append(_join(prefix[-1], taken.get(virtual) or posted.get(virtual, nothing)))
            ended = ends[engine]
            if step.start_after >= 0:
                ended = _join(ended, prefix[step.start_after + 1])
            for virtual in step.waits:
                ended = _join(ended, posted.get(virtual, nothing))
            for virtual in step.waits:
                taken[virtual] = _join(taken[virtual], ended) if virtual in taken else ended
            position = ends[engine][engine]
            self._ended.append(ended)
            self._position.append(position)
            done = ended.copy()
            done[engine] = position + 1
            ends[engine] = done
            for virtual in step.posts:
                posted[virtual] = _join(posted[virtual], done) if virtual in posted else done

    def may_run(self, start: int) -> Callable[[int], bool]:
        """Return the test of whether a task may not have ended yet when task `start` begins; `start` itself is one."""
        clock, engine, position = self._ended[start], self._engine, self._position
        return lambda task: position[task] >= clock[engine[task]]


def _join(a: Clock, b: Clock) -> Clock:
    return list(map(max, a, b))
