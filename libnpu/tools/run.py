"""`npu run MODEL|BLOB`: compile when needed, run once, and say what came out, how long it took and where the time went."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from npu_model.profile import load_profile

from libnpu.runtime.hold import take_missing, text_of
from libnpu.runtime.schedule import schedule_of
from libnpu.tools import arithmetic, reference, source, values
from libnpu.tools.console import CheckFailed, ToolError, json_text, print_json, progress
from libnpu.tools.files import check_targets, write_file
from libnpu.tools.run_report import print_report, report_json, write_timeline, write_trace_of
from libnpu.tools.session import execute

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from libnpu.runtime import TensorInfo
    from libnpu.tools.session import Execution


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL|BLOB", help="an ONNX file, or what npu compile made of one")
    parser.add_argument("--inputs", metavar="FILE.npz", help="arrays by input name (default: seeded random values)")
    parser.add_argument("--outputs", metavar="FILE.npz", help="write the outputs, by output name")
    parser.add_argument("--seed", type=source.count, metavar="N", default=0, help="of the random inputs (default 0)")
    source.add_compile_arguments(parser, "npu-37xx, or the blob's")
    source.add_strict_argument(parser)
    parser.add_argument(
        "--check", action="store_true", help="compare with onnxruntime, or else with onnx's own evaluator"
    )
    parser.add_argument(
        "--compare-untiled",
        action="store_true",
        help="run a second time compiled for all of CMX; the outputs must be the same",
    )
    parser.add_argument(
        "--bytes-per-tensor",
        action="store_true",
        help="list the bytes that DMA moves from and to each tensor in DDR; what is not there never leaves CMX",
    )
    parser.add_argument(
        "--leak-check", action="store_true", help="fail when device memory is not free again after the run"
    )
    parser.add_argument(
        "--trace", metavar="FILE.json", help="write the timeline; ui.perfetto.dev and chrome://tracing open it"
    )
    parser.add_argument("--no-compute", action="store_true", help="times only, no values")
    parser.add_argument(
        "--numerics",
        choices=("exact", "fast"),
        default="exact",
        help="exact: the same bits on every machine (default); fast: the matrix engine adds in an order of this machine",
    )
    parser.add_argument(
        "--fidelity",
        choices=("fast", "full"),
        default="fast",
        help="of the memory path. fast: bandwidth shared as a fluid (default); full: network and DDR cycle by cycle",
    )
    parser.add_argument(
        "--faults", metavar="FILE.json", help="arm these faults before the device boots (docs/recovery.md)"
    )
    parser.add_argument("--schedule", metavar="NAME", help="of the work (docs/host-api.md), instead of NPU_SCHEDULE's")
    parser.add_argument("--stats", metavar="FILE.json", help="write what --json prints to a file; - is stdout")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Run `options.model` once. Raises CheckFailed when a check that was asked for fails, after the report."""
    _check_options(options)
    model = source.open_source(options, ("bytes-per-tensor",) if options.bytes_per_tensor else (), in_parts=True)
    for name in ("check", "compare_untiled", "bytes_per_tensor"):
        if getattr(options, name) and model.model_path is None:
            raise ToolError(f"--{name.replace('_', '-')} needs the ONNX model; {options.model} is a blob")

    def make_inputs(tensors: list[TensorInfo]) -> dict[str, NDArray[Any]]:
        if options.inputs:
            return values.load_inputs(options.inputs, tensors)
        return values.random_inputs(tensors, options.seed)

    profile = options.profile or model.profile
    numerics = options.numerics
    with progress(f"Running {model.name} on {profile}"):
        execution = _execute(model, profile, make_inputs, options)
    if options.outputs:
        values.save_outputs(options.outputs, execution.outputs)
    report = report_json(options.model, model, profile, execution)
    report["fidelity"], report["memory"] = options.fidelity, load_profile(profile).memory_system.name
    report["numerics"] = {"policy": numerics, "helpers": arithmetic.helpers(), "blas": arithmetic.blas()}
    for layer, count in execution.overflows:
        print(f"npu: warning: {layer}: {count} values left fp16's range and became infinite", file=sys.stderr)
    if options.trace:
        if model.parts is None:
            write_timeline(options.trace, model.image, profile, execution)
        else:
            write_trace_of(options.trace, model.name, profile, execution, {})
        report["trace"] = options.trace
    comparisons: list[reference.Comparison] = []
    if model.model_path is not None and options.check:
        with progress("Running the reference"):
            oracle, expected = reference.reference_outputs(model.model_path, execution.inputs)
        comparisons = reference.compare(execution.outputs, expected)
    wrong = [c for c in comparisons if not c.passes(options.precision or "fp16")]
    if comparisons:
        report["check"] = {"reference": oracle, "passed": not wrong, "outputs": [asdict(c) for c in comparisons]}
    untiled = _compare_untiled(options, profile, make_inputs, execution.outputs) if options.compare_untiled else {}
    if options.compare_untiled:
        report["untiled"] = {"max_abs_diff": untiled}
    if options.bytes_per_tensor:
        report["bytes_per_tensor"] = model.report["dumps"]["bytes-per-tensor"].splitlines()
    if options.stats and options.stats != "-":
        write_file(options.stats, json_text(report).encode())
    if options.json or options.stats == "-":
        print_json(report)
    else:
        print_report(report, execution, comparisons)
        if options.bytes_per_tensor:
            print(*report["bytes_per_tensor"], sep="\n")
    schedule = schedule_of(options.schedule or os.environ.get("NPU_SCHEDULE") or None)
    if unmeant := take_missing(text_of(schedule.holds)):
        raise CheckFailed(unmeant)
    if options.leak_check and execution.leaked_bytes:
        raise CheckFailed(
            f"{options.model}: {execution.leaked_bytes} bytes of device memory are not free after the run"
        )
    for name, difference in untiled.items():
        if difference:
            raise CheckFailed(f"{options.model}: output {name!r} differs by {difference:.3g} from the untiled one")
    if wrong:
        worst = max(wrong, key=lambda c: c.max_relative_error)
        raise CheckFailed(f"{options.model}: output {worst.name!r} differs from {oracle}: {worst.difference()}")
    return 0


def _execute(
    model: source.Source,
    profile: str,
    make_inputs: Callable[[list[TensorInfo]], dict[str, NDArray[Any]]],
    options: argparse.Namespace,
) -> Execution:
    compute, numerics, fidelity, faults = not options.no_compute, options.numerics, options.fidelity, options.faults
    if model.parts is None:
        return execute(
            model.data, model.image, profile, make_inputs,
            compute=compute, numerics=numerics, fidelity=fidelity, faults=faults, schedule=options.schedule,
        )  # fmt: skip
    from libnpu.tools.parted_session import execute_parts

    return execute_parts(
        model.data, model.parts, profile, make_inputs,
        compute=compute, numerics=numerics, fidelity=fidelity, faults=faults, schedule=options.schedule,
    )  # fmt: skip


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
        whole = source.open_source(argparse.Namespace(**{**vars(options), "cmx_bytes": None}), in_parts=True)
        expected = _execute(whole, profile, make_inputs, options).outputs
    return {name: reference.max_abs_difference(array, expected[name]) for name, array in outputs.items()}
