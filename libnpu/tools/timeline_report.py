"""`npu timeline TRACE`: where the time of a recorded run went. The analysis itself is in timeline.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from libnpu.tools import timeline
from libnpu.tools.console import ToolError, format_time, print_json, print_table
from libnpu.tools.perfetto import read_trace
from libnpu.trace.slices import ENGINES

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("trace", metavar="TRACE", help="file written by npu run --trace")
    parser.add_argument("--overlap", action="store_true", help="percent of time with 0, 1, 2 and 3 engines busy")
    parser.add_argument("--layers", action="store_true", help="engine time of every layer")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the analysis of `options.trace`."""
    slices, summary = read_trace(options.trace)
    if not slices:
        raise ToolError(f"{options.trace}: holds no task")
    start_ps, end_ps = timeline.span(slices)
    start_ps, end_ps = summary.get("start_ps", start_ps), summary.get("end_ps", end_ps)
    usage = timeline.usage(slices, end_ps - start_ps, summary.get("units", {}))
    together = timeline.overlap(slices, start_ps, end_ps)
    if options.json:
        print_json(
            {
                "span_ps": end_ps - start_ps,
                "engines": [usage_json(u) for u in usage],
                "overlap": overlap_json(together),
                "layers": [{"name": layer.name, "busy_ps": layer.busy_ps} for layer in timeline.layers(slices)],
            }
        )
        return 0
    print_usage(usage, end_ps - start_ps)
    if options.overlap:
        print_overlap(together)
    if options.layers:
        print_layers(timeline.layers(slices))
    return 0


def usage_json(usage: timeline.Usage) -> dict[str, Any]:
    """Return a Usage for JSON."""
    return {
        "name": usage.name,
        "units": usage.units,
        "tasks": usage.tasks,
        "busy_ps": usage.busy_ps,
        "utilisation": round(usage.utilisation, 6),
    }


def overlap_json(together: dict[frozenset[str], int]) -> dict[str, Any]:
    """Return the overlap for JSON: shares by number of engines, picoseconds by their names."""
    return {
        "by_count": [round(share, 6) for share in timeline.overlap_by_count(together)],
        "by_engines_ps": {"+".join(sorted(names)) or "none": ps for names, ps in sorted(together.items(), key=_order)},
    }


def _order(item: tuple[frozenset[str], int]) -> tuple[int, list[str]]:
    return len(item[0]), sorted(item[0])


def print_usage(usage: list[timeline.Usage], span_ps: int) -> None:
    """Print one line per engine."""
    rows = [(u.name, str(u.units), str(u.tasks), format_time(u.busy_ps), f"{u.utilisation:.1%}") for u in usage]
    print_table(f"engines over {format_time(span_ps)}", ("engine", "units", "tasks", "busy", "utilisation"), rows)


def print_overlap(together: dict[frozenset[str], int]) -> None:
    """Print the shares of time by number of busy engines, then which ones."""
    span_ps = sum(together.values()) or 1
    shares = timeline.overlap_by_count(together)
    rows = [(f"{n} engines busy", f"{share:.1%}", format_time(share * span_ps)) for n, share in enumerate(shares)]
    rows += [
        ("+".join(sorted(names)) or "none", f"{ps / span_ps:.1%}", format_time(ps))
        for names, ps in sorted(together.items(), key=_order)
    ]
    print_table("overlap", ("", "share", "time"), rows)


def print_layers(layers: list[timeline.LayerUsage], limit: int | None = None) -> None:
    """Print engine time by layer in order of start; with `limit`, only the longest, longest first."""
    if limit is not None:
        layers = sorted(layers, key=lambda layer: -sum(layer.busy_ps.values()))[:limit]
    rows = [
        (layer.name, *(format_time(layer.busy_ps[e]) if e in layer.busy_ps else "" for e in ENGINES), format_time(layer.last_ps - layer.first_ps))
        for layer in layers
    ]  # fmt: skip
    title = "layers" if limit is None else f"longest {len(rows)} layers"
    print_table(title, ("layer", *ENGINES, "first to last"), rows)
