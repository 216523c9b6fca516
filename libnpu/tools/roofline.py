"""`npu roofline MODEL|BLOB`, or `--op`: what was computed per byte that moved, under the roofs of memory and of the engines."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from npu_model.profile import load_profile

from libnpu.tools import operations, source, values
from libnpu.tools.console import (
    PS_PER_S,
    ToolError,
    format_bytes,
    format_count,
    format_time,
    print_json,
    print_table,
    progress,
)
from libnpu.tools.files import check_targets, write_file
from libnpu.tools.session import Execution, execute
from libnpu.tools.svg import Axis, Picture
from libnpu.tools.work import by_layer, ideal_bytes, main_type, memory_roof, roofs
from libnpu.tools.work import operations as operations_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.blob import BlobImage
    from libnpu.runtime import TensorInfo

SHOWN_LAYERS = 12


@dataclass(frozen=True, slots=True)
class Point:
    """Something that was executed: operations, bytes between device and DDR, and how long it took."""

    name: str
    flop: int
    ddr_bytes: int
    time_ps: int

    @property
    def intensity(self) -> float:
        """Operations per byte; infinite without bytes."""
        return self.flop / self.ddr_bytes if self.ddr_bytes else math.inf

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.flop * PS_PER_S / self.time_ps if self.time_ps else 0.0


@dataclass(frozen=True, slots=True)
class Roofline:
    """A run under its roofs. `kind` is the element type whose roof counts; rates are per second."""

    name: str
    profile: str
    kind: str
    roofs: dict[str, int]
    memory: int
    whole: Point
    ideal_bytes: int  # when inputs, outputs and constants move once
    layers: list[Point]

    @property
    def peak(self) -> int:
        """Operations per second of the roof that counts."""
        return self.roofs[self.kind]

    @property
    def ridge(self) -> float:
        """The intensity at which memory and engines take equally long."""
        return self.peak / self.memory

    def bound(self, point: Point) -> str:
        """Return what a point cannot exceed: "memory" left of the ridge, "compute" right of it."""
        return "memory" if point.intensity < self.ridge else "compute"

    def idle(self, point: Point) -> float:
        """Return the share of time for which memory leaves the engines without work, at best."""
        return max(1 - point.intensity / self.ridge, 0.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL|BLOB", nargs="?", help="an ONNX file, or what npu compile made of one")
    parser.add_argument("--op", choices=tuple(operations.SIZES), help="one operation instead of a model")
    parser.add_argument(
        "--size", "--mnk", type=_sizes, metavar="N[,N...]", default=None, help="of --op: elements; M,N,K; rows,columns"
    )
    parser.add_argument("--dtype", choices=operations.DTYPES, default=None, help="of --op (default fp32)")
    source.add_compile_arguments(parser, "npu-37xx, or the blob's")
    parser.add_argument(
        "--fidelity", choices=("fast", "full"), default="fast", help="of the memory path (default fast)"
    )
    parser.add_argument("--svg", metavar="FILE", help="write the picture")
    parser.add_argument("--html", metavar="FILE", help="write picture and table as one page that needs nothing else")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Run once, times only, and print points and roofs."""
    if (options.model is None) == (options.op is None):
        raise ToolError("give a model or a blob, or an operation with --op")
    if options.op is None and (options.size or options.dtype):
        raise ToolError("--size and --dtype are of --op")
    read = {} if options.op else source.files_read(options)
    check_targets({"--svg": options.svg, "--html": options.html}, read)
    data, image = _compiled_operation(options) if options.op else _model(options)
    profile = options.profile or image.profile
    with progress(f"Running {image.name} on {profile}"):
        execution = execute(data, image, profile, _inputs, compute=False, fidelity=options.fidelity)
    found = measure(image, profile, execution)
    if options.svg:
        write_file(options.svg, picture(found).text().encode())
    if options.html:
        write_file(options.html, page(found).encode())
    if options.json:
        print_json(as_json(found))
    else:
        _print(found)
    return 0


def measure(image: BlobImage, profile: str, execution: Execution) -> Roofline:
    """Return the points of a run: all of it by the device's counters of bytes, and its layers by their tasks."""
    hardware = load_profile(profile)
    done = operations_of(image, hardware)
    flop = sum(done[s.task_id][0] for s in execution.slices if s.task_id in done)
    counters = execution.counters
    moved = sum(counters[name] for name in ("DMA_DDR_READ", "DMA_DDR_WRITE", "SHAVE_DDR_READ", "SHAVE_DDR_WRITE"))
    return Roofline(
        name=image.name,
        profile=profile,
        kind=main_type(image, done),
        roofs=roofs(hardware),
        memory=memory_roof(hardware),
        whole=Point(image.name, flop, moved, execution.end_ps - execution.start_ps),
        ideal_bytes=ideal_bytes(image),
        layers=[
            Point(w.name, w.flop, w.ddr_bytes, w.last_ps - w.first_ps) for w in by_layer(image, done, execution.slices)
        ],
    )


def as_json(found: Roofline) -> dict[str, Any]:
    """Return a roofline for JSON."""

    def point(p: Point) -> dict[str, Any]:
        return {
            "name": p.name,
            "flop": p.flop,
            "ddr_bytes": p.ddr_bytes,
            "intensity": p.intensity,
            "time_ps": p.time_ps,
            "flop_per_second": p.rate,
            "bound": found.bound(p),
            "idle": found.idle(p),
        }

    return {
        "name": found.name,
        "profile": found.profile,
        "type": found.kind,
        "roofs": found.roofs,
        "memory_bytes_per_second": found.memory,
        "ridge": found.ridge,
        "utilisation": found.whole.rate / found.peak,
        "ideal_bytes": found.ideal_bytes,
        "ideal_intensity": found.whole.flop / found.ideal_bytes if found.ideal_bytes else None,
        "whole": point(found.whole),
        "layers": [point(p) for p in found.layers],
    }


def _print(found: Roofline) -> None:
    whole = found.whole
    rows = [
        ("executed", format_count(whole.flop, "FLOP"), ""),
        (
            "between device and DDR",
            format_bytes(whole.ddr_bytes),
            f"{format_bytes(found.ideal_bytes)} if all moved once",
        ),
        (
            "intensity, FLOP/B",
            f"{whole.intensity:.4g}",
            f"{whole.flop / (found.ideal_bytes or 1):.4g} if all moved once",
        ),
        ("attained", format_count(whole.rate, "FLOP/s"), f"{whole.rate / found.peak:.2%} of the peak"),
        (f"peak, {found.kind}", format_count(found.peak, "FLOP/s"), ""),
        ("memory", format_count(found.memory, "B/s"), ""),
        ("ridge, FLOP/B", f"{found.ridge:.4g}", ""),
        ("bound by", found.bound(whole), ""),
        ("engines idle, at best", f"{found.idle(whole):.3%}", "1 - intensity / ridge" if found.idle(whole) else ""),
    ]
    print_table(f"{found.name} on {found.profile}", ("", "", ""), rows)
    print_table(
        "roofs",
        ("type", "peak", "ridge, FLOP/B"),
        [(k, format_count(v, "FLOP/s"), f"{v / found.memory:.4g}") for k, v in found.roofs.items()],
    )
    longest = sorted(found.layers, key=lambda p: -p.time_ps)[:SHOWN_LAYERS]
    print_table(f"longest {len(longest)} layers", LAYER_COLUMNS, [_row(found, p) for p in longest])


LAYER_COLUMNS = ("layer", "FLOP", "DDR", "FLOP/B", "first to last", "FLOP/s", "bound", "idle")


def _row(found: Roofline, p: Point) -> tuple[str, ...]:
    return (
        p.name,
        format_count(p.flop, ""),
        format_bytes(p.ddr_bytes),
        f"{p.intensity:.4g}",
        format_time(p.time_ps),
        format_count(p.rate, ""),
        found.bound(p),
        f"{found.idle(p):.2%}",
    )


def picture(found: Roofline) -> Picture:
    """Return the points under a roof for each type, on logarithmic axes."""
    points = [p for p in (found.whole, *found.layers) if p.flop and p.ddr_bytes]
    lows = [p.intensity for p in points]
    x_low = 10.0 ** math.floor(math.log10(min([*lows, 0.1])))
    x_high = 10.0 ** math.ceil(math.log10(max([*lows, 10 * max(found.roofs.values()) / found.memory])))
    y_high = 10.0 ** math.ceil(math.log10(max(found.roofs.values())) + 0.01)
    y_low = 10.0 ** math.floor(math.log10(min([p.rate for p in points if p.rate] + [x_low * found.memory])))
    title = f"{found.name} on {found.profile}: ridge {found.ridge:.4g} FLOP/B, {found.bound(found.whole)}-bound, idle {found.idle(found.whole):.2%}"
    plot = Picture(
        title,
        Axis("operations per byte of DDR", x_low, x_high, log=True),
        Axis("operations per second", y_low, y_high, log=True),
    )
    for kinds, peak in _merged(found.roofs):
        corner = peak / found.memory
        plot.curve(
            f"{kinds}: {format_count(peak, 'FLOP/s')}", [(x_low, x_low * found.memory), (corner, peak), (x_high, peak)]
        )
    for p in points[1:] if found.whole.flop and found.whole.ddr_bytes else points:
        plot.point(f"{p.name}: {p.intensity:.4g} FLOP/B, {format_count(p.rate, 'FLOP/s')}", p.intensity, p.rate)
    if found.whole.flop and found.whole.ddr_bytes:
        plot.point(found.whole.name, found.whole.intensity, found.whole.rate, large=True)
    return plot


def _merged(roofs: dict[str, int]) -> list[tuple[str, int]]:
    """Return the roofs, the types with the same one together, the highest first."""
    heights = sorted(set(roofs.values()), reverse=True)
    return [(", ".join(kind for kind, peak in roofs.items() if peak == height), height) for height in heights]


def page(found: Roofline) -> str:
    """Return an HTML page with picture and table."""
    head = "".join(f"<th>{escape(column)}</th>" for column in LAYER_COLUMNS)
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _row(found, p)) + "</tr>"
        for p in (found.whole, *found.layers)
    )
    title = escape(f"Roofline: {found.name} on {found.profile}")
    style = "body{font-family:sans-serif}td,th{padding:2px 10px;text-align:right}td:first-child,th:first-child{text-align:left}"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{style}</style></head>\n<body>\n'
        f"{picture(found).text()}<table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>\n</body></html>\n"
    )


def _model(options: argparse.Namespace) -> tuple[bytes, BlobImage]:
    model = source.open_source(options)
    return model.data, model.image


def _compiled_operation(options: argparse.Namespace) -> tuple[bytes, BlobImage]:
    from libnpu.compiler import compile_model

    dtype = options.dtype or options.precision or "fp32"
    model = operations.operation_model(options.op, options.size or operations.SIZES[options.op], dtype)
    wanted = source.compile_options(argparse.Namespace(**{**vars(options), "precision": dtype}))
    with progress(f"Compiling {options.op}"):
        compiled = compile_model(model, wanted)
    return compiled.blob, compiled.image


def _sizes(text: str) -> list[int]:
    return [source.positive(word) for word in text.split(",")]


def _inputs(tensors: list[TensorInfo]) -> dict[str, NDArray[Any]]:
    return values.random_inputs(tensors, 0)
