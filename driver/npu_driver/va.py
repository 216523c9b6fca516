"""Device virtual addresses of one range: first fit, lowest address first, page granular, one unmapped guard page
after each area.

Knows numbers only; mapping is `mmu.py`. The guard page makes an overrun by one descriptor a translation fault instead
of a write into the neighbouring buffer object.
"""

from __future__ import annotations

import errno
from bisect import bisect_left

from npu_abi import C

from npu_driver.error import KernelError

GUARD_PAGES = 1  # chosen: the smallest that catches an overrun


class VaRange:
    """Addresses `base` to `end` (exclusive, both page aligned). Free areas are a sorted list of [start, end)."""

    __slots__ = ("_areas", "_free", "base", "end")

    def __init__(self, base: int, end: int) -> None:
        self.base = base
        self.end = end
        self._free: list[tuple[int, int]] = [(base, end)]
        self._areas: dict[int, int] = {}

    def alloc(self, pages: int) -> int:
        """Return the address of `pages` free pages. ENOSPC when no hole is large enough."""
        size = (pages + GUARD_PAGES) * C.NPU_PAGE_SIZE
        for i, (start, end) in enumerate(self._free):
            if end - start >= size:
                if end - start == size:
                    del self._free[i]
                else:
                    self._free[i] = (start + size, end)
                self._areas[start] = size
                return start
        raise KernelError(errno.ENOSPC, f"no {pages} free pages in device addresses {self.base:#x}..{self.end:#x}")

    def free(self, va: int) -> None:
        """Give back the area that `alloc` returned at `va`; neighbours merge."""
        start, end = va, va + self._areas.pop(va)
        i = bisect_left(self._free, (start, end))
        if i < len(self._free) and self._free[i][0] == end:
            end = self._free.pop(i)[1]
        if i > 0 and self._free[i - 1][1] == start:
            i -= 1
            start = self._free.pop(i)[0]
        self._free.insert(i, (start, end))


class UserAddresses:
    """Device addresses that are addresses of the user's too (NPU_BO_SVA): anywhere but where the device has something else."""

    __slots__ = ("_areas",)

    TAKEN = (
        (int(C.NPU_CMX_BASE), int(C.NPU_CMX_END)),
        (int(C.NPU_VA_LOW_BASE), int(C.NPU_VA_LOW_END)),
        (int(C.NPU_VA_USER_BASE), int(C.NPU_VA_USER_END)),
    )

    def __init__(self) -> None:
        self._areas: dict[int, int] = {}  # start -> end

    def alloc_at(self, va: int, pages: int) -> int:
        """Take `pages` pages at `va`, and return it. EBUSY when one of them is in use."""
        end = va + pages * int(C.NPU_PAGE_SIZE)
        for low, high in (*self.TAKEN, *self._areas.items()):
            if va < high and low < end:
                raise KernelError(errno.EBUSY, f"device addresses {max(va, low):#x}..{min(end, high):#x} are in use")
        self._areas[va] = end
        return va

    def free(self, va: int) -> None:
        """Give back what was taken at `va`."""
        del self._areas[va]
