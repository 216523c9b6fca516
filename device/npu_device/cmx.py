"""On-chip scratchpads (CMX), one per tile, and the address space of a job: CMX window plus MMU.

CMX addresses in descriptors are relative to the job: the window of npu_hw.h, whose tile t is the job's t-th tile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from npu_abi import C

from npu_device.dram import POISON, Bytes
from npu_device.faults import MemoryFault
from npu_device.mmu import Mmu

BASE = int(C.NPU_CMX_BASE)
END = int(C.NPU_CMX_END)
STRIDE = int(C.NPU_CMX_TILE_STRIDE)


def in_window(address: int) -> bool:
    """Say whether a device virtual address lies in the CMX window."""
    return BASE <= address < END


class Cmx:
    """The scratchpads of a device, by physical tile. Allocated on first use.

    What is poison already is known, so that a job that used little of a tile does not have the next one fill all of it.
    """

    def __init__(self, tiles: int, workspace_bytes: int) -> None:
        self.workspace_bytes = workspace_bytes
        self._memory: list[Bytes | None] = [None] * tiles
        self._dirty = [False] * tiles  # whole
        self._written: list[dict[int, int]] = [{} for _ in range(tiles)]  # else by slice: [start, end) may be no poison

    def tile(self, index: int) -> Bytes:
        """Return the workspace of a physical tile, to read or write."""
        self._dirty[index] = True
        return self._allocated(index)

    def poison(self, index: int) -> None:
        """Fill a tile's workspace with poison."""
        memory, written = self._allocated(index), self._written[index]
        if self._dirty[index]:
            memory.fill(POISON)
        else:
            for start, end in written.items():
                memory[start:end].fill(POISON)
        self._dirty[index] = False
        written.clear()

    def slice(self, index: int, start: int, size_bytes: int) -> Bytes:
        """Return a slice of a physical tile, all poison; who writes to it tells `wrote`."""
        if self._dirty[index]:  # since then nobody has had a slice of it
            self.poison(index)
        memory = self._allocated(index)
        memory[start : self._written[index].get(start, start)].fill(POISON)
        self._written[index][start] = start
        return memory[start : start + size_bytes]

    def wrote(self, index: int, start: int, end: int) -> None:
        """Note that the slice of a tile that starts at `start` is written up to `end` at most."""
        self._written[index][start] = end

    def _allocated(self, index: int) -> Bytes:
        memory = self._memory[index]
        if memory is None:
            memory = self._memory[index] = np.full(self.workspace_bytes, POISON, dtype=np.uint8)
        return memory


class AddressSpace:
    """What the engines see that work for one job. `tiles` are the physical tiles behind its window."""

    __slots__ = ("_cmx", "_mmu", "ssid", "tiles")

    def __init__(self, mmu: Mmu, cmx: Cmx, ssid: int, tiles: tuple[int, ...]) -> None:
        self._mmu = mmu
        self._cmx = cmx
        self.ssid = ssid
        self.tiles = tiles

    @property
    def workspace_bytes(self) -> int:
        """Bytes of each tile in the window."""
        return self._cmx.workspace_bytes

    @property
    def era(self) -> int:
        """Changes whenever translations are dropped."""
        return self._mmu.era

    def translated(self, address: int, nbytes: int) -> Bytes | None:
        """Return bytes of device memory, to read in place, when they are translated already and lie in one piece; else None."""
        if address < END and address + nbytes > BASE:
            return None
        return self._mmu.translated(self.ssid, address, nbytes)

    def locate(self, address: int, write: bool) -> tuple[Bytes, int]:
        """Return (memory, offset) of an address; from there to the end of `memory` all is mapped. Raises MemoryFault."""
        if BASE <= address < END:
            tile, offset = divmod(address - BASE, STRIDE)
            if tile >= len(self.tiles) or offset >= self._cmx.workspace_bytes:
                raise MemoryFault(address, C.NPU_MMU_EVT_CMX_RANGE, write)
            return self._cmx.tile(self.tiles[tile]), offset
        return self._mmu.locate(self.ssid, address, write)

    def check(self, address: int, nbytes: int, write: bool) -> None:
        """Translate [address, address + nbytes), at least one byte, as `view` does, without touching memory. Raises MemoryFault."""
        if not BASE <= address < END:
            if address < BASE < address + nbytes:
                raise MemoryFault(BASE, C.NPU_MMU_EVT_CMX_RANGE, write)
            self._mmu.check(self.ssid, address, nbytes, write)
            return
        tile, offset = divmod(address - BASE, STRIDE)
        size = self._cmx.workspace_bytes
        if tile >= len(self.tiles) or offset >= size:
            raise MemoryFault(address, C.NPU_MMU_EVT_CMX_RANGE, write)
        if offset + nbytes > size:
            raise MemoryFault(address + size - offset, C.NPU_MMU_EVT_CMX_RANGE, write)

    def physical(self, address: int, nbytes: int) -> list[tuple[int, int]]:
        """Return a range of device memory as physical addresses and bytes. Raises MemoryFault."""
        return self._mmu.physical(self.ssid, address, nbytes)

    def view(self, address: int, nbytes: int, write: bool) -> Bytes:
        """Return [address, address + nbytes) in place as uint8. Raises MemoryFault."""
        if BASE <= address < END:
            memory, offset = self.locate(address, write)
            if offset + nbytes > len(memory):
                raise MemoryFault(address + len(memory) - offset, C.NPU_MMU_EVT_CMX_RANGE, write)
            return memory[offset : offset + nbytes]
        if address < BASE < address + nbytes:  # runs into the window
            raise MemoryFault(BASE, C.NPU_MMU_EVT_CMX_RANGE, write)
        return self._mmu.view(self.ssid, address, nbytes, write)

    def array(
        self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any], write: bool = True
    ) -> np.ndarray[Any, np.dtype[Any]]:
        """Return a strided array over CMX, in place. Raises MemoryFault when a byte of it leaves the tile."""
        if not BASE <= address < END:
            raise MemoryFault(address, C.NPU_MMU_EVT_CMX_RANGE, write)
        memory, offset = self.locate(address, write)
        try:
            return np.ndarray(shape, dtype, memory.data, offset, strides)
        except (TypeError, ValueError):
            raise MemoryFault(address, C.NPU_MMU_EVT_CMX_RANGE, write) from None


class SliceSpace(AddressSpace):
    """What a block of a kernel sees: of CMX its SHAVE's slice of one tile alone, at the start of the window. It is poison at first."""

    __slots__ = ("_memory", "_written", "offset", "size_bytes")

    def __init__(self, mmu: Mmu, cmx: Cmx, ssid: int, tile: int, offset: int, size_bytes: int) -> None:
        super().__init__(mmu, cmx, ssid, (tile,))
        self.offset = offset  # in the tile
        self.size_bytes = size_bytes
        self._memory: Bytes | None = None  # until it is first used
        self._written = 0  # bytes from the start of the slice that may have been written

    @property
    def workspace_bytes(self) -> int:
        """Bytes of each tile in the window."""
        return self.size_bytes

    def locate(self, address: int, write: bool) -> tuple[Bytes, int]:
        """As AddressSpace.locate."""
        if not BASE <= address < END:
            return self._mmu.locate(self.ssid, address, write)
        offset = address - BASE
        return self._slice(offset, self.size_bytes - offset, write), offset

    def view(self, address: int, nbytes: int, write: bool) -> Bytes:
        """As AddressSpace.view."""
        if not BASE <= address < END:
            return super().view(address, nbytes, write)
        offset = address - BASE
        end = offset + nbytes
        memory = self._memory
        if memory is None or end > (self._written if write else self.size_bytes):
            memory = self._slice(offset, nbytes, write)
        return memory[offset:end]

    def _slice(self, offset: int, nbytes: int, write: bool) -> Bytes:
        """Return the slice for an access. Raises MemoryFault."""
        end = offset + nbytes
        if offset >= self.size_bytes or end > self.size_bytes:
            raise MemoryFault(BASE + max(offset, self.size_bytes), C.NPU_MMU_EVT_CMX_RANGE, write)
        memory = self._memory
        if memory is None:  # nobody but this block can see the slice: it is poison when the block first looks
            memory = self._memory = self._cmx.slice(self.tiles[0], self.offset, self.size_bytes)
        if write and end > self._written:
            self._written = end
            self._cmx.wrote(self.tiles[0], self.offset, self.offset + end)
        return memory

    def check(self, address: int, nbytes: int, write: bool) -> None:
        """As AddressSpace.check."""
        if BASE <= address < END and address - BASE + nbytes > self.size_bytes:
            raise MemoryFault(max(address, BASE + self.size_bytes), C.NPU_MMU_EVT_CMX_RANGE, write)
        super().check(address, nbytes, write)
