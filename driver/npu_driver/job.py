"""A job: one command buffer handed to the firmware, from the ring slot to its JOB_DONE.

Its fence is `finished` with `done_ps`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npu_abi import C

if TYPE_CHECKING:
    from npu_driver.bo import BufferObject
    from npu_driver.queue import CommandQueue

UNFINISHED = 0xFFFFFFFF  # job_status of a job that still runs


@dataclass(slots=True, eq=False)
class Job:
    """State of one submit. `done_ps` is when the host learns of the end: the interrupt plus its cost."""

    job_id: int
    queue: CommandQueue
    buffers: list[BufferObject] = field(repr=False)  # kept alive until the end; entry 0 is the command buffer
    finished: bool = False
    waited: bool = False  # a BO_WAIT has returned it
    status: int = UNFINISHED  # enum npu_job_status
    error_detail: int = 0
    error_info: int = 0
    abort_reason: int = 0  # enum npu_abort_reason, of a job that the driver ends
    start_ps: int = 0
    end_ps: int = 0
    done_ps: int = 0

    @property
    def failed(self) -> bool:
        """Whether it ended with anything but success."""
        return self.finished and self.status != C.NPU_JOB_SUCCESS
