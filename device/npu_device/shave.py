"""SHAVE cores: several per tile. A task runs a program out of the blob; npu_model.shave_machine interprets it.

A program runs in segments, which end where it starts an operation of another engine, waits for one, or halts; most have one:

1. A segment runs at its start and its stores reach memory at once; this unit takes the stored bytes back out and leaves
   poison in their place.
2. After its cycles it publishes them. Then the operation is started, which sees them, or awaited, or the task ends.
3. When nothing is left to wait for, the next segment begins. The task ends when the program has halted and all operations
   that it started have ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C
from npu_model import footprint
from npu_model.shave_faults import ShaveFault, ShaveUnsupported
from npu_model.shave_machine import Machine, Row, Start
from npu_model.shave_opcodes import ALL_TAGS
from npu_model.shave_operations import INVARIANT_BYTES

from npu_device.claims import Claim
from npu_device.clock import ClockDomain
from npu_device.cmx import in_window
from npu_device.dram import POISON, Bytes
from npu_device.engine import Channel, Engine, Task, dependency_columns
from npu_device.faults import MemoryFault
from npu_device.shave_operations import operation, work_of

if TYPE_CHECKING:
    from npu_device.fabric import Fabric
    from npu_device.slot import JobSlot

INSNS = int(C.NPU_PMU_SHAVE_INSNS)
SRAM_READ, SRAM_WRITE = int(C.NPU_PMU_SRAM_READ), int(C.NPU_PMU_SRAM_WRITE)

Records = np.ndarray[Any, np.dtype[np.void]]


class ShaveTask(Task):
    """An invocation. Its cycles are known once the program, or its segment, has run."""

    __slots__ = (
        "args_va", "code_bytes", "insns", "machine", "operations", "rows", "sram_read", "sram_write", "text_va", "waiting",
        "written",
    )  # fmt: skip

    text_va: int
    code_bytes: int
    args_va: int
    insns: int
    sram_read: int
    sram_write: int
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
        if request is None:
            return bool(self.operations)
        return any(engine == request.engine and request.tag in (ALL_TAGS, tag) for _, engine, tag in self.operations)


class ShaveEngine(Engine[ShaveTask]):
    """One core. `unit` is tile << 4 | core."""

    busy_counter = int(C.NPU_PMU_SHAVE_BUSY)

    def __init__(self, fabric: Fabric, tile: int, core: int, domain: ClockDomain) -> None:
        super().__init__(fabric, int(C.NPU_ENGINE_SHAVE), tile << 4 | core, domain)

    def execute(self, task: ShaveTask) -> None:
        """Nothing: to check a program is to run it, with or without values."""

    def check(self, task: ShaveTask) -> None:
        """Run the program, up to where it needs another engine; hold its stores back until that time."""
        fabric, space = self.fabric, task.slot.space
        try:
            text = space.view(task.text_va, task.code_bytes, False).tobytes()
            task.rows = fabric.programs.rows(text)
            task.machine = Machine(task.args_va, space, fabric.profile.shave, fabric.compute)
            task.operations = []
            task.written = []
            task.waiting = False
            self._run(task)
        except ShaveFault as fault:
            task.slot.fail(C.NPU_JOB_SHAVE_FAULT, fault.error_detail, task)

    def _run(self, task: ShaveTask) -> None:
        """Run one segment. Raises ShaveFault and MemoryFault."""
        machine = task.machine
        before = machine.cycles if machine.starts else 0  # the first segment includes the start-up
        machine.run(task.rows)
        result = machine.segment()
        task.cycles = result.cycles - before
        task.insns = result.insns
        reads = [footprint.box(*box) for box in result.read_boxes]
        writes = [footprint.box(*box) for box in result.write_boxes]
        task.sram_read += sum(box.size_bytes for box in reads if in_window(box.addr))
        task.sram_write += sum(box.size_bytes for box in writes if in_window(box.addr))
        if not self.fabric.compute:
            task.written += writes
            return
        space = task.slot.space
        held: list[tuple[Bytes, Bytes]] = []
        for box in writes:
            place = _bytes_of(box, space.view(box.addr, box.end - box.addr, True))
            held.append((place, place.copy()))
        for place, _ in held:  # after all copies: boxes may overlap
            place.fill(POISON)
        self.claim(task, Claim.of((reads, writes)))
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
            elif task.awaited():
                task.waiting = True
                return
            task.waiting = False
            if request is None:
                self.begin(task, 0)
                return
            self._run(task)
        except MemoryFault as fault:
            self.fault(task, fault)
            return
        except ShaveFault as fault:
            slot.fail(C.NPU_JOB_SHAVE_FAULT, fault.error_detail, task)
            return
        schedule = self.fabric.schedule
        self.begin(task, schedule.stretch(task.cycles, self.kind, self.unit) if schedule.stretches else task.cycles)

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

    def count(self, task: ShaveTask) -> None:
        """Count instructions and traffic."""
        raw = self._raw
        raw[INSNS] += task.insns
        raw[SRAM_READ] += task.sram_read
        raw[SRAM_WRITE] += task.sram_write
        if task.machine.overflows and not task.tainted:
            self.fabric.overflows.add(task.slot.job_id, task.task_id, task.machine.overflows)


def _check_known(task: ShaveTask, request: Start) -> None:
    """Raise ShaveUnsupported when a descriptor depends on values that nobody computes."""
    descriptor = [footprint.Box(request.address, INVARIANT_BYTES)]
    if in_window(request.address) or footprint.any_overlap(descriptor, task.written):
        raise ShaveUnsupported(request.pc, "a descriptor in CMX, or one that the program stored, needs values")


def _bytes_of(box: footprint.Box, memory: Bytes) -> Bytes:
    """Return the bytes of `box` in place; `memory` runs from its first to its last byte."""
    shape = (*(count for count, _ in box.dims), box.width)
    strides = (*(stride for _, stride in box.dims), 1)
    return np.ndarray(shape, np.uint8, memory.data, 0, strides)


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
            task.insns = task.sram_read = task.sram_write = 0
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
