"""What a command is given: an ONNX model, which is compiled, or a blob, which is taken as it is."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libnpu.tools.console import ToolError, progress

if TYPE_CHECKING:
    from libnpu.blob import BlobImage

ELF_MAGIC = b"\x7fELF"
_UNITS = {"K": 1 << 10, "M": 1 << 20}


@dataclass(frozen=True, slots=True)
class Source:
    """A model ready to load. `report` is the compiler's, {} of a blob; `model_path` is None of a blob."""

    data: bytes
    image: BlobImage
    report: dict[str, Any]
    model_path: str | None


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the compiler that say what is computed, and for which device."""
    parser.add_argument("--precision", choices=("fp16", "fp32"), default=None, help="of the computation (default fp16)")
    parser.add_argument(
        "--profile", default=None, metavar="NAME", help="hardware profile (default npu-37xx, or the blob's)"
    )
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME=1,3,224,224", help="fix an input's shape; repeatable"
    )
    parser.add_argument("--no-pingpong", action="store_true", help="do not load the next tile while an engine works")


def add_compile_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the compiler that `run` and `compile` share."""
    add_model_arguments(parser)
    parser.add_argument(
        "--cmx-bytes", "--cmx", type=byte_size, default=None, metavar="N", help="use at most N bytes of CMX (256K, 1M)"
    )
    parser.add_argument(
        "--prefetching-level-limit",
        "--prefetchingLevelLimit",
        type=count,
        default=None,
        metavar="N",
        help="operations that a load may run ahead",
    )


def count(text: str) -> int:
    """Return the number that `text` is, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number, found {text!r}")
    return int(text)


def byte_size(text: str) -> int:
    """Return the bytes that `text` means: a number above 0, `K` and `M` behind it are 1024 and 1024²."""
    digits, unit = (text[:-1], _UNITS[text[-1:].upper()]) if text[-1:].upper() in _UNITS else (text, 1)
    if not digits.isdecimal() or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return int(digits) * unit


def parse_shapes(texts: list[str]) -> dict[str, tuple[int, ...]]:
    """Return input name -> shape of `NAME=1,3,224,224` texts; `NAME=` is a scalar. Raises ToolError."""
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, dims = text.rpartition("=")
        try:
            shape = tuple(int(dim) for dim in dims.split(",")) if dims else ()
        except ValueError:
            shape = (-1,)
        if not equals or not name or any(dim < 0 for dim in shape):
            raise ToolError(f"--shape {text}: expected NAME=1,3,224,224")
        if name in found:
            raise ToolError(f"--shape {text}: {name!r} has a shape already")
        found[name] = shape
    return found


def is_blob(path: str) -> bool:
    """Tell whether the file at `path` is an ELF file. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(len(ELF_MAGIC)) == ELF_MAGIC


def open_source(options: argparse.Namespace, dump: tuple[str, ...] = ()) -> Source:
    """Return what `options.model` names, compiled with the options of `add_compile_arguments` when it is a model."""
    from libnpu.blob import read

    path: str = options.model
    if is_blob(path):
        _no_compile_options(options)
        data = Path(path).read_bytes()
        return Source(data, read(data), {}, None)
    with progress(f"Compiling {path}"):
        compiled = compile_source(options, dump)
    return Source(compiled.blob, compiled.image, compiled.report, path)


def compile_source(options: argparse.Namespace, dump: tuple[str, ...] = ()) -> Any:
    """Return the compiler's result for the model `options.model`; print its warnings on stderr, a line each."""
    from libnpu.compiler import CompileOptions, compile_model

    given = {
        "precision": options.precision,
        "profile": options.profile,
        "cmx_bytes": options.cmx_bytes,
        "prefetching_level_limit": options.prefetching_level_limit,
    }
    compiled = compile_model(
        options.model,
        CompileOptions(
            shapes=parse_shapes(options.shape),
            pingpong=not options.no_pingpong,
            dump=dump,
            **{name: value for name, value in given.items() if value is not None},
        ),
    )
    for warning in compiled.report["warnings"]:
        print(f"npu: warning: {warning}", file=sys.stderr)
    return compiled


def _no_compile_options(options: argparse.Namespace) -> None:
    """Raise ToolError when an option of the compiler is given with a blob."""
    for name in ("precision", "cmx_bytes", "prefetching_level_limit", "shape", "no_pingpong"):
        if getattr(options, name):
            raise ToolError(f"--{name.replace('_', '-')}: {options.model} is a blob, compiled already")
