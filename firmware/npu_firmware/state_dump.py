"""The firmware's state as bytes, for the driver's log: struct npu_fw_state, and struct npu_fw_queue_state per queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_abi import C, new, pack, sizeof

from npu_firmware.queues import Queue

if TYPE_CHECKING:
    from npu_firmware.core import Core
    from npu_firmware.hal import Hal

NONE = int(C.NPU_BARRIER_NONE)


def state(hal: Hal, core: Core, room_bytes: int) -> bytes:
    """Return the state in at most `room_bytes`, which hold struct npu_fw_state; queues that do not fit are left out."""
    head = new(
        "npu_fw_state",
        time_ps=hal.now_ps(),
        heartbeat=core.heartbeat + hal.tasks_done(),
        queue_count=len(core.queues),
        job_count=len(core.jobs),
        free_tiles=sum(1 << tile for tile in core.tiles.idle()),
    )
    count = (room_bytes - sizeof("npu_fw_state")) // sizeof("npu_fw_queue_state")
    return pack(head) + b"".join(_queue(hal, queue) for queue in list(core.queues.values())[:count])


def _queue(hal: Hal, queue: Queue) -> bytes:
    head, tail = queue.indices(hal)
    found = new(
        "npu_fw_queue_state", db_idx=queue.doorbell, host_ssid=queue.ssid, head=head, tail=tail, blocking_barrier=NONE
    )
    job = queue.job
    if job is not None:
        found.job_id, found.stage, found.command = job.job_id, job.state, job.position
        if job.launch is not None:
            found.outstanding_tasks = len(job.launch.blocks)
        if job.walk is not None:
            blocking, _ = job.walk.slot.blocked()
            found.outstanding_tasks = job.walk.slot.outstanding
            found.open_lists = job.walk.remaining
            found.retired_barriers = job.walk.watermark + 1
            found.blocking_barrier = blocking if blocking >= 0 else NONE
    return pack(found)
