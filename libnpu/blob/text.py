"""Text form of a blob: everything in an image, line by line, so that `assemble(disassemble(image)) == image`.

    blob "tiny" abi=1.0
    profile "npu-37xx"
    resources tiles=1 cmx_bytes=1024 barriers=2 scratch_bytes=0 macs=1
    input "x" f16 [1,16,1,2]
    section .npu.tasks.dma0
      0: transaction_src=@"in:x" transaction_dst=0x2e000000 transaction_length=64   # load x
    reloc .data.shave_args+0x0 @.bss.scratch+0x40 width=8

A kernel library has no `resources` line, and kernels with their parameters instead of tensors and tasks:

    kernel "relu" text=0x0 bytes=1024 max_grid=0 flags=0
      param "input" buffer in f32

A task's line has its fields that are not zero, under the flat names of `npu_abi.dtype`; `@symbol+addend` is a relocation of
that field. SHAVE code is assembly (hex when it is no legal program), argument blocks are hex, weights base64 or only
their digest. A section that is no task list ends with `end`. `#` after a task begins a comment.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from npu_abi import C, name_of
from npu_model import dtypes, shave_isa

from libnpu.blob import elf
from libnpu.blob.image import TASK_SECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from libnpu.blob.image import BlobImage, IoTensor, Kernel, Relocation

_HEX_WORDS = ("_src", "_dst", "_addr", "_va", "_mask")
_NONE_FIELDS = ("sched_start_after", "next_same_id")  # NPU_BARRIER_NONE is written "none"


def disassemble(image: BlobImage, weights: Literal["inline", "digest"] = "inline") -> str:
    """Return the text form of `image`.

    With `weights="digest"` the constants are named by SHA-256 only; `assemble` then needs their bytes beside the text.
    """
    return "\n".join(_lines(image, weights)) + "\n"


def _lines(image: BlobImage, weights: str) -> Iterator[str]:
    yield f"blob {json.dumps(image.name)} abi={C.NPU_BLOB_ABI_MAJOR}.{C.NPU_BLOB_ABI_MINOR}"
    yield f"profile {json.dumps(image.profile)}"
    if image.kernels:
        yield from kernel_lines(image.kernels)
    else:
        yield from _model(image)
    pending = {(r.section, r.offset): r for r in image.relocations}
    comments = task_names(image)
    for section in TASK_SECTIONS:
        if len(image.tasks.get(section, ())):
            yield f"section {section}"
            yield from task_lines(image.tasks[section], section, pending, comments)
    if image.text:
        yield from _code(image.text)
    if image.shave_args:
        yield f"section {elf.ARGS} hex"
        yield from hex_lines(image.shave_args)
        yield "end"
    if image.planned_weight_bytes:
        yield f"section {elf.WEIGHTS} absent bytes={image.planned_weight_bytes}"
    elif image.weights:
        if weights == "digest":
            yield f"section {elf.WEIGHTS} bytes={len(image.weights)} sha256={hashlib.sha256(image.weights).hexdigest()}"
        else:
            yield f"section {elf.WEIGHTS} base64"
            yield from (base64.b64encode(image.weights[i : i + 90]).decode() for i in range(0, len(image.weights), 90))
        yield "end"
    for relocation in sorted(pending.values(), key=lambda r: (r.section, r.offset)):
        yield f"reloc {relocation.section}+{relocation.offset:#x} {format_symbol(relocation)} width={relocation.width}"
    if image.debug:
        yield f"section {elf.DEBUG}"
        yield from _json_lines(image.debug)
        yield "end"


def _model(image: BlobImage) -> Iterator[str]:
    yield (
        f"resources tiles={image.tile_count} cmx_bytes={image.cmx_bytes} barriers={image.barrier_count} "
        f"scratch_bytes={image.scratch_bytes} macs={image.macs}"
    )
    yield from (_tensor("input", tensor) for tensor in image.inputs)
    yield from (_tensor("output", tensor) for tensor in image.outputs)


def kernel_lines(kernels: Sequence[Kernel]) -> Iterator[str]:
    """Yield one line per kernel, each followed by one line per parameter."""
    for k in kernels:
        name, text = json.dumps(k.name), f"text={k.text_offset:#x} bytes={k.code_bytes}"
        yield f"kernel {name} {text} max_grid={k.max_grid} flags={k.flags}"
        for p in k.params:
            kind = name_of("npu_arg_kind", p.kind).removeprefix("NPU_ARG_").lower()
            direction = name_of("npu_arg_direction", p.direction).removeprefix("NPU_ARG_").lower()
            yield f"  param {json.dumps(p.name)} {kind} {direction} {dtypes.name(p.dtype)}"


def task_names(image: BlobImage) -> list[str]:
    """Return the names of tasks by task_id that .npu.debug has, as far as it is well formed."""
    entries = image.debug.get("tasks", [])
    if not isinstance(entries, list):
        return []
    return [str(entry.get("name", "")) if isinstance(entry, dict) else "" for entry in entries]


def _tensor(kind: str, tensor: IoTensor) -> str:
    return f"{kind} {json.dumps(tensor.name)} {dtypes.name(tensor.dtype)} [{','.join(map(str, tensor.shape))}]"


def task_lines(
    array: NDArray[np.void], section: str, pending: dict[tuple[str, int], Relocation], comments: list[str]
) -> Iterator[str]:
    """Yield one line per entry of a task list. Takes the relocations that it prints out of `pending`."""
    fields: Mapping[str, Any] = array.dtype.fields or {}
    columns = [(name, fields[name][1], fields[name][0].itemsize, array[name].tolist(), array[name]) for name in fields]
    for index in range(len(array)):
        words = []
        for name, offset, size, values, raw in columns:
            value: Any = values[index]
            place = (section, index * array.dtype.itemsize + offset)
            relocation = pending.get(place)
            if relocation is not None and relocation.width == size and raw.dtype.kind == "u" and not value:
                words.append(f"{name}={format_symbol(pending.pop(place))}")
            elif raw.dtype.kind == "f":
                if raw[index].tobytes().strip(b"\0"):
                    words.append(f"{name}={format_float(raw[index])}")
            elif value:
                words.append(f"{name}={_format_int(name, value)}")
        task_id = int(array["task_id"][index]) if "task_id" in fields else -1
        comment = f"   # {json.dumps(comments[task_id])[1:-1]}" if 0 <= task_id < len(comments) else ""
        yield f"  {index}: {' '.join(words)}{comment}"


def _format_int(name: str, value: int) -> str:
    if name in _NONE_FIELDS and value == C.NPU_BARRIER_NONE:
        return "none"
    return f"{value:#x}" if name.endswith(_HEX_WORDS) else str(value)


def format_float(value: np.float32) -> str:
    """Return a decimal that reads back as the same float32; NaNs by their bits, `nan:7fc00000`."""
    if np.isnan(value):
        return f"nan:{int(value.view(np.uint32)):08x}"
    short = str(value)
    return short if np.float32(float(short)).tobytes() == value.tobytes() else repr(float(value))


def format_symbol(relocation: Relocation) -> str:
    """Return `@symbol+addend`; a tensor's symbol is quoted as in JSON."""
    symbol = relocation.symbol
    name = symbol if symbol in elf.KINDS else json.dumps(symbol)
    addend = f"{relocation.addend:+#x}" if relocation.addend else ""
    return f"@{name}{addend}"


def _code(text: bytes) -> Iterator[str]:
    try:
        source = shave_isa.disassemble(text)
        exact = shave_isa.assemble(source) == text
    except (shave_isa.ShaveFault, shave_isa.AssemblyError):
        exact = False
    if exact:
        yield f"section {elf.TEXT} shave"
        yield from source.splitlines()
    else:
        yield f"section {elf.TEXT} hex"
        yield from hex_lines(text)
    yield "end"


def hex_lines(data: bytes) -> Iterator[str]:
    """Yield lines of 32 bytes in groups of four."""
    for start in range(0, len(data), 32):
        yield "  " + data[start : start + 32].hex(" ", -4)


def _json_lines(value: dict[str, Any]) -> Iterator[str]:
    """Yield JSON with one line per member, and per element of a member that is a list."""
    yield "{"
    for number, (key, member) in enumerate(value.items()):
        comma = "," if number + 1 < len(value) else ""
        if isinstance(member, list) and member:
            yield f"  {json.dumps(key)}: ["
            for i, element in enumerate(member):
                yield f"    {json.dumps(element)}{',' if i + 1 < len(member) else ''}"
            yield f"  ]{comma}"
        else:
            yield f"  {json.dumps(key)}: {json.dumps(member)}{comma}"
    yield "}"
