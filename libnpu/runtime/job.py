"""A launch: from the submit to what the driver says about its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_abi import C, name_of

from libnpu.errors import NpuError, job_result

if TYPE_CHECKING:
    from libnpu.runtime.blob import Blob
    from libnpu.runtime.instance import Instance
    from libnpu.runtime.stream import Command, Stream

_WHAT_DETAIL_IS = {
    C.NPU_JOB_DEADLOCK: "barrier {0}",
    C.NPU_JOB_BARRIER_UNDERFLOW: "barrier {0}",
    C.NPU_JOB_CTX_VIOLATION: "address {0:#x}",
}
# Failures whose error_info is a task; of a refused inference, an entry of the list that the error is about.
_NAMES_A_TASK = frozenset(
    {
        C.NPU_JOB_DEADLOCK,
        C.NPU_JOB_BARRIER_UNDERFLOW,
        C.NPU_JOB_CTX_VIOLATION,
        C.NPU_JOB_SHAVE_FAULT,
        C.NPU_JOB_PROCESSING_ERR,
    }
)
_NAMES_AN_ENTRY = frozenset({C.NPU_PARSE_BAD_BARRIER, C.NPU_PARSE_BAD_DMA, C.NPU_PARSE_BAD_DPU, C.NPU_PARSE_BAD_SHAVE})


class Job:
    """`done` once a wait has seen its end; then `start_ps`, `end_ps` (device time) and `error`, None when it
    succeeded.
    """

    __slots__ = ("blob", "command", "done", "end_ps", "error", "instance", "reported", "start_ps", "stream")

    def __init__(self, stream: Stream, blob: Blob, instance: Instance, command: Command) -> None:
        self.stream = stream
        self.blob = blob
        self.instance = instance
        self.command = command
        self.done = False
        self.reported = False  # its error has been raised
        self.error: NpuError | None = None
        self.start_ps = 0
        self.end_ps = 0

    @property
    def latency_ps(self) -> int:
        """Device time from its start to its end. The job is done."""
        return self.end_ps - self.start_ps

    def wait(self, timeout_ns: float | None = None) -> None:
        """Wait for this job; raises its error, or TIMEOUT."""
        self.stream.wait(self, timeout_ns)

    def describe(self, job_id: int, status: int, detail: int, info: int) -> None:
        """Take the driver's word on a job that did not succeed."""
        name = name_of("npu_job_status", status)
        parts = [f"job {job_id:#x} of {self.blob.name!r} ended with {name}"]
        if status in _WHAT_DETAIL_IS:
            parts.append(_WHAT_DETAIL_IS[status].format(detail))
        elif status == C.NPU_JOB_PARSING_ERR:
            parts.append(name_of("npu_parse_error", detail))
        elif status == C.NPU_JOB_SHAVE_FAULT:
            parts.append(f"{name_of('npu_shave_fault', detail >> 32)} at pc {detail & 0xFFFFFFFF:#x}")
        elif status == C.NPU_JOB_PROCESSING_ERR:
            parts.append(f"{name_of('npu_engine', detail)} refused a descriptor")
        of_entry = status == C.NPU_JOB_PARSING_ERR and detail in _NAMES_AN_ENTRY
        task = self.blob.task_name(info) if status in _NAMES_A_TASK or of_entry else None
        if of_entry:
            parts.append(self.blob.entry_name(info))
        if task is not None:
            parts.append(f"task {task!r}")
        self.error = NpuError(
            job_result(status, detail),
            ", ".join(parts),
            job_id=job_id,
            job_status=status,
            error_detail=detail,
            error_info=info,
            task=task,
            job=self,
        )
