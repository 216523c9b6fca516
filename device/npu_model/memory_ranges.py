"""Which numbers a memory system may hold: what memory.c has room for, what keeps its arithmetic within 64 bits, times that pass in
few cycles, refreshes that leave time for accesses, and a rate that a profile may have.

Every numeric field of `MemorySystem` has a row, dotted. Both ends are allowed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npu_model.memory import Client, MemorySystem

_NS = (0, 1000)  # chosen: more than ten times what memory needs
_TRIP = (1, 1000)  # cycles, chosen: fifty times those of the shipped systems
_CLIENTS, _HOPS, _LINKS = 8, 8, 32  # NPU_MEMORY_CLIENTS and so on, of memory.h
_MHZ = 10**6  # rates are multiples of it, so that a second has few ticks

RANGES: dict[str, tuple[float, float]] = {
    "dram.transfers_per_second": (_MHZ, 10**11),
    "dram.channels": (1, 16),
    "dram.channel_bits": (8, 1 << 12),
    "dram.banks": (1, 64),
    "dram.page_bytes": (1, 1 << 20),
    "dram.burst_transfers": (1, 1 << 10),
    "dram.chained_bursts": (1, 1 << 6),
    "dram.interleave_bytes": (1, 1 << 30),
    "dram.trcd_ns": _NS,
    "dram.trp_ns": _NS,
    "dram.tras_ns": _NS,
    "dram.twr_ns": _NS,
    "dram.cl_ns": _NS,
    "dram.cwl_ns": _NS,
    "dram.trfc_ns": (0, 10**4),
    "dram.trefi_ns": (0, 10**6),
    "dram.read_to_write_ns": _NS,
    "dram.write_to_read_ns": _NS,
    "dram.queue_depth": (1, 64),
    "dram.age_limit_cycles": (1, 10**9),
    "noc.clock_hz": (_MHZ, 10**11),
    "noc.flit_bytes": (1, 1 << 20),
    "noc.hop_cycles": _TRIP,
    "noc.credit_return_cycles": _TRIP,
    "noc.credits": (1, 256),
    "clients.priority": (0, 7),
    "clients.keep_flits": (1, 1 << 20),
    "clients.request_accesses": (1, 1 << 20),
    "clients.requests": (1, 64),
    "clients.latency_ns": (0, 10**4),
}
LEAST_BYTES_PER_SECOND = 10**6  # that the DMA ports must get: of ddr.bytes_per_second of a profile
NPU_CLIENTS = ("npu_dma", "npu_code")  # which every system must have


def problem(system: MemorySystem) -> str | None:
    """Return what is wrong with a memory system, naming field, value and limits; None when nothing is."""
    for name, number in _numbers(system):
        low, high = RANGES[name]
        if not low <= number <= high:
            return f"{name} is {number}; {low} to {high} are allowed"
    dram, noc = system.dram, system.noc
    for name, rate in (("dram.transfers_per_second", dram.transfers_per_second), ("noc.clock_hz", noc.clock_hz)):
        if rate % (_MHZ // 1000):
            return f"{name} is {rate}; a multiple of 1000 is allowed"
    if dram.burst_transfers * dram.channel_bits % 8:
        return f"dram.burst_transfers is {dram.burst_transfers}; bursts of {dram.channel_bits} bit have no whole bytes"
    for name, size in (("dram.interleave_bytes", dram.interleave_bytes), ("dram.page_bytes", dram.page_bytes)):
        if size % dram.access_bytes:
            return f"{name} is {size}; it must be a multiple of an access, {dram.access_bytes}"
    return (
        _refresh_problem(system)
        or _clients_problem(system, [client.name for client in system.clients])
        or _rate_problem(system)
    )


def _refresh_problem(system: MemorySystem) -> str | None:
    """Check that between two refreshes a page can be opened, used and closed, with a write too: a command takes a cycle."""
    dram, clock_hz = system.dram, system.noc.clock_hz
    access_ns = dram.burst_transfers * dram.chained_bursts / dram.transfers_per_second * 1e9
    used_ns = max(dram.cl_ns, dram.cwl_ns + dram.twr_ns) + access_ns
    least = system.refresh_ns + max(used_ns, dram.tras_ns) + 4e9 / clock_hz
    if not dram.trefi_ns or dram.trefi_ns > least:
        return None
    times = ", ".join(
        f"{name} {getattr(dram, name)}"
        for name in ("trfc_ns", "trp_ns", "trcd_ns", "tras_ns", "cl_ns", "cwl_ns", "twr_ns")
    )
    return (
        f"dram.trefi_ns is {dram.trefi_ns}; more than {least:g} is allowed, or 0: a refresh, a page and a write between two, of {times}, and four "
        f"cycles of noc.clock_hz {clock_hz}"
    )


def _rate_problem(system: MemorySystem) -> str | None:
    rate = system.bytes_per_second("npu_dma")
    if rate >= LEAST_BYTES_PER_SECOND:
        return None
    rates = system.rates("npu_dma")
    values = {"clients": system.clients[system.client("npu_dma")], "noc": system.noc, "dram": system.dram}
    causes = []
    for name in min(rates, key=rates.__getitem__):
        group, field = name.split(".")
        causes.append(f"{name} is {getattr(values[group], field)}")
    return f"{', '.join(causes)}: npu_dma gets {rate} bytes per second; at least {LEAST_BYTES_PER_SECOND} are allowed"


def _clients_problem(system: MemorySystem, names: list[str]) -> str | None:
    if len(set(names)) < len(names) or len(names) > _CLIENTS:
        return f"clients has {names}; at most {_CLIENTS} of different names are allowed"
    for name in NPU_CLIENTS:
        if name not in names:
            return f"clients has {names}; it must have {name}"
    after: dict[str, str] = {}
    for client in system.clients:
        why = _route_problem(client, names, after)
        if why is not None:
            return why
    if len(system.links()) > _LINKS:
        return f"clients has routes over {len(system.links())} links; {_LINKS} are allowed"
    return None


def _route_problem(client: Client, names: list[str], after: dict[str, str]) -> str | None:
    """Check one route; `after` says where the way to the controller goes on from each router that others pass."""
    route = client.route
    if not 0 < len(route) <= _HOPS or len(set(route)) < len(route) or not {"ddr", *names}.isdisjoint(route):
        return f"the route of {client.name} is {route}; 1 to {_HOPS} different routers are allowed"
    for router, following in zip(route, [*route[1:], "ddr"], strict=True):
        if after.setdefault(router, following) != following:
            return f"the route of {client.name} goes from {router} to {following}, another one to {after[router]}"
    return None


def _numbers(system: MemorySystem) -> Iterator[tuple[str, float]]:
    for name in RANGES:
        group, field = name.split(".")
        member: Any = getattr(system, group)
        for part in member if isinstance(member, list) else [member]:
            yield name, getattr(part, field)
