"""Engines: units that run one task at a time from FIFOs, behind barriers. DMA ports, DPUs and SHAVEs are subclasses.

A job has its own FIFO (`Channel`) in front of each engine that it uses, so that a job never waits behind another job's
barrier. The life of a task:

1. The management core pushes it into the channel, which has `room`.
2. At the head of the channel it waits until every barrier that it names is ready.
3. When the engine is free it starts: it takes one consumer of each, reads operands, poisons its on-chip destination.
4. After its cycles it ends: publishes results, gives one producer to each barrier that it posts.

Descriptor and addresses are checked in 3 and 4 whether there are values or not; values are read and written with `compute`
alone.

With `compute` a task that runs while another task of its job writes what it reads or writes is tainted: it publishes poison.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from heapq import heappush
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
from npu_abi import C
from npu_model.descriptors import DescriptorError

from npu_device.barriers import INVALID, Barrier
from npu_device.claims import Claim, conflict
from npu_device.clock import PRIORITY_ENGINE, ClockDomain
from npu_device.faults import MemoryFault

if TYPE_CHECKING:
    from npu_device.fabric import Fabric
    from npu_device.slot import JobSlot

END = 0  # action of an event: the task ends
PMU_BARRIER_WAIT = int(C.NPU_PMU_BARRIER_WAIT)
START_RECORD = int(C.NPU_TRACE_START)
END_RECORD = int(C.NPU_TRACE_END)
READY_RECORD = int(C.NPU_TRACE_BARRIER_READY)
CANCEL_RECORD, WAIT_RECORD = int(C.NPU_TRACE_CANCEL), int(C.NPU_TRACE_BARRIER_WAIT)
PENDING_RECORD, STALL_RECORD = int(C.NPU_TRACE_MEM_PENDING), int(C.NPU_TRACE_MEM_STALL)


class Task:
    """One descriptor, decoded. Subclasses of the engines add what they need."""

    __slots__ = (
        "amount", "channel", "claim", "cycles", "earlier_cycles", "index", "list_id", "owner", "posts", "results", "slot",
        "start_after", "start_cycle", "tainted", "task_id", "waits",
    )  # fmt: skip

    def __init__(
        self,
        channel: Channel,
        list_id: int,
        index: int,
        task_id: int,
        cycles: int,
        amount: int,
        waits: tuple[Barrier, ...],
        posts: tuple[Barrier, ...],
        start_after: int,
    ) -> None:
        self.channel = channel
        self.slot = channel.slot
        self.list_id = list_id  # list and index name the task in error reports
        self.index = index
        self.task_id = task_id
        self.cycles = cycles  # of the engine's clock
        self.amount = amount  # bytes, MACs or 0: what the trace shows
        self.waits = waits
        self.posts = posts
        self.start_after = start_after  # virtual barrier, -1 = at once
        self.start_cycle = 0  # of its last turn
        self.earlier_cycles = 0  # that it had the engine for in earlier turns
        self.tainted = False
        self.results: Any = None
        self.claim: Claim | None = None
        self.owner: Owner | None = None  # who started it, when it is not the management core

    @property
    def ready(self) -> bool:
        """Whether every barrier that it waits for is ready."""
        return not any(barrier.producers for barrier in self.waits)

    def blocking(self) -> list[int]:
        """Return the loaded virtual barriers that it waits for and that are not ready."""
        return [barrier.virtual_id for barrier in self.waits if barrier.producers and barrier.valid]


class Owner(Protocol):
    """A task that started others on other engines."""

    def operation_ended(self, task: Task) -> None:
        """Take note that `task`, whose owner this is, has ended."""


T = TypeVar("T", bound=Task)


class Channel:
    """A job's FIFO in front of one engine."""

    __slots__ = ("engine", "fifo", "pending_mark", "room", "slot", "suspended", "waiting_since", "wanting")

    def __init__(self, engine: Engine[Any], slot: JobSlot, depth: int) -> None:
        self.engine = engine
        self.slot = slot
        self.fifo: deque[Any] = deque()
        self.room = depth
        self.waiting_since = -1  # engine-clock cycle since which the head waits for a barrier
        self.pending_mark = 0  # slot.pending of then
        self.wanting = False  # the head is ready, or a task is suspended, and the engine is not free
        self.suspended: Any = None  # task that has begun and waits for its next turn; the FIFO stands behind it

    @property
    def idle(self) -> bool:
        """Whether no task of the job waits here or runs."""
        running = self.engine.task
        return not self.fifo and self.suspended is None and (running is None or running.channel is not self)

    def push(self, task: Task) -> None:
        """Put a task in; there must be room."""
        self.room -= 1
        self.slot.outstanding += 1
        fifo = self.fifo
        first = not fifo
        fifo.append(task)
        if first:
            engine = self.engine
            running = engine.task
            if (running is None or running.channel is not self) and self.suspended is None:
                engine.poke(self)  # else the end of that task looks at this one


class Engine(ABC, Generic[T]):
    """One unit. `kind` is enum npu_engine, `unit` as in struct npu_trace_record."""

    busy_counter = 0
    pending_counter = stall_counter = 0  # of waits for barriers; 0: they are not for memory

    def __init__(self, fabric: Fabric, kind: int, unit: int, domain: ClockDomain) -> None:
        self.fabric = fabric
        self.kind = kind
        self.unit = unit
        self.domain = domain
        self._clock = fabric.clock
        self._num, self._den = fabric.engine_clock.num, fabric.engine_clock.den  # cycles of counters and traces
        self._raw = fabric.pmu.raw
        self._trace = fabric.trace
        self._computes = fabric.compute
        self.reset()

    def reset(self) -> None:
        """Drop everything."""
        self.task: T | None = None
        self.wanting: deque[Channel] = deque()
        self.tasks_done = 0
        self.error = False

    def status_register(self) -> int:
        """Return BUSY 0, ERR 1, fill 15:8."""
        fill = sum(len(channel.fifo) for channel in self.fabric.channels_of(self))
        busy = C.NPU_DMA_STATUS_BUSY if self.task is not None else 0
        error = C.NPU_DMA_STATUS_ERR if self.error else 0
        return int(busy | error | min(fill, 255) << 8)

    def poke(self, channel: Channel) -> None:
        """Look at the head of `channel`: start it, or note what it waits for."""
        slot = channel.slot
        if slot.failed or slot.held:
            return
        for barrier in channel.fifo[0].waits:
            if barrier.producers:
                barrier.waiters.append(channel)
                if channel.waiting_since < 0:
                    channel.waiting_since = now = self.fabric.cycle_now()
                    channel.pending_mark = slot.pending(now)
                return
        if channel.waiting_since >= 0:
            self.end_wait(channel)
        if self.task is not None or self.wanting:  # at the end of a task others may have been here before
            if not channel.wanting:
                channel.wanting = True
                self.wanting.append(channel)
                self.contend()
            return
        self.start(channel)

    def end_wait(self, channel: Channel) -> None:
        """Count the wait of the head of `channel` for a barrier, if it is in one, and end it."""
        since = channel.waiting_since
        if since < 0:
            return
        now = self._clock.now_ps * self._num // self._den
        self.wait_progress(self._raw, channel, now)
        channel.waiting_since = -1
        if self._trace is not None:
            self._trace.add(WAIT_RECORD, self.kind, self.unit, 0, channel.slot.job_id, now - since)
            if self.pending_counter:
                pending = channel.slot.pending(now) - channel.pending_mark
                self.record_memory(0, channel.slot.job_id, pending, pending)

    def wait_progress(self, counts: list[int], channel: Channel, now: int) -> None:
        """Add to `counts` the wait, up to cycle `now`, of the head of `channel` for a barrier."""
        counts[PMU_BARRIER_WAIT] += now - channel.waiting_since
        if self.pending_counter:
            pending = channel.slot.pending(now) - channel.pending_mark
            counts[self.pending_counter] += pending
            counts[self.stall_counter] += pending

    def progress(self, counts: list[int], task: T, now: int) -> None:
        """Add to `counts` what the running task has had of the engine in this turn, up to cycle `now`."""
        counts[self.busy_counter] += now - task.start_cycle

    def record_memory(self, task_id: int, job_id: int, pending: int, stall: int) -> None:
        """Trace cycles with a DDR request out that are over, and those of them that waited for it. There must be a trace."""
        assert self._trace is not None
        for kind, cycles in ((PENDING_RECORD, pending), (STALL_RECORD, stall)):
            if cycles:
                self._trace.add(kind, self.kind, self.unit, task_id, job_id, cycles)

    def contend(self) -> None:
        """Take note that one more channel wants the engine."""

    def start(self, channel: Channel) -> None:
        """Start the head of `channel`, whose barriers are ready."""
        fabric = self.fabric
        task: T = channel.fifo.popleft()
        slot = task.slot
        room = channel.room = channel.room + 1
        for barrier in task.waits:
            consumers = barrier.consumers = barrier.consumers - 1
            if consumers <= 0:
                if consumers < 0:
                    barrier.underflow = True
                    slot.fail(C.NPU_JOB_BARRIER_UNDERFLOW, barrier.virtual_id, task)
                    return
                fabric.retire(barrier)
        self.task = task
        slot.running += 1
        task.start_cycle = self._clock.now_ps * self._num // self._den
        if self._trace is not None:
            self._trace.add(START_RECORD, self.kind, self.unit, task.task_id, slot.job_id, task.amount)
        try:
            self.check(task)
            if self._computes:
                self.execute(task)
        except MemoryFault as fault:
            self.fault(task, fault)
            return
        except DescriptorError:
            self.error = True
            slot.fail(C.NPU_JOB_PROCESSING_ERR, self.kind, task)
            return
        if slot.failed:
            return
        cycles = task.cycles
        schedule = fabric.schedule
        if schedule.stretches:
            cycles = schedule.stretch(cycles, self.kind, self.unit)
        self.begin(task, cycles)
        if room == 1 and fabric.core.sleeping:
            fabric.core.wake()

    def begin(self, task: T, cycles: int) -> None:
        """Schedule the end of a task that takes `cycles`."""
        clock, domain = self._clock, self.domain
        num, den = domain.num, domain.den
        end = -(-((clock.now_ps - 1) * num // den + 1 + cycles) * den // num)
        heappush(clock.heap, (end, PRIORITY_ENGINE, clock.next_sequence(), self, END, task))

    @abstractmethod
    def check(self, task: T) -> None:
        """Check the descriptor and translate what it reads and writes. Raises DescriptorError and MemoryFault."""

    def check_results(self, task: T) -> None:
        """Translate again what the task writes, at its end. Raises MemoryFault."""

    @abstractmethod
    def execute(self, task: T) -> None:
        """Read operands and compute; leave in `task.results` what `publish` needs. Raises MemoryFault."""

    @abstractmethod
    def publish(self, task: T) -> None:
        """Write the results of a task."""

    def count(self, task: T, now: int) -> None:
        """Add what only this kind of engine counts of a task that ends in cycle `now`."""

    def fire(self, action: int, arg: Any) -> None:
        """End the running task."""
        self.finish(arg)

    def finish(self, task: T) -> None:
        """End a task: publish, count, post barriers, and start what can start now."""
        fabric = self.fabric
        slot = task.slot
        claimed = task.claim is not None
        if claimed:
            slot.executing.remove(task)
        try:
            self.check_results(task)
            if claimed:
                self.publish(task)
                task.results = task.claim = None
        except MemoryFault as fault:  # unmapped while the task ran
            self.fault(task, fault)
            return
        self.task = None
        self.tasks_done += 1
        slot.running -= 1
        slot.outstanding -= 1
        raw = self._raw
        now = self._clock.now_ps * self._num // self._den
        busy = now - task.start_cycle
        raw[self.busy_counter] += busy
        self.count(task, now)
        if self._trace is not None:
            self._trace.add(END_RECORD, self.kind, self.unit, task.task_id, slot.job_id, busy + task.earlier_cycles)
        for barrier in task.posts:
            producers = barrier.producers = barrier.producers - 1
            if not producers:
                if self._trace is not None:
                    self._trace.add(READY_RECORD, 0, 0, barrier.virtual_id, slot.job_id, barrier.physical_id)
                if barrier.waiters:
                    waiters, barrier.waiters = barrier.waiters, []
                    for channel in waiters:
                        channel.engine.poke(channel)
                if not barrier.consumers and not barrier.producers:
                    fabric.retire(barrier)
            elif producers < 0 or producers == INVALID - 1:
                barrier.underflow = True
                slot.fail(C.NPU_JOB_BARRIER_UNDERFLOW, barrier.virtual_id, task)
        channel = task.channel
        if channel.fifo:
            self.poke(channel)
        if self.wanting:
            self.start_next()
        if task.owner is not None:
            task.owner.operation_ended(task)
        if slot.ends >= 0:
            slot.ends += 1
            if fabric.core.sleeping:
                fabric.core.wake()
        elif not slot.running and fabric.core.sleeping:
            fabric.core.wake()

    def start_next(self) -> None:
        """Let the channels that want the free engine have it: the highest band first, then the one that came first."""
        while self.wanting and self.task is None:
            wanting = self.wanting
            if len(wanting) == 1:
                channel = wanting.popleft()
            else:
                channel = max(wanting, key=band_of)  # the first of them
                wanting.remove(channel)
            channel.wanting = False
            if not channel.slot.failed:
                self.start(channel)

    def fault(self, task: Task, fault: MemoryFault) -> None:
        """Report an access that left the job's memory: the driver by an MMU event, the firmware by the job's status."""
        self.error = True
        task.slot.fail(C.NPU_JOB_CTX_VIOLATION, fault.address, task)
        self.fabric.mmu.report(fault, task.slot.ssid, self.kind)  # last: the host may answer with a reset

    def drop(self, channel: Channel) -> None:
        """Forget a channel whose job ends; cancel its running task, then let others have the engine."""
        if channel.wanting:
            self.wanting.remove(channel)
            channel.wanting = False
        self.end_wait(channel)
        now = self.fabric.cycle_now()
        if channel.suspended is not None:
            self.cancel(channel.suspended)
            self.abandon(channel.suspended, now)
            channel.suspended = None
        task = self.task
        if task is not None and task.slot is channel.slot:
            self.cancel(task)
            self.progress(self._raw, task, now)
            task.earlier_cycles += now - task.start_cycle
            self.abandon(task, now)
            self.task = None
            self.start_next()

    def abandon(self, task: T, now: int) -> None:
        """Trace that a task, whose cycles are counted, will not end."""
        if self._trace is not None:
            self._trace.add(CANCEL_RECORD, self.kind, self.unit, task.task_id, task.slot.job_id, task.earlier_cycles)

    def cancel(self, task: T) -> None:
        """Make the end event of a task that has begun void."""
        self.fabric.clock.cancel(self, task)

    def claim(self, task: T, claim: Claim) -> None:
        """Note the ranges of a task that starts, and taint every pair of running tasks of the job that are in conflict."""
        slot, accesses = task.slot, self.fabric.accesses
        if accesses.watched:
            accesses.note(slot.ssid, slot.job_id, task.task_id, self.fabric.clock.now_ps, claim.footprint)
        if slot.shift:
            claim = claim.shifted(slot.shift)
        task.claim = claim
        task.tainted = False
        executing = slot.executing
        for other in executing:
            assert other.claim is not None
            own, others = conflict(claim, other.claim)
            if own:
                task.tainted = True
            if others:
                other.tainted = True
        executing.append(task)


def band_of(channel: Channel) -> int:
    """Return the priority band of a FIFO's job."""
    return channel.slot.band


def dependency_columns(records: np.ndarray[Any, np.dtype[np.void]]) -> tuple[Any, Any, Any]:
    """Return wait masks, post masks and start_after (NONE = -1) of a task list."""
    after = records["sched_start_after"].astype(np.int32)
    return records["barriers_wait_mask"], records["barriers_post_mask"], after
