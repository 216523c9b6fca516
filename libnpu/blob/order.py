"""What the device surely keeps in order: for each task of a blob, the tasks that have ended when it starts.

A task starts after the task before it on its engine, whose FIFO keeps the order of the list; after the producers of the
barriers that it waits for; and after every virtual barrier up to its `start_after` has retired, which takes the end of the
barrier's producers and the start of its consumers. Nothing else is relied on: neither the depth of a FIFO nor which list the
core looks at first, which differ between profiles and between INFERENCE and INFERENCE_DYNAMIC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from libnpu.blob.walk import Step

    # By engine: how many of its tasks; those of one engine start and end in order, so a count names them.
    Clock = NDArray[np.int64]


class Order:
    """The order of `steps`, tasks in an order in which they may run. Tasks are named by their place in `steps`."""

    def __init__(self, steps: Sequence[Step]) -> None:
        engines = {engine: number for number, engine in enumerate(dict.fromkeys(step.engine for step in steps))}
        self.engine = [engines[step.engine] for step in steps]
        """By task: the number of its engine."""
        self.position: list[int] = []
        """By task: how many there are before it on its engine."""
        self._tasks: list[list[int]] = [[] for _ in engines]  # by engine
        nothing = np.zeros(len(engines), np.int64)
        started: list[Clock] = []
        ends = [nothing] * len(engines)  # by engine: what has ended when its latest task has
        posted: dict[int, Clock] = {}  # virtual barrier -> what has ended when it is ready
        taken: dict[int, Clock] = {}  # ... when all who wait for it have started, which they do when it is ready
        prefix: list[Clock] = [nothing]  # [n]: what has ended when all virtual barriers below n have retired
        for number, (step, engine) in enumerate(zip(steps, self.engine, strict=True)):
            while len(prefix) <= step.start_after + 1:
                virtual = len(prefix) - 1
                prefix.append(
                    np.maximum(prefix[-1], taken[virtual] if virtual in taken else posted.get(virtual, nothing))
                )
            ended = ends[engine]
            if step.start_after >= 0:
                ended = np.maximum(ended, prefix[step.start_after + 1])
            for virtual in step.waits:
                ended = np.maximum(ended, posted.get(virtual, nothing))
            for virtual in step.waits:
                taken[virtual] = np.maximum(taken[virtual], ended) if virtual in taken else ended
            started.append(ended)
            tasks = self._tasks[engine]
            self.position.append(len(tasks))
            tasks.append(number)
            done = ended.copy()
            done[engine] = len(tasks)
            ends[engine] = done
            for virtual in step.posts:
                posted[virtual] = np.maximum(posted[virtual], done) if virtual in posted else done
        self.ended: list[list[int]] = np.array(started, np.int64).tolist()
        """By task and engine: how many tasks have surely ended when it starts; a task may run beside those that come behind them."""

    def oldest(self, start: int) -> int:
        """Return the first task that may not have ended yet when task `start` begins; `start` itself is one."""
        behind = zip(self._tasks, self.ended[start], strict=True)
        return min(tasks[ended] for tasks, ended in behind if ended < len(tasks))
