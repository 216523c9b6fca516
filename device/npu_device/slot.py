"""Job slots: the window registers and run-time state of a job that owns tiles.

A slot maps what descriptors name relatively (CMX tiles, barrier ids) to the physical units that the job got.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npu_device.barriers import Barrier
from npu_device.clock import PRIORITY_ENGINE
from npu_device.cmx import AddressSpace

if TYPE_CHECKING:
    from npu_device.engine import Channel, Engine, Task
    from npu_device.fabric import Fabric
    from npu_device.kernel import Launch


RELEASE = 0  # action of an event: the slot is no longer held back


class BarrierSets(dict[int, tuple[Barrier, ...]]):
    """Barrier masks of a job's descriptors as tuples of physical barriers, made on first use."""

    def __init__(self, barriers: list[Barrier]) -> None:
        super().__init__()
        self._barriers = barriers

    def __missing__(self, mask: int) -> tuple[Barrier, ...]:
        found = tuple(self._barriers[i] for i in range(mask.bit_length()) if mask >> i & 1)
        self[mask] = found
        return found


class JobSlot:
    """One job on the engines."""

    __slots__ = (
        "band", "barrier_sets", "barriers", "channels", "direct_channels", "ends", "executing", "fabric", "failed", "fault", "held", "job_id",
        "launch", "outstanding", "pending_cycles", "pending_since", "requests", "running", "shift", "space", "ssid", "tiles",
    )  # fmt: skip

    def __init__(self, fabric: Fabric, ssid: int, job_id: int, tiles: tuple[int, ...], barrier_count: int) -> None:
        self.fabric = fabric
        self.ssid = ssid
        self.job_id = job_id
        self.tiles = tiles
        self.space: AddressSpace = AddressSpace(fabric.mmu, fabric.cmx, ssid, tiles)
        self.barriers: list[Barrier] = []
        for tile in tiles:
            self.barriers += fabric.tile_barriers(tile)
        del self.barriers[barrier_count:]
        for barrier in self.barriers:  # all are clear: nobody owned them
            barrier.slot = self
        self.barrier_sets = BarrierSets(self.barriers)
        self.channels: dict[Engine[Any], Channel] = {}
        self.direct_channels: dict[Engine[Any], Channel] = {}  # of operations that SHAVE programs start
        self.outstanding = 0  # tasks pushed and not ended
        self.running = 0  # tasks started and not ended
        self.requests = 0  # transfers from or to DDR that have begun and not ended
        self.pending_cycles = 0  # engine-clock cycles with such requests, up to their last end
        self.pending_since = 0  # cycle in which the first of those came that are out now
        self.ends = -1  # tasks that ended since the firmware set it to 0: from then on each one wakes the core
        self.executing: list[Task] = []  # running tasks with data, for conflicts
        self.launch: Launch | None = None  # whose block this is
        self.shift = 0  # from the addresses of the CMX window to addresses that `executing` can compare
        self.band = 0  # priority: where several jobs want an engine the highest gets it
        self.failed = False
        self.fault: tuple[int, int, int] | None = None  # enum npu_job_status, detail, info
        delay_ps = fabric.schedule.hold() if fabric.schedule.stretches else 0
        self.held = delay_ps > 0  # by the schedule: nothing of it starts yet
        if self.held:
            fabric.clock.at(fabric.clock.now_ps + delay_ps, PRIORITY_ENGINE, self, RELEASE, None)

    def fire(self, action: int, arg: object) -> None:
        """Let the heads of the FIFOs start that are ready."""
        self.held = False
        for channel in self.all_channels():
            if channel.fifo:
                channel.engine.poke(channel)
        if self.fabric.core.sleeping:
            self.fabric.core.wake()  # it may be that nothing could start: a deadlock

    def request(self, cycle: int) -> None:
        """Note that a transfer from or to DDR begins."""
        if not self.requests:
            self.pending_since = cycle
        self.requests += 1

    def answer(self, cycle: int) -> None:
        """Note that one has ended, or will not."""
        self.requests -= 1
        if not self.requests:
            self.pending_cycles += cycle - self.pending_since

    def pending(self, cycle: int) -> int:
        """Return in how many cycles up to `cycle` a transfer of the job from or to DDR was in progress."""
        return self.pending_cycles + (cycle - self.pending_since if self.requests else 0)

    def fail(self, status: int, detail: int, task: Task) -> None:
        """Stop the slot: nothing of it starts any more, and the firmware is told. The first failure counts."""
        if not self.failed:
            self.failed = True
            self.fault = (status, detail, task.index | task.list_id << 32)
            self.fabric.core.report_fault(self)

    def quiet(self) -> bool:
        """Say whether nothing of the slot runs or could run: only the firmware could change that."""
        return not self.held and not self.running and not any(channel.wanting for channel in self.all_channels())

    def all_channels(self) -> list[Channel]:
        """Return the FIFOs of the job, in the order of their making."""
        return [*self.channels.values(), *self.direct_channels.values()]

    def recall(self) -> list[Task]:
        """Take the tasks that have not started out of the FIFOs, and return them. What SHAVE programs have started stays."""
        found: list[Task] = []
        for channel in self.channels.values():
            fifo = channel.fifo
            if not fifo:
                continue
            for barrier in fifo[0].waits:
                if channel in barrier.waiters:
                    barrier.waiters.remove(channel)
            channel.engine.end_wait(channel)
            if channel.wanting and channel.suspended is None:
                channel.engine.wanting.remove(channel)
                channel.wanting = False
            found += fifo
            channel.room += len(fifo)
            self.outstanding -= len(fifo)
            fifo.clear()
        return found

    def holding(self) -> bool:
        """Whether a task of the slot has an engine and does not wait for operations that it started on others."""
        tasks = [channel.engine.task for channel in self.all_channels()]
        return any(t is not None and t.slot is self and not getattr(t, "waiting", False) for t in tasks)

    def blocked(self) -> tuple[int, int]:
        """Return the lowest loaded virtual barrier that a FIFO head waits for, and that task as index | list << 32; or (-1, 0)."""
        waited = [
            (barrier, task.list_id << 32 | task.index)
            for channel in self.channels.values()
            for task in list(channel.fifo)[:1]
            for barrier in task.blocking()
        ]
        return min(waited, default=(-1, 0))

    def close(self) -> None:
        """Take the slot off the engines: FIFOs emptied, running tasks cancelled, barriers invalid."""
        self.failed = True
        for channel in self.all_channels():
            channel.fifo.clear()
            channel.engine.drop(channel)
        for barrier in self.barriers:
            barrier.clear()
            barrier.slot = None
        self.executing.clear()
        self.outstanding = self.running = 0
