"""`npu soc-diag`: routers and links between the device and memory, the credits of their ports, and what the CPU's traffic does to the NPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npu_model.profile import load_profile

from libnpu.tools import memory_loads
from libnpu.tools.console import ToolError, format_count, print_json, print_table, progress
from libnpu.tools.memory_loads import GB, Measured

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from npu_model.memory import MemorySystem

STREAM = "npu_dma"  # the client whose ports are looked at
LOADS = (0.0, 0.2, 0.4, 0.6, 0.8)  # of a link, that the CPU asks for in the contention experiment: chosen


@dataclass(frozen=True, slots=True)
class Contention:
    """One point of the experiment: a stream of the NPU beside the CPU's traffic."""

    cpu_bytes_per_second: int
    priority: int  # of the NPU
    npu_bytes_per_second: float
    loss: float  # of what the NPU has alone
    occupancy: float  # of the fullest port of the NPU, 0 to 1
    pins: float  # share of time with data on them


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    memory_loads.add_profile_argument(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--topology", action="store_true", help="clients, routers, links and their credits")
    what.add_argument("--credits", action="store_true", help="credits in use at each port while the NPU loads a stream")
    what.add_argument(
        "--experiment", choices=("contention",), help="the NPU's bandwidth with and without the CPU's traffic"
    )
    parser.add_argument("--bg", metavar="cpu=GB/s", default="", help="of --credits: traffic of other clients meanwhile")
    parser.add_argument(
        "--qos",
        type=memory_loads.parse_priority,
        metavar="N",
        default=None,
        help="priority of the NPU, 0 to 7: of --credits, and (7) of the experiment",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print what was asked for."""
    _check_options(options)
    system = load_profile(options.profile).memory_system
    if options.topology:
        return _print_topology(system, options.json)
    if options.credits:
        return _print_credits(system, options)
    return _print_contention(system, options)


def _check_options(options: argparse.Namespace) -> None:
    """Raise ToolError for an option that has nothing to do with what is asked for."""
    if options.bg and not options.credits:
        raise ToolError(f"--bg {options.bg}: goes with --credits")
    if options.qos is not None and options.topology:
        raise ToolError(f"--qos {options.qos}: goes with --credits or --experiment")


def topology(system: MemorySystem) -> dict[str, Any]:
    """Return clients with their ways to the controller and back, and the links, in bytes per second."""
    noc = system.noc
    return {
        "memory": system.name,
        "link_bytes_per_second": noc.link_bytes_per_second,
        "credits": noc.credits,
        "credit_trip_cycles": noc.hop_cycles + noc.credit_return_cycles,
        "port_bytes_per_second": noc.port_bytes_per_second,
        "routers": list(dict.fromkeys(router for client in system.clients for router in client.route)),
        "clients": [
            {
                "name": client.name,
                "route": [*client.route, "ddr"],
                "priority": client.priority,
                "idle_latency_ns": round(system.latency_ns(client.name), 3),
            }
            for client in system.clients
        ],
        "links": [
            {
                "from": start,
                "to": end,
                "clients": [c.name for c in system.clients if any((start, end) in way for way in system.ways(c))],
            }
            for start, end in system.links()
        ],
    }


def _print_topology(system: MemorySystem, as_json: bool) -> int:
    found = topology(system)
    if as_json:
        print_json(found)
        return 0
    rows = [
        (c["name"], " > ".join(c["route"]), str(c["priority"]), f"{c['idle_latency_ns']:.1f} ns")
        for c in found["clients"]
    ]
    columns = ("client", "way to memory", "priority", "first data, idle")
    print_table(f"{system.name}: {len(found['routers'])} routers", columns, rows, left=2)
    rate = format_count(found["link_bytes_per_second"], "B/s")
    links = [(f"{link['from']} > {link['to']}", rate, ", ".join(link["clients"])) for link in found["links"]]
    print_table("links", ("link", "carries", "of"), links, left=3)
    port = format_count(found["port_bytes_per_second"], "B/s")
    trip = found["credit_trip_cycles"]
    print(f"{found['credits']} credits of a client at each port, back after {trip} cycles or more: {port} at most")
    return 0


def credits(m: Measured, system: MemorySystem) -> list[dict[str, Any]]:
    """Return the ports that were used in a measurement, each with its credits and the load and stalls of the link behind it."""
    cycles, found = m.counters.cycles, []
    for port in m.counters.ports:
        if not port.occupancy:
            continue
        link = m.counters.links[port.link]
        found.append(
            {
                "client": port.client,
                "router": port.link[0],
                "link": list(port.link),
                "credits": system.noc.credits,
                "occupancy": port.occupancy / cycles / system.noc.credits,
                "most": port.most,
                "link_load": link["flits"] / cycles,
                "stalls": {name: link[f"stall_{name}"] / cycles for name in ("credit", "queue", "arbitration")},
            }
        )
    return found


def _print_credits(system: MemorySystem, options: argparse.Namespace) -> int:
    traffic = memory_loads.parse_traffic(options.bg) if options.bg else {}
    with progress("Loading a stream"):
        measured = memory_loads.run_pattern(options.profile, "seq", traffic, _priorities(options.qos))
    found = credits(measured, system)
    if options.json:
        print_json({"profile": options.profile, "bytes_per_second": round(measured.bytes_per_second), "ports": found})
        return 0
    rows = [
        (
            p["client"],
            f"{p['link'][0]} > {p['link'][1]}",
            f"{p['occupancy']:.1%}",
            f"{p['most']} of {p['credits']}",
            f"{p['link_load']:.1%}",
            *(f"{p['stalls'][name]:.3f}" for name in ("credit", "queue", "arbitration")),
        )
        for p in found
    ]
    columns = (
        "client",
        "waits for",
        "credit_occupancy",
        "most",
        "link load",
        "no credit",
        "queue full",
        "other's turn",
    )
    print_table(
        f"ports during a stream of {measured.bytes_per_second / GB:.2f} GB/s; stalls in flits a cycle",
        columns,
        rows,
        left=2,
    )
    return 0


def contention(profile: str, priority: int, loads: Sequence[float] = LOADS) -> list[Contention]:
    """Return the NPU's stream at each of `loads` of the CPU, shares of a link, at priority 0 and at `priority`; first alone."""
    system = load_profile(profile).memory_system
    others = [client.name for client in system.clients if client.name == "cpu"]
    if not others:
        raise ToolError(f"memory system {system.name} has no client cpu")
    found: list[Contention] = []
    for level in dict.fromkeys((0, priority)):
        for load in loads:
            rate = round(load * system.noc.link_bytes_per_second)
            measured = memory_loads.run_pattern(profile, "seq", {"cpu": rate}, _priorities(level))
            found.append(_point(system, measured, rate, level, found[0] if found else None))
    return found


def _point(system: MemorySystem, m: Measured, rate: int, priority: int, alone: Contention | None) -> Contention:
    cycles = m.counters.cycles
    fullest = max(port.occupancy for port in m.counters.ports if port.client == STREAM)
    moved = (m.counters.channel_sum("reads") + m.counters.channel_sum("writes")) * system.dram.access_bytes
    return Contention(
        rate,
        priority,
        m.bytes_per_second,
        1 - m.bytes_per_second / alone.npu_bytes_per_second if alone else 0.0,
        fullest / cycles / system.noc.credits,
        moved * system.noc.clock_hz / cycles / system.dram.pin_bytes_per_second,
    )


def _print_contention(system: MemorySystem, options: argparse.Namespace) -> int:
    with progress("Streams beside the CPU"):
        found = contention(options.profile, 7 if options.qos is None else options.qos)
    if options.json:
        names = ("cpu_bytes_per_second", "priority", "npu_bytes_per_second", "loss", "occupancy", "pins")
        print_json({"profile": options.profile, "points": [{name: getattr(p, name) for name in names} for p in found]})
        return 0
    rows = [
        (
            str(p.priority),
            f"{p.cpu_bytes_per_second / GB:.1f}",
            f"{p.npu_bytes_per_second / GB:.2f}",
            f"{p.loss:.1%}",
            f"{p.occupancy:.1%}",
            f"{p.pins:.1%}",
        )
        for p in found
    ]
    columns = ("NPU's priority", "CPU asks, GB/s", "NPU gets, GB/s", "loss", "its fullest port", "pins with data")
    print_table(f"a stream of the NPU beside the CPU on {system.name}", columns, rows)
    return 0


def _priorities(priority: int | None) -> dict[str, int]:
    return {} if priority is None else {"npu": priority}
