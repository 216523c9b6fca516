"""Physical memory: memfd extents, allocated in pages, physically contiguous per allocation.

Each heap has extents of its own, so that a process which is handed the extents of its memory has nothing of others in
them. They are sealed: nobody can make them shorter under those who have them mapped.
Fresh memory is poison (0xff bytes: NaN in every float type). With `compute=False` it is sparse and never touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from npu_abi import C

from npu_device.host_addresses import HOST_ADDRESSES, map_file

PAGE_BYTES = int(C.NPU_PAGE_SIZE)
EXTENT_BYTES = 64 << 20  # chosen: few descriptors, little waste; larger allocations get an extent of their own
BASE_PA = 1 << 32  # chosen: physical address 0 stays invalid, and truncated addresses miss
POISON = 0xFF

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

NO_HEAP = -1  # of what is left of a heap that was closed
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class OutOfMemory(MemoryError):
    """The device has not that much memory left."""


@dataclass(slots=True, eq=False)
class _Extent:
    """One memfd: physical addresses [pa, pa + size_bytes), and its free ranges as sorted [offset, size] pairs."""

    pa: int
    size_bytes: int
    fd: int
    array: Bytes
    free: list[list[int]]
    heap: int

    @property
    def is_free(self) -> bool:
        """Whether no allocation is left in it."""
        return self.free == [[0, self.size_bytes]]

    def close(self) -> None:
        """Close the memfd, unless the program has closed every descriptor there was."""
        with contextlib.suppress(OSError):
            os.close(self.fd)


class Dram:
    """The memory behind the device's bus. Addresses are physical."""

    def __init__(self, capacity_bytes: int, poison: bool) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._poison = poison
        self._extents: list[_Extent] = []
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}

    def alloc(self, size_bytes: int, heap: int = 0) -> int:
        """Return the physical address of a fresh, page-aligned allocation of a heap.

        Raises OutOfMemory, and OSError when this machine has not the memory to simulate it with.
        """
        if size_bytes <= 0:
            raise ValueError(f"allocation of {size_bytes} bytes")
        size = -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
        if self.used_bytes + size > self.capacity_bytes:
            raise OutOfMemory(
                f"{size} bytes asked, {self.capacity_bytes - self.used_bytes} of {self.capacity_bytes} free"
            )
        extent, offset = self._take(size, heap)
        pa = extent.pa + offset
        self._sizes[pa] = size
        self.used_bytes += size
        if self._poison:
            extent.array[offset : offset + size] = POISON
        return pa

    def free(self, pa: int) -> None:
        """Give an allocation back. Raises ValueError when `pa` is not one."""
        if pa not in self._sizes:
            raise ValueError(f"no allocation at physical address {pa:#x}")
        size = self._sizes.pop(pa)
        self.used_bytes -= size
        extent, offset = self.locate(pa)
        ranges = extent.free
        index = bisect_right(ranges, [offset, 0])
        ranges.insert(index, [offset, size])
        for i in (index, index - 1):
            if i >= 0 and i + 1 < len(ranges) and ranges[i][0] + ranges[i][1] == ranges[i + 1][0]:
                ranges[i][1] += ranges.pop(i + 1)[1]
        if extent.heap == NO_HEAP and extent.is_free:
            self._drop(extent)

    def close_heap(self, heap: int) -> None:
        """Give the extents of a heap back to the machine, each when nothing is left in it."""
        for extent in [extent for extent in self._extents if extent.heap == heap]:
            extent.heap = NO_HEAP
            if extent.is_free:
                self._drop(extent)

    def view(self, pa: int, size: int) -> memoryview:
        """Return a writable view of [pa, pa + size). Raises ValueError when it is not inside one extent."""
        extent, offset = self.locate(pa)
        if size < 0 or offset + size > extent.size_bytes:
            raise ValueError(f"physical range {pa:#x} + {size:#x} leaves the memory")
        return extent.array.data[offset : offset + size]

    def alias(self, pieces: Sequence[tuple[int, int]]) -> Bytes:
        """Return physical ranges (address, bytes), whole pages, as one array in place: a mapping of its own.

        Raises OSError when the system refuses the mapping.
        """
        window = mmap.mmap(-1, sum(size for _, size in pieces))  # reserves addresses; the pieces replace its pages
        array: Bytes = np.frombuffer(window, dtype=np.uint8)
        address = array.ctypes.data
        for pa, size in pieces:
            extent, offset = self.locate(pa)
            map_file(extent.fd, size, offset, at=address)
            address += size
        return array

    def fd(self, pa: int) -> tuple[int, int]:
        """Return (file descriptor, offset) of `pa` for mmap; the descriptor stays the memory's own."""
        extent, offset = self.locate(pa)
        return extent.fd, offset

    def find(self, view: memoryview) -> tuple[int, int, int]:
        """Return (file descriptor, offset in it, bytes of the file) of a view of this memory; ValueError when it is none."""
        address = np.frombuffer(view, np.uint8).ctypes.data
        for extent in self._extents:
            offset = address - extent.array.ctypes.data
            if 0 <= offset <= extent.size_bytes - len(view):
                return extent.fd, offset, extent.size_bytes
        raise ValueError("a view of other memory")

    def locate(self, pa: int) -> tuple[_Extent, int]:
        """Return the extent of `pa` and the offset in it. Raises ValueError when there is none."""
        index = bisect_right(self._starts, pa) - 1
        if index >= 0:
            extent = self._extents[index]
            if pa - extent.pa < extent.size_bytes:
                return extent, pa - extent.pa
        raise ValueError(f"no memory at physical address {pa:#x}")

    def _take(self, size: int, heap: int) -> tuple[_Extent, int]:
        for extent in self._extents:
            if extent.heap != heap:
                continue
            for index, (offset, free) in enumerate(extent.free):
                if free >= size:
                    if free == size:
                        extent.free.pop(index)
                    else:
                        extent.free[index] = [offset + size, free - size]
                    return extent, offset
        extent = self._grow(max(size, min(EXTENT_BYTES, self.capacity_bytes)), heap)
        extent.free = [[size, extent.size_bytes - size]] if extent.size_bytes > size else []
        return extent, 0

    def _drop(self, extent: _Extent) -> None:
        index = self._extents.index(extent)
        del self._extents[index], self._starts[index]
        extent.close()

    def _grow(self, size: int, heap: int) -> _Extent:
        last = self._extents[-1] if self._extents else None
        # A hole between extents: a physical range never runs on into the next one.
        pa = last.pa + last.size_bytes + EXTENT_BYTES if last else BASE_PA
        fd = os.memfd_create("npu-dram", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            array = HOST_ADDRESSES.map(fd, size)
        except BaseException:
            os.close(fd)
            raise
        extent = _Extent(pa, size, fd, array, [], heap)
        self._extents.append(extent)
        self._starts.append(pa)
        return extent

    def __del__(self) -> None:
        for extent in self._extents:
            extent.close()
