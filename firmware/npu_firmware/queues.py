"""Job queues: one per registered doorbell, a ring in SSID 0 that the driver fills and the firmware empties."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from npu_abi import C, codec, offsetof, sizeof

from npu_firmware.hal import Hal

if TYPE_CHECKING:
    from npu_firmware.job import Job

GLOBAL = int(C.NPU_SSID_GLOBAL)
SLOTS = int(C.NPU_JOBQ_SLOTS)
HEADER_BYTES = sizeof("npu_job_queue_header")
ENTRY_BYTES = sizeof("npu_job_queue_entry")
HEADER = codec("npu_job_queue_header", "head", "tail", "flags")
ENTRY = codec(
    "npu_job_queue_entry", "batch_buf_va", "job_id", "flags", "preempt_va", "preempt_bytes", "reserved0", "reserved"
)
NO_RESERVED = 0, bytes(24)
HEAD_OFFSET = offsetof("npu_job_queue_header", "head")


class Entry(NamedTuple):
    """A slot of a ring."""

    slot: int
    batch_va: int
    job_id: int
    clean: bool  # flags and reserved fields are zero
    preempt_va: int
    preempt_bytes: int


@dataclass(slots=True, eq=False)
class Queue:
    """A registered queue. It runs one job at a time, in ring order; `rung` says that the ring is worth a look."""

    doorbell: int
    ssid: int
    va: int
    band: int = 0
    since_ps: int = -1  # when the job in the ring was first seen, if there is more than one band
    rung: bool = False
    broken: bool = False  # indices out of range: ignored until it is registered anew
    flags: int = 0  # as the header had them at the last look
    job: Job | None = field(default=None)

    def peek(self, hal: Hal) -> Entry | None:
        """Return the next entry, or None when the ring is empty."""
        head, tail, self.flags = hal.read(GLOBAL, self.va, HEADER)
        if head >= SLOTS or tail >= SLOTS:
            self.broken = True
            return None
        if head == tail:
            return None
        va, job_id, flags, preempt_va, preempt_bytes, *reserved = hal.read(
            GLOBAL, self.va + HEADER_BYTES + head * ENTRY_BYTES, ENTRY
        )
        return Entry(head, va, job_id, not flags and tuple(reserved) == NO_RESERVED, preempt_va, preempt_bytes)

    def indices(self, hal: Hal) -> tuple[int, int]:
        """Return head and tail as the ring has them."""
        head, tail, _ = hal.read(GLOBAL, self.va, HEADER)
        return head, tail

    def advance(self, hal: Hal, head: int) -> None:
        """Tell the driver that slot `head` was read."""
        hal.store(GLOBAL, self.va + HEAD_OFFSET, ((head + 1) % SLOTS).to_bytes(4, "little"))
