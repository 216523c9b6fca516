"""How much a blob's tasks do and move: operations from the descriptors and programs that were executed, bytes from DMA descriptors.

An operation is an addition, a multiplication or a comparison of numbers: a multiply-accumulate is two, an output of an
element-wise task and a position of a pooling window one, an element of a SHAVE's arithmetic instruction one (a special
function as many as it takes cycles in a lane; a copy, a broadcast or a transposition none). Sums agree with the PMU's
DPU_MACS and, but for those, SHAVE_LANE_OPS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from npu_abi import C
from npu_model import cycles as cost
from npu_model import dtypes
from npu_model.profile import Profile

from libnpu.blob.shave_tasks import INVOCATIONS, ShaveTasks
from libnpu.tools.session import ddr_bytes_by_task

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libnpu.blob import BlobImage
    from libnpu.trace.slices import Slice

VECTOR = "vector"  # what a SHAVE computes in
LINE_BYTES = 64  # of a processor's cache: chosen, as most have


@dataclass(slots=True)
class Work:
    """Of a layer or of all: operations, bytes between the device and DDR, and time from first start to last end."""

    name: str
    flop: int = 0
    ddr_bytes: int = 0
    first_ps: int = 0
    last_ps: int = 0

    @property
    def intensity(self) -> float:
        """Operations per byte; infinite without bytes."""
        return self.flop / self.ddr_bytes if self.ddr_bytes else float("inf") if self.flop else 0.0


def operations(image: BlobImage, profile: Profile) -> dict[int, tuple[int, str]]:
    """Return task_id -> (operations, element type of the multiplications, or VECTOR), of every DPU and SHAVE task."""
    found: dict[int, tuple[int, str]] = {}
    inv, var = image.tasks.get(".npu.tasks.dpu_invariant"), image.tasks.get(".npu.tasks.dpu_variant")
    if inv is not None and var is not None and len(inv):
        macs = cost.dpu_macs(inv, var)
        sizes = np.prod([var[f"size_{axis}"].astype(np.int64) for axis in "xyz"], axis=0)
        firsts, counts = inv["variant_first"].astype(int), inv["variant_count"].astype(int)
        for n, record in enumerate(inv):
            outputs = int(sizes[firsts[n] : firsts[n] + counts[n]].sum())
            pooled = record["op"] in (C.NPU_DPU_MAXPOOL, C.NPU_DPU_AVGPOOL)
            window = int(record["kernel_x"]) * int(record["kernel_y"]) if pooled else 1
            found[int(record["task_id"])] = int(2 * macs[n]) or outputs * window, dtypes.name(int(record["wt_dtype"]))
    shave = image.tasks.get(INVOCATIONS)
    if shave is not None and len(shave):
        tasks = ShaveTasks(image, profile)
        for n, task_id in enumerate(shave["task_id"].tolist()):
            machine = tasks.run(n)
            found[task_id] = machine.lane_ops - machine.lane_moves, VECTOR
    return found


@dataclass(frozen=True, slots=True)
class Accesses:
    """Loads and stores that programs of SHAVEs executed, of a register of lanes at most, and their bytes.

    DMA and DPU move data without such instructions.
    """

    loads: int = 0
    stores: int = 0
    nbytes: int = 0

    def __add__(self, other: Accesses) -> Accesses:
        """Return the sums."""
        return Accesses(self.loads + other.loads, self.stores + other.stores, self.nbytes + other.nbytes)

    @property
    def line_bytes(self) -> int:
        """What moves if each of them moves a line of a cache: the estimate of tools that count a processor's instructions."""
        return (self.loads + self.stores) * LINE_BYTES


def accesses(image: BlobImage, profile: Profile) -> dict[int, Accesses]:
    """Return task_id -> accesses of every SHAVE task."""
    shave = image.tasks.get(INVOCATIONS)
    if shave is None or not len(shave):
        return {}
    tasks = ShaveTasks(image, profile)
    machines = map(tasks.run, range(len(shave)))
    ids = shave["task_id"].tolist()
    return {task_id: Accesses(m.loads, m.stores, m.accessed_bytes) for task_id, m in zip(ids, machines, strict=True)}


def main_type(image: BlobImage, done: dict[int, tuple[int, str]]) -> str:
    """Return the element type of most multiplications; of the first input where there is none."""
    totals: dict[str, int] = {}
    for flop, kind in done.values():
        if kind != VECTOR:
            totals[kind] = totals.get(kind, 0) + flop
    if totals:
        return max(totals, key=lambda kind: totals[kind])
    return dtypes.name(image.inputs[0].dtype) if image.inputs else "f32"


def by_layer(image: BlobImage, done: dict[int, tuple[int, str]], slices: Iterable[Slice]) -> list[Work]:
    """Return the work of each layer that was executed, in order of its first task."""
    moved = ddr_bytes_by_task(image)
    found: dict[str, Work] = {}
    for s in sorted(slices, key=lambda s: (s.start_ps, s.task_id)):
        work = found.setdefault(s.layer, Work(s.layer, first_ps=s.start_ps))
        work.flop += done.get(s.task_id, (0, ""))[0]
        work.ddr_bytes += moved.get(s.task_id, 0)
        work.last_ps = max(work.last_ps, s.end_ps)
    return list(found.values())


def ideal_bytes(image: BlobImage) -> int:
    """Return the bytes of inputs, outputs and constants: what moves when each moves once."""
    return sum(tensor.size_bytes for tensor in (*image.inputs, *image.outputs)) + image.weight_bytes


def roofs(profile: Profile) -> dict[str, int]:
    """Return operations per second of the whole device by element type of its matrix engines, and of its SHAVEs."""
    dpu, shave = profile.dpu, profile.shave
    found = {kind: 2 * macs * profile.tiles * dpu.clock_hz for kind, macs in dpu.macs_per_cycle.items()}
    cores = profile.tiles * profile.shaves_per_tile
    return found | {f"SHAVE {kind}": shave.lanes[kind] * cores * shave.clock_hz for kind in ("f16", "f32")}


def memory_roof(profile: Profile) -> int:
    """Return the bytes per second that DMA gets of memory: what its ports carry, and memory gives in a long stream."""
    ports = profile.dma_ports * profile.dma.bytes_per_cycle * profile.dma.clock_hz
    return min(ports, profile.ddr.bytes_per_second)
