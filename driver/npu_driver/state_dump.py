"""The state of driver and firmware as lines for people. The firmware is not trusted: counts are clamped."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from npu_abi import C, codec, name_of

from npu_driver.error import KernelError

if TYPE_CHECKING:
    from npu_driver.kernel import Kernel

STATE = codec("npu_fw_state", "time_ps", "heartbeat", "queue_count", "job_count", "free_tiles")
QUEUE = codec(
    "npu_fw_queue_state", "db_idx", "host_ssid", "head", "tail", "job_id", "stage", "command", "outstanding_tasks", "open_lists",
    "retired_barriers", "blocking_barrier",
)  # fmt: skip


class QueueState(NamedTuple):
    """struct npu_fw_queue_state without what is reserved."""

    db_idx: int
    host_ssid: int
    head: int
    tail: int
    job_id: int
    stage: int
    command: int
    outstanding_tasks: int
    open_lists: int
    retired_barriers: int
    blocking_barrier: int


def queues(memory: memoryview) -> list[QueueState]:
    """Return the records of the queues in `memory`, which starts with struct npu_fw_state."""
    count = min(STATE.unpack_from(memory)[2], (len(memory) - STATE.size) // QUEUE.size)
    return [QueueState(*QUEUE.unpack_from(memory, STATE.size + QUEUE.size * index)) for index in range(count)]


def lines(memory: memoryview) -> list[str]:
    """Return a line about the firmware and one for each queue in `memory`, which starts with struct npu_fw_state."""
    time_ps, heartbeat, count, jobs, tiles = STATE.unpack_from(memory)
    head = f"state at {time_ps} ps: heartbeat {heartbeat}, {count} queues, {jobs} jobs, free tiles {tiles:#x}"
    return [head, *(_queue(state) for state in queues(memory))]


def describe(kernel: Kernel) -> list[str]:
    """Return what the driver knows, then what the firmware says, as lines."""
    recovery, device = kernel.recovery, kernel.device
    found = [
        f"device at {device.now_ps} ps: {'running' if kernel.firmware.running else 'stopped'}, {len(kernel.contexts)} contexts, "
        f"{len(kernel.doorbells)} doorbells, {kernel.memory.free_bytes} of {kernel.memory.capacity_bytes} bytes free",
        f"recovery: {recovery.engine_resets} engine resets, {recovery.full_resets} full resets, {recovery.lost_interrupts} lost interrupts",
    ]
    for ssid, context in kernel.contexts.items():
        owner, state = context.owner, f"lost: {context.lost}" if context.lost else "live"
        found.append(
            f"context {ssid} of {owner.name} (pid {owner.pid}): {state}, {len(context.objects)} objects, {len(context.queues)} queues, "
            f"{len(context.jobs)} jobs in flight"
        )
        found += [
            f"queue {queue.cmdq_id} of context {ssid}: doorbell {queue.doorbell}, {len(queue.jobs)} jobs, the oldest {queue.jobs[0].job_id:#x}"
            for queue in context.queues.values()
            if queue.jobs
        ]
    try:
        kernel.firmware.queues()
    except KernelError as error:
        return [*found, f"the firmware says nothing: {error}"]
    return found + kernel.firmware.last_state()


def _queue(state: QueueState) -> str:
    text = f"state of doorbell {state.db_idx}: context {state.host_ssid}, head {state.head}, tail {state.tail}"
    if not state.job_id:
        return f"{text}, no job"
    text += f", job {state.job_id:#x} in {name_of('npu_job_stage', state.stage)} at command {state.command}"
    if state.stage == C.NPU_STAGE_ENGINES:
        text += f", {state.outstanding_tasks} tasks at engines, {state.open_lists} lists open, barriers below {state.retired_barriers} retired"
        if state.blocking_barrier != C.NPU_BARRIER_NONE:
            text += f", waits for barrier {state.blocking_barrier}"
    return text
