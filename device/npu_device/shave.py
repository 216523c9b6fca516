"""SHAVE cores: several per tile. A task runs a program of an inference or a block of a kernel; npu_model.shave_machine interprets it.

A block first fills the instruction cache with the lines of its program that are missing; what it runs are the bytes in the lines.

A program runs in segments, which end where it starts an operation of another engine, waits for one, for other blocks (`bar`), or halts;
most have one:

1. A segment runs at its start and its stores reach memory at once; this unit takes the stored bytes back out and leaves
   poison in their place.
2. After its cycles it publishes them. Then the operation is started, which sees them, or awaited, or the task ends.
3. When nothing is left to wait for, the next segment begins. The task ends when the program has halted and all operations
   that it started have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C
from npu_model import footprint
from npu_model.memory_runs import access_count
from npu_model.shave_faults import ShaveFault, ShaveFaultCode, ShaveUnsupported
from npu_model.shave_machine import Bar, Machine, Row, Start, Wait
from npu_model.shave_memory import Runs
from npu_model.shave_opcodes import ALL_TAGS
from npu_model.shave_operations import INVARIANT_BYTES

from npu_device.claims import Claim
from npu_device.clock import ClockDomain
from npu_device.cmx import STRIDE, in_window
from npu_device.code_fetch import CodeFetch
from npu_device.dram import POISON, Bytes
from npu_device.engine import START_RECORD, Channel, Engine, Task, dependency_columns
from npu_device.faults import MemoryFault
from npu_device.instruction_cache import InstructionCache
from npu_device.kernel import BlockSlot
from npu_device.shave_operations import operation, work_of

if TYPE_CHECKING:
    from npu_device.fabric import Fabric
    from npu_device.slot import JobSlot

SHAVE_BUSY = int(C.NPU_PMU_SHAVE_BUSY)
CODE_LOAD, LOAD_CYCLES = int(C.NPU_PMU_CODE_LOAD), int(C.NPU_PMU_CODE_LOAD_CYCLES)
CODE_LOAD_RECORD, LOADED_RECORD = int(C.NPU_TRACE_CODE_LOAD), int(C.NPU_TRACE_CODE_LOADED)
INSNS, LANE_OPS = int(C.NPU_PMU_SHAVE_INSNS), int(C.NPU_PMU_SHAVE_LANE_OPS)
PENDING, STALL = int(C.NPU_PMU_SHAVE_MEM_PENDING), int(C.NPU_PMU_SHAVE_MEM_STALL)
SRAM_READ, SRAM_WRITE = int(C.NPU_PMU_SRAM_READ), int(C.NPU_PMU_SRAM_WRITE)
DDR_READ, DDR_WRITE = int(C.NPU_PMU_SHAVE_DDR_READ), int(C.NPU_PMU_SHAVE_DDR_WRITE)
DDR_MOVED = int(C.NPU_PMU_DDR_MOVED)

Records = np.ndarray[Any, np.dtype[np.void]]


class ShaveTask(Task):
    """An invocation. Its cycles are known once the program, or its segment, has run."""

    __slots__ = (
        "args_va", "code_bytes", "ddr_moved", "ddr_read", "ddr_write", "insns", "machine", "operations", "pending_mark", "rows", "sram_read",
        "sram_write", "stall_cycles", "text_va", "wait_mark", "waiting", "written",
    )  # fmt: skip

    text_va: int
    code_bytes: int
    args_va: int
    insns: int
    sram_read: int  # bytes in CMX
    sram_write: int
    ddr_read: int  # bytes elsewhere
    ddr_write: int
    ddr_moved: int  # of whole accesses, of which those are parts
    pending_mark: int  # slot.pending of its start; -1: it has not begun
    wait_mark: int  # slot.pending of the time since when the program waits
    stall_cycles: int  # of waits that are over
    machine: Machine  # this and what follows: once it has started
    rows: list[Row]
    operations: list[tuple[Task, int, int]]  # that it started and that have not ended, with their engine and tag
    written: list[footprint.Box]  # when there are no values: what the program has stored so far
    waiting: bool  # the segment has ended, and operations have not

    def operation_ended(self, task: Task) -> None:
        """Go on when this was what the program waits for."""
        self.operations = [entry for entry in self.operations if entry[0] is not task]
        engine = self.channel.engine
        assert isinstance(engine, ShaveEngine)
        if self.waiting and not self.slot.failed:
            engine.proceed(self)

    def awaited(self) -> bool:
        """Say whether an operation is in progress that the program waits for at its suspension, or at its end."""
        request = self.machine.suspension
        if not isinstance(request, Wait):
            return bool(self.operations)
        return any(engine == request.engine and request.tag in (ALL_TAGS, tag) for _, engine, tag in self.operations)


class BlockTask(ShaveTask):
    """A block of a kernel."""

    __slots__ = ("lines", "text")

    slot: BlockSlot
    lines: list[bytes | None]  # of its program while it is loaded, None: to be fetched
    text: bytes  # from then on


class ShaveEngine(Engine[ShaveTask]):
    """One core. `unit` is tile << 4 | core."""

    busy_counter = SHAVE_BUSY
    pending_counter, stall_counter = PENDING, STALL

    def __init__(self, fabric: Fabric, tile: int, core: int, domain: ClockDomain) -> None:
        self.cache = InstructionCache(fabric.profile.shave)
        self._fetch = CodeFetch(fabric, domain, self)
        self._ddr_access_bytes = fabric.profile.memory_system.dram.access_bytes
        super().__init__(fabric, int(C.NPU_ENGINE_SHAVE), tile << 4 | core, domain)

    def reset(self) -> None:
        """Drop everything."""
        super().reset()
        self.busy_counter = SHAVE_BUSY
        self.cache.clear()

    # ---- blocks: the instruction cache ----

    def start(self, channel: Channel) -> None:
        """Start the head of `channel`; a block begins with its program's way into the cache."""
        if channel.slot.launch is None:
            super().start(channel)
            return
        task: BlockTask = channel.fifo.popleft()
        slot = task.slot
        self.task = task
        slot.running += 1
        slot.load_ps = slot.start_ps = self._clock.now_ps
        self.busy_counter = LOAD_CYCLES
        task.start_cycle = self.fabric.cycle_now()
        span = self.cache.span(task.text_va, task.code_bytes)
        try:
            slot.space.check(span.start, len(span) * span.step, False)
        except MemoryFault as fault:
            self.fault(task, fault)
            return
        task.lines = self.cache.look_up(slot.ssid, task.text_va, task.code_bytes)
        fetched = task.lines.count(None) * span.step
        if not fetched:
            slot.cached_bytes = task.code_bytes
            self.loaded()
            return
        slot.loaded_bytes = sum(
            min(at + span.step, task.text_va + task.code_bytes) - max(at, task.text_va)
            for at, data in zip(span, task.lines, strict=True)
            if data is None
        )
        slot.cached_bytes = task.code_bytes - slot.loaded_bytes
        self._raw[CODE_LOAD] += fetched
        self._raw[DDR_MOVED] += access_count(self._fetch.runs()[0], self._ddr_access_bytes) * self._ddr_access_bytes
        if self._trace is not None:
            self._trace.add(CODE_LOAD_RECORD, self.kind, self.unit, task.task_id, slot.job_id, fetched)
        self._fetch.begin(fetched)

    def missing_lines(self) -> list[tuple[int, int]]:
        """Return the physical addresses and bytes of the lines that the running block's program lacks."""
        task = self.task
        assert isinstance(task, BlockTask)
        span = self.cache.span(task.text_va, task.code_bytes)
        found: list[tuple[int, int]] = []
        for at, data in zip(span, task.lines, strict=True):
            if data is None:
                for address, nbytes in task.slot.space.physical(at, span.step):
                    if found and found[-1][0] + found[-1][1] == address:
                        address, before = found.pop()
                        nbytes += before
                    found.append((address, nbytes))
        return found

    def loaded(self) -> None:
        """Go on with a block whose program is in the cache: start it, unless it waits for the others of its launch."""
        task = self.task
        assert isinstance(task, BlockTask)
        slot, cache = task.slot, self.cache
        span = cache.span(task.text_va, task.code_bytes)
        lines = task.lines
        if None in lines:
            try:
                memory = slot.space.view(span.start, len(span) * span.step, False).tobytes()
            except MemoryFault as fault:  # unmapped meanwhile
                self.fault(task, fault)
                return
            for index, data in enumerate(lines):
                if data is None:
                    at = index * span.step
                    lines[index] = memory[at : at + span.step]
                    cache.fill(slot.ssid, span.start + at, memory[at : at + span.step])
        first = task.text_va - span.start
        task.text = b"".join(lines)[first : first + task.code_bytes]  # type: ignore[arg-type]
        task.lines = []
        self._end_load(task, self.fabric.cycle_now())
        for ready in slot.launch.loaded(task):
            engine = ready.channel.engine
            assert isinstance(engine, ShaveEngine)
            engine.enter(ready)

    def _end_load(self, task: ShaveTask, now: int) -> None:
        """Count the cycles of a fill; those of the program begin."""
        self.progress(self._raw, task, now)
        if self._trace is not None and now > task.start_cycle:
            cycles, job_id = now - task.start_cycle, task.slot.job_id
            self._trace.add(LOADED_RECORD, self.kind, self.unit, task.task_id, job_id, cycles)
            self.record_memory(task.task_id, job_id, cycles, cycles)
        self.busy_counter, task.start_cycle = SHAVE_BUSY, now

    def enter(self, task: BlockTask) -> None:
        """Start the program of a block."""
        slot = task.slot
        slot.start_ps = self._clock.now_ps
        if self._trace is not None:
            self._trace.add(START_RECORD, self.kind, self.unit, task.task_id, slot.job_id, task.amount)
        try:
            self.check(task)
        except MemoryFault as fault:
            self.fault(task, fault)
            return
        if not slot.failed:
            self._begin_segment(task)

    def cancel(self, task: ShaveTask) -> None:
        """Make what the running task waits for void."""
        super().cancel(task)
        if self.busy_counter == LOAD_CYCLES:
            self._fetch.cancel()
            self.cache.abandon(task.slot.ssid, task.text_va, task.code_bytes)
            self._end_load(task, self.fabric.cycle_now())

    # ---- programs ----

    def execute(self, task: ShaveTask) -> None:
        """Nothing: to check a program is to run it, with or without values."""

    def check(self, task: ShaveTask) -> None:
        """Run the program, up to where it needs another engine; hold its stores back until that time."""
        fabric, space = self.fabric, task.slot.space
        try:
            invocation = None
            if isinstance(task, BlockTask):
                text = task.text
            else:
                text = space.view(task.text_va, task.code_bytes, False).tobytes()
                if not fabric.compute:
                    invocation = fabric.known_runs.invocation(text, task.args_va, space)
            known = fabric.known_runs.get(invocation, space)
            if known is None:
                task.rows = fabric.programs.rows(text)
                machine = Machine(task.args_va, space, fabric.profile.shave, fabric.compute, self._ddr_access_bytes)
            else:
                task.rows, machine = [], known
            task.machine = machine
            if isinstance(task, BlockTask):
                machine.r[2:6] = task.slot.registers()
                machine.cycles = 0  # the start-up cost stands for what the block has had: the fetch of its program
            task.pending_mark = task.slot.pending(fabric.cycle_now())
            task.operations = []
            task.written = []
            task.waiting = False
            if known is not None:
                self._account(task, 0)
                return
            self._run(task)
            fabric.known_runs.keep(invocation, machine)
        except ShaveFault as fault:
            task.slot.fail(C.NPU_JOB_SHAVE_FAULT, fault.error_detail, task)

    def _run(self, task: ShaveTask) -> None:
        """Run one segment. Raises ShaveFault and MemoryFault."""
        machine = task.machine
        before = machine.cycles if machine.insns else 0  # the first segment includes the start-up
        machine.run(task.rows)
        self._account(task, before)

    def _account(self, task: ShaveTask, before: int) -> None:
        """Take over what the segment that has run did. `before`: the cycles that the program had had."""
        machine = task.machine
        task.cycles = machine.cycles - before
        task.insns = machine.insns
        reads, writes = machine.reads, machine.writes
        task.sram_read += reads.cmx_bytes
        task.sram_write += writes.cmx_bytes
        task.ddr_read += reads.ddr_bytes
        task.ddr_write += writes.ddr_bytes
        task.ddr_moved += reads.moved_bytes + writes.moved_bytes
        segment = machine.segment()
        if not self.fabric.compute:
            if machine.suspension is not None:
                task.written += _boxes(segment[1])
            return
        read, written = map(_boxes, segment)
        task.tainted = False
        if not read and not written:
            return
        space = task.slot.space
        held: list[tuple[Bytes, Bytes]] = []
        for box in written:
            place = _bytes_of(box, space.view(box.addr, box.end - box.addr, True))
            held.append((place, place.copy()))
        for place, _ in held:  # after all copies: boxes may overlap
            place.fill(POISON)
        self.claim(task, Claim((read, written)))
        task.results = held

    def fire(self, action: int, arg: ShaveTask) -> None:
        """End a segment: the task itself when nothing is left."""
        if arg.machine.suspension is None and not arg.operations:
            self.finish(arg)
            return
        if arg.claim is not None:
            arg.slot.executing.remove(arg)
            self.publish(arg)
            arg.results = arg.claim = None
        self.proceed(arg)

    def proceed(self, task: ShaveTask) -> None:
        """Do what the program asks for at the end of a segment, and go on unless it has to wait."""
        slot, request = task.slot, task.machine.suspension
        try:
            if isinstance(request, Start):
                self._start_operation(task, request)
                if slot.failed:
                    return
            elif isinstance(request, Bar):
                self._meet(task, request)
                return
            elif task.awaited():
                if not task.waiting:
                    task.waiting, task.wait_mark = True, slot.pending(self.fabric.cycle_now())
                return
        except MemoryFault as fault:
            self.fault(task, fault)
            return
        except ShaveFault as fault:
            slot.fail(C.NPU_JOB_SHAVE_FAULT, fault.error_detail, task)
            return
        if task.waiting:
            task.waiting = False
            stall = slot.pending(self.fabric.cycle_now()) - task.wait_mark
            task.stall_cycles += stall
            self._raw[STALL] += stall
        if request is None:
            self.begin(task, 0)
        else:
            self.resume(task)

    def resume(self, task: ShaveTask) -> None:
        """Run the next segment."""
        try:
            self._run(task)
        except MemoryFault as fault:
            self.fault(task, fault)
            return
        except ShaveFault as fault:
            task.slot.fail(C.NPU_JOB_SHAVE_FAULT, fault.error_detail, task)
            return
        self._begin_segment(task)

    def _begin_segment(self, task: ShaveTask) -> None:
        schedule = self.fabric.schedule
        self.begin(task, schedule.stretch(task.cycles, self.kind, self.unit) if schedule.stretches else task.cycles)

    def _meet(self, task: ShaveTask, request: Bar) -> None:
        """Wait for the other blocks of the launch; the last one lets all go on. Raises ShaveFault."""
        launch = task.slot.launch
        if launch is None or not launch.cooperative:
            raise ShaveFault(ShaveFaultCode.NOT_COOPERATIVE, request.pc)
        assert isinstance(task, BlockTask)
        for block in launch.arrive(task):
            engine = block.channel.engine
            assert isinstance(engine, ShaveEngine)
            engine.resume(block)

    def _start_operation(self, task: ShaveTask, request: Start) -> None:
        """Put an operation in front of its engine. Raises ShaveFault and MemoryFault."""
        slot = task.slot
        if not self.fabric.compute:
            _check_known(task, request)
        tile = slot.tiles.index(self.unit >> 4)
        started = operation(self.fabric, slot, request, tile, task.list_id)
        task.machine.charge(work_of(started))
        started.index, started.task_id, started.owner = task.index, task.task_id, task
        task.operations.append((started, request.engine, request.tag))
        started.channel.push(started)

    def publish(self, task: ShaveTask) -> None:
        """Put the stored bytes in place."""
        for place, values in task.results:
            if task.tainted:
                place.fill(POISON)
            else:
                place[...] = values

    def progress(self, counts: list[int], task: ShaveTask, now: int) -> None:
        """As Engine.progress. During a fill the request is the engine's own."""
        super().progress(counts, task, now)
        if self.busy_counter == LOAD_CYCLES:
            counts[PENDING] += now - task.start_cycle
            counts[STALL] += now - task.start_cycle
        elif task.pending_mark >= 0:
            pending = task.slot.pending(now)
            counts[PENDING] += pending - task.pending_mark
            if task.waiting:
                counts[STALL] += pending - task.wait_mark

    def abandon(self, task: ShaveTask, now: int) -> None:
        """As Engine.abandon."""
        super().abandon(task, now)
        if self._trace is not None and task.pending_mark >= 0:
            slot = task.slot
            pending = slot.pending(now)
            stall = task.stall_cycles + (pending - task.wait_mark if task.waiting else 0)
            self.record_memory(task.task_id, slot.job_id, pending - task.pending_mark, stall)

    def count(self, task: ShaveTask, now: int) -> None:
        """Count instructions, lane operations and traffic."""
        raw = self._raw
        pending = task.slot.pending(now) - task.pending_mark
        if pending:
            raw[PENDING] += pending
            if self._trace is not None:
                self.record_memory(task.task_id, task.slot.job_id, pending, task.stall_cycles)
        raw[INSNS] += task.insns
        raw[LANE_OPS] += task.machine.lane_ops
        raw[DDR_READ] += task.ddr_read
        raw[DDR_WRITE] += task.ddr_write
        raw[DDR_MOVED] += task.ddr_moved
        raw[SRAM_READ] += task.sram_read
        raw[SRAM_WRITE] += task.sram_write
        if task.machine.overflows and not task.tainted:
            self.fabric.overflows.add(task.slot.job_id, task.task_id, task.machine.overflows)


def _check_known(task: ShaveTask, request: Start) -> None:
    """Raise ShaveUnsupported when a descriptor depends on values that nobody computes."""
    descriptor = [footprint.Box(request.address, INVARIANT_BYTES)]
    if in_window(request.address) or footprint.any_overlap(descriptor, task.written):
        raise ShaveUnsupported(request.pc, "a descriptor in CMX, or one that the program stored, needs values")


def _boxes(runs: Sequence[Runs]) -> list[footprint.Box]:
    """Return the bytes of runs as boxes, neighbours and repetitions in one."""
    boxes: list[footprint.Box] = []
    dense: list[tuple[int, int]] = []  # [start, end)
    for addr, width, dims in runs:
        if dims:
            boxes.append(footprint.box(addr, width, dims))
        else:
            dense.append((addr, addr + width))
    if dense:
        dense.sort()
        start, end = dense[0]
        for first, last in dense:
            if first > end or (first == end and first % STRIDE == 0):  # tiles do not continue each other
                boxes.append(footprint.Box(start, end - start))
                start, end = first, last
            elif last > end:
                end = last
        boxes.append(footprint.Box(start, end - start))
    return boxes


def _bytes_of(box: footprint.Box, memory: Bytes) -> Bytes:
    """Return the bytes of `box` in place; `memory` runs from its first to its last byte."""
    if not box.dims:
        return memory
    shape = (*(count for count, _ in box.dims), box.width)
    strides = (*(stride for _, stride in box.dims), 1)
    return np.ndarray(shape, np.uint8, memory.data, 0, strides)


def _clear(task: ShaveTask) -> None:
    task.insns = task.sram_read = task.sram_write = task.ddr_read = task.ddr_write = task.ddr_moved = 0
    task.pending_mark, task.stall_cycles, task.waiting = -1, 0, False


def block_task(slot: BlockSlot, engine: ShaveEngine) -> BlockTask:
    """Return the task of a block, for the caller to push into its channel in front of `engine`."""
    launch = slot.launch
    channel = slot.channels[engine] = Channel(engine, slot, 1)
    task = BlockTask(channel, 0, slot.number, slot.number, 0, 0, (), (), -1)
    task.text_va, task.code_bytes, task.args_va = launch.text_va, launch.code_bytes, launch.args_va
    _clear(task)
    task.owner = slot
    return task


@dataclass(frozen=True, slots=True)
class ShavePlan:
    """A list of invocations with their programs, decoded once, for any number of launches."""

    rows: list[tuple[int, ...]]

    def tasks(self, slot: JobSlot, channels: list[list[Channel]], list_id: int) -> list[Task]:
        """Return fresh tasks for a job; `channels` are those of its SHAVEs, by tile and core."""
        sets = slot.barrier_sets
        tasks: list[Task] = []
        for index, row in enumerate(self.rows):
            task_id, tile, core, wait, post, after, text_va, code_bytes, args_va = row
            task = ShaveTask(channels[tile][core], list_id, index, task_id, 0, 0, sets[wait], sets[post], after)
            task.text_va = text_va
            task.code_bytes = code_bytes
            task.args_va = args_va
            _clear(task)
            tasks.append(task)
        return tasks


def plan_shave(invocations: Records, ranges: Records) -> ShavePlan:
    """Decode invocations in bulk."""
    of = ranges[invocations["range_index"]]
    columns = (
        invocations["task_id"],
        invocations["tile"],
        invocations["shave"],
        *dependency_columns(invocations),
        of["text_va"],
        of["code_bytes"],
        invocations["args_va"],
    )
    return ShavePlan(list(zip(*(column.tolist() for column in columns), strict=True)))
