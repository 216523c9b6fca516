"""The memory path cycle by cycle: what memory.c computes of a memory system, as an object of picoseconds and names.

It is alone in the time that `advance` gives it; who drives it advances it to a time before he starts or stops a transfer
there. Nothing but its calls decides what happens: same calls, same picoseconds and counters.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np

from npu_model import native
from npu_model.memory import MemorySystem, MemoryUnsupported
from npu_model.memory_runs import Runs

PS_PER_SECOND = 10**12
_NEVER = 1 << 62  # ticks: later than anything, and C's int64_t can add to it


@dataclass(frozen=True, slots=True)
class Background:
    """Traffic of a client that has no engine: bursts of contiguous bytes, at times that a seed decides."""

    client: str
    bytes_per_second: int
    burst_bytes: int = 256
    write_share: float = 0.0  # of the bursts
    address: int = 0  # bursts follow each other from here,
    span_bytes: int = 64 << 20  # and begin again after so many bytes
    seed: int = 1


class CycleMemory:
    """One memory system in time."""

    def __init__(self, system: MemorySystem) -> None:
        """Raises MemoryUnsupported where the C helpers are missing."""
        helpers = native.load()
        if helpers is None:
            raise MemoryUnsupported(
                "memory fidelity 'full' needs the C helpers: gcc is missing, or LIBNPU_NATIVE=0 is set"
            )
        self.system = system
        self._ffi, self._lib = helpers.ffi, helpers.lib
        self._hz = system.ticks_per_second
        self.links = system.links()
        state = self._lib.npu_memory_new(self._configuration())
        if state == self._ffi.NULL:
            raise MemoryError("no memory for the memory path")
        self._state = self._ffi.gc(state, self._lib.npu_memory_free)
        self._at = self._ffi.new("int64_t *")
        self._latencies = [self._ticks_of_ns(client.latency_ns) for client in system.clients]
        for number, client in enumerate(system.clients):
            self.set_priority(number, client.priority)

    def _configuration(self) -> Any:
        dram, noc, clients = self.system.dram, self.system.noc, self.system.clients
        c = self._ffi.new("struct npu_memory_config *")
        c.cycle_ticks = self._hz // noc.clock_hz
        c.channels, c.banks, c.page_bytes, c.access_bytes = (
            dram.channels,
            dram.banks,
            dram.page_bytes,
            dram.access_bytes,
        )
        c.interleave_bytes, c.bank_xor = dram.interleave_bytes, dram.bank_xor
        c.access_ticks = self._hz // dram.transfers_per_second * dram.burst_transfers * dram.chained_bursts
        for name in ("rcd", "rp", "ras", "wr", "rfc", "refi"):
            setattr(c, f"t_{name}", self._ticks_of_ns(getattr(dram, f"t{name}_ns")))
        c.t_cl, c.t_cwl = self._ticks_of_ns(dram.cl_ns), self._ticks_of_ns(dram.cwl_ns)
        c.t_rtw, c.t_wtr = self._ticks_of_ns(dram.read_to_write_ns), self._ticks_of_ns(dram.write_to_read_ns)
        c.queue_depth, c.age_limit_cycles = dram.queue_depth, dram.age_limit_cycles
        c.flit_bytes, c.hop_cycles, c.credits = noc.flit_bytes, noc.hop_cycles, noc.credits
        c.credit_return_cycles = noc.credit_return_cycles
        c.links, c.clients = len(self.links), len(clients)
        for number, (start, end) in enumerate(self.links):
            c.other[number] = -1 if noc.duplex or (end, start) not in self.links else self.links.index((end, start))
        hops = len(c.there) // len(c.hops)
        for number, client in enumerate(clients):
            c.hops[number] = len(client.route)
            for ways, links in zip((c.there, c.back), self.system.ways(client), strict=True):
                for hop, link in enumerate(links):
                    ways[number * hops + hop] = self.links.index(link)
            c.keep_flits[number] = client.keep_flits
            c.request_accesses[number], c.requests[number] = client.request_accesses, client.requests
        return c

    def _ticks_of_ns(self, ns: float) -> int:
        return ceil(Fraction(str(ns)) * self._hz / 10**9)

    def _ticks_of(self, ps: int) -> int:
        return -(-ps * self._hz // PS_PER_SECOND)

    def set_priority(self, client: int, priority: int) -> None:
        """Let `client` go before those of a lower priority, 0 to 7, at every port."""
        self._lib.npu_memory_set_priority(self._state, client, priority)

    def set_background(self, traffic: Background) -> None:
        """Start the traffic of a client, or end it: 0 bytes per second."""
        system = self.system
        accesses = -(-traffic.burst_bytes // system.dram.access_bytes)
        per_cycle = Fraction(traffic.bytes_per_second, accesses * system.dram.access_bytes * system.noc.clock_hz)
        rate = min(ceil(per_cycle * 2**32), 2**32)
        self._lib.npu_memory_set_background(
            self._state,
            system.client(traffic.client),
            rate,
            round(traffic.write_share * 2**32),
            accesses,
            traffic.address // system.dram.access_bytes * system.dram.access_bytes,
            max(traffic.span_bytes // system.dram.access_bytes, 1) * system.dram.access_bytes,
            traffic.seed,
        )

    def submit(self, client: int, at_ps: int, reads: Runs, writes: Runs, pace_ps: int) -> int:
        """Start a transfer at `at_ps`, its first request after the client's latency, its accesses spread over `pace_ps` or longer; return its
        number.

        With both sides it writes as large a share as it has read. The number is free again when `advance` has returned it,
        or after `cancel`.
        """
        sides = [np.ascontiguousarray(side, np.int64) for side in (reads, writes)]
        pointers = [self._ffi.from_buffer("int64_t[]", side) for side in sides]
        number = self._lib.npu_memory_submit(
            self._state,
            client,
            self._ticks_of(at_ps) + self._latencies[client],
            pointers[0],
            len(sides[0]),
            pointers[1],
            len(sides[1]),
            self._ticks_of(pace_ps),
        )
        if number < 0:
            raise MemoryError("no memory for a transfer")
        return int(number)

    def cancel(self, number: int) -> None:
        """Issue no more of a transfer; it never ends."""
        self._lib.npu_memory_cancel(self._state, number)

    def pause(self, number: int) -> None:
        """Issue no more of a transfer until `resume`."""
        self._lib.npu_memory_pause(self._state, number, 1, 0)

    def resume(self, number: int, at_ps: int) -> None:
        """Go on with a transfer, not before `at_ps`."""
        self._lib.npu_memory_pause(self._state, number, 0, self._ticks_of(at_ps))

    def advance(self, until_ps: int | None = None) -> tuple[int, int] | None:
        """Run up to `until_ps` (None: however long), or until a transfer ends: return its number and the time, or None."""
        until = _NEVER if until_ps is None else min(until_ps * self._hz // PS_PER_SECOND, _NEVER)
        number = int(self._lib.npu_memory_advance(self._state, until, self._at))
        return (number, -(-self._at[0] * PS_PER_SECOND // self._hz)) if number >= 0 else None

    @property
    def counters(self) -> Any:
        """The totals, struct npu_memory_counters, as they are now and will be."""
        return self._lib.npu_memory_read_counters(self._state)
