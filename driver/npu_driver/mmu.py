"""Page tables: four levels of 512 entries in DRAM per context, and the table of contexts. Formats: npu_hw.h, "MMU
tables in DRAM".

Leaves are written in bulk, one NumPy slice per table of 2 MiB. Tables are allocated in slabs, because fresh device
memory is poison and must be zeroed before an entry points at it. A mapping that fails half-way has written no leaf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C

if TYPE_CHECKING:
    from npu_driver.memory import Memory
    from npu_driver.registers import Registers

ENTRIES = 512
SLAB_PAGES = 16  # chosen: root, two middle levels and leaf tables for 26 MiB without a second allocation
PAGE = 4096
_TABLE = C.NPU_PTE_TABLE | C.NPU_PTE_VALID
_LEAF = C.NPU_PTE_AF | C.NPU_PTE_VALID


class AddressSpace:
    """The translation of one SSID. `root_pa` goes into the context table."""

    __slots__ = ("_memory", "_slabs", "_spare", "_tables", "root_pa")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._slabs: list[int] = []
        self._spare: list[int] = []
        self._tables: dict[tuple[int, int], Any] = {}  # (shift, va >> shift) -> uint64[512]
        self.root_pa, self._tables[48, 0] = self._new_table()

    def map(self, va: int, pa: int, pages: int, *, read_only: bool = False, snooped: bool = False) -> None:
        """Map `pages` pages at `va` to the contiguous memory at `pa`. `snooped`: accesses look into the host's caches.

        All three are page aligned. ENOMEM without memory for tables.
        """
        attributes = (C.NPU_PTE_RO if read_only else 0) | (C.NPU_PTE_SNOOP if snooped else 0)
        self._write(va, pages, pa | _LEAF | attributes, PAGE)

    def unmap(self, va: int, pages: int) -> None:
        """Clear the leaves of `pages` pages at `va`. The caller invalidates the TLB before it reuses the memory."""
        self._write(va, pages, 0, 0)

    def missing_bytes(self, va: int, pages: int) -> int:
        """Return how much memory `map` would allocate for tables."""
        end = va + pages * PAGE - 1
        tables = self._tables
        missing = sum(
            (shift, index) not in tables
            for shift in (21, 30, 39)
            for index in range(va >> shift, (end >> shift) + 1)
        )  # fmt: skip
        slabs = -(-max(0, missing - len(self._spare)) // SLAB_PAGES)
        return slabs * SLAB_PAGES * PAGE

    def destroy(self) -> None:
        """Free all tables. The context table must not point here any more."""
        self._tables.clear()
        for pa in self._slabs:
            self._memory.free(pa)
        self._slabs.clear()

    def _write(self, va: int, pages: int, entry: int, step: int) -> None:
        runs = []
        while pages:
            first = (va >> 12) & (ENTRIES - 1)
            count = min(pages, ENTRIES - first)
            runs.append((self._table(21, va), first, count))
            va += count * PAGE
            pages -= count
        for table, first, count in runs:
            if count == 1:
                table[first] = entry
            else:
                table[first : first + count] = np.arange(count, dtype=np.uint64) * step + entry
            entry += count * step

    def _table(self, shift: int, va: int) -> Any:
        """Return the table that covers 1 << shift bytes around `va`, making it and its parents."""
        key = (shift, va >> shift)
        table = self._tables.get(key)
        if table is None:
            parent = self._table(shift + 9, va)
            pa, table = self._new_table()
            self._tables[key] = table
            parent[(va >> shift) & (ENTRIES - 1)] = pa | _TABLE
        return table

    def _new_table(self) -> tuple[int, Any]:
        if not self._spare:
            pa, _ = self._memory.alloc_zeroed(SLAB_PAGES)
            self._slabs.append(pa)
            self._spare = [pa + i * PAGE for i in reversed(range(SLAB_PAGES))]
        pa = self._spare.pop()
        return pa, np.frombuffer(self._memory.view(pa, PAGE), dtype="<u8")


class Mmu:
    """The device's MMU: its table of contexts, and the registers that enable it and drop cached translations."""

    __slots__ = ("_contexts", "_pa", "_registers", "skip_tlbi")

    def __init__(self, memory: Memory, registers: Registers) -> None:
        self._registers = registers
        self.skip_tlbi = False  # a mistake on purpose: `unmapped` does not tell the device
        self._pa, view = memory.alloc_zeroed(1)
        self._contexts = view.cast("Q")

    def enable(self) -> None:
        """Point the device at the context table and turn translation on."""
        self._registers.write(C.NPU_REG_MMU_CDTAB_HI, self._pa >> 32)
        self._registers.write(C.NPU_REG_MMU_CDTAB_LO, self._pa & 0xFFFFFFFF)
        self._registers.write(C.NPU_REG_MMU_TLBI_ALL, 1)
        self._registers.write(C.NPU_REG_MMU_CR0, C.NPU_MMU_ENABLE)

    def attach(self, ssid: int, space: AddressSpace) -> None:
        """Make `space` the translation of `ssid`."""
        self._contexts[ssid] = space.root_pa | C.NPU_PTE_VALID
        self.invalidate(ssid)

    def detach(self, ssid: int) -> None:
        """Leave `ssid` without a translation: every access of it faults from now on."""
        self._contexts[ssid] = 0
        self.invalidate(ssid)

    def invalidate(self, ssid: int) -> None:
        """Drop the device's cached translations of `ssid`."""
        self._registers.write(C.NPU_REG_MMU_TLBI_SSID, ssid)

    def unmapped(self, ssid: int) -> None:
        """Drop them because leaves of `ssid` were cleared."""
        if not self.skip_tlbi:
            self.invalidate(ssid)
