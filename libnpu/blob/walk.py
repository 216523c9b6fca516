"""Abstract run of a blob's task lists: who waits for whom, without data and without time.

Follows the rules of the model (docs/architecture.md): each list is dispatched in order, a task enters its engine's FIFO when
there is room and every virtual barrier up to `start_after` has retired, waits at the head, takes one consumer of each barrier
that it waits for, and gives one producer to each that it posts. Tasks take no time here: one of the orders that the device
may choose. One is enough: when each task's `start_after` implies that the barriers that it names are loaded (checked here),
a task that may start stays able to start whatever the others do, so every order ends alike.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.blob.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libnpu.blob.image import BlobImage


@dataclass(frozen=True, slots=True)
class _Task:
    """A task as the walk sees it; masks as tuples of physical ids."""

    section: str
    index: int
    engine: tuple[int, int]
    waits: tuple[int, ...]
    posts: tuple[int, ...]
    start_after: int  # index of a virtual barrier, -1 = none

    @property
    def where(self) -> str:
        return f"{self.section}[{self.index}]"


@dataclass(frozen=True, slots=True)
class Step:
    """A task that has run: entry `index` of `section` on `engine`, the virtual barriers that it waited for and posted."""

    section: str
    index: int
    engine: tuple[int, int]
    waits: tuple[int, ...]
    posts: tuple[int, ...]
    start_after: int  # -1 = none


@dataclass(slots=True)
class _Barriers:
    """State of the virtual barriers and of the physical ids that they are loaded on."""

    producers: list[int]
    consumers: list[int]
    next_same_id: list[int]
    previous_same_id: list[int]  # -1 = first
    loaded: dict[int, int]  # physical id -> virtual barrier
    retired: list[bool]
    retired_prefix: int = 0  # every virtual barrier below this index has retired
    problems: list[Problem] = field(default_factory=list)

    def ready(self, ids: tuple[int, ...]) -> bool:
        return all(i in self.loaded and self.producers[self.loaded[i]] == 0 for i in ids)

    def take(self, count: list[int], what: str, physical: int, where: str) -> int:
        """Take one producer or consumer (`count`) from the barrier that is loaded on `physical`; return it, -1 = none."""
        virtual = self.loaded.get(physical)
        if virtual is None or count[virtual] == 0:
            name = "no barrier" if virtual is None else f"virtual barrier {virtual}"
            self.problems.append(
                Problem("barrier-count", where, f"takes a {what} from id {physical}, where {name} has none left")
            )
            return -1
        count[virtual] -= 1
        return virtual

    def retire(self, physical: int) -> None:
        """Retire the barrier on `physical` when nothing is left of it, and load the next one of that id."""
        virtual = self.loaded.get(physical)
        while virtual is not None and not self.producers[virtual] and not self.consumers[virtual]:
            self.retired[virtual] = True
            following = self.next_same_id[virtual]
            del self.loaded[physical]
            virtual = following if virtual < following < len(self.retired) else None
            if virtual is not None:
                self.loaded[physical] = virtual
        while self.retired_prefix < len(self.retired) and self.retired[self.retired_prefix]:
            self.retired_prefix += 1


def walk(image: BlobImage, fifo_depth: int, steps: list[Step] | None = None) -> list[Problem]:
    """Return what goes wrong when the task lists are run: deadlocks, counts that do not add up, barriers left over.

    `fifo_depth` is the number of tasks that wait in front of an engine. The barrier configurations must be consistent
    (`verify` checks that first). Appends the tasks to `steps` in the order in which they ran.
    """
    barriers = _barriers(image)
    lists = {name: deque(tasks) for name, tasks in _lists(image).items()}
    fifos: dict[tuple[int, int], deque[_Task]] = {}
    for tasks in lists.values():
        for task in tasks:
            fifos.setdefault(task.engine, deque())
    progress = True
    while progress:
        progress = False
        for tasks in lists.values():
            while tasks and len(fifos[tasks[0].engine]) < fifo_depth and tasks[0].start_after < barriers.retired_prefix:
                task = tasks.popleft()
                fifos[task.engine].append(task)
                progress = True
        for fifo in fifos.values():
            while fifo and barriers.ready(fifo[0].waits):
                step = _run(fifo.popleft(), barriers)
                if steps is not None:
                    steps.append(step)
                progress = True
    problems = barriers.problems
    for tasks in (*fifos.values(), *lists.values()):
        if tasks:
            problems.append(Problem("deadlock", tasks[0].where, _stuck(tasks[0], barriers)))
    if not any(fifos.values()) and not any(lists.values()):
        for index, done in enumerate(barriers.retired):
            if not done:
                left = f"{barriers.producers[index]} producers and {barriers.consumers[index]} consumers left"
                problems.append(Problem("barrier-left", f".npu.barriers[{index}]", f"never retires: {left} at the end"))
    return problems


def _run(task: _Task, barriers: _Barriers) -> Step:
    for physical in sorted({*task.waits, *task.posts}):
        virtual = barriers.loaded.get(physical)
        before = barriers.previous_same_id[virtual] if virtual is not None else -1
        if before > task.start_after:
            reason = (
                f"start_after is {task.start_after if task.start_after >= 0 else 'none'}; expected at least {before}"
            )
            message = f"{reason}, which is before virtual barrier {virtual} on id {physical}"
            barriers.problems.append(Problem("start-after", task.where, message))
    waits, posts = [], []
    for physical in task.waits:
        waits.append(barriers.take(barriers.consumers, "consumer", physical, task.where))
        barriers.retire(physical)
    for physical in task.posts:
        posts.append(barriers.take(barriers.producers, "producer", physical, task.where))
        barriers.retire(physical)
    return Step(task.section, task.index, task.engine, tuple(waits), tuple(posts), task.start_after)


def _stuck(task: _Task, barriers: _Barriers) -> str:
    for physical in task.waits:
        virtual = barriers.loaded.get(physical)
        if virtual is None:
            return f"waits for ever: no barrier is left on id {physical}"
        if barriers.producers[virtual]:
            count = barriers.producers[virtual]
            return f"waits for ever for virtual barrier {virtual} on id {physical}: {count} of its producers never run"
    if task.start_after >= barriers.retired_prefix:
        first = barriers.retired_prefix
        return f"never starts: start_after is {task.start_after}, but virtual barrier {first} does not retire"
    return "never starts: the FIFO in front of it stays full"


def _barriers(image: BlobImage) -> _Barriers:
    array = image.tasks.get(".npu.barriers")
    if array is None:
        return _Barriers([], [], [], [], {}, [])
    loaded: dict[int, int] = {}
    latest: dict[int, int] = {}
    previous = []
    for index, physical in enumerate(array["real_id"].tolist()):
        loaded.setdefault(physical, index)
        previous.append(latest.get(physical, -1))
        latest[physical] = index
    return _Barriers(
        array["producer_count"].tolist(),
        array["consumer_count"].tolist(),
        array["next_same_id"].tolist(),
        previous,
        loaded,
        [False] * len(array),
    )


def _lists(image: BlobImage) -> dict[str, list[_Task]]:
    return {
        section: [*_tasks(image, section, engine)]
        for section, engine in (
            (".npu.tasks.dma0", C.NPU_ENGINE_DMA),
            (".npu.tasks.dma1", C.NPU_ENGINE_DMA),
            (".npu.tasks.dpu_invariant", C.NPU_ENGINE_DPU),
            (".npu.tasks.shave_invocation", C.NPU_ENGINE_SHAVE),
        )
        if section in image.tasks
    }


def _tasks(image: BlobImage, section: str, engine: int) -> Iterator[_Task]:
    array = image.tasks[section]
    if engine == C.NPU_ENGINE_DMA:
        units = [int(section[-1])] * len(array)
    elif engine == C.NPU_ENGINE_DPU:
        units = array["tile"].tolist()
    else:
        units = (array["tile"].astype(int) * C.NPU_MAX_SHAVES_PER_TILE + array["shave"]).tolist()
    columns = (
        array["barriers_wait_mask"].tolist(),
        array["barriers_post_mask"].tolist(),
        array["sched_start_after"].tolist(),
    )
    for index, (unit, wait, post, after) in enumerate(zip(units, *columns, strict=True)):
        start_after = -1 if after == C.NPU_BARRIER_NONE else after
        yield _Task(section, index, (engine, unit), bits(wait), bits(post), start_after)


def bits(mask: int) -> tuple[int, ...]:
    """Return the numbers of the set bits, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return tuple(found)
