"""Linear-scan allocator of CMX: first fit over the free gaps of all tiles, from either end. No notion of time or of buffers' content."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class CmxAllocator:
    """Free gaps of `tiles` ranges of `tile_bytes`, `stride` bytes apart, in address order. No allocation crosses tiles.

    Addresses and sizes are multiples of `alignment`.
    """

    def __init__(self, tile_bytes: int, alignment: int, tiles: int = 1, stride: int = 0) -> None:
        self.alignment = alignment
        self.tiles = tiles
        self._stride = stride
        usable = tile_bytes - tile_bytes % alignment
        self.size_bytes = usable * tiles
        """Bytes of all tiles."""
        self.free_bytes = self.size_bytes
        """Bytes in all gaps."""
        self.used_bytes = [0] * tiles
        """Bytes that are taken, by tile."""
        self._gaps: list[tuple[int, int]] = [
            (t * stride, t * stride + usable) for t in range(tiles) if usable
        ]  # (start, end)

    def rounded(self, size_bytes: int) -> int:
        """Return the bytes that an allocation of `size_bytes` takes."""
        return max(-(-size_bytes // self.alignment), 1) * self.alignment

    def alloc(
        self, size_bytes: int, from_top: bool = False, tile: int | None = None, mirrored: bool = False
    ) -> int | None:
        """Take the lowest (or highest) gap that fits, in `tile` if one does; return its address, or None when no gap does.

        Mirrored it takes the lowest place that is free in all tiles; the address is the one in the first tile.
        """
        if mirrored:
            return self._alloc_mirrored(size_bytes)
        need = self.rounded(size_bytes)
        gaps = self._gaps
        order: Iterable[int] = range(len(gaps) - 1, -1, -1) if from_top else range(len(gaps))
        if tile is not None and self.tiles > 1:
            order = sorted(order, key=lambda i: self.tile_of(gaps[i][0]) != tile)
        for i in order:
            start, end = gaps[i]
            if end - start < need:
                continue
            self.free_bytes -= need
            self.used_bytes[self.tile_of(start)] += need
            if end - start == need:
                del gaps[i]
                return start
            if from_top:
                gaps[i] = (start, end - need)
                return end - need
            gaps[i] = (start + need, end)
            return start
        return None

    def _alloc_mirrored(self, size_bytes: int) -> int | None:
        need, stride = self.rounded(size_bytes), self._stride
        by_tile: list[list[tuple[int, int]]] = [[] for _ in range(self.tiles)]
        for start, end in self._gaps:
            tile = self.tile_of(start)
            by_tile[tile].append((start - tile * stride, end - tile * stride))
        common = by_tile[0]
        for gaps in by_tile[1:]:
            pairs = ((max(a, c), min(b, d)) for a, b in common for c, d in gaps)
            common = [(start, end) for start, end in pairs if start < end]
        address = next((start for start, end in common if end - start >= need), None)
        if address is not None:
            self.take(address, size_bytes, mirrored=True)
        return address

    def take(self, address: int, size_bytes: int, mirrored: bool = False) -> None:
        """Take a range that is free, mirrored in all tiles."""
        for tile in range(self.tiles if mirrored else 1):
            self._take(tile * self._stride + address, self.rounded(size_bytes))

    def _take(self, address: int, need: int) -> None:
        """Take a range that lies in a gap."""
        i = bisect_right(self._gaps, (address, self._gaps[-1][1])) - 1
        start, end = self._gaps[i]
        self._gaps[i : i + 1] = [gap for gap in ((start, address), (address + need, end)) if gap[0] < gap[1]]
        self.free_bytes -= need
        self.used_bytes[self.tile_of(address)] += need

    def alloc_all(self, sizes_bytes: list[tuple[int, bool, bool]], tile: int | None = None) -> list[int] | None:
        """Allocate every (size, from_top, mirrored) or none of them, in `tile` where they fit; addresses in the order given."""
        found = self._try_all(sizes_bytes, tile)
        if found is None and self.tiles > 1:  # the places that are asked for may split what would fit into the tiles
            found = self._try_all([(size, False, mirrored) for size, _, mirrored in sizes_bytes], None)
        return found

    def emptiest(self) -> int:
        """Return the tile that has most left, of equals the first."""
        return min(range(self.tiles), key=self.used_bytes.__getitem__)

    def tile_of(self, address: int) -> int:
        """Return the tile that an address is in."""
        return address // self._stride if self.tiles > 1 else 0

    def _try_all(self, sizes_bytes: list[tuple[int, bool, bool]], tile: int | None) -> list[int] | None:
        saved = list(self._gaps), self.free_bytes, list(self.used_bytes)
        found: dict[int, int] = {}
        for i in sorted(range(len(sizes_bytes)), key=lambda i: (not sizes_bytes[i][2], -sizes_bytes[i][0], i)):
            size, from_top, mirrored = sizes_bytes[i]
            address = self.alloc(size, from_top, tile, mirrored)
            if address is None:
                self._gaps, self.free_bytes, self.used_bytes = saved
                return None
            found[i] = address
        return [found[i] for i in range(len(sizes_bytes))]

    def free(self, address: int, size_bytes: int, mirrored: bool = False) -> None:
        """Give an allocation back; neighbouring gaps merge."""
        for tile in range(self.tiles if mirrored else 1):
            self._free(address + tile * self._stride, size_bytes)

    def _free(self, address: int, size_bytes: int) -> None:
        start, end = address, address + self.rounded(size_bytes)
        i = bisect_left(self._gaps, (start, end))
        if (i < len(self._gaps) and self._gaps[i][0] < end) or (i and self._gaps[i - 1][1] > start):
            raise AssertionError(f"CMX range {start:#x}..{end:#x} is freed twice")
        self.free_bytes += end - start
        self.used_bytes[self.tile_of(start)] -= end - start
        if i < len(self._gaps) and self._gaps[i][0] == end and not self._is_border(end):
            end = self._gaps.pop(i)[1]
        if i and self._gaps[i - 1][1] == start and not self._is_border(start):
            start = self._gaps.pop(i - 1)[0]
            i -= 1
        self._gaps.insert(i, (start, end))

    def _is_border(self, address: int) -> bool:
        return self.tiles > 1 and address % self._stride == 0
