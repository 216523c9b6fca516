"""DPUs: one matrix engine per tile. A task is an invariant with its variants; the values come from dpu_compute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C
from npu_model import cycles as cost
from npu_model import descriptors, dtypes
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
MAC_SLOTS, ENERGY = int(C.NPU_PMU_DPU_MAC_SLOTS), int(C.NPU_PMU_ENERGY_DPU)
PENDING, STALL = int(C.NPU_PMU_DPU_MEM_PENDING), int(C.NPU_PMU_DPU_MEM_STALL)
SRAM_READ, SRAM_WRITE = int(C.NPU_PMU_SRAM_READ), int(C.NPU_PMU_SRAM_WRITE)

Records = np.ndarray[Any, np.dtype[np.void]]


class DpuTask(Task):
    """An invariant with its variants and their traffic in bytes."""

    __slots__ = ("entry", "mac_fj", "mac_slots", "overflows", "pending_mark", "plan", "sram_read", "sram_write")

    plan: DpuPlan
    entry: int  # index in the plan
    mac_slots: int  # multiply-accumulates that the array can do in a cycle of the engine clock, for the task's types
    mac_fj: int  # energy of one
    pending_mark: int  # slot.pending of its start
    sram_read: int
    sram_write: int
    overflows: int  # finite results that fp16 does not hold


class DpuEngine(Engine[DpuTask]):
    """The DPU of one tile."""

    busy_counter = int(C.NPU_PMU_DPU_BUSY)
    pending_counter, stall_counter = PENDING, STALL

    def __init__(self, fabric: Fabric, tile: int, domain: ClockDomain) -> None:
        super().__init__(fabric, int(C.NPU_ENGINE_DPU), tile, domain)

    def check(self, task: DpuTask) -> None:
        """Check the descriptor, and that input and output lie in the tiles; once.

        Who lets a descriptor in (the firmware, or the start of an operation) has checked every operand before.
        """
        plan = task.plan
        first = plan.like[task.entry]
        if not plan.checked[first]:
            space = task.slot.space
            work = plan.work(task.entry)
            for block in work.blocks:
                targets = [(block.target, block.target.address + shift, True) for shift in work.invariant.out_shifts]
                for place, address, write in (*targets, (block.source, block.source.address, False)):
                    if place.size_bytes and not in_window(address):
                        raise MemoryFault(address, C.NPU_MMU_EVT_CMX_RANGE, write)
                    if place.size_bytes:
                        space.check(address, place.size_bytes, write)
            plan.checked[first] = True

    def execute(self, task: DpuTask) -> None:
        """Compute all variants from what CMX holds now; poison the output."""
        from npu_device.dpu_compute import compute
        from npu_device.dpu_overflow import overflows

        work, fabric, view = task.plan.work(task.entry), self.fabric, task.slot.space.array
        self.claim(task, work.claim)
        task.results = found = compute(work, view, fabric.numerics, "auto", fabric.scratch)
        task.overflows = overflows(work, found, view, fabric.numerics, fabric.scratch)
        if work.invariant.out_tiles:
            task.results = found + [
                (view(b.target.address + shift, b.target.shape, b.target.strides, values.dtype), values)
                for shift in work.invariant.out_shifts[1:]
                for b, (_, values) in zip(work.blocks, found, strict=True)
            ]
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

    def begin(self, task: DpuTask, cycles: int) -> None:
        """As Engine.begin."""
        task.pending_mark = task.slot.pending(task.start_cycle)
        super().begin(task, cycles)

    def progress(self, counts: list[int], task: DpuTask, now: int) -> None:
        """As Engine.progress; the array offers its multiply-accumulates all the time."""
        super().progress(counts, task, now)
        self._offer(counts, task, now)

    def _offer(self, counts: list[int], task: DpuTask, now: int) -> int:
        """Add what a task was offered, and the cycles with a request out; return these."""
        counts[MAC_SLOTS] += (now - task.start_cycle) * task.mac_slots
        if task.pending_mark < 0:
            return 0
        pending = task.slot.pending(now) - task.pending_mark
        counts[PENDING] += pending
        return pending

    def abandon(self, task: DpuTask, now: int) -> None:
        """As Engine.abandon."""
        super().abandon(task, now)
        if self._trace is not None and task.pending_mark >= 0:
            self.record_memory(task.task_id, task.slot.job_id, task.slot.pending(now) - task.pending_mark, 0)

    def count(self, task: DpuTask, now: int) -> None:
        """Count MACs and traffic."""
        raw = self._raw
        pending = self._offer(raw, task, now)
        if pending and self._trace is not None:
            self.record_memory(task.task_id, task.slot.job_id, pending, 0)
        raw[MACS] += task.amount
        raw[ENERGY] += task.amount * task.mac_fj
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
    like: list[int]  # by invariant: the first one that asks for the same
    works: list[Work | None]  # of these, as they are first executed
    checked: list[bool]  # of these

    def work(self, index: int) -> Work:
        """Return an invariant with its variants, checked. Raises DescriptorError."""
        index = self.like[index]
        found = self.works[index]
        if found is None:
            from npu_device.dpu_work import Work

            first, count = self.rows[index][-2:]
            found = self.works[index] = Work.decode(self.invariants[index], self.variants[first : first + count])
        return found

    def tasks(self, slot: JobSlot, channels: list[Channel], list_id: int) -> Iterator[Task]:
        """Make fresh tasks for a job, one after the other; `channels` are those of its tiles."""
        sets = slot.barrier_sets
        for index, row in enumerate(self.rows):
            task_id, cycles, macs, tile, wait, post, after, sram_read, sram_write, mac_slots, mac_fj, _, _ = row
            task = DpuTask(channels[tile], list_id, index, task_id, cycles, macs, sets[wait], sets[post], after)
            task.sram_read, task.sram_write = sram_read, sram_write
            task.mac_slots, task.mac_fj, task.pending_mark = mac_slots, mac_fj, -1
            task.plan, task.entry, task.overflows = self, index, 0
            yield task


def _by_operand(table: dict[str, int], invariants: Records) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the value of each invariant's operand type in a table of a profile."""
    weighted = np.isin(invariants["op"], descriptors.WEIGHTED)
    values = np.zeros(256, np.int64)
    for name, value in table.items():
        values[dtypes.code_of_name(name)] = value
    found: np.ndarray[Any, np.dtype[np.int64]] = values[
        np.where(weighted, invariants["wt_dtype"], invariants["act_dtype"])
    ]
    return found


def _contents(records: Records, names: tuple[str, ...]) -> list[bytes]:
    """Return the bytes of these fields of each record."""
    fields: Any = records.dtype.fields
    places = [np.arange(fields[name][0].itemsize) + fields[name][1] for name in names]
    raw = np.ascontiguousarray(records).view(np.uint8).reshape(len(records), -1)
    found = raw[:, np.concatenate(places)]
    content, size = found.tobytes(), found.shape[1]
    return [content[at : at + size] for at in range(0, len(content), size)]


def _like(invariants: Records, variants: Records, counts: list[int]) -> list[int]:
    """Return by invariant the first whose descriptor is equal but for its place in the schedule. `variants` in the order of their invariants."""
    parts = _contents(variants, descriptors.VARIANT_FIELDS)
    known: dict[tuple[bytes, ...], int] = {}
    found, at = [], 0
    for index, (content, count) in enumerate(
        zip(_contents(invariants, descriptors.INVARIANT_FIELDS), counts, strict=True)
    ):
        found.append(known.setdefault((content, *parts[at : at + count]), index))
        at += count
    return found


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
        _by_operand(profile.dpu.macs_per_cycle, invariants),
        _by_operand(profile.energy.mac_fj, invariants),
        firsts,
        counts,
    )
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    like = _like(invariants, ordered, counts.tolist())
    return DpuPlan(invariants, variants, rows, like, [None] * len(rows), [False] * len(rows))
