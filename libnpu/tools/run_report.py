"""What `npu run` says of a run: as JSON, as tables for people, and as a timeline."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libnpu.tools import timeline
from libnpu.tools.console import PS_PER_S, format_bytes, format_count, format_time, print_table
from libnpu.tools.energy import energy_json, engines_json, format_energy, print_engines
from libnpu.tools.perfetto import write_trace
from libnpu.tools.session import ddr_bytes_by_task
from libnpu.tools.timeline_report import overlap_json, print_layers, print_usage, usage_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from libnpu.blob import BlobImage
    from libnpu.tools.reference import Comparison
    from libnpu.tools.session import Execution, PartTime
    from libnpu.tools.source import Source

TOP_LAYERS = 8
PS_PER_US = 1_000_000


def report_json(path: str, model: Source, profile: str, execution: Execution) -> dict[str, Any]:
    """Return what is known of a run of `model`, which came from the file `path`. Of a model in parts, `parts` has each of them."""
    parts = [asdict(part) for part in execution.parts]
    return {
        "model": path,
        "name": model.name,
        "profile": profile,
        "latency_ps": execution.device_ps,
        "host_ps": sum(s.end_ps - s.start_ps for s in execution.host if s.name in ("launch", "wait")),
        "host_busy_us": execution.host_busy_ps / PS_PER_US,
        "host_blocked_us": execution.host_blocked_ps / PS_PER_US,
        "engines": [usage_json(u) for u in _usage(execution)],
        "overlap": overlap_json(timeline.overlap(execution.slices, execution.start_ps, execution.end_ps)),
        "ddr_read_bytes": execution.counters["DMA_DDR_READ"],
        "ddr_write_bytes": execution.counters["DMA_DDR_WRITE"],
        "macs": model.macs,
        "submits": execution.counters["DOORBELLS"],
        "counters": execution.counters,
        "engine_cycles": engines_json(execution.counters),
        "energy": energy_json(execution.counters, profile),
        "overflows": [{"layer": layer, "count": count} for layer, count in execution.overflows],
        "outputs": {n: {"dtype": str(a.dtype), "shape": list(a.shape)} for n, a in execution.outputs.items()},
        **({"parts": parts, "host_parts_ps": sum(part.host_ps for part in execution.parts)} if parts else {}),
    }


def write_timeline(path: str, image: BlobImage, profile: str, execution: Execution) -> None:
    """Write the trace file of a run, which `npu timeline` and Perfetto read."""
    write_trace_of(path, image.name, profile, execution, ddr_bytes_by_task(image))


def write_trace_of(path: str, name: str, profile: str, execution: Execution, moved: dict[int, int]) -> None:
    """As `write_timeline`, of a model called `name` whose tasks move `moved` bytes, by task."""
    start_ps, end_ps = execution.start_ps, execution.end_ps
    summary = {"name": name, "profile": profile, "latency_ps": end_ps - start_ps}
    summary |= {"start_ps": start_ps, "end_ps": end_ps, "units": execution.units}
    write_trace(path, execution.slices, execution.instants, execution.jobs, execution.host, moved, summary)


def _usage(execution: Execution) -> list[timeline.Usage]:
    return timeline.usage(execution.slices, execution.device_ps, execution.units)


def print_report(report: dict[str, Any], execution: Execution, comparisons: Sequence[Comparison]) -> None:
    """Print the report of `report_json`, with what was added to it: `fidelity` and `memory`, `numerics`, `untiled`, `check` of `comparisons`, `trace`."""
    latency_ps = report["latency_ps"]
    moved = report["ddr_read_bytes"] + report["ddr_write_bytes"]
    seconds = latency_ps / PS_PER_S or 1.0
    rows = [
        ("simulated latency", format_time(latency_ps), f"{1 / seconds:.1f} inferences/s"),
        ("work", format_count(report["macs"], "MAC"), format_count(2 * report["macs"] / seconds, "OP/s")),
        ("launch to wake-up on the host", format_time(report["host_ps"]), f"blocked {_share(report):.1%} of it"),
        ("MACs per busy DPU cycle", _per_cycle(report["counters"]), _utilisation(report["engine_cycles"])),
        ("DDR read", format_bytes(report["ddr_read_bytes"]), ""),
        ("DDR written", format_bytes(report["ddr_write_bytes"]), f"{moved / seconds / 1e9:.2f} GB/s in all"),
    ]
    shares = report["overlap"]["by_count"]
    rows.append(("two or more engines busy", f"{sum(shares[2:]):.1%}", f"none busy {shares[0]:.1%}"))
    energy = report["energy"]
    rows.append(("energy, launch to wake-up", format_energy(energy["total_fj"]), f"{energy['watts']:.3f} W on average"))
    numerics = report["numerics"]
    rows.append(("memory path", report["fidelity"], f"memory system {report['memory']}"))
    rows.append(("numerics", numerics["policy"], f"C helpers: {numerics['helpers']}; BLAS: {numerics['blas']}"))
    if execution.parts:
        rows.insert(1, ("host parts", format_time(report["host_parts_ps"]), "of the host, not in the latency"))
    print_table(f"{Path(report['model']).name} on {report['profile']}", ("", "", ""), rows)
    if execution.parts:
        parts = [_part_row(number, part) for number, part in enumerate(execution.parts)]
        print_table(
            "parts, in their order", ("", "on", "device", "host", "bytes to it", "bytes from it"), parts, left=2
        )
    print_usage(_usage(execution), latency_ps)
    print_engines(report["engine_cycles"])
    print_layers(timeline.layers(execution.slices), TOP_LAYERS)
    if execution.outputs:
        outputs = [(n, f"{a.dtype} {list(a.shape)}", _summary(a)) for n, a in execution.outputs.items()]
        print_table("outputs", ("name", "type", "values"), outputs, left=3)
        for name, array in execution.outputs.items():
            bad = _non_finite(array)
            if bad:
                print(f"warning: {bad} of {array.size} values of {name!r} are not finite\n")
    if "untiled" in report:
        differences = [(name, f"{difference:.3g}") for name, difference in report["untiled"]["max_abs_diff"].items()]
        print_table("against all of CMX", ("output", "max abs diff"), differences)
    if comparisons:
        columns = ("output", "largest error", "relative", "cosine", "same arg-max")
        title = f"against {report['check']['reference']}: {'passed' if report['check']['passed'] else 'FAILED'}"
        print_table(title, columns, [_comparison_row(c) for c in comparisons])
    if "trace" in report:
        print(f"timeline: {report['trace']} (open in ui.perfetto.dev)")


def _part_row(number: int, part: PartTime) -> tuple[str, ...]:
    times = format_time(part.device_ps), format_time(part.host_ps)
    return str(number), part.on, *times, str(part.to_host_bytes), str(part.from_host_bytes)


def _share(report: dict[str, Any]) -> float:
    whole: float = report["host_busy_us"] + report["host_blocked_us"]
    return float(report["host_blocked_us"]) / whole if whole else 0.0


def _per_cycle(counters: dict[str, int]) -> str:
    return f"{counters['DPU_MACS'] / counters['DPU_BUSY']:.1f}" if counters["DPU_BUSY"] else "-"


def _non_finite(array: NDArray[Any]) -> int:
    import numpy as np

    return int(np.count_nonzero(~np.isfinite(array.astype(np.float64)))) if array.dtype.kind not in "iub" else 0


def _comparison_row(c: Comparison) -> tuple[str, ...]:
    return (
        c.name,
        f"{c.max_abs_error:.3g}",
        f"{c.max_relative_error:.3g}",
        f"{c.cosine:.7f}",
        "yes" if c.same_argmax else "no",
    )


def _utilisation(engines: dict[str, Any]) -> str:
    return "" if engines["mac_util"] is None else f"{engines['mac_util']:.1%} of those that the arrays offer"


def _summary(array: NDArray[Any]) -> str:
    """Return the first values of an array, and where its maximum is."""
    import numpy as np

    if not array.size:
        return "empty"
    flat = array.astype(np.float64).ravel()
    first = ", ".join(f"{value:.5g}" for value in flat[:4]) + (", ..." if flat.size > 4 else "")
    return f"{first}; largest at {int(flat.argmax())}" if flat.size > 4 else first
