"""What a command is given: an ONNX model, which is compiled, or a blob, which is taken as it is."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libnpu.compiler.options import ATTENTION, LEVELS, OPTIONAL_PASSES, PRECISIONS
from libnpu.parts import MAGIC, PartsError, unpack
from libnpu.tools.console import ToolError, progress
from libnpu.tools.shapes import SHAPES

if TYPE_CHECKING:
    from libnpu.blob import BlobImage
    from libnpu.compiler import CompileOptions
    from libnpu.parts import PartedModel

ELF_MAGIC = b"\x7fELF"
MOST = 10**18 - 1  # of a number on a command line: 18 digits, below 2^63
# What a side-car may say: options of the compiler that leave results as they are, by their names in CompileOptions.
SIDE_CAR: dict[str, type] = {
    "tiles": int,
    "cmx_bytes": int,
    "optimisation": int,
    "prefetching_level_limit": int,
    "pingpong": bool,
    "cmx_residency": bool,
    "vertical_fusion": bool,
    "attention": str,
}
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Source:
    """A model ready to load. `report` is the compiler's, {} of a blob; `model_path` is None of a blob. `parts`: some of it runs on the host."""

    data: bytes
    _image: BlobImage | None
    report: dict[str, Any]
    model_path: str | None
    parts: PartedModel | None = None

    @property
    def image(self) -> BlobImage:
        """What is in a blob; there is one unless there are parts."""
        assert self._image is not None
        return self._image

    @property
    def name(self) -> str:
        return self.image.name if self.parts is None else self.parts.name

    @property
    def profile(self) -> str:
        return self.image.profile if self.parts is None else self.parts.profile

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the NPU."""
        return self.image.macs if self.parts is None else sum(part.macs for part in self.parts.npu_parts)


def add_model_arguments(parser: argparse.ArgumentParser, profile_default: str = "npu-37xx") -> None:
    """Declare the options of the compiler that say what is computed, and for which device."""
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default=None,
        help="of the computation (default fp16); int8, int4: of a plan",
    )
    parser.add_argument(
        "--profile", default=None, metavar="NAME", help=f"hardware profile, see npu info (default {profile_default})"
    )
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME=1,3,224,224", help="fix an input's shape; repeatable"
    )
    parser.add_argument(
        "--tiles", type=positive, default=None, metavar="N", help="work on at most so many tiles (default all)"
    )
    parser.add_argument(
        "-O",
        dest="optimisation",
        type=int,
        choices=LEVELS,
        default=None,
        help="0: load nothing ahead; 1: schedule once; 2: keep the best of several tilings and schedules; "
        "3: and improve it with a solver (default 2, of npu sweep 1)",
    )
    parser.add_argument(
        "--no-pingpong",
        action="store_const",
        const=True,
        help="do not load the next tile while an engine works",
    )


def add_compile_arguments(parser: argparse.ArgumentParser, profile_default: str = "npu-37xx") -> None:
    """Declare the options of the compiler that `run` and `compile` share."""
    add_model_arguments(parser, profile_default)
    parser.add_argument(
        "--cmx-bytes",
        "--cmx",
        type=byte_size,
        default=None,
        metavar="SIZE",
        help="use at most so much of each tile's CMX, as 262144, 256K or 1M",
    )
    parser.add_argument(
        "--side-car",
        metavar="FILE.json",
        help=f"how to compile this model, which no ONNX file says: {', '.join(SIDE_CAR)}; what the command line says counts",
    )
    parser.add_argument(
        "--dynamic",
        action="append",
        default=[],
        metavar="NAME=AXIS",
        help="an axis of an input that holds padding: the further input NAME.length says how much counts; repeatable",
    )
    parser.add_argument(
        "--disable",
        action="append",
        default=[],
        choices=OPTIONAL_PASSES,
        help="leave out this pass, to see what it does",
    )
    parser.add_argument(
        "--no-cmx-residency",
        action="store_const",
        const=True,
        help="let each value go to DDR and come back between operations: what vertical fusion saves is the difference",
    )
    parser.add_argument(
        "--attention",
        choices=ATTENTION,
        default=None,
        help="the path of every attention (default auto: by phase and length)",
    )
    parser.add_argument(
        "--no-cache",
        action="store_true",
        help="compile anew, and keep the result out of the cache of what was compiled",
    )
    parser.add_argument(
        "--prefetching-level-limit",
        "--prefetchingLevelLimit",
        type=count,
        default=None,
        metavar="N",
        help="operations that a load may run ahead",
    )


def add_strict_argument(parser: argparse.ArgumentParser) -> None:
    """Declare --strict, of commands that take models in parts."""
    parser.add_argument(
        "--strict", action="store_true", help="refuse a model of which the host would run some nodes, with all reasons"
    )


def count(text: str) -> int:
    """Return the number that `text` is, 0 to MOST: a type of argparse."""
    return _number(text, 0)


def positive(text: str) -> int:
    """Return the number that `text` is, 1 to MOST: a type of argparse."""
    return _number(text, 1)


def _number(text: str, least: int) -> int:
    if not _is_decimal(text) or (_is_number(text) and int(text) < least):
        raise argparse.ArgumentTypeError(f"expected a number, {least} or more, found {text!r}")
    if not _is_number(text):
        raise argparse.ArgumentTypeError(f"expected a number, {least} to {MOST}, found {text!r}")
    return int(text)


def byte_size(text: str) -> int:
    """Return the bytes that `text` means: a number above 0; `K`, `M`, `G` behind it are 1024, 1024², 1024³."""
    digits, unit = (text[:-1], _UNITS[text[-1:].upper()]) if text[-1:].upper() in _UNITS else (text, 1)
    if not _is_decimal(digits) or (_is_number(digits) and int(digits) == 0):
        raise argparse.ArgumentTypeError(f"expected whole bytes above 0, such as 262144, 256K or 1M, found {text!r}")
    if not _is_number(digits):
        raise argparse.ArgumentTypeError(f"expected a number of bytes, K, M or G, 1 to {MOST}, found {text!r}")
    return int(digits) * unit


def _is_number(text: str) -> bool:
    """Tell whether `text` is a number, 0 to MOST."""
    return _is_decimal(text) and len(text) <= len(str(MOST))


def _is_decimal(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def parse_shapes(texts: list[str]) -> dict[str, tuple[int, ...]]:
    """Return input name -> shape of `NAME=1,3,224,224` texts; `NAME=` is a scalar. Raises ToolError."""
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, dims = text.rpartition("=")
        sizes = dims.split(",") if dims else []
        if not equals or not name or not all(map(_is_number, sizes)):
            raise ToolError(f"--shape {text}: expected NAME=1,3,224,224")
        if name in found:
            raise ToolError(f"--shape {text}: {name!r} has a shape already")
        found[name] = tuple(map(int, sizes))
    return found


def read_side_car(path: str) -> dict[str, Any]:
    """Return what a side-car says of the compiler's options. Raises ToolError, OSError."""
    try:
        found = json.loads(Path(path).read_bytes())
    except ValueError as error:
        raise ToolError(f"--side-car {path}: it is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ToolError(f"--side-car {path}: expected an object")
    for name, value in found.items():
        if name not in SIDE_CAR or type(value) is not SIDE_CAR[name]:
            known = ", ".join(f"{name} ({kind.__name__})" for name, kind in SIDE_CAR.items())
            raise ToolError(f"--side-car {path}: {name!r}: {value!r}; it may have {known}")
    return found


def parse_dynamic(texts: list[str]) -> dict[str, int]:
    """Return input name -> axis of `NAME=AXIS` texts. Raises ToolError."""
    found: dict[str, int] = {}
    for text in texts:
        name, equals, axis = text.rpartition("=")
        if not equals or not name or not _is_number(axis):
            raise ToolError(f"--dynamic {text}: expected NAME=AXIS")
        if name in found:
            raise ToolError(f"--dynamic {text}: {name!r} has an axis already")
        found[name] = int(axis)
    return found


def is_blob(path: str) -> bool:
    """Tell whether the file at `path` is an ELF file. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(len(ELF_MAGIC)) == ELF_MAGIC


def is_parted(path: str) -> bool:
    """Tell whether the file at `path` is the container of a model in parts. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_parts(path: str) -> tuple[bytes, PartedModel]:
    """Return the bytes of the container at `path`, and what they hold. Raises ToolError with the path."""
    data = Path(path).read_bytes()
    try:
        return data, unpack(data)
    except PartsError as error:
        raise ToolError(f"{path}: {error}") from None


def check_model(path: str) -> None:
    """Raise ToolError when the file at `path` is a blob."""
    if is_blob(path) or is_parted(path):
        raise ToolError(f"{path}: is a blob already; expected an ONNX model")


def read_blob(path: str) -> tuple[bytes, BlobImage]:
    """Return the bytes of the blob at `path`, and what they hold. Raises ToolError with the path for any other file."""
    from libnpu.blob import BlobError, read

    if is_parted(path):
        hosts = len(read_parts(path)[1].host_nodes)
        raise ToolError(f"{path}: is a model in parts, of which {hosts} nodes run on the host; npu run takes it")
    if not is_blob(path):
        raise ToolError(f"{path}: is not a blob; npu compile makes one of an ONNX model")
    data = Path(path).read_bytes()
    try:
        return data, read(data)
    except BlobError as error:
        raise ToolError(f"{path}: {error}") from None


def files_read(options: argparse.Namespace) -> dict[str, str | None]:
    """Return the files that the options of `add_compile_arguments`, where there are any, and the model's read, by what the command line calls them."""
    profile = getattr(options, "profile", None)
    profile = profile if profile and profile.endswith(".json") else None
    data = {f"the model's {path}": path for path in _external_data(options.model)} if options.model else {}
    return {"the model": options.model, "--profile": profile, "--side-car": getattr(options, "side_car", None), **data}


def _external_data(path: str) -> list[str]:
    """Return the files in which the model at `path` keeps its weights; [] of a blob, and of what is no model."""
    if is_blob(path) or is_parted(path):
        return []
    from libnpu.compiler.frontend.source import ModelError, external_tensors, parse
    from libnpu.errors import Unsupported

    try:
        model = parse(path)
    except (ModelError, Unsupported):  # the compiler says it
        return []
    entries = (entry for tensor in external_tensors(model) for entry in tensor.external_data if entry.key == "location")
    return sorted({str(Path(path).parent / entry.value) for entry in entries})


def open_source(options: argparse.Namespace, dump: tuple[str, ...] = (), in_parts: bool = False) -> Source:
    """Return what `options.model` names, compiled with the options of `add_compile_arguments` when it is a model.

    `in_parts`: the command takes models in parts, too.
    """
    path: str = options.model
    if in_parts and is_parted(path):
        _no_compile_options(options)
        data, parts = read_parts(path)
        return Source(data, None, {}, None, parts)
    if is_blob(path) or is_parted(path):
        _no_compile_options(options)
        data, image = read_blob(path)
        if image.kernels:
            raise ToolError(f"{path}: is a kernel library; expected a model, or a blob of one")
        return Source(data, image, {}, None)
    with progress(f"Compiling {path}"):
        compiled = compile_source(options, dump, in_parts)
    if compiled.parts is not None:
        return Source(compiled.blob, None, compiled.report, path, compiled.parts)
    return Source(compiled.blob, compiled.image, compiled.report, path)


def compile_source(options: argparse.Namespace, dump: tuple[str, ...] = (), in_parts: bool = False) -> Any:
    """Return the compiler's result for the model `options.model`; print its warnings on stderr, a line each.

    `in_parts`: what the NPU cannot do runs on the host, unless `options.strict` says that it must not.
    """
    from libnpu.compiler import HostPartWarning, compile_model
    from libnpu.compiler.frontend import OpenShape

    wanted = compile_options(options, dump)
    if not in_parts:
        wanted = dataclasses.replace(wanted, strict=True)
    shape_model = getattr(options, "shape_model", None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HostPartWarning)  # it is the first of the report's
            model = SHAPES[shape_model]() if shape_model else options.model
            compiled = compile_model(model, wanted, cache=not getattr(options, "no_cache", False))
    except OpenShape as error:
        raise ToolError(f"{options.model}: {error.what}; give one with --shape {error.input_name}=N,N,...") from None
    if compiled.parts is None and not compiled.image.outputs:
        raise ToolError(f"{options.model}: the model has no outputs, so that there is nothing to compute")
    for warning in compiled.report["warnings"]:
        print(f"npu: warning: {warning}", file=sys.stderr)
    if compiled.from_cache:
        print(
            f"npu: {shape_model or options.model}: from the compile cache; --no-cache compiles it again",
            file=sys.stderr,
        )
    return compiled


def compile_options(options: argparse.Namespace, dump: tuple[str, ...] = ()) -> CompileOptions:
    """Return what the options of `add_compile_arguments` ask of the compiler. Raises ToolError."""
    from libnpu.compiler import CompileOptions

    given = {
        "precision": options.precision,
        "layout": getattr(options, "layout", None),
        "profile": options.profile,
        "tiles": options.tiles,
        "cmx_bytes": options.cmx_bytes,
        "optimisation": getattr(options, "optimisation", None),
        "attention": getattr(options, "attention", None),
        "prefetching_level_limit": options.prefetching_level_limit,
        "pingpong": _unless(options.no_pingpong),
        "cmx_residency": _unless(getattr(options, "no_cmx_residency", None)),
    }
    side_car = read_side_car(options.side_car) if getattr(options, "side_car", None) else {}
    return CompileOptions(
        shapes=parse_shapes(options.shape),
        dynamic=parse_dynamic(getattr(options, "dynamic", [])),
        disable=tuple(getattr(options, "disable", ())),
        strict=getattr(options, "strict", False),
        plan_only=getattr(options, "plan_only", False),
        explain=getattr(options, "explain", False),
        dump=dump,
        **side_car | {name: value for name, value in given.items() if value is not None},
    )


def _unless(off: bool | None) -> bool | None:
    """Return what an option is that a switch turns off, None where nothing is said of the switch."""
    return None if off is None else not off


def _no_compile_options(options: argparse.Namespace) -> None:
    """Raise ToolError when an option of the compiler is given with a blob."""
    if getattr(options, "optimisation", None) is not None:
        raise ToolError(f"-O{options.optimisation}: {options.model} is a blob, compiled already")
    for name in (
        "precision",
        "tiles",
        "cmx_bytes",
        "attention",
        "prefetching_level_limit",
        "shape",
        "no_pingpong",
        "no_cmx_residency",
        "side_car",
        "dynamic",
        "disable",
        "strict",
        "no_cache",
    ):
        if getattr(options, name, None):
            raise ToolError(f"--{name.replace('_', '-')}: {options.model} is a blob, compiled already")
