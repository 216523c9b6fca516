"""Page tables: four levels of 512 entries in DRAM per context, and the table of contexts. Formats: npu_hw.h, "MMU
tables in DRAM".

Leaves are written in bulk, one NumPy slice per table of 2 MiB. Tables are allocated in slabs, because fresh device
memory is poison and must be zeroed before an entry points at it. A table without entries serves again: how many there
are depends on what is mapped, not on what was. A mapping that fails half-way has written no leaf.
"""

from __future__ import annotations

from dataclasses import dataclass
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
_PAGES = np.arange(ENTRIES, dtype=np.uint64) * PAGE


@dataclass(slots=True, eq=False)
class _Table:
    """One table, of zeros but for `used` entries. It covers the addresses with `index` above `shift` bits, if it is in use."""

    pa: int
    entries: Any  # uint64[512], in place
    used: int = 0
    shift: int = 48
    index: int = 0


class AddressSpace:
    """The translation of one SSID. `root_pa` goes into the context table."""

    __slots__ = ("_memory", "_slabs", "_spare", "_tables", "root_pa")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._slabs: list[int] = []
        self._spare: list[_Table] = []
        self._tables: dict[tuple[int, int], _Table] = {}  # by (shift, index)
        root = self._tables[48, 0] = self._new_table()
        self.root_pa = root.pa

    def map(self, va: int, pa: int, pages: int, *, read_only: bool = False, snooped: bool = False) -> None:
        """Map `pages` pages at `va` to the contiguous memory at `pa`. `snooped`: accesses look into the host's caches.

        All three are page aligned. ENOMEM without memory for tables.
        """
        attributes = (C.NPU_PTE_RO if read_only else 0) | (C.NPU_PTE_SNOOP if snooped else 0)
        self._write(va, pages, pa | _LEAF | attributes)

    def unmap(self, va: int, pages: int) -> None:
        """Clear the leaves of `pages` mapped pages at `va`. The caller invalidates the TLB before it reuses the memory."""
        self._write(va, pages, 0)

    def missing_bytes(self, va: int, pages: int) -> int:
        """Return how much memory `map` would allocate for tables."""
        end = va + pages * PAGE - 1
        tables = self._tables
        if (21, va >> 21) in tables and va >> 21 == end >> 21:
            return 0  # those above it are there too
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
        self._spare.clear()
        for pa in self._slabs:
            self._memory.free(pa)
        self._slabs.clear()

    def _write(self, va: int, pages: int, entry: int) -> None:
        """Write the leaves of `pages` pages, of which none is mapped, or all are when `entry` is 0."""
        runs = []
        while pages:
            first = (va >> 12) & (ENTRIES - 1)
            count = min(pages, ENTRIES - first)
            runs.append((self._table(21, va >> 21), first, count))
            va += count * PAGE
            pages -= count
        for table, first, count in runs:
            if count == 1:
                table.entries[first] = entry
            else:
                table.entries[first : first + count] = _PAGES[:count] + entry if entry else 0
            if entry:
                table.used += count
                entry += count * PAGE
            else:
                self._cleared(table, count)

    def _table(self, shift: int, index: int) -> _Table:
        """Return the table that covers the 1 << shift bytes from `index << shift`, making it and its parents."""
        table = self._tables.get((shift, index))
        if table is None:
            parent = self._table(shift + 9, index >> 9)
            table = self._tables[shift, index] = self._new_table()
            table.shift, table.index = shift, index
            parent.entries[index & (ENTRIES - 1)] = table.pa | _TABLE
            parent.used += 1
        return table

    def _cleared(self, table: _Table, count: int) -> None:
        """Note that `count` entries were cleared. A table without entries is taken out of its parent: it serves again."""
        table.used -= count
        if not table.used and table.shift < 48:
            self._spare.append(self._tables.pop((table.shift, table.index)))
            parent = self._tables[table.shift + 9, table.index >> 9]
            parent.entries[table.index & (ENTRIES - 1)] = 0
            self._cleared(parent, 1)

    def _new_table(self) -> _Table:
        if not self._spare:
            pa, _ = self._memory.alloc_zeroed(SLAB_PAGES)
            self._slabs.append(pa)
            for at in reversed(range(pa, pa + SLAB_PAGES * PAGE, PAGE)):
                self._spare.append(_Table(at, np.frombuffer(self._memory.view(at, PAGE), dtype="<u8")))
        return self._spare.pop()


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
