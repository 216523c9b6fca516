"""`npu compile MODEL -o BLOB`: an ONNX model becomes a blob."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libnpu.blob import read
from libnpu.compiler.layouts import LAYOUTS
from libnpu.compiler.options import PASSES, UnknownPass
from libnpu.tools import source
from libnpu.tools.console import ToolError, format_bytes, format_time, print_json, print_table, progress
from libnpu.tools.files import check_targets, write_file
from libnpu.tools.shapes import SHAPES

if TYPE_CHECKING:
    import argparse

    from libnpu.blob import BlobImage

MAX_LINES = 20  # of a list in the table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="an ONNX file; with --plan-only also a name of --model"
    )
    parser.add_argument(
        "--model", dest="shape_model", choices=tuple(SHAPES), help="a model by name, without weights: of --plan-only"
    )
    parser.add_argument("--list-ops", action="store_true", help="print what becomes of each operator of ONNX, and exit")
    parser.add_argument("-o", "--output", metavar="BLOB", help="the file to write (default: MODEL with .blob)")
    source.add_compile_arguments(parser)
    parser.add_argument(
        "--dump-pass",
        action="append",
        default=[],
        metavar="NAME",
        help=f"print what this pass made, of {', '.join(PASSES)}; repeatable",
    )
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        help="of images at the model's ends (default nchw). nchw4: blocks of 4 channels side by side, rows at multiples "
        "of 128 bytes; nc1hwc0: blocks of as many as the profile's unit",
    )
    parser.add_argument(
        "--dump-ir",
        dest="dump_pass",
        action="append_const",
        const="engines",
        help="print the operations that the passes have made of the model, each with its engines: --dump-pass engines",
    )
    parser.add_argument(
        "--plan-only",
        action="store_true",
        help="tasks, memory and times alone: large weights, which the model may lack, get a place and no bytes",
    )
    source.add_strict_argument(parser)
    parser.add_argument(
        "--partition",
        choices=("report",),
        help="report: print the parts on NPU and host, with the reason of each node of the host",
    )
    parser.add_argument("--stats", action="store_true", help="print what the compiler decided and counted")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="say why the program takes the time it takes, and which one change would help most; compiles once for each",
    )
    parser.add_argument("--json", action="store_true", help="print the statistics as JSON")


def run(options: argparse.Namespace) -> int:
    """Compile `options.model`. Writes the blob last, so that a failure leaves no file."""
    if options.list_ops:
        return _list_operators(options.json)
    if options.model in SHAPES and options.shape_model is None and not Path(options.model).exists():
        options.model, options.shape_model = None, options.model
    if (options.model is None) == (options.shape_model is None):
        raise ToolError("give a model, or one by name with --model")
    if options.shape_model and not options.plan_only:
        raise ToolError(f"--model {options.shape_model}: has no weights; give --plan-only")
    if options.model:
        source.check_model(options.model)
    output = options.output or str(Path(options.model or options.shape_model).with_suffix(".blob"))
    check_targets({"--output": output}, source.files_read(options))
    with progress(f"Compiling {options.model or options.shape_model}"):
        try:
            compiled = source.compile_source(options, tuple(options.dump_pass), in_parts=True)
        except UnknownPass as error:
            raise ToolError(f"--dump-pass {error}") from None
    dumps = compiled.report["dumps"]
    write_file(output, compiled.blob)
    partition = partition_lines(compiled) if options.partition else []
    if options.json:
        report = {**compiled.report, **({"partition": partition} if partition else {})}
        print_json({"blob": output, "blob_bytes": len(compiled.blob), **report})
        return 0
    for name in options.dump_pass:
        print(f"# after {name}\n{dumps[name]}")
    for line in partition:
        print(line)
    if compiled.parts is None:
        _print_blob(options, output, compiled.blob, compiled.image, compiled.report)
    else:
        for report, part in zip(compiled.report["parts"], compiled.parts.npu_parts, strict=True):
            _print_blob(options, output, part.blob, read(part.blob), report)
    return 0


def partition_lines(compiled: Any) -> list[str]:
    """Return the report of the partition of what the compiler has made."""
    if compiled.parts is None:
        return [f"{compiled.image.name}: every node runs on the NPU, in one blob"]
    from libnpu.compiler.partition.report import partition_text

    return partition_text(compiled.parts)


def _list_operators(as_json: bool) -> int:
    from libnpu.compiler.frontend.operators import WAYS, operators

    found = operators()
    if as_json:
        print_json([operator._asdict() for operator in found])
        return 0
    rows = [(operator.domain or "ai.onnx", operator.name, WAYS[operator.way]) for operator in found]
    print_table("operators", ("domain", "operator", "what becomes of it"), rows, left=3)
    return 0


def _print_blob(
    options: argparse.Namespace, output: str, data: bytes, image: BlobImage, report: dict[str, Any]
) -> None:
    """Print what was asked for of a blob."""
    if sys.stdout.isatty() and not options.stats:
        print(
            f"{output}: {format_bytes(len(data))} for {image.profile}, "
            f"{format_time(report['predicted_makespan_ps'])} predicted, {report['makespan_over_bound']:.2f} times the lower bound "
            f"({report['binding_resource']})"
        )
    if options.stats:
        rows = [("blob", output), ("size", format_bytes(len(data)))]
        rows += [
            (key, _text(value, key)) for key, value in report.items() if key not in ("dumps", "warnings", "what_ifs")
        ]
        print_table(f"{image.name} for {image.profile}", ("what", "value"), rows, left=2)
    if options.explain:
        from libnpu.compiler.quality import explain

        print("\n".join(explain(report)))


def _text(value: Any, key: str = "") -> str:
    if key == "tasks":
        return f"total {sum(value.values())}: {_text(value)}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {member}" for key, member in value.items())
    if isinstance(value, list):
        more = [f"... and {len(value) - MAX_LINES} more (--json has all)"] if len(value) > MAX_LINES else []
        return "\n".join([*map(str, value[:MAX_LINES]), *more])
    return str(value)
