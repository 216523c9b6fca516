"""The walk of one inference's (or copy command's) task lists: in order within a list, round-robin between lists.

A task may enter its FIFO when the FIFO has room and every virtual barrier up to its start_after has retired: the
watermark is the highest index up to which all have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from npu_abi import C

from npu_firmware.hal import Barrier, Hal, Slot, Task

NONE = int(C.NPU_BARRIER_NONE)

Records = np.ndarray[Any, np.dtype[np.void]]


@dataclass(frozen=True, slots=True)
class Chains:
    """Barrier configurations by virtual id, and the virtual ids that are the first of a physical one."""

    next_same: list[int]
    producers: list[int]
    consumers: list[int]
    real: list[int]
    first: list[int]


def chains(configs: Records) -> Chains:
    """Decode struct npu_barrier_config[]."""
    real = configs["real_id"].tolist()
    first = np.unique(configs["real_id"], return_index=True)[1]
    next_same, producers = configs["next_same_id"].tolist(), configs["producer_count"].tolist()
    return Chains(next_same, producers, configs["consumer_count"].tolist(), real, np.sort(first).tolist())


NO_BARRIERS = Chains([], [], [], [], [])


class Walk:
    """Position in all lists of a job on the engines; `remaining` lists have tasks left. `lists` are decoded tasks."""

    __slots__ = (
        "_barriers",
        "_chains",
        "_iterators",
        "_load_barrier",
        "_retired",
        "_task_cycles",
        "_turn",
        "cycles",
        "heads",
        "idle_cycles",
        "left",
        "remaining",
        "slot",
        "watermark",
    )  # fmt: skip

    def __init__(self, hal: Hal, slot: Slot, lists: list[Iterable[Task]], chains: Chains) -> None:
        self._load_barrier = hal.load_barrier
        self.slot = slot
        self._iterators: list[Iterator[Task]] = [iter(tasks) for tasks in lists]
        self.heads: list[Task | None] = [next(tasks, None) for tasks in self._iterators]
        self.remaining = len(lists) - self.heads.count(None)
        self._turn = 0
        self._task_cycles = hal.profile.core.fetch_cycles + hal.profile.core.dispatch_cycles
        self.cycles = self._task_cycles  # of the task that `pick` found
        self.idle_cycles = 0  # that the core spent on looking in vain, not yet accounted for
        self.watermark = -1
        self.left: set[tuple[int, int]] = set()  # of a stopped walk: list and index of the tasks that have not started
        self._retired = bytearray(len(chains.real) + 1)
        self._chains = chains
        self._barriers = hal.barriers(slot)

    def load_first(self) -> None:
        """Load the first virtual barrier of every physical id."""
        chains = self._chains
        for virtual_id in chains.first:
            counts = chains.producers[virtual_id], chains.consumers[virtual_id]
            self._load_barrier(self._barriers[chains.real[virtual_id]], virtual_id, *counts)

    def first_count(self) -> int:
        """Return how many barriers `load_first` loads."""
        return len(self._chains.first)

    def pick(self) -> int:
        """Return the next list whose head may be dispatched, or -1."""
        heads = self.heads
        count = len(heads)
        index = self._turn
        for _ in range(count):
            if index >= count:
                index = 0
            head = heads[index]
            if head is not None and head.start_after <= self.watermark and head.channel.room:
                self._turn = index + 1
                return index
            index += 1
        return -1

    def head_id(self, index: int) -> int:
        """Return the task id of the head of a list."""
        head = self.heads[index]
        assert head is not None
        return head.task_id

    def dispatch(self, index: int) -> None:
        """Put the head of a list in its FIFO and move on."""
        heads = self.heads
        task = heads[index]
        assert task is not None
        following = heads[index] = next(self._iterators[index], None)
        if following is None:
            self.remaining -= 1
        task.channel.push(task)

    def retire(self, barrier: Barrier) -> None:
        """Note that the virtual barrier in `barrier` retired and load the next one."""
        virtual_id = barrier.virtual_id
        retired = self._retired
        retired[virtual_id] = 1
        watermark = self.watermark
        while retired[watermark + 1]:
            watermark += 1
        self.watermark = watermark
        chains = self._chains
        following = chains.next_same[virtual_id]
        if following != NONE:
            self._load_barrier(barrier, following, chains.producers[following], chains.consumers[following])

    def stop(self) -> None:
        """Recall the tasks that have not started, and note all that are left."""
        heads = (head for head in self.heads if head is not None)
        rest = (task for tasks in self._iterators for task in tasks)
        self.left = {(task.list_id, task.index) for tasks in (self.slot.recall(), heads, rest) for task in tasks}

    def continued(self, hal: Hal, slot: Slot, lists: list[Iterable[Task]]) -> Walk:
        """Return the walk that goes on on another slot with what is left of a stopped one. `lists` are all tasks; the caller loads the barriers."""
        left = self.left
        rest = [[task for task in tasks if (task.list_id, task.index) in left] for tasks in lists]
        walk = type(self)(hal, slot, rest, self._chains)  # type: ignore[arg-type]
        walk._retired, walk.watermark = self._retired, self.watermark
        return walk

    def barrier_count(self) -> int:
        """Return how many virtual barriers there are."""
        return len(self._chains.real)

    def blocked(self) -> tuple[int, int]:
        """Return what a deadlock report names: a virtual barrier, and as index | list << 32 the task that it keeps waiting."""
        barrier, task = self.slot.blocked()
        if barrier >= 0:
            return barrier, task
        held = [head.list_id << 32 | head.index for head in self.heads if head is not None]
        return self.watermark + 1, min(held, default=0)
