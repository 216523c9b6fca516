"""Buffer objects: device memory with a device virtual address in one context.

A freed object keeps its memory while a job in flight uses it. A CPU mapping is a memoryview of the pages themselves; freeing the object
ends it (memory with live exports of the view stays allocated until the file closes).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npu_abi import C

if TYPE_CHECKING:
    from npu_driver.job import Job

MMAP_BASE = 0x1_0000_0000  # chosen: mmap offsets start where no size could be mistaken for one


@dataclass(slots=True, eq=False)
class BufferObject:
    """One object. `handle` is valid in its context's table until BO_FREE."""

    handle: int
    flags: int
    va: int
    pa: int
    size: int  # whole pages
    mmap_offset: int  # 0 = not mappable
    jobs: int = 0  # in flight that name it
    freed: bool = False
    job: Job | None = field(default=None, repr=False)  # last job whose command buffer it is
    views: list[memoryview] = field(default_factory=list, repr=False)

    @property
    def pages(self) -> int:
        """Size in pages."""
        return self.size // int(C.NPU_PAGE_SIZE)

    def end_mappings(self) -> bool:
        """Release the views that mmap returned. False when someone still holds an export of one."""
        for view in self.views:
            try:
                view.release()
            except BufferError:
                return False
        self.views.clear()
        return True


def check_flags(flags: int) -> str | None:
    """Return why `flags` (enum npu_bo_flag) are refused with EINVAL, or None."""
    if flags & ~C.NPU_BO_FLAGS_ALL:
        return f"unknown buffer object flags {flags & ~C.NPU_BO_FLAGS_ALL:#x}"
    cache = flags & C.NPU_BO_CACHE_MASK
    if cache == C.NPU_BO_CACHE_MASK:
        return "NPU_BO_UNCACHED and NPU_BO_WC exclude each other"
    if cache == C.NPU_BO_UNCACHED:
        return "NPU_BO_UNCACHED: this platform does not allow uncached buffer objects"
    return None
