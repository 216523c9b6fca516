"""The memory path as the engines know it, and fidelity `fast` of it: external memory bandwidth as a fluid.

Transfers in progress share it max-min fairly, each at most at its port's rate.

A transfer that always gets its full rate ends on its port's clock edge; one that was slowed ends when its bytes are through.
"""

from __future__ import annotations

from heapq import heappush
from typing import Protocol

from npu_model.memory_runs import Runs
from npu_model.profile import Ddr

from npu_device.clock import PRIORITY_ENGINE, Clock, Unit

ANNOUNCED = -1  # share of a flow whose latency is not over
FIRST_TOKEN = 2  # actions from here on are tokens


class Flow(Protocol):
    """A transfer in its data phase. `remaining_ps` is what it still needs at full rate."""

    client: str  # of the memory system
    demand: int  # bytes per millisecond at full rate
    remaining_ps: int
    since_ps: int
    share: int  # bytes per millisecond that it gets
    token: int  # action of the end event that counts; older ones are stale

    def runs(self) -> tuple[Runs, Runs]:
        """Return the contiguous runs in memory that it reads and that it writes: physical addresses and bytes."""


class MemoryPath(Protocol):
    """Where engines move bytes to and from external memory. The end of a flow arrives as `unit.fire(flow.token, flow)`."""

    @property
    def idle(self) -> bool:
        """Whether no flow is in progress or announced."""

    def clear(self) -> None:
        """Forget every flow."""

    def enter(self, flow: Flow, unit: Unit, joined_ps: int, join_action: int) -> None:
        """Start `flow`, whose share is 0. Its data phase begins at `joined_ps`, after the latency, where latency is a number;
        an event of the unit with `join_action` may have to call `arrive` then.
        """

    def arrive(self, flow: Flow, unit: Unit) -> None:
        """Begin the data phase."""

    def leave(self, flow: Flow) -> None:
        """Take out a flow that has ended."""

    def withdraw(self, flow: Flow) -> None:
        """Take out a flow whose transfer is cancelled; its events are void."""

    def pause(self, flow: Flow) -> None:
        """Hold up a flow in its data phase; `join` lets it go on."""

    def join(self, flow: Flow, unit: Unit, at_ps: int) -> None:
        """Let a flow that was held up go on, now."""


class DdrChannel:
    """Bandwidth shared by the flows that are in it. The end of a flow arrives as `unit.fire(flow.token, flow)`."""

    def __init__(self, clock: Clock, ddr: Ddr) -> None:
        self._clock = clock
        self._limit = ddr.bytes_per_second // 1000
        self._flows: list[tuple[Flow, Unit]] = []
        self.announced = 0  # flows that will join later

    def clear(self) -> None:
        """Forget every flow."""
        self._flows.clear()
        self.announced = 0

    @property
    def idle(self) -> bool:
        """Whether no flow is in the channel or on its way: the next one may join ahead of its time."""
        return not self._flows and not self.announced

    def enter(self, flow: Flow, unit: Unit, joined_ps: int, join_action: int) -> None:
        """Let `flow`, whose share is 0, join at `joined_ps`: now, ahead of its time, or by an event that calls `arrive`."""
        clock = self._clock
        if self.idle or joined_ps == clock.now_ps:
            self.join(flow, unit, joined_ps)
        else:
            self.announced += 1
            flow.share = ANNOUNCED
            heappush(clock.heap, (joined_ps, PRIORITY_ENGINE, clock.next_sequence(), unit, join_action, flow))

    def arrive(self, flow: Flow, unit: Unit) -> None:
        """Start a flow that was announced."""
        self.announced -= 1
        flow.share = 0
        self.join(flow, unit, self._clock.now_ps)

    def withdraw(self, flow: Flow) -> None:
        """Take out a flow whose transfer is cancelled, joined or only announced; its events are void."""
        if flow.share == ANNOUNCED:
            self.announced -= 1
            flow.share = 0
        self.leave(flow)

    def pause(self, flow: Flow) -> None:
        """Take out `flow`, which is in its data phase, and note what it still needs; `join` lets it go on."""
        done = (self._clock.now_ps - flow.since_ps) * flow.share // flow.demand
        flow.remaining_ps = max(flow.remaining_ps - done, 0)
        self.leave(flow)
        flow.share = 0

    def join(self, flow: Flow, unit: Unit, at_ps: int) -> None:
        """Start `flow` at `at_ps`, which is now unless the channel is idle; its share must be 0.

        Latency is the same for all, so a flow that starts later also joins later; one that goes on has none.
        """
        self._flows.append((flow, unit))
        if len(self._flows) > 1:
            self._share()
            return
        clock, demand = self._clock, flow.demand
        flow.since_ps = at_ps
        flow.share = share = min(demand, self._limit)
        flow.token += 1
        end = at_ps + -(-flow.remaining_ps * demand // share)
        heappush(clock.heap, (end, PRIORITY_ENGINE, clock.next_sequence(), unit, flow.token, flow))

    def leave(self, flow: Flow) -> None:
        """Take out `flow`, which may have ended."""
        if len(self._flows) == 1 and self._flows[0][0] is flow:
            self._flows.clear()
            flow.token += 1
            return
        for index, (other, _) in enumerate(self._flows):
            if other is flow:
                del self._flows[index]
                flow.token += 1
                if self._flows:
                    self._share()
                return

    def _share(self) -> None:
        now = self._clock.now_ps
        flows = self._flows
        left, waiting = self._limit, len(flows)
        if waiting > 1:
            flows = sorted(flows, key=_demand)  # stable: order of arrival among equals
        for flow, unit in flows:
            demand = flow.demand
            share = left // waiting or 1
            if share > demand:
                share = demand
            left -= share
            waiting -= 1
            if share == flow.share:
                continue
            start = now
            if flow.share:
                start = max(now, flow.since_ps)  # later than now: joined ahead of its time
                done = (start - flow.since_ps) * flow.share // demand
                flow.remaining_ps = max(flow.remaining_ps - done, 0)
            flow.since_ps = start
            flow.share = share
            flow.token += 1
            end = start + -(-flow.remaining_ps * demand // share)
            clock = self._clock
            heappush(clock.heap, (end, PRIORITY_ENGINE, clock.next_sequence(), unit, flow.token, flow))


def _demand(entry: tuple[Flow, Unit]) -> int:
    return entry[0].demand


def demand_of(nbytes: int, duration_ps: int) -> int:
    """Return the bytes per millisecond of a transfer of `nbytes` in `duration_ps`, rounded up."""
    return -(-nbytes * 10**9 // (duration_ps or 1))
