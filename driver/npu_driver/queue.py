"""Command queues: a job ring of 4 KiB in SSID 0 and a doorbell, which is registered with the firmware on the first
submit.

Submit: write the slot, then the tail, then the doorbell. The firmware advances the head when it has read a slot.
Format: npu_fw.h.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from npu_abi import C, codec, offsetof, sizeof

from npu_driver.error import KernelError

if TYPE_CHECKING:
    from npu_driver.dma import Pointer
    from npu_driver.job import Job
    from npu_driver.registers import Registers

RING_BYTES = int(C.NPU_JOBQ_SIZE)
HEADER_BYTES = sizeof("npu_job_queue_header")
FLAGS_OFFSET = offsetof("npu_job_queue_header", "flags")
INDICES = codec("npu_job_queue_header", "head", "tail")
TAIL_OFFSET = offsetof("npu_job_queue_header", "tail")
ENTRY = codec("npu_job_queue_entry", "batch_buf_va", "job_id", "doorbell_ps", "preempt_va", "preempt_bytes")
SLOTS = int(C.NPU_JOBQ_SLOTS)
DOORBELLS, DOORBELL_STRIDE = int(C.NPU_REG_DOORBELL_BASE), int(C.NPU_DOORBELL_STRIDE)
LEGACY_QUEUE = 256  # and following: ids of the queues of NPU_IOCTL_SUBMIT, one for each band
FIRST_QUEUE_ID = 2  # of NPU_IOCTL_CMDQ_CREATE


def priority_band(priority: int) -> int:
    """Return the firmware's band of an enum npu_job_priority: IDLE 0, NORMAL and DEFAULT 1, FOCUS 2, REALTIME 3."""
    return 1 if priority == C.NPU_JOB_PRIORITY_DEFAULT else priority - 1


class CommandQueue:
    """One queue of a context. `doorbell` is 0 until it is registered. Jobs end in ring order. `pages` is None once the ring was given back."""

    __slots__ = ("_flags", "_memory", "_tail", "cmdq_id", "doorbell", "jobs", "pages", "priority", "registered", "va")

    def __init__(self, cmdq_id: int, priority: int, flags: int, pages: Pointer, va: int) -> None:
        """`flags`: of struct npu_job_queue_header. `pages`: RING_BYTES of zeros, which the firmware has at `va`."""
        self.cmdq_id = cmdq_id
        self.priority = priority
        self.pages: Pointer | None = pages
        self.va = va
        self.doorbell = 0
        self.registered = False
        self.jobs: list[Job] = []  # in flight, oldest first
        self._memory = pages.bytes(RING_BYTES)
        self._flags = flags.to_bytes(4, "little")
        self.reset()

    @property
    def pa(self) -> int:
        """Physical address of the ring, which is there."""
        assert self.pages is not None
        return self.pages.memory.pa

    def reset(self) -> None:
        """Empty the ring, if it is there: the firmware forgot it."""
        if self.pages is not None:
            self._memory[:HEADER_BYTES] = bytes(HEADER_BYTES)
            self._memory[FLAGS_OFFSET : FLAGS_OFFSET + 4] = self._flags
        self._tail = 0  # the driver's own: what is in the ring, the firmware can write
        self.registered = False

    def is_untouched(self) -> bool:
        """Whether the firmware has taken none of the jobs in flight from the ring."""
        head, _ = INDICES.unpack_from(self._memory)
        return bool(self.jobs) and head < SLOTS and (self._tail - head) % SLOTS >= len(self.jobs)

    def check_room(self) -> None:
        """EBUSY when the ring is full; EIO when the firmware left a head outside of it."""
        head, _ = INDICES.unpack_from(self._memory)
        if head >= SLOTS:
            raise KernelError(errno.EIO, f"the firmware wrote head {head} in the ring of queue {self.cmdq_id}")
        if (self._tail + 1) % SLOTS == head:
            raise KernelError(errno.EBUSY, f"queue {self.cmdq_id} already holds {SLOTS - 1} jobs")

    def push(self, job: Job, batch_va: int, now_ps: int, registers: Registers, preempt: tuple[int, int]) -> None:
        """Put `job`, whose command buffer is at `batch_va`, in the ring and ring the doorbell. The ring has room.

        `preempt`: address and bytes of its preemption buffer, (0, 0) for none.
        """
        memory = self._memory
        tail = self._tail
        ENTRY.pack_into(memory, HEADER_BYTES + tail * ENTRY.size, batch_va, job.job_id, now_ps, *preempt)
        self._tail = tail = (tail + 1) % SLOTS
        memory[TAIL_OFFSET : TAIL_OFFSET + 4] = tail.to_bytes(4, "little")
        self.jobs.append(job)
        self.ring(registers)

    def last_slot(self) -> memoryview:
        """Return the slot that was written last."""
        at = HEADER_BYTES + (self._tail - 1) % SLOTS * ENTRY.size
        return self._memory[at : at + ENTRY.size]

    def ring(self, registers: Registers) -> None:
        """Ring the doorbell. The queue has one."""
        registers.write(DOORBELLS + self.doorbell * DOORBELL_STRIDE, C.NPU_DOORBELL_SET)
