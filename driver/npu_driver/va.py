"""Device virtual addresses of one range: first fit, lowest address first, page granular, one unmapped guard page
after each area.

Knows numbers only; mapping is `mmu.py`. The guard page makes an overrun by one descriptor a translation fault instead
of a write into the neighbouring buffer object. Freed areas are in quarantine before they are used again: a use after
free is a translation fault, and not an access to what somebody has there by now.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections import deque

from npu_abi import C

from npu_driver.error import KernelError

GUARD_PAGES = 1  # chosen: the smallest that catches an overrun
QUARANTINED = 64  # chosen: few enough that all are known yet to who keeps things by address (the firmware's Transfers)
QUARANTINED_PART = 4  # chosen: at most the fourth part of the range is withheld


class VaRange:
    """Addresses `base` to `end` (exclusive, both page aligned). Free areas are a sorted list of [start, end). The last
    QUARANTINED areas that were freed are not among them, as long as there is room without.
    """

    __slots__ = ("_areas", "_free", "_quarantine", "_withheld", "base", "end")

    def __init__(self, base: int, end: int) -> None:
        self.base = base
        self.end = end
        self._free: list[tuple[int, int]] = [(base, end)]
        self._areas: dict[int, int] = {}
        self._quarantine: deque[tuple[int, int]] = deque()  # (start, bytes), oldest first
        self._withheld = 0  # bytes of it

    def alloc(self, pages: int) -> int:
        """Return the address of `pages` free pages. When no hole is large enough, the quarantine ends for the oldest areas,
        one by one; ENOSPC when none is then.
        """
        while (va := self._take(pages)) is None:
            if not self._quarantine:
                raise KernelError(
                    errno.ENOSPC, f"no {pages} free pages in device addresses {self.base:#x}..{self.end:#x}"
                )
            self._give_back_oldest()
        return va

    def _take(self, pages: int) -> int | None:
        size = (pages + GUARD_PAGES) * C.NPU_PAGE_SIZE
        for i, (start, end) in enumerate(self._free):
            if end - start >= size:
                if end - start == size:
                    del self._free[i]
                else:
                    self._free[i] = (start + size, end)
                self._areas[start] = size
                return start
        return None

    def free(self, va: int) -> None:
        """Give back the area that `alloc` returned at `va`, into quarantine."""
        size = self._areas.pop(va)
        self._quarantine.append((va, size))
        self._withheld += size
        while len(self._quarantine) > QUARANTINED or self._withheld * QUARANTINED_PART > self.end - self.base:
            self._give_back_oldest()

    def cancel(self, va: int) -> None:
        """Give back an area that `alloc` returned and nobody has seen."""
        self._give_back(va, self._areas.pop(va))

    def end_quarantine(self) -> None:
        """Let every address that is not in use be used."""
        while self._quarantine:
            self._give_back_oldest()

    def _give_back_oldest(self) -> None:
        start, size = self._quarantine.popleft()
        self._withheld -= size
        self._give_back(start, size)

    def _give_back(self, start: int, size: int) -> None:
        """Let an area be free; neighbours merge."""
        end = start + size
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
        """Give back what was taken at `va`; the user may ask for it again at once."""
        del self._areas[va]

    cancel = free
