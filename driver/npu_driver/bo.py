"""Buffer objects: device memory with a device virtual address in one context.

A freed object keeps its memory while a job in flight uses it, or while a CPU mapping of it lives. A mapping is a
memoryview of the pages themselves; it ends when nothing refers to it any more.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
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
    mappings: list[weakref.ref[Any]] = field(default_factory=list, repr=False)

    @property
    def pages(self) -> int:
        """Size in pages."""
        return self.size // int(C.NPU_PAGE_SIZE)

    def map(self, view: memoryview) -> memoryview:
        """Return `view`, which shows its pages, as a mapping that this object knows of."""
        owner = np.frombuffer(view, np.uint8)
        self.mappings.append(weakref.ref(owner))
        return memoryview(owner)  # type: ignore[arg-type]  # an array is a buffer

    @property
    def is_mapped(self) -> bool:
        """Whether a CPU mapping lives."""
        self.mappings = [ref for ref in self.mappings if ref() is not None]
        return bool(self.mappings)


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
