"""Which numbers a memory system may hold: what memory.c has room for, and what keeps its arithmetic within 64 bits.

Every numeric field of `MemorySystem` has a row, dotted. Both ends are allowed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npu_model.memory import Client, MemorySystem

_NS = (0, 10**6)  # chosen: a millisecond
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
    "dram.trfc_ns": _NS,
    "dram.trefi_ns": (0, 10**9),
    "dram.read_to_write_ns": _NS,
    "dram.write_to_read_ns": _NS,
    "dram.queue_depth": (1, 64),
    "dram.age_limit_cycles": (1, 10**9),
    "noc.clock_hz": (_MHZ, 10**11),
    "noc.flit_bytes": (1, 1 << 20),
    "noc.hop_cycles": (1, 10**6),
    "noc.credit_return_cycles": (1, 10**6),
    "noc.credits": (1, 256),
    "clients.priority": (0, 7),
    "clients.keep_flits": (1, 1 << 20),
    "clients.request_accesses": (1, 1 << 20),
    "clients.requests": (1, 64),
    "clients.latency_ns": _NS,
}
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
    if dram.trefi_ns and dram.trefi_ns <= 2 * (dram.trfc_ns + dram.trp_ns):
        return f"dram.trefi_ns is {dram.trefi_ns}; more than twice trfc_ns and trp_ns is allowed, or 0"
    return _clients_problem(system, [client.name for client in system.clients])


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
