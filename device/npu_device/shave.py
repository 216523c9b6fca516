"""SHAVE cores: several per tile. A task runs a program out of the blob; shave_core interprets it.

The program runs at the task's start and its stores reach memory at once; this unit takes the stored bytes back out, leaves
poison in their place, and publishes them at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C
from npu_model import footprint
from npu_model.shave_faults import ShaveFault, ShaveUnimplemented, ShaveUnsupported

from npu_device import shave_core
from npu_device.clock import ClockDomain
from npu_device.cmx import in_window
from npu_device.dram import POISON, Bytes
from npu_device.engine import Channel, Engine, Task, dependency_columns

if TYPE_CHECKING:
    from npu_device.fabric import Fabric
    from npu_device.slot import JobSlot

INSNS = int(C.NPU_PMU_SHAVE_INSNS)
SRAM_READ, SRAM_WRITE = int(C.NPU_PMU_SRAM_READ), int(C.NPU_PMU_SRAM_WRITE)

Records = np.ndarray[Any, np.dtype[np.void]]


class ShaveTask(Task):
    """An invocation. Its cycles are known once the program has run."""

    __slots__ = ("args_va", "code_bytes", "insns", "sram_read", "sram_write", "text_va")

    text_va: int
    code_bytes: int
    args_va: int
    insns: int
    sram_read: int
    sram_write: int


class ShaveEngine(Engine[ShaveTask]):
    """One core. `unit` is tile << 4 | core."""

    busy_counter = int(C.NPU_PMU_SHAVE_BUSY)
    always_executes = True

    def __init__(self, fabric: Fabric, tile: int, core: int, domain: ClockDomain) -> None:
        super().__init__(fabric, int(C.NPU_ENGINE_SHAVE), tile << 4 | core, domain)

    def execute(self, task: ShaveTask) -> None:
        """Run the program; hold its stores back until the end."""
        fabric, space = self.fabric, task.slot.space
        text = space.view(task.text_va, task.code_bytes, False).tobytes()
        try:
            result = shave_core.run(text, task.args_va, space, fabric.profile.shave, fabric.compute, fabric.programs)
        except ShaveFault as fault:
            task.slot.fail(C.NPU_JOB_SHAVE_FAULT, fault.pc, task)
            return
        except (ShaveUnsupported, ShaveUnimplemented):
            task.slot.fail(C.NPU_JOB_PROCESSING_ERR, 0, task)
            return
        task.cycles = result.cycles
        task.insns = result.insns
        reads = [footprint.box(*box) for box in result.read_boxes]
        writes = [footprint.box(*box) for box in result.write_boxes]
        task.sram_read = sum(box.size_bytes for box in reads if in_window(box.addr))
        task.sram_write = sum(box.size_bytes for box in writes if in_window(box.addr))
        if not fabric.compute:
            return
        held: list[tuple[Bytes, Bytes]] = []
        for box in writes:
            place = _bytes_of(box, space.view(box.addr, box.end - box.addr, True))
            held.append((place, place.copy()))
        for place, _ in held:  # after all copies: boxes may overlap
            place.fill(POISON)
        self.claim(task, reads, writes)
        task.results = held

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
