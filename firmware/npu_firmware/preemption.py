"""Preemption of inferences: which one has to leave its tiles, and its way out and back.

1. DRAIN: nothing more is dispatched, tasks that have not started are recalled, those that run go on to their ends.
2. SAVE: barriers are stored in the job's preemption buffer, CMX is copied there by DMA. Then the tiles are free.
3. SAVED: it waits for tiles, before later jobs of its band.
4. RESTORE: on the tiles that it gets CMX is copied back, the barriers are loaded, and the walk goes on behind the last task that had started.

The buffer: NPU_PREEMPT_STATE_BYTES of barriers, then the workspace of each tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C, dtype

from npu_firmware.job import Job, State

if TYPE_CHECKING:
    from npu_firmware.hal import Hal, Slot
    from npu_firmware.inference import Inference
    from npu_firmware.tiles import Tiles
    from npu_firmware.walk import Walk

STATE_BYTES = int(C.NPU_PREEMPT_STATE_BYTES)
BARRIER = Struct("<III")  # virtual id, producers, consumers left
NONE = int(C.NPU_BARRIER_NONE)
CMX, STRIDE = int(C.NPU_CMX_BASE), int(C.NPU_CMX_TILE_STRIDE)
LEAVING = (State.DRAIN, State.SAVE)


@dataclass(slots=True, eq=False)
class Saved:
    """What the core keeps of a preempted inference; the rest is in the buffer."""

    walk: Walk
    work: Inference


def victim(hal: Hal, tiles: Tiles, jobs: list[Job], shaves: int) -> Job | None:
    """Return the inference that has to leave now for the job that is the first to wait for tiles, or None.

    The band of that job is its queue's: what has only waited long is served earlier, but takes nothing away.
    """
    if not tiles.waiting:
        return None
    first = tiles.waiting[0]
    launch = first.launch
    if launch is None:
        wanted = first.tile_count
    else:
        wanted = -(-launch.kernel.grid // shaves) if launch.cooperative else 1
    coming = sum(len(job.tiles) for job in jobs if job.state in LEAVING)
    missing = wanted - len(tiles.free) - coming
    if missing <= 0:
        return None
    lower = [job for job in jobs if job.state is State.ENGINES and job.band < first.queue.band and _can(hal, job)]
    if sum(len(job.tiles) for job in lower) < missing:
        return None
    return min(lower, key=lambda job: (job.band, -job.ticket))


def _can(hal: Hal, job: Job) -> bool:
    needed = STATE_BYTES + len(job.tiles) * hal.profile.cmx.workspace_bytes
    return bool(job.tiles) and job.preempt_va != 0 and job.preempt_bytes >= needed


def save_barriers(hal: Hal, job: Job, slot: Slot) -> None:
    """Store the barriers of a job in its buffer. Raises Fault."""
    found = b"".join(
        BARRIER.pack(one.virtual_id, one.producers, one.consumers) if one.valid else BARRIER.pack(NONE, 0, 0)
        for one in hal.barriers(slot)
    )
    hal.store(job.ssid, job.preempt_va, found)


def load_barriers(hal: Hal, job: Job, slot: Slot, count: int) -> bool:
    """Load the barriers of a job, whose inference has `count` virtual ones. False when the buffer has none that could be. Raises Fault."""
    barriers = hal.barriers(slot)
    data = hal.load(job.ssid, job.preempt_va, BARRIER.size * len(barriers))
    states = list(BARRIER.iter_unpack(data))
    most = int(C.NPU_MAX_BARRIER_COUNT)
    if any(v != NONE and (v >= count or p > most or c > most) for v, p, c in states):
        return False
    for barrier, (virtual_id, producers, consumers) in zip(barriers, states, strict=True):
        if virtual_id != NONE:
            hal.load_barrier(barrier, virtual_id, producers, consumers)
    return True


def copies(hal: Hal, job: Job, slot: Slot, restore: bool) -> list[Any]:
    """Return the DMA tasks that copy the CMX of a job to its buffer, or back, by port."""
    workspace, ports = hal.profile.cmx.workspace_bytes, hal.profile.dma_ports
    tasks = np.zeros(len(job.tiles), dtype("npu_dma_task"))
    tasks["sched_start_after"] = NONE
    for index, task in enumerate(tasks):
        cmx, ddr = CMX + STRIDE * index, job.preempt_va + STATE_BYTES + workspace * index
        task["transaction_src"], task["transaction_dst"] = (ddr, cmx) if restore else (cmx, ddr)
        for name in ("length", "src_width", "dst_width"):
            task[f"transaction_{name}"] = workspace
        task["transaction_num_planes"] = 1
    plans = [hal.plan_dma(tasks[port::ports]) for port in range(ports) if len(tasks[port::ports])]
    return [hal.dma_tasks(slot, port, port, plan) for port, plan in enumerate(plans)]
