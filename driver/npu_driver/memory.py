"""Physical pages: the device's allocator with the kernel's errno and its books."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from npu_abi import C

from npu_driver.error import KernelError

if TYPE_CHECKING:
    from npu_driver.device_api import DramApi

PAGE = int(C.NPU_PAGE_SIZE)


class Memory:
    """Allocates contiguous pages of the device's DRAM; counts them against `capacity_bytes`."""

    __slots__ = ("_dram", "_sizes", "capacity_bytes", "free_bytes")

    def __init__(self, dram: DramApi, capacity_bytes: int) -> None:
        self._dram = dram
        self._sizes: dict[int, int] = {}
        self.capacity_bytes = capacity_bytes
        self.free_bytes = capacity_bytes

    def alloc(self, pages: int) -> int:
        """Return the physical address of `pages` contiguous pages of poison.

        ENOMEM when the memory is full; ENOBUFS when the machine that simulates it has no more.
        """
        size = pages * PAGE
        if size > self.free_bytes:
            raise KernelError(errno.ENOMEM, f"{size} bytes asked, {self.free_bytes} bytes of device memory free")
        try:
            pa = self._dram.alloc(size)
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
        """Give back what `alloc` returned."""
        self.free_bytes += self._sizes.pop(pa)
        self._dram.free(pa)

    def view(self, pa: int, size: int) -> memoryview:
        """Return `size` bytes at `pa`, writable, inside one allocation."""
        return self._dram.view(pa, size)
