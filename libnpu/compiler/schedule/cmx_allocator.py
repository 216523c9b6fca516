"""Linear-scan allocator of one tile's CMX: first fit over the free gaps, from either end. No notion of time or of buffers' content."""

from __future__ import annotations

from bisect import bisect_left


class CmxAllocator:
    """Free gaps of a range of `size_bytes`, in address order. Addresses and sizes are multiples of `alignment`."""

    def __init__(self, size_bytes: int, alignment: int) -> None:
        self.alignment = alignment
        self.size_bytes = size_bytes - size_bytes % alignment
        self.free_bytes = self.size_bytes
        """Bytes in all gaps."""
        self._gaps: list[tuple[int, int]] = [(0, self.size_bytes)] if self.size_bytes else []  # (start, end)

    def rounded(self, size_bytes: int) -> int:
        """Return the bytes that an allocation of `size_bytes` takes."""
        return max(-(-size_bytes // self.alignment), 1) * self.alignment

    def alloc(self, size_bytes: int, from_top: bool = False) -> int | None:
        """Take the lowest (or highest) gap that fits; return its address, or None when no gap does."""
        need = self.rounded(size_bytes)
        gaps = self._gaps
        for i in range(len(gaps) - 1, -1, -1) if from_top else range(len(gaps)):
            start, end = gaps[i]
            if end - start < need:
                continue
            self.free_bytes -= need
            if end - start == need:
                del gaps[i]
                return start
            if from_top:
                gaps[i] = (start, end - need)
                return end - need
            gaps[i] = (start + need, end)
            return start
        return None

    def alloc_all(self, sizes_bytes: list[tuple[int, bool]]) -> list[int] | None:
        """Allocate every (size, from_top) or none of them; addresses in the order given."""
        saved, free_bytes = list(self._gaps), self.free_bytes
        found: dict[int, int] = {}
        for i in sorted(range(len(sizes_bytes)), key=lambda i: (-sizes_bytes[i][0], i)):
            address = self.alloc(*sizes_bytes[i])
            if address is None:
                self._gaps, self.free_bytes = saved, free_bytes
                return None
            found[i] = address
        return [found[i] for i in range(len(sizes_bytes))]

    def free(self, address: int, size_bytes: int) -> None:
        """Give an allocation back; neighbouring gaps merge."""
        start, end = address, address + self.rounded(size_bytes)
        i = bisect_left(self._gaps, (start, end))
        if (i < len(self._gaps) and self._gaps[i][0] < end) or (i and self._gaps[i - 1][1] > start):
            raise AssertionError(f"CMX range {start:#x}..{end:#x} is freed twice")
        self.free_bytes += end - start
        if i < len(self._gaps) and self._gaps[i][0] == end:
            end = self._gaps.pop(i)[1]
        if i and self._gaps[i - 1][1] == start:
            start = self._gaps.pop(i - 1)[0]
            i -= 1
        self._gaps.insert(i, (start, end))
