"""An open file: one context of the device.

Its SSID and translation, buffer objects, queues and jobs; everything ends with it.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from npu_abi import C

from npu_driver.bo import MMAP_BASE, BufferObject, is_snooped
from npu_driver.error import KernelError
from npu_driver.memory import PAGE
from npu_driver.mmu import AddressSpace
from npu_driver.va import UserAddresses, VaRange

if TYPE_CHECKING:
    from collections import deque

    from npu_driver.job import Job
    from npu_driver.memory import Memory
    from npu_driver.mmu import Mmu
    from npu_driver.process import Process
    from npu_driver.queue import CommandQueue

MAX_JOBS = 256  # job ids of a context: the low byte
MAX_OBJECTS = int(C.NPU_MAX_OBJECTS)


class Context:
    """State of one open file.

    `lost` says why the context is gone (EBADFD for everything that reaches the device), else None.
    """

    __slots__ = (
        "_memory",
        "_mmu",
        "_next_handle",
        "_next_mmap",
        "_sequence",
        "_unmapped",
        "accesses",
        "busy_ps",
        "faults",
        "jobs",
        "jobs_done",
        "jobs_failed",
        "lost",
        "mmaps",
        "objects",
        "overflows",
        "owner",
        "queues",
        "ranges",
        "space",
        "ssid",
        "unwaited",
        "user_addresses",
    )  # fmt: skip

    def __init__(self, ssid: int, memory: Memory, mmu: Mmu, unmapped: deque[BufferObject], owner: Process) -> None:
        """`unmapped`, shared by all contexts: objects of which a mapping has ended."""
        self.ssid = ssid
        self.owner = owner
        self._memory = memory
        self._mmu = mmu
        self.space = AddressSpace(memory)
        self.ranges = {
            True: VaRange(C.NPU_VA_LOW_BASE, C.NPU_VA_LOW_END),
            False: VaRange(C.NPU_VA_USER_BASE, C.NPU_VA_USER_END),
        }  # by "has NPU_BO_SHAVE_MEM"
        self.user_addresses = UserAddresses()
        self.objects: dict[int, BufferObject] = {}
        self.mmaps: dict[int, BufferObject] = {}
        self.queues: dict[int, CommandQueue] = {}
        self.jobs: dict[int, Job] = {}  # in flight, by job id, oldest first
        self.unwaited: dict[int, Job] = {}  # finished, by handle of the command buffer
        self.lost: str | None = None
        self.faults = 0  # of its tasks: accesses, hangs
        self.jobs_done = self.jobs_failed = 0  # jobs that have ended; those of them that did not end with SUCCESS
        self.busy_ps = 0  # device time of jobs, summed
        self.accesses = bytearray()  # struct npu_access_record[] that nobody has read yet
        self.overflows = bytearray()  # struct npu_overflow_record[] that nobody has read yet
        self._next_handle = 1
        self._next_mmap = MMAP_BASE
        self._sequence = 0
        self._unmapped = unmapped
        mmu.attach(ssid, self.space)

    def check_usable(self) -> None:
        """EBADFD when a fault has killed the context."""
        if self.lost is not None:
            raise KernelError(errno.EBADFD, f"context {self.ssid} is lost: {self.lost}")

    def object(self, handle: int, code: int = errno.ENOENT) -> BufferObject:
        """Return the buffer object of `handle`; fails with errno `code` when there is none."""
        found = self.objects.get(handle)
        if found is None:
            raise KernelError(code, f"context {self.ssid} has no buffer object {handle}")
        return found

    def create_object(
        self, size_bytes: int, flags: int, user_va: int = 0, source: BufferObject | None = None
    ) -> BufferObject:
        """Allocate, map and publish a buffer object of whole pages. `flags` are checked, and those in force (bo.py). `user_va`:
        where it is to be, with NPU_BO_SVA. `source`: an object of another context whose memory it is to be.
        ENOSPC, ENOMEM, ENOBUFS; EBUSY when `user_va` is in use.
        """
        if len(self.objects) >= MAX_OBJECTS:
            text = f"context {self.ssid} has {len(self.objects)} buffer objects; NPU_MAX_OBJECTS is {MAX_OBJECTS}"
            raise KernelError(errno.ENOSPC, text)
        pages = -(-size_bytes // PAGE)
        memory = self._memory
        if pages * PAGE > memory.capacity_bytes:
            raise KernelError(
                errno.ENOMEM, f"{size_bytes} bytes asked, the device has {memory.capacity_bytes} bytes of memory"
            )
        self.sweep()
        own_bytes = 0 if source else pages * PAGE
        addresses = self._addresses(flags)
        va = addresses.alloc_at(user_va, pages) if isinstance(addresses, UserAddresses) else addresses.alloc(pages)
        tables_bytes = self.space.missing_bytes(va, pages)
        if own_bytes + tables_bytes > memory.free_bytes >= own_bytes and isinstance(addresses, VaRange):
            addresses.cancel(va)  # fewer tables are missing where something has been before
            addresses.end_quarantine()
            va = addresses.alloc(pages)
            tables_bytes = self.space.missing_bytes(va, pages)
        pa = None
        try:
            if own_bytes + tables_bytes > memory.free_bytes:
                raise KernelError(
                    errno.ENOMEM,
                    f"{size_bytes} bytes asked, {memory.free_bytes} bytes of device memory free, "
                    f"{tables_bytes} needed for page tables",
                )
            pa = memory.alloc(pages, self.heap_of(flags)) if source is None else memory.share(source.pa)
            self.space.map(va, pa, pages, read_only=bool(flags & C.NPU_BO_READ_ONLY), snooped=is_snooped(flags))
        except KernelError:
            addresses.cancel(va)
            if pa is not None:
                memory.free(pa)
            raise
        offset = 0
        if flags & C.NPU_BO_MAPPABLE:
            offset = self._next_mmap
            self._next_mmap += (pages + 1) * PAGE
        home, owned = (source.home, False) if source else (self, not user_va)
        bo = BufferObject(self._next_handle, flags, va, pa, pages * PAGE, offset, home, owned=owned)
        self._next_handle += 1
        self.objects[bo.handle] = bo
        if offset:
            self.mmaps[offset] = bo
        return bo

    def _addresses(self, flags: int) -> VaRange | UserAddresses:
        """Return where objects with these flags (enum npu_bo_flag) are."""
        return self.user_addresses if flags & C.NPU_BO_SVA else self.ranges[bool(flags & C.NPU_BO_SHAVE_MEM)]

    def heap_of(self, flags: int) -> int:
        """Return the heap of objects with these flags (enum npu_bo_flag): what other processes may open is in one of its own."""
        return self.ssid + (int(C.NPU_NUM_SSIDS) if flags & C.NPU_BO_SHAREABLE else 0)

    def free_object(self, bo: BufferObject) -> None:
        """Take the handle back; the memory goes when no job in flight needs it."""
        del self.objects[bo.handle]
        self.mmaps.pop(bo.mmap_offset, None)
        self.unwaited.pop(bo.handle, None)
        bo.freed = True
        if not bo.jobs:
            self.release(bo)

    def release(self, bo: BufferObject) -> None:
        """Unmap and free a freed object. Its pages stay while the CPU looks at them."""
        self.space.unmap(bo.va, bo.pages)
        self._mmu.unmapped(self.ssid)
        self._addresses(bo.flags).free(bo.va)
        self._let_go(bo)
        self.sweep()

    def sweep(self) -> None:
        """Free the pages of released objects, of all contexts, that the CPU looks at no more."""
        while self._unmapped:
            bo = self._unmapped.popleft()
            if bo.lingers:
                self._let_go(bo)

    def _let_go(self, bo: BufferObject) -> None:
        """Free the pages of a released object, as soon as the CPU looks at them no more."""
        bo.lingers = True
        if not bo.mappings:
            bo.lingers = False
            self._memory.free(bo.pa)

    def next_job_id(self) -> int:
        """Return an id that no job in flight has. EBUSY when all 256 are taken."""
        if len(self.jobs) >= MAX_JOBS:
            raise KernelError(errno.EBUSY, f"context {self.ssid} has {MAX_JOBS} jobs in flight")
        while True:
            self._sequence = (self._sequence + 1) & 0xFF
            job_id = self.ssid << 8 | self._sequence
            if job_id not in self.jobs:
                return job_id

    def destroy(self) -> None:
        """Free all memory and the translation.

        No job is in flight. Pages that the CPU still looks at outlive the file.
        """
        self._mmu.detach(self.ssid)
        for bo in self.objects.values():
            self._let_go(bo)
        self.objects.clear()
        self.sweep()
        self.space.destroy()
        for flags in (0, int(C.NPU_BO_SHAREABLE)):
            self._memory.close_heap(self.heap_of(flags))
