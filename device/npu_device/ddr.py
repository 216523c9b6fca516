"""External memory bandwidth as a fluid: transfers in progress share it max-min fairly, each at most at its port's rate.

A transfer that always gets its full rate ends on its port's clock edge; one that was slowed ends when its bytes are through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from npu_model.profile import Ddr

from npu_device.clock import PRIORITY_ENGINE, PS_PER_SECOND, Clock, Unit


@dataclass(slots=True, eq=False)
class Flow:
    """A transfer's data phase. `remaining_ps` is the time that it still needs at full rate."""

    unit: Unit
    action: int
    arg: Any
    demand: int  # bytes per second at full rate
    remaining_ps: int
    since_ps: int = 0
    share: int = 0  # bytes per second that it gets
    token: int = 0  # of the end event that counts; older ones are stale


class DdrChannel:
    """Bandwidth shared by the flows that are in it. Ends arrive as `unit.fire(action, (flow, token))`."""

    def __init__(self, clock: Clock, ddr: Ddr) -> None:
        self._clock = clock
        self._limit = ddr.bytes_per_second
        self._flows: list[Flow] = []

    def clear(self) -> None:
        """Forget every flow."""
        self._flows.clear()

    def join(self, flow: Flow) -> None:
        """Start `flow` now."""
        flow.since_ps = self._clock.now_ps
        self._flows.append(flow)
        self._share()

    def leave(self, flow: Flow) -> None:
        """Take `flow` out: it ended, or its job was aborted."""
        if flow in self._flows:
            self._flows.remove(flow)
            flow.token += 1
            if self._flows:
                self._share()

    def _share(self) -> None:
        now = self._clock.now_ps
        left, waiting = self._limit, len(self._flows)
        for flow in sorted(self._flows, key=lambda f: f.demand):  # stable: order of arrival among equals
            share = min(flow.demand, max(left // waiting, 1))
            left -= share
            waiting -= 1
            if share == flow.share:
                continue
            if flow.share:
                done = (now - flow.since_ps) * flow.share // flow.demand
                flow.remaining_ps = max(flow.remaining_ps - done, 0)
            flow.since_ps = now
            flow.share = share
            flow.token += 1
            end = now + -(-flow.remaining_ps * flow.demand // share)
            self._clock.at(end, PRIORITY_ENGINE, flow.unit, flow.action, (flow, flow.token))


def demand_of(nbytes: int, duration_ps: int) -> int:
    """Return the bytes per second of a transfer of `nbytes` in `duration_ps`, rounded up."""
    return -(-nbytes * PS_PER_SECOND // max(duration_ps, 1))
