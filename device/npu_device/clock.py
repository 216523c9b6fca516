"""The virtual clock: integer picoseconds, a heap of events, and the clock domains that count cycles on it.

Events are explicit records (time_ps, priority, sequence, unit, action, argument); popping one calls
`unit.fire(action, argument)`. No closure sits in the heap, so a reset is a `clear`.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from math import gcd
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from npu_device.interrupts import Interrupts

PS_PER_SECOND = 10**12
PRIORITY_ENGINE = 0  # completions first,
PRIORITY_CORE = 1  # then the management core, which sees all of them


class Unit(Protocol):
    """Something that receives events."""

    def fire(self, action: int, arg: Any) -> None:
        """Handle one event that was scheduled for this unit."""


Event = tuple[int, int, int, Unit, int, Any]


class Clock:
    """Time of one device. `now_ps` never goes back."""

    __slots__ = ("heap", "limit_ps", "next_sequence", "now_ps")

    def __init__(self) -> None:
        self.now_ps = 0
        self.limit_ps = -1  # while events run: the time up to which they may, for units that run ahead of the heap
        self.heap: list[Event] = []
        self.next_sequence = count(1).__next__

    def at(self, time_ps: int, priority: int, unit: Unit, action: int, arg: Any) -> None:
        """Schedule `unit.fire(action, arg)`; equal times run by priority, then in the order of scheduling."""
        heappush(self.heap, (time_ps, priority, self.next_sequence(), unit, action, arg))

    def run_until(self, time_ps: int) -> None:
        """Run every event with time <= `time_ps`, in order, then move to `time_ps`."""
        heap, before = self.heap, self.limit_ps
        self.limit_ps = time_ps
        while heap and heap[0][0] <= time_ps:
            self.now_ps, _, _, unit, action, arg = heappop(heap)
            unit.fire(action, arg)
        self.limit_ps = before
        if time_ps > self.now_ps:
            self.now_ps = time_ps

    def run_until_interrupt(self, time_ps: int, interrupts: Interrupts) -> bool:
        """Run events with time <= `time_ps` until one raised the interrupt line, and return True at that event's time; else
        move to `time_ps`.
        """
        heap, before = self.heap, interrupts.edges
        self.limit_ps = time_ps
        while heap and heap[0][0] <= time_ps:
            self.now_ps, _, _, unit, action, arg = heappop(heap)
            unit.fire(action, arg)
            if interrupts.edges != before:
                self.limit_ps = -1
                return True
        self.limit_ps = -1
        self.run_until(time_ps)
        return False

    def next_event_ps(self) -> int | None:
        """Return the time of the next event, or None when nothing will ever happen by itself."""
        return self.heap[0][0] if self.heap else None

    def cancel(self, unit: Unit, arg: Any) -> None:
        """Drop the events of `unit` with argument `arg`. Slow: for aborts."""
        self.heap[:] = [event for event in self.heap if event[3] is not unit or event[5] is not arg]
        heapify(self.heap)

    def clear(self) -> None:
        """Drop every scheduled event."""
        self.heap.clear()


class ClockDomain:
    """Cycles of one frequency, counted from time 0: cycle c is at ceil(c * 10^12 / hz) ps.

    `num / den` is hz / 10^12 in lowest terms: small numbers, which Python divides several times faster. Hot paths write
    the formulas below out.
    """

    __slots__ = ("den", "hz", "num")

    def __init__(self, hz: int) -> None:
        self.hz = hz
        common = gcd(hz, PS_PER_SECOND)
        self.num = hz // common
        self.den = PS_PER_SECOND // common

    def cycle_at(self, time_ps: int) -> int:
        """Return the number of whole cycles up to `time_ps`: the last cycle whose edge is at or before it."""
        return time_ps * self.num // self.den

    def next_edge(self, time_ps: int) -> int:
        """Return the first cycle whose edge is at or after `time_ps`."""
        return (time_ps - 1) * self.num // self.den + 1

    def ps_of(self, cycle: int) -> int:
        """Return the time of the edge of `cycle`."""
        return -(-cycle * self.den // self.num)

    def after(self, time_ps: int, cycles: int) -> int:
        """Return the time `cycles` after the first edge at or after `time_ps`."""
        return self.ps_of(self.next_edge(time_ps) + cycles)
