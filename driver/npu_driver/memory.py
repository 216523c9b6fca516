"""Physical pages: the device's allocator with the kernel's errno and its books."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from npu_abi import C

from npu_driver.error import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_driver.device_api import DramApi

PAGE = int(C.NPU_PAGE_SIZE)


class Memory:
    """Allocates contiguous pages of the device's DRAM; counts them against `capacity_bytes`."""

    __slots__ = ("_shares", "_sizes", "capacity_bytes", "dram", "followers", "free_bytes")

    def __init__(self, dram: DramApi, capacity_bytes: int) -> None:
        self.dram = dram
        self._sizes: dict[int, int] = {}
        self._shares: dict[int, int] = {}  # how many more have it, by address
        self.capacity_bytes = capacity_bytes
        self.free_bytes = capacity_bytes
        self.followers: dict[int, Callable[[int], None]] = {}  # called with an address when that is freed

    def alloc(self, pages: int, heap: int = 0) -> int:
        """Return the physical address of `pages` contiguous pages of poison. Processes see whole heaps: 0 is the kernel's own,
        others are those of contexts (`Context.heap_of`).

        ENOMEM when the memory is full; ENOBUFS when the machine that simulates it has no more.
        """
        size = pages * PAGE
        if size > self.free_bytes:
            raise KernelError(errno.ENOMEM, f"{size} bytes asked, {self.free_bytes} bytes of device memory free")
        try:
            pa = self.dram.alloc(size, heap)
        except OSError as error:
            raise KernelError(errno.ENOBUFS, f"no {size} bytes of host memory for the device's: {error}") from None
        self._sizes[pa] = size
        self.free_bytes -= size
        return pa

    def alloc_zeroed(self, pages: int) -> tuple[int, memoryview]:
        """Return (physical address, bytes) of `pages` contiguous pages of zeros."""
        pa = self.alloc(pages)
        view = self.view(pa, pages * PAGE)
        view[:] = bytes(len(view))
        return pa, view

    def free(self, pa: int) -> None:
        """Give back what `alloc` returned; it goes with the last who shares it."""
        if shares := self._shares.pop(pa, 0):
            if shares > 1:
                self._shares[pa] = shares - 1
            return
        self.free_bytes += self._sizes.pop(pa)
        self.dram.free(pa)
        if follower := self.followers.pop(pa, None):
            follower(pa)

    def size_of(self, pa: int) -> int:
        """Return how many bytes `alloc` gave at `pa`."""
        return self._sizes[pa]

    def view(self, pa: int, size: int) -> memoryview:
        """Return `size` bytes at `pa`, writable, inside one allocation."""
        return self.dram.view(pa, size)

    def share(self, pa: int) -> int:
        """Let one more have an allocation, and return its address: it is to be freed once more."""
        self._shares[pa] = self._shares.get(pa, 0) + 1
        return pa

    def close_heap(self, heap: int) -> None:
        """Give a heap's extents back to the machine when nothing is left in them."""
        self.dram.close_heap(heap)
