"""`npu sweep MODEL`: compile with each value of an option, run for time only, and print what each costs in latency, CMX and DDR."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from libnpu.tools import source, values
from libnpu.tools.console import format_bytes, format_time, print_json, print_table, progress
from libnpu.tools.session import execute

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.runtime import TensorInfo

MAX_RANGE = 1000  # numbers; chosen: each is a compilation and a run


@dataclass(frozen=True, slots=True)
class Point:
    """One compilation and what it costs. A limit of None is the compiler's own choice."""

    prefetching_level_limit: int | None
    cmx_bytes: int | None
    latency_ps: int  # simulated, of the job
    predicted_ps: int  # by the scheduler
    peak_cmx_bytes: int
    ddr_read_bytes: int
    ddr_write_bytes: int
    spill_bytes: int  # written out, and read back
    tasks: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file")
    source.add_model_arguments(parser)
    parser.set_defaults(optimisation=1)  # so that what is swept is all that changes
    parser.add_argument(
        "--prefetching-level-limit",
        "--prefetchingLevelLimit",
        type=_counts,
        default=[None],
        metavar="0..6",
        help="operations that a load may run ahead: a range, or numbers with commas",
    )
    parser.add_argument(
        "--cmx-bytes", "--cmx", type=_sizes, default=[None], metavar="64K,128K", help="bytes of CMX to use at most"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print one row per combination of the options' values."""
    source.check_model(options.model)
    points = [
        _measure(options, limit, size) for limit, size in product(options.prefetching_level_limit, options.cmx_bytes)
    ]
    if options.json:
        print_json([asdict(point) for point in points])
        return 0
    columns = ("level limit", "CMX", "latency", "peak CMX", "DDR read", "DDR written", "spilled", "tasks")
    print_table(f"{options.model}", columns, [_row(point) for point in points], left=0)
    return 0


def _measure(options: argparse.Namespace, limit: int | None, cmx_bytes: int | None) -> Point:
    one = argparse.Namespace(**{**vars(options), "prefetching_level_limit": limit, "cmx_bytes": cmx_bytes})
    with progress(f"Level limit {limit}, CMX {cmx_bytes}"):
        compiled = source.compile_source(one)
        execution = execute(compiled.blob, compiled.image, compiled.image.profile, _inputs, compute=False)
    return Point(
        prefetching_level_limit=limit,
        cmx_bytes=cmx_bytes,
        latency_ps=execution.end_ps - execution.start_ps,
        predicted_ps=compiled.report["predicted_makespan_ps"],
        peak_cmx_bytes=compiled.report["peak_cmx_bytes"],
        ddr_read_bytes=execution.counters["DMA_DDR_READ"],
        ddr_write_bytes=execution.counters["DMA_DDR_WRITE"],
        spill_bytes=compiled.report["spill_out_bytes"],
        tasks=sum(compiled.report["tasks"].values()),
    )


def _inputs(tensors: list[TensorInfo]) -> dict[str, NDArray[Any]]:
    return values.random_inputs(tensors, 0)


def _row(point: Point) -> tuple[str, ...]:
    limit, cmx = point.prefetching_level_limit, point.cmx_bytes
    return (
        "default" if limit is None else str(limit),
        "all" if cmx is None else format_bytes(cmx),
        format_time(point.latency_ps),
        format_bytes(point.peak_cmx_bytes),
        format_bytes(point.ddr_read_bytes),
        format_bytes(point.ddr_write_bytes),
        format_bytes(point.spill_bytes),
        str(point.tasks),
    )


def _counts(text: str) -> list[int]:
    """Return the numbers of `0..6` or `0,2,4`."""
    first, dots, last = text.partition("..")
    if not dots:
        return [source.count(word) for word in text.split(",")]
    found = range(source.count(first), source.count(last) + 1)
    if not 0 < len(found) <= MAX_RANGE:
        raise argparse.ArgumentTypeError(f"{text!r} has {len(found)} numbers; expected 1 to {MAX_RANGE}")
    return list(found)


def _sizes(text: str) -> list[int]:
    return [source.byte_size(word) for word in text.split(",")]
