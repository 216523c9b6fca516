"""`npu roofline`: what was computed per byte that moved, under the roofs of memory and of the engines.

Of a model, a blob, one operation (--op), a model by name (--model), or a run whose JSON was kept.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npu_model.profile import load_profile

from libnpu.tools import networks, operations, source, values
from libnpu.tools.console import ToolError, format_bytes, format_count, print_json, print_table, progress
from libnpu.tools.files import check_targets, write_file
from libnpu.tools.roofline_picture import LAYER_COLUMNS, layer_row, page, picture
from libnpu.tools.roofline_points import Alone, Roofline, as_json, is_report, measure, read_report
from libnpu.tools.scalar_add import scalar_add
from libnpu.tools.session import execute
from libnpu.tools.shapes import SHAPES
from libnpu.tools.work import LINE_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.blob import BlobImage
    from libnpu.runtime import TensorInfo

SHOWN_LAYERS = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "path",
        metavar="MODEL|BLOB|RUN.json",
        nargs="?",
        help="an ONNX file, what npu compile made of one, or what --json printed of a run",
    )
    parser.add_argument("--op", choices=tuple(operations.SIZES), help="one operation instead of a model")
    parser.add_argument(
        "--model",
        choices=(*networks.NETWORKS, *SHAPES),
        help="a model by name, with seeded weights; NAME-shape: with shapes alone",
    )
    parser.add_argument(
        "--size", "--mnk", type=_sizes, metavar="N[,N...]", default=None, help="of --op: elements; M,N,K; rows,columns"
    )
    parser.add_argument(
        "--seq", type=source.positive, metavar="N", help=f"of --model: rows of a sequence (default {networks.SEQ})"
    )
    parser.add_argument(
        "--dtype",
        choices=(*operations.DTYPES, "int8"),
        default=None,
        help="of --op and --model (default fp32); int8: of a NAME-shape, and its default",
    )
    parser.add_argument(
        "--operations", action="store_true", help="run each operation of a model alone, too (--model always does)"
    )
    parser.add_argument(
        "--bytes",
        choices=("counted", "cacheline"),
        default="counted",
        help=f"that count: those that moved (default), or {LINE_BYTES} for each load and store of a SHAVE, shown beside them",
    )
    source.add_compile_arguments(parser, "npu-37xx, or the blob's")
    parser.add_argument(
        "--fidelity", choices=("fast", "full"), default="fast", help="of the memory path (default fast)"
    )
    parser.add_argument("--before", metavar="RUN.json", help="what --json printed of a run before: show it, too")
    parser.add_argument("--svg", metavar="FILE", help="write the picture")
    parser.add_argument("--html", metavar="FILE", help="write picture and table as one page that needs nothing else")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Run once, times only, and print points and roofs."""
    _check(options)
    read = source.files_read(argparse.Namespace(model=options.path, profile=options.profile)) if options.path else {}
    check_targets({"--svg": options.svg, "--html": options.html}, {**read, "--before": options.before})
    before = read_report(options.before) if options.before else None
    if options.path and is_report(options.path):
        found = _recorded(options)
    else:
        found = _measured(options)
    if before and before.profile != found.profile:
        raise ToolError(f"--before {options.before}: is of {before.profile}, and this run of {found.profile}")
    if options.svg:
        write_file(options.svg, picture(found, before).text().encode())
    if options.html:
        write_file(options.html, page(found, before).encode())
    _warn(found)
    if options.json:
        print_json(as_json(found) | ({"before": as_json(before)} if before else {}))
    else:
        _print(found, before)
    return 0


def _check(options: argparse.Namespace) -> None:
    """Raise ToolError for options that do not go together."""
    if sum(given is not None for given in (options.path, options.op, options.model)) != 1:
        raise ToolError("give a model or a blob, an operation with --op, or a model by name with --model")
    for name, owners in (("size", ("op",)), ("seq", ("model",)), ("dtype", ("op", "model"))):
        if getattr(options, name) and not any(getattr(options, owner) for owner in owners):
            raise ToolError(f"--{name} is of {' and '.join(f'--{owner}' for owner in owners)}")
    if options.model in SHAPES:
        for name in ("seq", "operations"):
            if getattr(options, name):
                raise ToolError(f"--{name}: {options.model} has one length and no weights")
    elif "int8" in (options.dtype, options.precision):
        raise ToolError(f"--dtype int8 is of --model {', '.join(SHAPES)}")


def _recorded(options: argparse.Namespace) -> Roofline:
    """Return the run that was kept. Raises ToolError with an option that needs another run."""
    for name in ("profile", "precision", "shape", "no_pingpong", "cmx_bytes", "prefetching_level_limit", "operations"):
        if getattr(options, name):
            raise ToolError(f"--{name.replace('_', '-')}: {options.path} is a run that was kept")
    found = read_report(options.path)
    if options.bytes == "cacheline" and found.accesses is None:
        raise ToolError(f"--bytes cacheline: {options.path} was kept without it")
    return found


def _measured(options: argparse.Namespace) -> Roofline:
    """Compile what is asked for, when it is a model, and run it."""
    model: Any = options.path
    options.plan_only = options.model in SHAPES
    if options.plan_only:
        options.precision = options.dtype or options.precision or "int8"
        return _execute(*_compiled(SHAPES[options.model](), options), options)
    if options.path is None:
        options.precision = options.dtype or options.precision or "fp32"
        if options.model:
            model = networks.network_model(options.model, options.seq)
            data, image = _compiled(model, options)
        else:
            model, data, image = _operation(options)
    else:
        opened = source.open_source(argparse.Namespace(**{**vars(options), "model": options.path}))
        data, image = opened.data, opened.image
        if opened.model_path is None and options.operations:
            raise ToolError(f"--operations: {options.path} is a blob, which has no operations to compile alone")
    found = _execute(data, image, options)
    if not (options.operations or options.model):
        return found
    return replace(found, operations=_each_alone(model, options))


def _operation(options: argparse.Namespace) -> tuple[Any, bytes, BlobImage]:
    """Return an operation as a model, None of the one that is a program, and as a blob."""
    size = options.size or operations.SIZES[options.op]
    if options.op != "vadd-scalar":
        model = operations.operation_model(options.op, size, options.precision)
        return model, *_compiled(model, options)
    if len(size) != 1 or options.operations:
        given = "--operations" if options.operations else f"--size {','.join(map(str, size))}"
        raise ToolError(f"{given}: vadd-scalar is one program, of N elements")
    return None, *scalar_add(load_profile(options.profile or "npu-37xx"), size[0], options.precision)


def _compiled(model: Any, options: argparse.Namespace) -> tuple[bytes, BlobImage]:
    from libnpu.compiler import compile_model

    with progress(f"Compiling {options.op or options.model}"):
        compiled = compile_model(model, source.compile_options(options))
    return compiled.blob, compiled.image


def _execute(data: bytes, image: BlobImage, options: argparse.Namespace) -> Roofline:
    profile = options.profile or image.profile
    with progress(f"Running {image.name} on {profile}"):
        execution = execute(data, image, profile, _inputs, compute=False, fidelity=options.fidelity)
    return measure(image, profile, execution, options.bytes == "cacheline")


def _each_alone(model: Any, options: argparse.Namespace) -> list[Alone]:
    """Run each operation of `model` as a blob of its own: operands come from DDR, and results go there."""
    from libnpu.compiler.layers import compile_layers

    with progress("Compiling each operation"):
        layers = compile_layers(model, source.compile_options(options))
    found = [_execute(layer.blob, layer.image, options) for layer in layers.blobs]
    return [Alone(one.whole, one.ideal_bytes) for one in found if one.whole.flop]


def _warn(found: Roofline) -> None:
    """Say on stderr what is wrong with lines, when they count."""
    counted = found.accesses
    if counted is None:
        return
    count = counted.loads + counted.stores
    if count:
        over = (
            f"over-counts {counted.line_bytes / counted.nbytes:.2f} times: "
            f"each of {count} loads and stores is {counted.nbytes / count:.4g} bytes on average, not {LINE_BYTES}"
        )
    else:
        over = "counts nothing: there is no load and no store"
    print(f"npu: warning: --bytes cacheline {over}; what DMA and DPU move is not in it", file=sys.stderr)


def _print(found: Roofline, before: Roofline | None) -> None:
    whole, counted = found.whole, found.accesses
    once = f"{format_bytes(found.ideal_bytes)} if all moved once"
    rows = [
        ("executed", format_count(whole.flop, "FLOP"), ""),
        ("between device and DDR", format_bytes(whole.ddr_bytes), once),
    ]
    if counted is not None:
        count = counted.loads + counted.stores
        average = f"{counted.nbytes / count:.4g} bytes each" if count else ""
        over = f"{whole.nbytes / whole.ddr_bytes:.4g} of those that moved" if whole.ddr_bytes else ""
        rows += [
            ("loads, stores", f"{counted.loads}, {counted.stores}", average),
            (f"(loads + stores) x {LINE_BYTES}", format_bytes(whole.nbytes), over),
        ]
    rows += [
        (
            "intensity, FLOP/B",
            f"{whole.intensity:.5g}",
            f"{whole.flop / (found.ideal_bytes or 1):.5g} if all moved once",
        ),
        ("attained", format_count(whole.rate, "FLOP/s"), f"{whole.rate / found.peak:.2%} of the peak"),
        (f"peak, {found.kind}", format_count(found.peak, "FLOP/s"), ""),
        ("memory", format_count(found.memory, "B/s"), ""),
        ("ridge, FLOP/B", f"{found.ridge:.4g}", ""),
        ("bound by", found.bound(whole), ""),
        ("engines idle, at best", f"{found.idle(whole):.3%}", "1 - intensity / ridge" if found.idle(whole) else ""),
    ]
    print_table(f"{found.name} on {found.profile}", ("", "", ""), rows)
    if before:
        runs = [layer_row(before, before.whole), layer_row(found, whole)]
        print_table("before, and now", ("run", *LAYER_COLUMNS[1:]), runs)
    print_table(
        "roofs",
        ("type", "peak", "ridge, FLOP/B"),
        [(k, format_count(v, "FLOP/s"), f"{v / found.memory:.4g}") for k, v in found.roofs.items()],
    )
    longest = sorted(found.layers, key=lambda p: -p.time_ps)[:SHOWN_LAYERS]
    print_table(f"longest {len(longest)} layers", LAYER_COLUMNS, [layer_row(found, p) for p in longest])
    if found.operations:
        print_table("each operation alone", OPERATION_COLUMNS, [_operation_row(found, one) for one in found.operations])


OPERATION_COLUMNS = ("operation", "FLOP", "bytes", "FLOP/B", "if all moved once", "time", "bound")


def _operation_row(found: Roofline, one: Alone) -> tuple[str, ...]:
    name, flop, nbytes, intensity, time, _, bound, _ = layer_row(found, one.point)
    return name, flop, nbytes, intensity, f"{one.ideal_intensity:.4g}", time, bound


def _sizes(text: str) -> list[int]:
    return [source.positive(word) for word in text.split(",")]


def _inputs(tensors: list[TensorInfo]) -> dict[str, NDArray[Any]]:
    return values.random_inputs(tensors, 0)
