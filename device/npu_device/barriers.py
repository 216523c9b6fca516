"""Counting barriers: finite physical ids, each with producers and consumers left. `tile t` owns ids [t * n, (t + 1) * n).

A barrier that is not loaded is never ready. At zero producers and zero consumers it retires: it becomes invalid and the
management core is told, which may load the next virtual barrier into the same id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_abi import C

if TYPE_CHECKING:
    from npu_device.engine import Channel
    from npu_device.slot import JobSlot

INVALID = 1 << 20  # producers of a barrier that is not loaded: never ready


class Barrier:
    """One physical barrier. `producers == 0` means ready."""

    __slots__ = (
        "consumers",
        "job_id",
        "physical_id",
        "producers",
        "slot",
        "underflow",
        "virtual_id",
        "waiters",
    )

    def __init__(self, physical_id: int) -> None:
        self.physical_id = physical_id
        self.slot: JobSlot | None = None  # the job that owns it
        self.clear()

    def clear(self) -> None:
        """Invalidate."""
        self.producers = INVALID
        self.consumers = 0
        self.virtual_id = 0  # of the loaded barrier, for traces and reports
        self.underflow = False
        self.waiters: list[Channel] = []

    @property
    def valid(self) -> bool:
        """Whether a virtual barrier is loaded."""
        return self.producers < INVALID // 2

    def status_register(self) -> int:
        """Return the register behind it: enum npu_barrier_status."""
        valid = C.NPU_BARRIER_STATUS_VALID if self.valid else 0
        return int(valid | (C.NPU_BARRIER_STATUS_UNDERFLOW if self.underflow else 0))

    def counts_register(self) -> int:
        """Return the BARRIER register: producers 15:0, consumers 31:16."""
        return (max(self.producers, 0) | max(self.consumers, 0) << 16) if self.valid else 0
