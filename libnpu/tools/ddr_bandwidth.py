"""`npu ddr-bandwidth`: load with DMA in several patterns, beside traffic of the CPU, and say what memory gives of what its pins could."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from libnpu.tools import memory_loads
from libnpu.tools.console import format_bytes, print_json, print_table, progress

if TYPE_CHECKING:
    from libnpu.tools.memory_loads import Measured

COLUMNS = ("pattern", "asked", "moved", "waste", "GB/s", "of the pins", "row hits", "misses", "conflicts")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    memory_loads.add_profile_argument(parser)
    parser.add_argument(
        "--pattern",
        type=_patterns,
        metavar="LIST",
        default=list(memory_loads.PATTERNS),
        help=f"some of {','.join(memory_loads.PATTERNS)} (default all)",
    )
    parser.add_argument("--bg", metavar="cpu=GB/s", default="", help="traffic of other clients meanwhile")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Run each pattern on a new device at fidelity `full`."""
    traffic = memory_loads.parse_traffic(options.bg) if options.bg else {}
    measured = []
    for pattern in options.pattern:
        with progress(f"Loading {pattern}"):
            measured.append(memory_loads.run_pattern(options.profile, pattern, traffic))
    if options.json:
        print_json({"profile": options.profile, "background": traffic, "patterns": [as_json(m) for m in measured]})
        return 0
    peak = f"{measured[0].peak / memory_loads.GB:.1f} GB/s"
    beside = f" beside {options.bg} GB/s" if traffic else ""
    print_table(f"DMA loads on {options.profile}{beside}, pins {peak}", COLUMNS, [_row(m) for m in measured])
    return 0


def as_json(m: Measured) -> dict[str, Any]:
    """Return a measurement for JSON; rows as counted for all clients."""
    return {
        "pattern": m.pattern,
        "asked_bytes": m.asked,
        "moved_bytes": m.moved,
        "waste": round(m.waste, 6),
        "span_ps": m.span_ps,
        "bytes_per_second": round(m.bytes_per_second),
        "pin_bytes_per_second": m.peak,
        "share_of_pins": round(m.bytes_per_second / m.peak, 6),
        "row_hits": m.counters.channel_sum("hits"),
        "row_misses": m.counters.channel_sum("misses"),
        "row_conflicts": m.counters.channel_sum("conflicts"),
        "clients_moved_bytes": {name: counts["bytes_moved"] for name, counts in m.counters.clients.items()},
    }


def _row(m: Measured) -> tuple[str, ...]:
    return (
        m.pattern,
        format_bytes(m.asked),
        format_bytes(m.moved),
        f"{m.waste:.1%}",
        f"{m.bytes_per_second / memory_loads.GB:.2f}",
        f"{m.bytes_per_second / m.peak:.1%}",
        *(str(m.counters.channel_sum(name)) for name in ("hits", "misses", "conflicts")),
    )


def _patterns(text: str) -> list[str]:
    found = text.split(",")
    for name in found:
        if name not in memory_loads.PATTERNS:
            known = ", ".join(memory_loads.PATTERNS)
            raise argparse.ArgumentTypeError(f"no pattern {name!r}; there are {known}")
    return found
