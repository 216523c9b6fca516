"""Job queues: one per registered doorbell, a ring in SSID 0 that the driver fills and the firmware empties."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npu_abi import C, offsetof, sizeof

from npu_firmware.hal import Hal
from npu_firmware.structs import read

if TYPE_CHECKING:
    from npu_firmware.job import Job

GLOBAL = int(C.NPU_SSID_GLOBAL)
SLOTS = int(C.NPU_JOBQ_SLOTS)
HEADER_BYTES = sizeof("npu_job_queue_header")
ENTRY_BYTES = sizeof("npu_job_queue_entry")
HEAD_OFFSET = offsetof("npu_job_queue_header", "head")


@dataclass(slots=True, eq=False)
class Queue:
    """A registered queue. It runs one job at a time, in ring order; `rung` says that the ring is worth a look."""

    doorbell: int
    ssid: int
    va: int
    rung: bool = False
    broken: bool = False  # indices out of range: ignored until it is registered anew
    job: Job | None = field(default=None)

    def peek(self, hal: Hal) -> tuple[int, Any] | None:
        """Return (head, struct npu_job_queue_entry) of the next job, or None when the ring is empty."""
        header = read("npu_job_queue_header", hal.load(GLOBAL, self.va, HEADER_BYTES))
        head, tail = header.head, header.tail
        if head >= SLOTS or tail >= SLOTS:
            self.broken = True
            return None
        if head == tail:
            return None
        data = hal.load(GLOBAL, self.va + HEADER_BYTES + head * ENTRY_BYTES, ENTRY_BYTES)
        return head, read("npu_job_queue_entry", data)

    def advance(self, hal: Hal, head: int) -> None:
        """Tell the driver that slot `head` was read."""
        hal.store(GLOBAL, self.va + HEAD_OFFSET, ((head + 1) % SLOTS).to_bytes(4, "little"))
