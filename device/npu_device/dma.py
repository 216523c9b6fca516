"""DMA ports: strided copies between DDR and CMX. Time is the port's cycles plus latency, or more when DDR is shared.

1. Start: the source is gathered; an on-chip destination is poisoned.
2. The data phase goes through the memory path, after its latency (only when a side is DDR).
3. End: the destination is scattered.

A port serves the jobs that have descriptors for it in turn: when another job waits, a descriptor gives the port back at
the end of its turn, which is as long as `grant_bytes` of it take at the port's rate, and goes on after the others' turns.
One that is alone, or has only others of its job beside it, runs through. A descriptor that goes on has no latency again:
its requests follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappush
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C
from npu_model import cycles as cost
from npu_model.descriptors import Dma
from npu_model.memory_forms import ClosedForms, Cost
from npu_model.memory_runs import NO_RUNS, Runs, access_count
from npu_model.profile import Profile

from npu_device.clock import PRIORITY_ENGINE, ClockDomain
from npu_device.cmx import in_window
from npu_device.ddr import FIRST_TOKEN, demand_of
from npu_device.dma_copy import Move
from npu_device.dram import POISON
from npu_device.engine import END, Channel, Engine, Task, band_of, dependency_columns
from npu_device.scratch import Scratch

if TYPE_CHECKING:
    from npu_device.cmx import AddressSpace
    from npu_device.fabric import Fabric
    from npu_device.slot import JobSlot

TURN = -1  # action of an event: the running task's turn is over
JOIN = 1  # action of an event: the latency is over
# actions from FIRST_TOKEN on: the data phase is over, if the token is still the task's
READ_DDR, WRITE_DDR = int(C.NPU_PMU_DMA_DDR_READ), int(C.NPU_PMU_DMA_DDR_WRITE)
DDR_MOVED = int(C.NPU_PMU_DDR_MOVED)
PENDING, STALL = int(C.NPU_PMU_DMA_MEM_PENDING), int(C.NPU_PMU_DMA_MEM_STALL)
SNOOPS = int(C.NPU_PMU_SNOOPS)
LINE_BYTES = 64  # of the host's caches
READ_CMX, WRITE_CMX = int(C.NPU_PMU_DMA_CMX_READ), int(C.NPU_PMU_DMA_CMX_WRITE)


class DmaTask(Task):
    """A descriptor with its cost. `ddr_bytes` counts both sides."""

    __slots__ = (
        "ddr_bytes",
        "demand",
        "entry",
        "own_cycles",
        "plan",
        "read_counter",
        "remaining_ps",
        "share",
        "since_ps",
        "token",
        "turn_ends",
        "turn_ps",
        "turn_start_ps",
        "write_counter",
    )

    plan: DmaPlan
    entry: int  # index in the plan
    read_counter: int
    write_counter: int
    ddr_bytes: int
    own_cycles: int  # of the engine clock that the port needs for it if DDR never lets it wait; -1: it has not begun
    turn_ps: int  # 0: as long as it takes
    turn_start_ps: int  # when the data phase began or went on
    turn_ends: bool  # the end of the turn is scheduled
    remaining_ps: int  # of the data phase at full rate
    since_ps: int  # to which `remaining_ps` belongs
    token: int  # of the end event that counts
    demand: int  # this and what follows: as a flow of the memory path
    share: int
    client = "npu_dma"

    def runs(self) -> tuple[Runs, Runs]:
        """Return what it reads and what it writes outside of CMX."""
        return self.plan.runs(self.entry, self.slot.space)

    def cost(self, forms: ClosedForms) -> Cost:
        """Return what those runs cost."""
        return self.plan.cost(self.entry, self.slot.space, forms)


class DmaPort(Engine[DmaTask]):
    """One port."""

    busy_counter = int(C.NPU_PMU_DMA_BUSY)

    def __init__(self, fabric: Fabric, unit: int, domain: ClockDomain) -> None:
        super().__init__(fabric, int(C.NPU_ENGINE_DMA), unit, domain)
        profile = fabric.profile
        self._scratch = Scratch()  # a port's own: in use from the start of a task to its end or its suspension
        self._latency_ps = round(profile.ddr.latency_ns * 1000)
        self._ddr = fabric.ddr
        self._mmu = fabric.mmu
        self._cmx_latency_cycles = profile.cmx.latency_cycles
        self._grant_bytes = profile.dma.grant_bytes
        self._access_bytes = profile.memory_system.dram.access_bytes

    def start(self, channel: Channel) -> None:
        """Start the head of `channel`, or let its suspended task go on."""
        task: DmaTask | None = channel.suspended
        if task is None:
            super().start(channel)
            return
        channel.suspended = None
        self.task = task
        clock = self._clock
        now = clock.now_ps
        task.start_cycle = now * self._num // self._den
        task.turn_start_ps = now
        if task.ddr_bytes:
            self._ddr.join(task, self, now)
        else:
            task.since_ps = now
            clock.at(now + task.remaining_ps, PRIORITY_ENGINE, self, task.token, task)
        if self.wanting:
            self.contend()

    def begin(self, task: DmaTask, cycles: int) -> None:
        """Schedule the end: directly when DDR cannot be the limit, by the memory path otherwise."""
        clock, num, den = self._clock, self.domain.num, self.domain.den
        if task.ddr_bytes:
            task.own_cycles = cycles * self._num * den // (self._den * num)
            task.slot.request(task.start_cycle)
            waiting_cycles = self._ddr.waiting_ps(task.ddr_bytes) * num // den
            first = (clock.now_ps + self._latency_ps - 1) * num // den + 1 + waiting_cycles
        else:
            first = (clock.now_ps - 1) * num // den + 1 + self._cmx_latency_cycles
            if task.amount <= self._grant_bytes:  # nothing can make it longer or break it off
                end = -(-(first + cycles) * den // num)
                heappush(clock.heap, (end, PRIORITY_ENGINE, clock.next_sequence(), self, END, task))
                return
        joined = -(-first * den // num)
        end = -(-(first + cycles) * den // num)
        task.since_ps = joined
        task.remaining_ps = end - joined
        task.token = FIRST_TOKEN
        if task.ddr_bytes:
            task.demand = demand_of(task.ddr_bytes, end - joined)
            self._ddr.enter(task, self, joined, JOIN)
        else:
            heappush(clock.heap, (end, PRIORITY_ENGINE, clock.next_sequence(), self, FIRST_TOKEN, task))
        if task.amount > self._grant_bytes:
            task.turn_ps = max((end - joined) * self._grant_bytes // task.amount, 1)
            task.turn_start_ps = joined
            task.turn_ends = False
            if self.wanting:
                self.contend()

    def fire(self, action: int, arg: Any) -> None:
        """Enter the data phase, end the turn of the running task, or end the task."""
        if action == END:
            self.finish(arg)
        elif action == JOIN:
            self._ddr.arrive(arg, self)
        elif action == TURN:
            task = self.task
            if task is not None and task is arg:
                task.turn_ends = False
                self._give_way(task)
        elif action == arg.token:
            if arg.ddr_bytes:
                self._ddr.leave(arg)
            self.finish(arg)

    def contend(self) -> None:
        """Schedule the end of the running task's turn when a channel of another job wants the port."""
        task = self.task
        if task is None or not task.turn_ps or task.turn_ends or self._other_job(task) is None:
            return
        start, turn = task.turn_start_ps, task.turn_ps
        turns = max(-(-(self._clock.now_ps - start) // turn), 1)
        task.turn_ends = True
        self._clock.at(start + turns * turn, PRIORITY_ENGINE, self, TURN, task)

    def _other_job(self, task: DmaTask) -> Channel | None:
        """Return the channel that has the port after the turn of `task`: of another job, and of no lower band."""
        slot = task.slot
        others = [c for c in self.wanting if c.slot.job_id != slot.job_id and c.slot.band >= slot.band]
        return max(others, key=band_of, default=None)

    def _give_way(self, task: DmaTask) -> None:
        """Suspend the running task, and let the first channel of another job have the port."""
        other = self._other_job(task)
        if other is None:
            return
        now = self._clock.now_ps
        if task.ddr_bytes:
            self._ddr.pause(task)
        else:
            task.remaining_ps -= now - task.since_ps
            task.token += 1
        if self._computes and not task.earlier_cycles:
            self._scratch = Scratch()  # the old one holds what the task has read
        cycle = now * self._num // self._den
        self.progress(self._raw, task, cycle)
        task.earlier_cycles += cycle - task.start_cycle
        channel = task.channel
        channel.suspended, channel.wanting = task, True
        self.task = None
        wanting = self.wanting
        wanting.remove(other)
        wanting.append(channel)
        wanting.appendleft(other)
        self.start_next()

    def cancel(self, task: DmaTask) -> None:
        """Void the end event and leave the memory path."""
        super().cancel(task)
        if task.ddr_bytes:
            self._ddr.withdraw(task)

    def check(self, task: DmaTask) -> None:
        """Check the descriptor and translate both ends; once per descriptor until translations are dropped."""
        plan, era = task.plan, self._mmu.era
        if plan.checked[task.entry] != era:
            move, space = plan.move(task.entry), task.slot.space
            space.check(move.target.low, move.target.span, True)
            space.check(move.source.low, move.source.span, False)
            plan.checked[task.entry] = era
            plan.snoops[task.entry] = sum(
                end.lines(LINE_BYTES)
                for end in (move.target, move.source)
                if not in_window(end.low) and self._mmu.snoops(space.ssid, end.low)
            )

    def check_results(self, task: DmaTask) -> None:
        """Translate the destination again, if translations were dropped since the start."""
        if task.plan.checked[task.entry] != self._mmu.era:
            target = task.plan.move(task.entry).target
            task.slot.space.check(target.low, target.span, True)

    def execute(self, task: DmaTask) -> None:
        """Gather the source; poison an on-chip destination."""
        move, view = task.plan.move(task.entry), task.slot.space.view
        self.claim(task, move.claim)
        task.results = move.gather(view, self._scratch.take(move.size_bytes))
        if in_window(move.target.low):
            target = move.target.array(view, True)
            target.fill(POISON * (256**target.itemsize - 1) // 255)  # in every byte

    def publish(self, task: DmaTask) -> None:
        """Scatter what was read at the start."""
        if task.tainted:
            task.results.fill(POISON)
        task.plan.move(task.entry).scatter(task.slot.space.view, task.results)

    def progress(self, counts: list[int], task: DmaTask, now: int) -> None:
        """As Engine.progress; a transfer from or to DDR has its requests out all the time."""
        super().progress(counts, task, now)
        self._memory_progress(counts, task, now)

    def _memory_progress(self, counts: list[int], task: DmaTask, now: int) -> None:
        if task.own_cycles >= 0:
            before, after = task.earlier_cycles, task.earlier_cycles + now - task.start_cycle
            counts[PENDING] += after - before
            counts[STALL] += max(after - task.own_cycles, 0) - max(before - task.own_cycles, 0)

    def _answered(self, task: DmaTask, busy: int, now: int) -> None:
        """Note that a transfer from or to DDR is over, after `busy` cycles."""
        task.slot.answer(now)
        if self._trace is not None:
            self.record_memory(task.task_id, task.slot.job_id, busy, max(busy - task.own_cycles, 0))

    def abandon(self, task: DmaTask, now: int) -> None:
        """As Engine.abandon."""
        super().abandon(task, now)
        if task.own_cycles >= 0:
            self._answered(task, task.earlier_cycles, now)

    def count(self, task: DmaTask, now: int) -> None:
        """Count bytes by side."""
        raw = self._raw
        if task.ddr_bytes:
            raw[SNOOPS] += task.plan.snoops[task.entry]
            raw[DDR_MOVED] += task.plan.moved_bytes(task.entry, task.slot.space, self._access_bytes)
            self._memory_progress(raw, task, now)
            self._answered(task, task.earlier_cycles + now - task.start_cycle, now)
        raw[task.read_counter] += task.amount
        raw[task.write_counter] += task.amount


@dataclass(frozen=True, slots=True)
class DmaPlan:
    """A list of descriptors, decoded once, for any number of launches in one context with one number of tiles."""

    records: Sequence[Any]  # of npu_dma_task; what `moves` does not have yet
    rows: list[tuple[int, ...]]
    moves: list[Move | None]  # by record, as they are first executed
    checked: list[int]  # by record: Mmu.era in which its addresses were translated, -1 = never
    snoops: list[int]  # by record: lines to ask the host's caches for, as translated then
    located: dict[int, tuple[int, Runs, Runs]] = field(default_factory=dict)  # by record: `checked`, and its runs then
    moved: dict[int, int] = field(default_factory=dict)  # by record: bytes of whole accesses of DDR
    costs: dict[int, tuple[int, Cost]] = field(default_factory=dict)  # the same, of its cost

    def move(self, index: int) -> Move:
        """Return a descriptor, checked. Raises DescriptorError."""
        found = self.moves[index]
        if found is None:
            found = self.moves[index] = Move.decode(self.records[index])
        return found

    def runs(self, index: int, space: AddressSpace) -> tuple[Runs, Runs]:
        """Return what a descriptor, which is checked, reads and writes in physical memory."""
        era, reads, writes = self.located.get(index, (-1, NO_RUNS, NO_RUNS))
        if era != self.checked[index]:
            move = self.move(index)
            if not in_window(move.source.low):
                reads = move.source.runs(space.physical)
            if not in_window(move.target.low):
                writes = move.target.runs(space.physical)
            self.located[index] = self.checked[index], reads, writes
        return reads, writes

    def cost(self, index: int, space: AddressSpace, forms: ClosedForms) -> Cost:
        """Return what a descriptor, which is checked, costs of the memory path."""
        found = self.costs.get(index)
        if found is None or found[0] != self.checked[index]:
            client = forms.system.client(DmaTask.client)
            found = self.costs[index] = self.checked[index], forms.cost(client, *self.runs(index, space))
        return found[1]

    def moved_bytes(self, index: int, space: AddressSpace, access_bytes: int) -> int:
        """Return the bytes of whole accesses of DDR that a descriptor, which is checked, moves; translation does not change them."""
        moved = self.moved.get(index)
        if moved is None:
            reads, writes = self.runs(index, space)
            moved = (access_count(reads, access_bytes) + access_count(writes, access_bytes)) * access_bytes
            self.moved[index] = moved
        return moved

    def tasks(self, slot: JobSlot, channel: Channel, list_id: int) -> Iterator[Task]:
        """Make fresh tasks for a job, one after the other."""
        sets = slot.barrier_sets
        for index, (task_id, cycles, amount, wait, post, after, read, write, ddr_bytes) in enumerate(self.rows):
            task = DmaTask(channel, list_id, index, task_id, cycles, amount, sets[wait], sets[post], after)
            task.read_counter, task.write_counter, task.ddr_bytes = read, write, ddr_bytes
            task.share = task.turn_ps = 0  # the rest of the flow is set when the task begins
            task.own_cycles = -1
            task.plan, task.entry = self, index
            yield task


def plan_dma(profile: Profile, records: np.ndarray[Any, np.dtype[np.void]]) -> DmaPlan:
    """Decode records of npu_dma_task in bulk; durations come from npu_model.cycles."""
    ddr_read, ddr_write = cost.dma_ddr_bytes(records)
    columns = (
        records["task_id"],
        cost.dma_cycles(profile, records),
        cost.dma_bytes(records),
        *dependency_columns(records),
        np.where(ddr_read > 0, READ_DDR, READ_CMX),
        np.where(ddr_write > 0, WRITE_DDR, WRITE_CMX),
        ddr_read + ddr_write,
    )
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    return DmaPlan(records, rows, [None] * len(rows), [-1] * len(rows), [0] * len(rows))  # type: ignore[arg-type]


def plan_one(profile: Profile, dma: Dma) -> DmaPlan:
    """Return what `plan_dma` does for one descriptor without barriers, number 0."""
    amount = dma.length * dma.num_planes
    read, ddr_read = (READ_CMX, 0) if in_window(dma.src) else (READ_DDR, amount)
    write, ddr_written = (WRITE_CMX, 0) if in_window(dma.dst) else (WRITE_DDR, amount)
    row = (0, cost.dma_cycles_of(profile, dma), amount, 0, 0, -1, read, write, ddr_read + ddr_written)
    return DmaPlan((), [row], [Move.of(dma)], [-1], [0])
