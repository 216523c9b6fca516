"""DPUs: one matrix engine per tile. A task is an invariant with its variants; the values come from dpu_compute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C
from npu_model import cycles as cost
from npu_model.profile import Profile

from npu_device.clock import ClockDomain
from npu_device.cmx import in_window
from npu_device.dram import POISON
from npu_device.engine import Channel, Engine, Task, dependency_columns
from npu_device.faults import MemoryFault

if TYPE_CHECKING:
    from npu_device.dpu_work import Work
    from npu_device.fabric import Fabric
    from npu_device.slot import JobSlot

MACS = int(C.NPU_PMU_DPU_MACS)
SRAM_READ, SRAM_WRITE = int(C.NPU_PMU_SRAM_READ), int(C.NPU_PMU_SRAM_WRITE)

Records = np.ndarray[Any, np.dtype[np.void]]


class DpuTask(Task):
    """An invariant with its variants and their traffic in bytes."""

    __slots__ = ("entry", "overflows", "plan", "sram_read", "sram_write")

    plan: DpuPlan
    entry: int  # index in the plan
    sram_read: int
    sram_write: int
    overflows: int  # finite results that fp16 does not hold


class DpuEngine(Engine[DpuTask]):
    """The DPU of one tile."""

    busy_counter = int(C.NPU_PMU_DPU_BUSY)

    def __init__(self, fabric: Fabric, tile: int, domain: ClockDomain) -> None:
        super().__init__(fabric, int(C.NPU_ENGINE_DPU), tile, domain)

    def check(self, task: DpuTask) -> None:
        """Check the descriptor, and that input and output lie in the tiles; once.

        Who lets a descriptor in (the firmware, or the start of an operation) has checked every operand before.
        """
        plan = task.plan
        if not plan.checked[task.entry]:
            space = task.slot.space
            for block in plan.work(task.entry).blocks:
                for place, write in ((block.target, True), (block.source, False)):
                    if place.size_bytes and not in_window(place.address):
                        raise MemoryFault(place.address, C.NPU_MMU_EVT_CMX_RANGE, write)
                    if place.size_bytes:
                        space.check(place.address, place.size_bytes, write)
            plan.checked[task.entry] = True

    def execute(self, task: DpuTask) -> None:
        """Compute all variants from what CMX holds now; poison the output."""
        from npu_device import dpu_compute, dpu_overflow

        work = task.plan.work(task.entry)
        self.claim(task, work.claim)
        fabric = self.fabric
        task.results = dpu_compute.compute(work, task.slot.space.array, fabric.numerics, "auto", fabric.scratch)
        record, variants = task.plan.records(task.entry)
        task.overflows = dpu_overflow.overflows(
            record, variants, task.results, task.slot.space.array, fabric.numerics, fabric.scratch
        )
        self._poison(task)

    def publish(self, task: DpuTask) -> None:
        """Write the output."""
        if task.tainted:
            self._poison(task)
        else:
            for destination, values in task.results:
                destination[...] = values

    def _poison(self, task: DpuTask) -> None:
        for destination, _ in task.results:
            destination.fill(POISON * (256**destination.itemsize - 1) // 255)  # in every byte

    def count(self, task: DpuTask) -> None:
        """Count MACs and traffic."""
        raw = self._raw
        raw[MACS] += task.amount
        raw[SRAM_READ] += task.sram_read
        raw[SRAM_WRITE] += task.sram_write
        if task.overflows and not task.tainted:
            self.fabric.overflows.add(task.slot.job_id, task.task_id, task.overflows)


@dataclass(frozen=True, slots=True)
class DpuPlan:
    """A list of invariants with their variants, decoded once, for any number of launches with one number of tiles."""

    invariants: Records
    variants: Records
    rows: list[tuple[int, ...]]
    works: list[Work | None]  # by invariant, as they are first executed
    checked: list[bool]  # by invariant

    def work(self, index: int) -> Work:
        """Return an invariant with its variants, checked. Raises DescriptorError."""
        found = self.works[index]
        if found is None:
            from npu_device.dpu_work import Work

            found = self.works[index] = Work.decode(*self.records(index))
        return found

    def records(self, index: int) -> tuple[Any, Records]:
        """Return the record of an invariant and those of its variants."""
        first, count = self.rows[index][-2:]
        return self.invariants[index], self.variants[first : first + count]

    def tasks(self, slot: JobSlot, channels: list[Channel], list_id: int) -> Iterator[Task]:
        """Make fresh tasks for a job, one after the other; `channels` are those of its tiles."""
        sets = slot.barrier_sets
        for index, row in enumerate(self.rows):
            task_id, cycles, macs, tile, wait, post, after, sram_read, sram_write, _, _ = row
            task = DpuTask(channels[tile], list_id, index, task_id, cycles, macs, sets[wait], sets[post], after)
            task.sram_read = sram_read
            task.sram_write = sram_write
            task.plan, task.entry, task.overflows = self, index, 0
            yield task


def plan_dpu(profile: Profile, invariants: Records, variants: Records) -> DpuPlan:
    """Decode invariants and variants in bulk. Raises DescriptorError when the DPU has no rate for a type."""
    counts = invariants["variant_count"].astype(np.int64)
    firsts = invariants["variant_first"].astype(np.int64)
    owner = np.repeat(np.arange(len(invariants)), counts)
    ordered = variants[
        np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(firsts, counts)
    ]
    cycles, read, written = cost.dpu_costs(profile, invariants, ordered)
    columns = (
        invariants["task_id"],
        cycles,
        cost.dpu_macs(invariants, ordered),
        invariants["tile"],
        *dependency_columns(invariants),
        read,
        written,
        firsts,
        counts,
    )
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    return DpuPlan(invariants, variants, rows, [None] * len(rows), [False] * len(rows))
