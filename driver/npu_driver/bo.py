"""Buffer objects: device memory with a device virtual address in one context.

A freed object keeps its memory while a job in flight uses it, or while a CPU mapping of it lives. A mapping is a
memoryview of the pages themselves, or of what the CPU's caches show of them (cpu_cache.py); see mappings.py for when it ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npu_abi import C

from npu_driver.cpu_cache import policy_of

if TYPE_CHECKING:
    from npu_driver.file import Context
    from npu_driver.job import Job
    from npu_driver.mappings import Mappings
    from npu_driver.params import Params

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
    home: Context = field(repr=False)  # whose memory it is: of an imported object, its owner's
    jobs: int = 0  # in flight that name it
    owned: bool = True  # made by BO_CREATE: it may be exported
    freed: bool = False
    lingers: bool = False  # gone but for its memory, at which the CPU may still look
    job: Job | None = field(default=None, repr=False)  # last job whose command buffer it is
    token: int = 0  # by which BO_EXPORT names it, 0 for none
    preempt: tuple[int, int] | None = None  # address and bytes, once it was found fit for a preemption buffer
    mappings: Mappings = field(default_factory=dict, repr=False)

    @property
    def pages(self) -> int:
        """Size in pages."""
        return self.size // int(C.NPU_PAGE_SIZE)


def check_policy(flags: int, *, allow_uncached: bool) -> str | None:
    """Return why the cache policy of `flags` (enum npu_bo_flag) is refused with EINVAL, or None."""
    cache = flags & C.NPU_BO_CACHE_MASK
    if cache == C.NPU_BO_CACHE_MASK:
        return "NPU_BO_UNCACHED and NPU_BO_WC exclude each other"
    if cache and flags & C.NPU_BO_NON_SNOOPED:
        return "NPU_BO_NON_SNOOPED is for NPU_BO_CACHED alone"
    if cache == C.NPU_BO_UNCACHED and not allow_uncached:
        return "NPU_BO_UNCACHED: the module parameter allow_uncached is 0"
    return None


def check_flags(flags: int, *, allow_uncached: bool) -> str | None:
    """Return why `flags` of BO_CREATE are refused with EINVAL, or None."""
    known = C.NPU_BO_FLAGS_ALL & ~C.NPU_BO_SVA
    if flags & ~known:
        return f"unknown buffer object flags {flags & ~known:#x}"
    if flags & C.NPU_BO_SHAREABLE and flags & (C.NPU_BO_MAPPABLE | C.NPU_BO_SHAVE_MEM) != C.NPU_BO_MAPPABLE:
        return "NPU_BO_SHAREABLE is for NPU_BO_MAPPABLE without NPU_BO_SHAVE_MEM"
    return check_policy(flags, allow_uncached=allow_uncached)


def allows_uncached(params: Params) -> bool:
    """Whether uncached objects and mappings may be made. A board without snooping has no other way to share memory."""
    return bool(params.allow_uncached or not params.coherent)


def flags_in_force(flags: int, params: Params) -> int:
    """Return checked `flags` of an object as the board and the module's parameters have them.

    Weights are read-only to the device and cached as `weight_policy` says; on a board without snooping no cached object is snooped.
    """
    if flags & C.NPU_BO_READONLY_WEIGHT:
        policy = {"cached": 0, "uncached": C.NPU_BO_UNCACHED, "wc": C.NPU_BO_WC}[params.weight_policy]
        flags = flags & ~(C.NPU_BO_CACHE_MASK | C.NPU_BO_NON_SNOOPED) | policy | C.NPU_BO_READ_ONLY
    return int(flags | policy_of(flags, coherent=bool(params.coherent)))


def is_snooped(flags: int) -> bool:
    """Whether the device looks into the host's caches for an object; `flags` are those in force."""
    return not flags & (C.NPU_BO_CACHE_MASK | C.NPU_BO_NON_SNOOPED)
