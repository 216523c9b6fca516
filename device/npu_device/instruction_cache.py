"""The instruction cache of one SHAVE: set-associative, least recently used, tagged with context and address.

Only kernels go through it: the programs of an inference do not, their start-up cost stands for their fetch. A line keeps the bytes that it was
filled with: what writes to a program in memory, host or DMA, is not seen. Lines of a context go when its translations are
dropped (MMU_TLBI_*) and when it is released, so before its addresses can mean something else.
"""

from __future__ import annotations

from collections import defaultdict

from npu_model.profile import Shave

SSID_SHIFT = 48  # of a tag, above the address


class InstructionCache:
    """Lines by set, and all their tags. A line whose bytes are on their way is None.

    What was asked last is kept until the cache changes: launches of one program follow each other.
    """

    __slots__ = ("_held", "_latest", "_set_count", "_sets", "_tags", "_ways", "line_bytes")

    def __init__(self, shave: Shave) -> None:
        self.line_bytes = shave.icache_line_bytes
        self._ways = shave.icache_ways
        self._set_count = shave.icache_sets
        self.clear()

    def clear(self) -> None:
        """Drop every line."""
        self._sets: defaultdict[int, dict[int, bytes | None]] = defaultdict(dict)  # oldest use first
        self._tags: set[int] = set()
        self._held: dict[tuple[int, int, int], int] = {}  # lines of programs, while `_tags` stays as it is
        self._latest: tuple[tuple[int, int, int], list[bytes]] | None = None  # the program that was used last, if whole

    def drop(self, ssid: int) -> None:
        """Drop the lines of a context."""
        for tag in [tag for tag in self._tags if tag >> SSID_SHIFT == ssid]:
            self._remove(tag)

    def span(self, va: int, nbytes: int) -> range:
        """Return the addresses of the lines that hold [va, va + nbytes)."""
        line = self.line_bytes
        return range(va & -line, va + nbytes, line)

    def held_lines(self, ssid: int, va: int, nbytes: int) -> int:
        """Return how many lines of a program are there, those on their way included."""
        count = self._held.get((ssid, va, nbytes))
        if count is None:
            count = len(self._tags.intersection(self._tags_of(ssid, va, nbytes)))
            self._held[ssid, va, nbytes] = count
        return count

    def look_up(self, ssid: int, va: int, nbytes: int) -> list[bytes | None]:
        """Look up a program line by line and return the lines, None for those that have to be filled.

        A line that is not there takes the place of the one of its set that was used least recently.
        """
        program = ssid, va, nbytes
        if self._latest is not None and self._latest[0] == program:  # its lines are the latest of their sets already
            return list(self._latest[1])
        sets, tags, ways, count = self._sets, self._tags, self._ways, self._set_count
        number = va // self.line_bytes
        found: list[bytes | None] = []
        for tag in self._tags_of(ssid, va, nbytes):
            lines = sets[number % count]
            number += 1
            if tag in lines:
                data = lines.pop(tag)
            else:
                data = None
                if len(lines) >= ways:
                    oldest = next(iter(lines))
                    del lines[oldest]
                    tags.remove(oldest)
                tags.add(tag)
                self._held.clear()
            lines[tag] = data
            found.append(data)
        whole = [data for data in found if data is not None]
        self._latest = (program, whole) if len(whole) == len(found) else None
        return found

    def fill(self, ssid: int, at: int, data: bytes) -> None:
        """Give the line at an address its bytes, unless it was dropped or replaced meanwhile."""
        tag = ssid << SSID_SHIFT | at
        if tag in self._tags:
            self._set(tag)[tag] = data
            self._latest = None

    def abandon(self, ssid: int, va: int, nbytes: int) -> None:
        """Drop the lines of a program that were to be filled."""
        for tag in self._tags.intersection(self._tags_of(ssid, va, nbytes)):
            if self._set(tag)[tag] is None:
                self._remove(tag)

    def _tags_of(self, ssid: int, va: int, nbytes: int) -> range:
        span, context = self.span(va, nbytes), ssid << SSID_SHIFT
        return range(context | span.start, context | span.stop, span.step)

    def _set(self, tag: int) -> dict[int, bytes | None]:
        address = tag & (1 << SSID_SHIFT) - 1
        return self._sets[address // self.line_bytes % self._set_count]

    def _remove(self, tag: int) -> None:
        self._tags.remove(tag)
        self._held.clear()
        self._latest = None
        del self._set(tag)[tag]
