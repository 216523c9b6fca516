"""DPUs: one matrix engine per tile. A task is an invariant with its variants; the values come from dpu_compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C
from npu_model import cycles as cost
from npu_model import dtypes, footprint

from npu_device.barriers import Barrier
from npu_device.clock import ClockDomain
from npu_device.engine import Channel, Engine, Task

if TYPE_CHECKING:
    from npu_device.fabric import Fabric
    from npu_device.slot import JobSlot

MACS = int(C.NPU_PMU_DPU_MACS)
SRAM_READ, SRAM_WRITE = int(C.NPU_PMU_SRAM_READ), int(C.NPU_PMU_SRAM_WRITE)

Records = np.ndarray[Any, np.dtype[np.void]]


class DpuTask(Task):
    """An invariant with its variants and their traffic in bytes."""

    __slots__ = ("invariant", "sram_read", "sram_write", "variants")

    invariant: Any
    variants: Records | None
    sram_read: int
    sram_write: int


class DpuEngine(Engine):
    """The DPU of one tile."""

    busy_counter = int(C.NPU_PMU_DPU_BUSY)

    def __init__(self, fabric: Fabric, tile: int, domain: ClockDomain) -> None:
        super().__init__(fabric, int(C.NPU_ENGINE_DPU), tile, domain)

    def execute(self, task: Task) -> None:
        """Compute all variants from what CMX holds now; poison the output."""
        from npu_device import dpu_compute

        assert isinstance(task, DpuTask)
        reads, writes = footprint.dpu_footprint(task.invariant, task.variants)
        self.claim(task, reads, writes)
        task.results = dpu_compute.execute(
            task.invariant, task.variants, task.slot.space.array, self.fabric.numerics
        )  # fmt: skip
        for destination, _ in task.results:
            destination.fill(np.iinfo(destination.dtype).max)

    def publish(self, task: Task) -> None:
        """Write the output."""
        for destination, values in task.results:
            if task.tainted:
                destination.fill(np.iinfo(destination.dtype).max)
            else:
                destination[...] = values

    def count(self, task: Task) -> None:
        """Count MACs and traffic."""
        assert isinstance(task, DpuTask)
        raw = self._raw
        raw[MACS] += task.amount
        raw[SRAM_READ] += task.sram_read
        raw[SRAM_WRITE] += task.sram_write


def dpu_tasks(
    slot: JobSlot,
    channels: list[Channel],
    list_id: int,
    invariants: Records,
    variants: Records,
    waits: list[tuple[Barrier, ...]],
    posts: list[tuple[Barrier, ...]],
    start_after: list[int],
) -> list[Task]:
    """Decode invariants and variants in bulk; `channels` are those of the job's tiles."""
    fabric = slot.fabric
    counts = invariants["variant_count"].astype(np.int64)
    firsts = invariants["variant_first"].astype(np.int64)
    owner = np.repeat(np.arange(len(invariants)), counts)
    ordered = variants[
        np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(firsts, counts)
    ]
    owning = invariants[owner]
    sizes = np.array([dtypes.size_bytes(code) for code in range(C.NPU_DT_COUNT)], dtype=np.int64)
    outputs = ordered["size_x"].astype(np.int64) * ordered["size_y"] * ordered["size_z"] * sizes[owning["out_dtype"]]
    read, written = np.zeros(len(invariants), dtype=np.int64), np.zeros(len(invariants), dtype=np.int64)
    np.add.at(read, owner, cost.dpu_read_bytes(owning, ordered))
    np.add.at(written, owner, outputs)
    columns = zip(
        invariants["task_id"].tolist(),
        cost.dpu_cycles(fabric.profile, invariants, ordered).tolist(),
        cost.dpu_macs(invariants, ordered).tolist(),
        invariants["tile"].tolist(),
        waits,
        posts,
        start_after,
        read.tolist(),
        written.tolist(),
        strict=True,
    )
    tasks: list[Task] = []
    for index, (task_id, cycles, macs, tile, wait, post, after, sram_read, sram_write) in enumerate(columns):
        task = DpuTask(channels[tile], list_id, index, task_id, cycles, macs, wait, post, after)
        task.sram_read = sram_read
        task.sram_write = sram_write
        if fabric.compute:
            task.invariant = invariants[index]
            task.variants = variants[firsts[index] : firsts[index] + counts[index]]
        else:
            task.invariant = task.variants = None
        tasks.append(task)
    return tasks
