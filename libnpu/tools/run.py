"""`npu run MODEL|BLOB`: compile when needed, run once, and say what came out, how long it took and where the time went."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libnpu.tools import console, reference, source, timeline, values
from libnpu.tools.console import (
    CheckFailed,
    ToolError,
    format_bytes,
    format_count,
    format_time,
    json_text,
    print_json,
    print_table,
    progress,
)
from libnpu.tools.files import check_targets, write_file
from libnpu.tools.perfetto import write_trace
from libnpu.tools.session import Execution, ddr_bytes_by_task, execute
from libnpu.tools.timeline_report import overlap_json, print_layers, print_usage, usage_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from libnpu.runtime import TensorInfo

TOP_LAYERS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL|BLOB", help="an ONNX file, or what npu compile made of one")
    parser.add_argument("--inputs", metavar="FILE.npz", help="arrays by input name (default: seeded random values)")
    parser.add_argument("--outputs", metavar="FILE.npz", help="write the outputs, by output name")
    parser.add_argument("--seed", type=source.count, metavar="N", default=0, help="of the random inputs (default 0)")
    source.add_compile_arguments(parser, "npu-37xx, or the blob's")
    parser.add_argument(
        "--check", action="store_true", help="compare with onnxruntime, or else with onnx's own evaluator"
    )
    parser.add_argument(
        "--compare-untiled",
        action="store_true",
        help="run a second time compiled for all of CMX; the outputs must be the same",
    )
    parser.add_argument(
        "--leak-check", action="store_true", help="fail when device memory is not free again after the run"
    )
    parser.add_argument(
        "--trace", metavar="FILE.json", help="write the timeline; ui.perfetto.dev and chrome://tracing open it"
    )
    parser.add_argument("--no-compute", action="store_true", help="times only, no values")
    parser.add_argument("--stats", metavar="FILE.json", help="write what --json prints to a file; - is stdout")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Run `options.model` once. Raises ToolError when a check that was asked for fails, after the report."""
    _check_options(options)
    model = source.open_source(options)
    for name in ("check", "compare_untiled"):
        if getattr(options, name) and model.model_path is None:
            raise ToolError(f"--{name.replace('_', '-')} needs the ONNX model; {options.model} is a blob")

    def make_inputs(tensors: list[TensorInfo]) -> dict[str, NDArray[Any]]:
        if options.inputs:
            return values.load_inputs(options.inputs, tensors)
        return values.random_inputs(tensors, options.seed)

    profile = options.profile or model.image.profile
    with progress(f"Running {model.image.name} on {profile}"):
        execution = execute(model.data, model.image, profile, make_inputs, compute=not options.no_compute)
    if options.outputs:
        values.save_outputs(options.outputs, execution.outputs)
    span_ps = execution.end_ps - execution.start_ps
    usage = timeline.usage(execution.slices, span_ps, execution.units)
    together = timeline.overlap(execution.slices, execution.start_ps, execution.end_ps)
    report: dict[str, Any] = {
        "model": options.model,
        "name": model.image.name,
        "profile": profile,
        "latency_ps": span_ps,
        "host_ps": sum(s.end_ps - s.start_ps for s in execution.host if s.name in ("launch", "wait")),
        "engines": [usage_json(u) for u in usage],
        "overlap": overlap_json(together),
        "ddr_read_bytes": execution.counters["DMA_DDR_READ"],
        "ddr_write_bytes": execution.counters["DMA_DDR_WRITE"],
        "macs": model.image.macs,
        "submits": execution.counters["DOORBELLS"],
        "counters": execution.counters,
        "overflows": [{"layer": layer, "count": count} for layer, count in execution.overflows],
        "outputs": {n: {"dtype": str(a.dtype), "shape": list(a.shape)} for n, a in execution.outputs.items()},
    }
    for layer, count in execution.overflows:
        print(f"npu: warning: {layer}: {count} values left fp16's range and became infinite", file=sys.stderr)
    if options.trace:
        summary = {key: report[key] for key in ("name", "profile", "latency_ps")}
        summary |= {"start_ps": execution.start_ps, "end_ps": execution.end_ps, "units": execution.units}
        ddr_bytes = ddr_bytes_by_task(model.image)
        write_trace(options.trace, execution.slices, execution.instants, execution.host, ddr_bytes, summary)
        report["trace"] = options.trace
    comparisons: list[reference.Comparison] = []
    precision = options.precision or "fp16"
    passed = True
    if options.check:
        assert model.model_path is not None
        with progress("Running the reference"):
            name, expected = reference.reference_outputs(model.model_path, execution.inputs)
        comparisons = reference.compare(execution.outputs, expected)
        passed = all(c.passes(precision) for c in comparisons)
        report["check"] = {"reference": name, "passed": passed, "outputs": [asdict(c) for c in comparisons]}
    untiled = _compare_untiled(options, profile, make_inputs, execution.outputs) if options.compare_untiled else {}
    if options.compare_untiled:
        report["untiled"] = {"max_abs_diff": untiled}
    if options.stats and options.stats != "-":
        write_file(options.stats, json_text(report).encode())
    if options.json or options.stats == "-":
        print_json(report)
    else:
        _print(report, execution, usage, comparisons)
    if options.leak_check and execution.leaked_bytes:
        raise CheckFailed(
            f"{options.model}: {execution.leaked_bytes} bytes of device memory are not free after the run"
        )
    for name, difference in untiled.items():
        if difference:
            raise CheckFailed(f"{options.model}: output {name!r} differs by {difference:.3g} from the untiled one")
    if not passed:
        worst = max((c for c in comparisons if not c.passes(precision)), key=lambda c: c.max_relative_error)
        raise CheckFailed(
            f"{options.model}: output {worst.name!r} differs from {report['check']['reference']}: {worst.difference()}"
        )
    return 0


def _check_options(options: argparse.Namespace) -> None:
    """Raise ToolError for options that exclude each other, and for files that would be lost."""
    check_targets(
        {
            "--outputs": options.outputs,
            "--trace": options.trace,
            "--stats": None if options.stats == "-" else options.stats,
        },
        source.files_read(options) | {"--inputs": options.inputs},
    )
    if options.no_compute:
        for name in ("check", "outputs", "compare_untiled"):
            if getattr(options, name):
                raise ToolError(f"--{name.replace('_', '-')} needs values, and --no-compute makes none")


def _compare_untiled(
    options: argparse.Namespace,
    profile: str,
    make_inputs: Callable[[list[TensorInfo]], dict[str, NDArray[Any]]],
    outputs: dict[str, NDArray[Any]],
) -> dict[str, float]:
    """Return output name -> largest difference from the same model compiled for all of CMX; infinity where NaNs differ."""
    with progress("Compiling and running untiled"):
        whole = source.compile_source(argparse.Namespace(**{**vars(options), "cmx_bytes": None}))
        expected = execute(whole.blob, whole.image, profile, make_inputs).outputs
    return {name: reference.max_abs_difference(array, expected[name]) for name, array in outputs.items()}


def _print(
    report: dict[str, Any],
    execution: Execution,
    usage: list[timeline.Usage],
    comparisons: list[reference.Comparison],
) -> None:
    latency_ps = report["latency_ps"]
    moved = report["ddr_read_bytes"] + report["ddr_write_bytes"]
    seconds = latency_ps / console.PS_PER_S or 1.0
    rows = [
        ("simulated latency", format_time(latency_ps), f"{1 / seconds:.1f} inferences/s"),
        ("work", format_count(report["macs"], "MAC"), format_count(2 * report["macs"] / seconds, "OP/s")),
        ("launch to wake-up on the host", format_time(report["host_ps"]), ""),
        ("MACs per busy DPU cycle", _per_cycle(report["counters"]), ""),
        ("DDR read", format_bytes(report["ddr_read_bytes"]), ""),
        ("DDR written", format_bytes(report["ddr_write_bytes"]), f"{moved / seconds / 1e9:.2f} GB/s in all"),
    ]
    shares = report["overlap"]["by_count"]
    rows.append(("two or more engines busy", f"{sum(shares[2:]):.1%}", f"none busy {shares[0]:.1%}"))
    print_table(f"{Path(report['model']).name} on {report['profile']}", ("", "", ""), rows)
    print_usage(usage, latency_ps)
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


def _per_cycle(counters: dict[str, int]) -> str:
    return f"{counters['DPU_MACS'] / counters['DPU_BUSY']:.1f}" if counters["DPU_BUSY"] else "-"


def _non_finite(array: NDArray[Any]) -> int:
    import numpy as np

    return int(np.count_nonzero(~np.isfinite(array.astype(np.float64)))) if array.dtype.kind not in "iub" else 0


def _comparison_row(c: reference.Comparison) -> tuple[str, ...]:
    return (
        c.name,
        f"{c.max_abs_error:.3g}",
        f"{c.max_relative_error:.3g}",
        f"{c.cosine:.7f}",
        "yes" if c.same_argmax else "no",
    )


def _summary(array: NDArray[Any]) -> str:
    """Return the first values of an array, and where its maximum is."""
    import numpy as np

    if not array.size:
        return "empty"
    flat = array.astype(np.float64).ravel()
    first = ", ".join(f"{value:.5g}" for value in flat[:4]) + (", ..." if flat.size > 4 else "")
    return f"{first}; largest at {int(flat.argmax())}" if flat.size > 4 else first
