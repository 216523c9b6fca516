"""The instruction cache of one SHAVE: set-associative, least recently used, tagged with context and address.

Only kernels go through it: the programs of an inference do not, their start-up cost stands for their fetch. A line keeps the bytes that it was
filled with: what writes to a program in memory, host or DMA, is not seen. Lines of a context go when its translations are
dropped (MMU_TLBI_*) and when it is released, so before its addresses can mean something else.
"""

from __future__ import annotations

from npu_model.profile import Shave

SSID_SHIFT = 48  # of a tag, above the address


class InstructionCache:
    """Lines by set. A line whose bytes are on their way is None."""

    __slots__ = ("_contexts", "_set_count", "_sets", "_ways", "line_bytes")

    def __init__(self, shave: Shave) -> None:
        self.line_bytes = shave.icache_line_bytes
        self._ways = shave.icache_ways
        self._set_count = shave.icache_sets
        self.clear()

    def clear(self) -> None:
        """Drop every line."""
        self._sets: dict[int, dict[int, bytes | None]] = {}  # oldest use first
        self._contexts: set[int] = set()  # that may have lines

    def drop(self, ssid: int) -> None:
        """Drop the lines of a context."""
        if ssid in self._contexts:
            self._contexts.remove(ssid)
            for lines in self._sets.values():
                for tag in [tag for tag in lines if tag >> SSID_SHIFT == ssid]:
                    del lines[tag]

    def span(self, va: int, nbytes: int) -> range:
        """Return the addresses of the lines that hold [va, va + nbytes)."""
        line = self.line_bytes
        return range(va & -line, va + nbytes, line)

    def held_bytes(self, ssid: int, va: int, nbytes: int) -> int:
        """Return how much of a program has a line, those on their way included."""
        if ssid not in self._contexts:
            return 0
        return sum(
            self._in_line(va, nbytes, at) for at in self.span(va, nbytes) if self._tag(ssid, at) in self._set(at)
        )

    def look_up(self, ssid: int, va: int, nbytes: int) -> tuple[list[bytes | None], int]:
        """Look up a program line by line; return the lines, None for those that have to be filled, and its bytes that were there.

        A line that is not there takes the place of the one of its set that was used least recently.
        """
        self._contexts.add(ssid)
        found: list[bytes | None] = []
        cached = 0
        for at in self.span(va, nbytes):
            lines, tag = self._set(at), self._tag(ssid, at)
            data = lines.pop(tag, None)
            if data is not None:
                cached += self._in_line(va, nbytes, at)
            elif len(lines) >= self._ways:
                del lines[next(iter(lines))]
            lines[tag] = data
            found.append(data)
        return found, cached

    def fill(self, ssid: int, at: int, data: bytes) -> None:
        """Give the line at an address its bytes, unless it was dropped or replaced meanwhile."""
        lines, tag = self._set(at), self._tag(ssid, at)
        if tag in lines:
            lines[tag] = data

    def abandon(self, ssid: int, va: int, nbytes: int) -> None:
        """Drop the lines of a program that were to be filled."""
        for at in self.span(va, nbytes):
            lines, tag = self._set(at), self._tag(ssid, at)
            if lines.get(tag, b"") is None:
                del lines[tag]

    def _set(self, at: int) -> dict[int, bytes | None]:
        return self._sets.setdefault(at // self.line_bytes % self._set_count, {})

    @staticmethod
    def _tag(ssid: int, at: int) -> int:
        return ssid << SSID_SHIFT | at

    def _in_line(self, va: int, nbytes: int, at: int) -> int:
        return min(at + self.line_bytes, va + nbytes) - max(at, va)
