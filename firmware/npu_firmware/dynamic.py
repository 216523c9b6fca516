"""A run-time scheduler for the task lists of an inference, instead of the walk: nothing waits in a FIFO.

Tasks are kept by engine. The core looks at the first task that is left for each engine that has nothing of this job, and hands one over
when every barrier that it waits for is ready and every one up to its start_after has retired. Tasks of one engine stay in the
order of their list: compiled lists rely on it, as on the order of a FIFO. Looking costs `core.ready_cycles` for each task, found
ready or not; after a look in vain the core waits until a task has ended or a barrier has retired.
"""

from __future__ import annotations

from collections.abc import Iterable

from npu_firmware.hal import Barrier, Channel, Hal, Slot, Task
from npu_firmware.walk import Chains, Walk


class DynamicWalk(Walk):
    """As Walk, with a list for each engine."""

    __slots__ = ("_ready_cycles", "_seen")

    def __init__(self, hal: Hal, slot: Slot, lists: list[Iterable[Task]], chains: Chains) -> None:
        queues: dict[Channel, list[Task]] = {}
        for tasks in lists:
            for task in tasks:
                queues.setdefault(task.channel, []).append(task)
        super().__init__(hal, slot, list(queues.values()), chains)
        self._ready_cycles = hal.profile.core.ready_cycles
        self._seen = -1  # `slot.ends` at the latest look that found nothing; -1: look again
        slot.ends = 0

    def pick(self) -> int:
        """Return the engine, by its number in `heads`, that gets its next task, or -1; `cycles` or `idle_cycles` say what looking cost."""
        if self._seen == self.slot.ends:
            return -1
        heads = self.heads
        count = len(heads)
        looked = 0
        for offset in range(count):
            index = (self._turn + offset) % count
            head = heads[index]
            if head is None or not head.channel.idle:
                continue
            looked += 1
            if head.start_after <= self.watermark and head.ready:
                self._turn = index + 1
                self.cycles = self._task_cycles + looked * self._ready_cycles
                return index
        self._seen = self.slot.ends
        self.idle_cycles = looked * self._ready_cycles
        return -1

    def load_first(self) -> None:
        """As Walk.load_first; what waits for barriers is looked at again."""
        super().load_first()
        self._seen = -1

    def retire(self, barrier: Barrier) -> None:
        """As Walk.retire; what waits for barriers is looked at again."""
        super().retire(barrier)
        self._seen = -1

    def blocked(self) -> tuple[int, int]:
        """As Walk.blocked: the lowest barrier that the next task of an engine waits for, and that task."""
        waited = [
            (barrier, head.list_id << 32 | head.index)
            for head in self.heads
            if head is not None
            for barrier in head.blocking()
        ]
        return min(waited, default=super().blocked())
