"""The host's cache over memory that the device does not snoop: what the program maintains by lines, and what it forgets.

The cache of the model need not lose a byte for that (docs/coherency.md): by the order of stores, looks, flushes and invalidations
against jobs, a line that is written back or fetched at the worst time is found whatever it does this time. Accesses in no order are
not looked at: they are races.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from libnpu.checker import rules
from libnpu.checker.ranges import Ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libnpu.checker.allocations import Allocation
    from libnpu.checker.findings import Finding
    from libnpu.checker.shadow import Access, Clock

LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Held:
    """What the cache and memory have of some bytes."""

    stored: Access | None = None  # by the host, and not overwritten since
    cleaned: Access | None = None  # the flush that wrote that back
    written: Access | None = None  # by a job, and not fetched since
    dropped: Access | None = None  # an invalidation that has not fetched what a job wrote
    lost: tuple[Access, Access] | None = None  # a store to the rest of the line, and what a job wrote before

    def is_dirty(self, clock: Clock) -> bool:
        """Whether a store that whoever has the clock comes behind is in the cache alone, or may be."""
        return self.stored is not None and not any(
            by is not None and by.act.order > self.stored.act.order and by.is_before(clock)
            for by in (self.cleaned, self.dropped)
        )


class Cache:
    """The lines over an allocation."""

    def __init__(self, allocation: Allocation) -> None:
        self._allocation = allocation
        self._bytes = Ranges(allocation.shadow.size, Held())

    def store(self, start: int, end: int, access: Access) -> None:
        """The host stores: what a job wrote in the rest of a line, and was not fetched, goes when the line does."""
        self._bytes.change(*self._lines(start, end), partial(_overwritten, access))
        self._bytes.change(start, end, lambda _: Held(stored=access))

    def look(self, start: int, end: int, access: Access, clock: Clock) -> Iterator[Finding]:
        """The host loads; yield what it does not see."""
        for low, high, held in self._bytes.parts(start, end):
            if held.lost is not None:
                yield rules.line_shared(self._allocation, low, high, *(access.act for access in held.lost))
            elif held.written is not None and held.written.is_before(clock):
                dropped = held.dropped.act if held.dropped is not None else None
                yield rules.not_invalidated(self._allocation, low, high, held.written.act, dropped, access.act)
            elif held.stored is not None and held.dropped is not None and held.cleaned is None:
                yield rules.not_flushed(self._allocation, low, high, held.stored.act, access.act)

    def flush(self, start: int, end: int, access: Access, clock: Clock) -> None:
        """The host writes back the dirty lines of a range, whole."""
        for low, high, held in [*self._bytes.parts(*self._lines(start, end))]:
            if held.is_dirty(clock):
                self._bytes.change(low, high, lambda held: replace(held, cleaned=access))

    def invalidate(self, start: int, end: int, access: Access, clock: Clock) -> None:
        """The host drops the lines of a range and fetches them; dirty ones that it covers in part it writes back before."""
        low, high = self._lines(start, end)
        for edge, is_part in ((low, start > low), (max(high - 1, low) // LINE_BYTES * LINE_BYTES, end < high)):
            if is_part:
                self.flush(edge, edge + 1, access, clock)

        def fetched(held: Held) -> Held:
            if held.written is not None and held.written.is_before(clock):
                return replace(held, written=None, dropped=None)
            return replace(held, dropped=access)

        self._bytes.change(low, high, fetched)

    def read_by_job(self, start: int, end: int, access: Access, clock: Clock) -> Iterator[Finding]:
        """A job reads memory; yield what is not there."""
        for low, high, held in self._bytes.parts(start, end):
            if held.lost is not None:
                yield rules.line_shared(self._allocation, low, high, *(access.act for access in held.lost))
            elif (
                held.stored is not None
                and held.stored.is_before(clock)
                and not (held.cleaned is not None and held.cleaned.is_before(clock))
            ):
                yield rules.not_flushed(self._allocation, low, high, held.stored.act, access.act)

    def written_by_job(self, start: int, end: int, access: Access, clock: Clock) -> Iterator[Finding]:
        """A job writes memory; yield what a dirty line does to that."""
        for low, high, held in self._bytes.parts(*self._lines(start, end)):
            if held.stored is None or not held.is_dirty(clock):
                continue
            if high <= start or low >= end:
                yield rules.line_shared(self._allocation, low, high, held.stored.act, access.act)
            elif held.stored.is_before(clock):
                yield rules.dirty_over_dma(
                    self._allocation, max(low, start), min(high, end), held.stored.act, access.act
                )
        self._bytes.change(start, end, lambda held: Held(written=access, dropped=held.dropped))

    def is_known(self, start: int, end: int) -> bool:
        """Whether the cache and memory may differ there for a reason that was seen."""
        return any(held.stored or held.written for _, _, held in self._bytes.parts(start, end))

    def _lines(self, start: int, end: int) -> tuple[int, int]:
        return start // LINE_BYTES * LINE_BYTES, min(-(-end // LINE_BYTES) * LINE_BYTES, self._allocation.size)


def _overwritten(store: Access, held: Held) -> Held:
    return held if held.written is None else replace(held, lost=(store, held.written))
