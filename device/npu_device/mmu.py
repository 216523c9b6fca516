"""Address translation per context (SSID): walks the tables that the driver wrote, through a TLB cleared only by TLBI.

The TLB holds whole physically contiguous ranges instead of pages: a walk extends as far as the neighbouring leaves continue
the same physical run with the same rights. A stale entry stays until the driver invalidates it, as in hardware.
Faults go to the event queue of npu_hw.h and raise MMU_EVENT.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from npu_abi import C

from npu_device.dram import Bytes, Dram
from npu_device.faults import MemoryFault

PAGE_BYTES = int(C.NPU_PAGE_SIZE)
PAGE_SHIFT = int(C.NPU_PAGE_SHIFT)
ENTRIES = 512
VALID = int(C.NPU_PTE_VALID)
TABLE = int(C.NPU_PTE_TABLE)
READ_ONLY = int(C.NPU_PTE_RO)
SNOOP = int(C.NPU_PTE_SNOOP)
LEAF = int(C.NPU_PTE_AF | C.NPU_PTE_VALID)
ADDRESS = int(C.NPU_PTE_ADDR_MASK)
VA_END = 1 << int(C.NPU_VA_BITS)


Window = tuple[
    memoryview, int, bool
]  # a translated range: memory, the address where it starts, whether it is read-only


@dataclass(slots=True, frozen=True)
class MmuEvent:
    """A queued fault, as the EVT registers show it."""

    code: int
    ssid: int
    address: int
    info: int


@dataclass(slots=True, eq=False)
class _Tlb:
    """Translated ranges of one SSID, sorted by start: [starts[i], ends[i]) is memory[i]."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    memory: list[Bytes] = field(default_factory=list)
    raw: list[memoryview] = field(default_factory=list)  # of memory
    read_only: list[bool] = field(default_factory=list)
    pa: list[int] = field(default_factory=list)
    snooped: list[bool] = field(default_factory=list)
    joined: dict[tuple[int, int], Bytes] = field(default_factory=dict)  # [start, end) over several entries, in place


class Mmu:
    """The translation unit. `raise_event` is called after a fault was queued."""

    def __init__(self, dram: Dram, raise_event: Callable[[], None]) -> None:
        self._dram = dram
        self._raise_event = raise_event
        self.misses = 0  # walks, ever
        self.pages: dict[tuple[int, int], Window] = {}  # by SSID and page, as `window` found them
        self.era = 0  # changes whenever translations are dropped: until then those that succeeded succeed
        self.reset()

    def reset(self) -> None:
        """Disable translation, drop the TLB and the event queue."""
        self.era += 1
        self.enabled = False
        self.snooping = False  # the firmware has switched it on
        self.context_table_pa = 0
        self.events: deque[MmuEvent] = deque()
        self._tlb: dict[int, _Tlb] = {}
        self.pages.clear()

    def invalidate(self, ssid: int | None = None) -> None:
        """Drop the cached translations of `ssid`, or all."""
        self.era += 1
        self.pages.clear()
        if ssid is None:
            self._tlb.clear()
        else:
            self._tlb.pop(ssid, None)

    def report(self, fault: MemoryFault, ssid: int, engine: int) -> None:
        """Queue `fault` of `engine` (enum npu_engine) for the driver; a full queue drops it."""
        if len(self.events) < int(C.NPU_MMU_EVTQ_DEPTH):
            self.events.append(MmuEvent(fault.code, ssid, fault.address, int(fault.write) | engine << 8))
        self._raise_event()

    def locate(self, ssid: int, va: int, write: bool) -> tuple[Bytes, int]:
        """Return (memory, offset) of `va`: everything from offset to the end of `memory` is mapped contiguously.

        Raises MemoryFault.
        """
        tlb = self._tlb.get(ssid)
        if tlb is not None:
            index = bisect_right(tlb.starts, va) - 1
            if index >= 0 and va < tlb.ends[index]:
                if write and tlb.read_only[index]:
                    raise MemoryFault(va, C.NPU_MMU_EVT_PERMISSION, write)
                return tlb.memory[index], va - tlb.starts[index]
        self._fill(ssid, va, write)
        return self.locate(ssid, va, write)

    def window(self, ssid: int, va: int, write: bool) -> Window:
        """Return the entry of the TLB around `va`, for single structures, where an array costs more than its bytes.

        Raises MemoryFault. Whoever is in a hurry looks at `pages` before.
        """
        self.locate(ssid, va, write)
        tlb = self._tlb[ssid]
        index = bisect_right(tlb.starts, va) - 1
        found = self.pages[ssid, va >> PAGE_SHIFT] = tlb.raw[index], tlb.starts[index], tlb.read_only[index]
        return found

    def view(self, ssid: int, va: int, nbytes: int, write: bool) -> Bytes:
        """Return the bytes [va, va + nbytes) in place. Raises MemoryFault."""
        memory, offset = self.locate(ssid, va, write)
        if offset + nbytes <= len(memory):
            return memory[offset : offset + nbytes]
        segments = self.segments(ssid, va, nbytes, write)
        return self._join(ssid, va, nbytes) if write else np.concatenate(segments)

    def translated(self, ssid: int, va: int, nbytes: int) -> Bytes | None:
        """Return the bytes [va, va + nbytes), to read in place, when one range of the TLB has them all; else None. Never walks."""
        tlb = self._tlb.get(ssid)
        index = bisect_right(tlb.starts, va) - 1 if tlb is not None else -1
        if tlb is None or index < 0 or va + nbytes > tlb.ends[index]:
            return None
        return tlb.memory[index][va - tlb.starts[index] :][:nbytes]

    def snoops(self, ssid: int, va: int) -> bool:
        """Whether accesses to `va` look into the host's caches. Raises MemoryFault."""
        self.locate(ssid, va, False)
        tlb = self._tlb[ssid]
        return self.snooping and tlb.snooped[bisect_right(tlb.starts, va) - 1]

    def check(self, ssid: int, va: int, nbytes: int, write: bool) -> None:
        """Translate [va, va + nbytes), at least one byte. Raises MemoryFault."""
        memory, offset = self.locate(ssid, va, write)
        if offset + nbytes > len(memory):
            self.segments(ssid, va, nbytes, write)

    def physical(self, ssid: int, va: int, nbytes: int) -> list[tuple[int, int]]:
        """Return [va, va + nbytes) as physical addresses and bytes. Raises MemoryFault."""
        pieces = []
        while nbytes > 0:
            self.locate(ssid, va, False)
            tlb = self._tlb[ssid]
            index = bisect_right(tlb.starts, va) - 1
            size = min(tlb.ends[index] - va, nbytes)
            pieces.append((tlb.pa[index] + va - tlb.starts[index], size))
            va += size
            nbytes -= size
        return pieces

    def _join(self, ssid: int, va: int, nbytes: int) -> Bytes:
        """Return mapped bytes that are not physically contiguous as one array in place; the mapping lives with the TLB."""
        tlb = self._tlb[ssid]
        start, end = va & -PAGE_BYTES, -(-(va + nbytes) // PAGE_BYTES) * PAGE_BYTES
        found = tlb.joined.get((start, end))
        if found is None:
            pieces = []
            position = start
            while position < end:
                index = bisect_right(tlb.starts, position) - 1
                offset = position - tlb.starts[index]
                size = min(tlb.ends[index], end) - position
                pieces.append((tlb.pa[index] + offset, size))
                position += size
            found = tlb.joined[start, end] = self._dram.alias(pieces)
        return found[va - start : va - start + nbytes]

    def segments(self, ssid: int, va: int, nbytes: int, write: bool) -> list[Bytes]:
        """Return the bytes [va, va + nbytes) in place as physically contiguous pieces. Raises MemoryFault."""
        pieces = []
        while nbytes > 0:
            memory, offset = self.locate(ssid, va, write)
            piece = memory[offset : offset + nbytes]
            pieces.append(piece)
            va += len(piece)
            nbytes -= len(piece)
        return pieces

    def _table(self, pa: int, va: int, write: bool) -> np.ndarray[Any, np.dtype[np.uint64]]:
        try:
            return np.frombuffer(self._dram.view(pa, PAGE_BYTES), dtype="<u8")
        except ValueError:
            raise MemoryFault(va, C.NPU_MMU_EVT_TRANSLATION, write) from None

    def _fill(self, ssid: int, va: int, write: bool) -> None:
        """Walk the tables for `va` and cache the contiguous range around it."""
        self.misses += 1
        if not self.enabled:
            raise MemoryFault(va, C.NPU_MMU_EVT_TRANSLATION, write)
        if not 0 <= ssid < int(C.NPU_NUM_SSIDS):
            raise MemoryFault(va, C.NPU_MMU_EVT_BAD_SSID, write)
        if not 0 <= va < VA_END:
            raise MemoryFault(va, C.NPU_MMU_EVT_ADDR_SIZE, write)
        context = int(self._table(self.context_table_pa, va, write)[ssid])
        if not context & VALID:
            raise MemoryFault(va, C.NPU_MMU_EVT_BAD_SSID, write)
        root = context & ADDRESS
        leaf = self._leaf(root, va, write)
        extent, base = self._locate_pa(leaf, va, write)
        first = va & ~(PAGE_BYTES - 1)
        pages = 1 + self._run_length(root, first, leaf, (extent.size_bytes - base) // PAGE_BYTES)
        memory = extent.array[base : base + pages * PAGE_BYTES]
        self._insert(ssid, first, memory, leaf)

    def _insert(self, ssid: int, start: int, memory: Bytes, leaf: int) -> None:
        pa, read_only, snooped = leaf & ADDRESS, bool(leaf & READ_ONLY), bool(leaf & SNOOP)
        tlb = self._tlb.setdefault(ssid, _Tlb())
        index = bisect_right(tlb.starts, start)
        end = start + len(memory)
        while index < len(tlb.starts) and end > tlb.starts[index]:
            inside = memory[tlb.starts[index] - start :]
            rights = tlb.read_only[index], tlb.snooped[index]
            same = inside.ctypes.data == tlb.memory[index].ctypes.data and (read_only, snooped) == rights
            if not same or tlb.ends[index] > end:  # an entry that is cached already stays, stale or not
                end = tlb.starts[index]
                memory = memory[: end - start]
                break
            for column in (tlb.starts, tlb.ends, tlb.memory, tlb.raw, tlb.read_only, tlb.pa, tlb.snooped):
                del column[index]
        tlb.starts.insert(index, start)
        tlb.ends.insert(index, end)
        tlb.memory.insert(index, memory)
        tlb.raw.insert(index, memory.data)
        tlb.read_only.insert(index, read_only)
        tlb.pa.insert(index, pa)
        tlb.snooped.insert(index, snooped)

    def _locate_pa(self, leaf: int, va: int, write: bool) -> Any:
        try:
            return self._dram.locate(leaf & ADDRESS)
        except ValueError:
            raise MemoryFault(va, C.NPU_MMU_EVT_TRANSLATION, write) from None

    def _leaf_table(self, root: int, va: int, write: bool) -> np.ndarray[Any, np.dtype[np.uint64]]:
        table_pa = root
        for shift in (39, 30, 21):
            entry = int(self._table(table_pa, va, write)[va >> shift & (ENTRIES - 1)])
            if entry & (VALID | TABLE) != VALID | TABLE:
                raise MemoryFault(va, C.NPU_MMU_EVT_TRANSLATION, write)
            table_pa = entry & ADDRESS
        return self._table(table_pa, va, write)

    def _leaf(self, root: int, va: int, write: bool) -> int:
        entry = int(self._leaf_table(root, va, write)[va >> PAGE_SHIFT & (ENTRIES - 1)])
        if entry & LEAF != LEAF:
            raise MemoryFault(va, C.NPU_MMU_EVT_TRANSLATION, write)
        return entry

    def _run_length(self, root: int, va: int, leaf: int, limit: int) -> int:
        """Return how many pages after the one at `va` continue its physical run, at most `limit - 1`."""
        count = 0
        page = va >> PAGE_SHIFT
        while count < limit - 1:
            page = (va >> PAGE_SHIFT) + count + 1
            if page << PAGE_SHIFT >= VA_END:
                break
            try:
                table = self._leaf_table(root, page << PAGE_SHIFT, False)
            except MemoryFault:
                break
            index = page & (ENTRIES - 1)
            entries = table[index : index + limit - 1 - count]
            expected = np.uint64(leaf) + np.uint64(PAGE_BYTES) * np.arange(
                count + 1, count + 1 + len(entries), dtype=np.uint64
            )
            same = entries == expected
            good = len(entries) if same.all() else int(np.argmin(same))
            count += good
            if good < len(entries):
                break
        return count
