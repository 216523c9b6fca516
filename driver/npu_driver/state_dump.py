"""What the firmware wrote for STATE_DUMP as lines for the kernel log. The firmware is not trusted: counts are clamped."""

from __future__ import annotations

from npu_abi import C, codec, name_of

STATE = codec("npu_fw_state", "time_ps", "heartbeat", "queue_count", "job_count", "free_tiles")
QUEUE = codec(
    "npu_fw_queue_state", "db_idx", "host_ssid", "head", "tail", "job_id", "stage", "command", "outstanding_tasks", "open_lists",
    "retired_barriers", "blocking_barrier",
)  # fmt: skip


def lines(memory: memoryview) -> list[str]:
    """Return a line about the firmware and one for each queue in `memory`, which starts with struct npu_fw_state."""
    time_ps, heartbeat, queues, jobs, tiles = STATE.unpack_from(memory)
    head = f"state at {time_ps} ps: heartbeat {heartbeat}, {queues} queues, {jobs} jobs, free tiles {tiles:#x}"
    count = min(queues, (len(memory) - STATE.size) // QUEUE.size)
    return [head, *(_queue(QUEUE.unpack_from(memory, STATE.size + QUEUE.size * index)) for index in range(count))]


def _queue(fields: tuple[int, ...]) -> str:
    doorbell, ssid, head, tail, job_id, stage, command, outstanding, lists, retired, blocking = fields
    text = f"state of doorbell {doorbell}: context {ssid}, head {head}, tail {tail}"
    if not job_id:
        return f"{text}, no job"
    text += f", job {job_id:#x} in {name_of('npu_job_stage', stage)} at command {command}"
    if stage == C.NPU_STAGE_ENGINES:
        text += f", {outstanding} tasks at engines, {lists} lists open, barriers below {retired} retired"
        if blocking != C.NPU_BARRIER_NONE:
            text += f", waits for barrier {blocking}"
    return text
