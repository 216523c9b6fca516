"""Fidelity `full` of the memory path: network on chip and DDR controller cycle by cycle, beside the clock's events.

The two are simulated together, conservatively: before an event at time t is handled, memory has run up to t, so that what
the event does to transfers happens to the memory of that time; and a transfer that ends on the way becomes an event of its
own. So nothing runs ahead of the heap here.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from npu_model.memory import MemorySystem
from npu_model.memory_cycles import Background, CycleMemory

from npu_device.clock import PRIORITY_ENGINE, Clock, Unit

if TYPE_CHECKING:
    from npu_device.ddr import Flow
    from npu_device.interrupts import Interrupts

ENDED = -1  # number of a transfer that has ended and whose event is not handled yet
PEEK_PS = (
    100_000  # chosen: transfers in progress may end at any time; who looks for the next event looks again so much later
)


class CyclePath:
    """The memory path of one device, and its clock."""

    def __init__(self, system: MemorySystem) -> None:
        """Raises MemoryUnsupported without the C helpers."""
        self.memory = CycleMemory(system)
        self.clock = CoupledClock(self)
        self._flows: dict[int, tuple[Flow, Unit]] = {}  # by number of the transfer
        self._numbers: dict[Flow, int] = {}

    @property
    def idle(self) -> bool:
        """Whether no flow is in progress: one that is held up is."""
        return not self._numbers

    def settle(self, time_ps: int) -> None:
        """Run memory up to the next event or `time_ps`; transfers that end before become events."""
        clock, heap = self.clock, self.clock.heap
        while True:
            end = self.memory.advance(min(heap[0][0], time_ps) if heap else time_ps)
            if end is None:
                return
            flow, unit = self._flows.pop(end[0])
            self._numbers[flow] = ENDED
            self._end(flow, unit, max(end[1], clock.now_ps))

    def set_traffic(self, traffic: Background) -> None:
        """Start the traffic of a client now, or end it: 0 bytes per second."""
        self.memory.set_background(traffic)

    def set_priority(self, client: int, priority: int) -> None:
        """Let `client` go before those of a lower priority, 0 to 7."""
        self.memory.set_priority(client, priority)

    def _end(self, flow: Flow, unit: Unit, at_ps: int) -> None:
        heappush(self.clock.heap, (at_ps, PRIORITY_ENGINE, self.clock.next_sequence(), unit, flow.token, flow))

    def clear(self) -> None:
        """Forget every flow."""
        for number in self._flows:
            self.memory.cancel(number)
        self._flows.clear()
        self._numbers.clear()

    def enter(self, flow: Flow, unit: Unit, joined_ps: int, join_action: int) -> None:
        """Start `flow` now: how long its first data takes is the memory's affair."""
        reads, writes = flow.runs()
        client = self.memory.system.client(flow.client)
        number = self.memory.submit(client, self.clock.now_ps, reads, writes, flow.remaining_ps)
        self._flows[number] = flow, unit
        self._numbers[flow] = number

    def waiting_ps(self, nbytes: int) -> int:
        """Return 0: how long anything takes is the memory's affair."""
        return 0

    def arrive(self, flow: Flow, unit: Unit) -> None:
        """Nothing: the data phase begins by itself."""

    def leave(self, flow: Flow) -> None:
        """Forget a flow that has ended."""
        self._numbers.pop(flow, None)

    def withdraw(self, flow: Flow) -> None:
        """Take out a flow whose transfer is cancelled, if it is in; its event is void."""
        number = self._numbers.pop(flow, None)
        if number is None:
            return
        flow.token += 1
        if number != ENDED:
            self.memory.cancel(number)
            del self._flows[number]

    def pause(self, flow: Flow) -> None:
        """Let a flow ask for nothing more; what it has asked for goes on."""
        if self._numbers[flow] == ENDED:
            flow.token += 1  # it ends when it goes on
        else:
            self.memory.pause(self._numbers[flow])

    def join(self, flow: Flow, unit: Unit, at_ps: int) -> None:
        """Let a flow that was held up go on, now."""
        if self._numbers[flow] == ENDED:
            self._end(flow, unit, at_ps)
        else:
            self.memory.resume(self._numbers[flow], at_ps)


class CoupledClock(Clock):
    """A clock beside which a memory path runs."""

    __slots__ = ("_path",)

    def __init__(self, path: CyclePath) -> None:
        super().__init__()
        self._path = path

    def run_until(self, time_ps: int) -> None:
        """As Clock.run_until. `limit_ps` stays where no unit may run ahead."""
        while self._run_one(time_ps):
            pass
        if time_ps > self.now_ps:
            self.now_ps = time_ps

    def run_until_interrupt(self, time_ps: int, interrupts: Interrupts) -> bool:
        """As Clock.run_until_interrupt."""
        before = interrupts.edges
        while self._run_one(time_ps):
            if interrupts.edges != before:
                return True
        if time_ps > self.now_ps:
            self.now_ps = time_ps
        return False

    def _run_one(self, time_ps: int) -> bool:
        self._path.settle(time_ps)
        heap = self.heap
        if not heap or heap[0][0] > time_ps:
            return False
        self.now_ps, _, _, unit, action, arg = heappop(heap)
        unit.fire(action, arg)
        return True

    def next_event_ps(self) -> int | None:
        """Return the time of the next event, or an earlier one at which to look again; None as Clock.next_event_ps."""
        head = super().next_event_ps()
        if self._path.idle:
            return head
        soon = self.now_ps + PEEK_PS
        return soon if head is None else min(head, soon)
