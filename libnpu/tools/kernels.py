"""`npu kernels list`: the built-in kernels, which a host program launches by name, and the compiler's for attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_abi import name_of
from npu_model import dtypes

from libnpu.tools.console import print_json, print_table
from libnpu.tools.objdump_json import kernel_json
from libnpu.tools.problems import INSTRUCTION_BYTES, builtin_kernels

if TYPE_CHECKING:
    import argparse

    from libnpu.blob import Kernel, KernelParam

# The kernels that the compiler makes for the attention of a model, each with what selects it.
ATTENTION = (
    ("sdpa", "--attention decompose", "QK^T (DPU), scale (PPE), mask, softmax (SHAVE), PV (DPU)"),
    (
        "incremental_sdpa",
        "--attention incremental",
        "one SHAVE program for a query: vector times matrix, mask, softmax",
    ),
    ("flash_sdpa", "--attention flash", "tile by tile: QK^T (DPU), running maximum, sum and output (SHAVE), PV (DPU)"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("what", choices=("list",), help="names and parameters of the kernels")
    parser.add_argument("--size", action="store_true", help="and how much code they have")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the list."""
    kernels, _ = builtin_kernels()
    if options.json:
        print_json([kernel_json(kernel) for kernel in kernels])
        return 0
    columns: tuple[str, ...] = ("kernel", "parameters")
    if options.size:
        columns = (*columns, "code bytes", "instructions")
    print_table("built-in kernels", columns, [_row(kernel, options.size) for kernel in kernels], left=2)
    print_table("attention, made for each model", ("kernel", "npu compile", "what it is"), ATTENTION, left=3)
    return 0


def _row(kernel: Kernel, with_size: bool) -> tuple[str, ...]:
    words: list[str] = []
    last = ""
    for param in kernel.params:
        kind = _kind(param)
        words.append(param.name if kind == last else f"{kind} {param.name}")
        last = kind
    size = (str(kernel.code_bytes), str(kernel.code_bytes // INSTRUCTION_BYTES)) if with_size else ()
    return (kernel.name, ", ".join(words), *size)


def _kind(param: KernelParam) -> str:
    """Return the direction and the type of memory, "in f32"; of numbers "int" or "float"."""
    kind = name_of("npu_arg_kind", param.kind).removeprefix("NPU_ARG_").lower()
    if kind != "buffer":
        return kind
    return (
        f"{name_of('npu_arg_direction', param.direction).removeprefix('NPU_ARG_').lower()} {dtypes.name(param.dtype)}"
    )
