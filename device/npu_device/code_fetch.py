"""A SHAVE's way to DDR for instructions: one fill of its cache at a time, as a transfer among those of the DMA ports.

All missing lines are one transfer: their requests follow each other without a gap, so the latency is paid once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from npu_model.memory_forms import ClosedForms, Cost
from npu_model.memory_runs import NO_RUNS, Runs

from npu_device.clock import ClockDomain
from npu_device.ddr import FIRST_TOKEN, demand_of

if TYPE_CHECKING:
    from npu_device.fabric import Fabric
    from npu_device.shave import ShaveEngine

JOIN = 1  # action of an event: the latency is over


class CodeFetch:
    """The port, and the flow of its transfer."""

    client = "npu_code"
    __slots__ = (
        "_clock", "_ddr", "_domain", "_engine", "_latency_ps", "_rate", "demand", "remaining_ps", "share", "since_ps",
        "token",
    )  # fmt: skip

    def __init__(self, fabric: Fabric, domain: ClockDomain, engine: ShaveEngine) -> None:
        self._clock = fabric.clock
        self._ddr = fabric.ddr
        self._latency_ps = round(fabric.profile.ddr.latency_ns * 1000)
        self._rate = fabric.profile.shave.fetch_bytes_per_cycle
        self._domain = domain
        self._engine = engine
        self.demand = self.remaining_ps = self.since_ps = self.share = 0
        self.token = FIRST_TOKEN

    def runs(self) -> tuple[Runs, Runs]:
        """Return the lines that are missing, those side by side as one run."""
        return np.array(self._engine.missing_lines(), np.int64).reshape(-1, 2), NO_RUNS

    def cost(self, forms: ClosedForms) -> Cost:
        """Return what those runs cost."""
        return forms.cost(forms.system.client(self.client), *self.runs())

    def begin(self, nbytes: int) -> None:
        """Fetch that many bytes, then call the engine's `loaded`."""
        clock, domain = self._clock, self._domain
        first = domain.next_edge(clock.now_ps + self._latency_ps) + domain.cycle_at(self._ddr.waiting_ps(nbytes))
        joined, end = domain.ps_of(first), domain.ps_of(first + -(-nbytes // self._rate))
        self.remaining_ps = end - joined
        self.demand = demand_of(nbytes, end - joined)
        self.share = 0
        self._ddr.enter(self, self, joined, JOIN)

    def fire(self, action: int, arg: Any) -> None:
        """Enter the data phase, or end the fill."""
        if action == JOIN:
            self._ddr.arrive(self, self)
        elif action == self.token:
            self._ddr.leave(self)
            self._engine.loaded()

    def cancel(self) -> None:
        """Break the transfer off."""
        self._clock.cancel(self, self)
        self._ddr.withdraw(self)
