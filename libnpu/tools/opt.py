"""`npu-opt MODEL`, also `npu opt`: single passes of the compiler on a model, its five levels, and all the way to a blob."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from libnpu.tools import source
from libnpu.tools.console import UsageError
from libnpu.tools.files import check_targets, write_file

if TYPE_CHECKING:
    import argparse

    from libnpu.compiler.ir import Graph

# Level -> the pass after which the compiler is there. Each file is what `npu compile --dump-pass` prints of it.
LEVELS = {
    "1-semantics": "import",
    "2-data-flow": "precision",
    "3-loops": "tiles",
    "4-memory": "schedule",
    "5-instructions": "blob",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file")
    for name, what in (
        ("fold", "compute what depends on constants alone"),
        ("licm", "compute once what each step of a loop computes anew: loops are unrolled, and equal nodes become one"),
        ("dce", "leave out what no output depends on"),
    ):
        parser.add_argument(
            f"--{name}",
            dest="passes",
            action="append_const",
            const=name,
            help=f"{what}; passes run in their order here",
        )
    parser.add_argument(
        "--dump-all",
        metavar="FOLDER",
        nargs="?",
        const=".",
        help=f"write a file for each level, {', '.join(LEVELS)} (default folder: this one)",
    )
    parser.add_argument("--npu-lower", action="store_true", help="go through all levels, and write the blob")
    parser.add_argument("-o", "--output", metavar="BLOB", help="of --npu-lower (default: MODEL with .blob)")
    source.add_compile_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the graph after the passes that are named, or after the import; write levels and blob where they are asked for."""
    source.check_model(options.model)
    if options.output and not options.npu_lower:
        raise UsageError("-o goes with --npu-lower")
    if options.passes or not (options.dump_all or options.npu_lower):
        from libnpu.compiler.frontend.text import graph_text

        print(graph_text(_passed(options, options.passes or [])), end="")
    if options.dump_all or options.npu_lower:
        _lower(options)
    return 0


def _passed(options: argparse.Namespace, names: list[str]) -> Graph:
    """Return the model as imported, behind these passes."""
    from libnpu.compiler.frontend.fold import fold, remove_dead
    from libnpu.compiler.frontend.handlers import FOREIGN
    from libnpu.compiler.frontend.hoist import hoist
    from libnpu.compiler.frontend.import_onnx import import_model
    from libnpu.compiler.frontend.source import read_model
    from libnpu.compiler.frontend.verify import verify

    passes = {"fold": fold, "licm": hoist, "dce": remove_dead}
    graph = import_model(read_model(options.model, foreign=FOREIGN), source.parse_shapes(options.shape))
    for name in names:
        graph = verify(passes[name](graph), name)
    return graph


def _lower(options: argparse.Namespace) -> None:
    """Compile the model, and write what is wanted of it."""
    files = {level: str(Path(options.dump_all) / f"{level}.txt") for level in LEVELS} if options.dump_all else {}
    blob = options.output or str(Path(options.model).with_suffix(".blob"))
    check_targets({**files, **({"-o": blob} if options.npu_lower else {})}, source.files_read(options))
    compiled = source.compile_source(options, tuple(LEVELS[level] for level in files))
    for level, path in files.items():
        write_file(path, f"{compiled.report['dumps'][LEVELS[level]].rstrip()}\n".encode())
    if options.npu_lower:
        write_file(blob, compiled.blob)
