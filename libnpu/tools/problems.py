"""Built-in kernels on problems of one size N: arguments, memory, and the program padded to a number of bytes.

conv2d: an image of N x N in one channel, 3x3, padding 1. pool2d: the same, 2x2 maxima, stride 2. matmul, fully_connected:
N x N x N and one row of N with N x N weights. softmax, layernorm, reduce_sum: N rows of N. All others: N x N elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_abi import C

from libnpu.tools.console import ToolError

if TYPE_CHECKING:
    from npu_model.profile import Profile

    from libnpu.blob import Kernel as ImageKernel
    from libnpu.kernels.params import Plan
    from libnpu.runtime import Device, Job, Kernel, Stream

INSTRUCTION_BYTES = 16
_IMAGE = {"n": 1, "c": 1, "k": 1, "groups": 1, "activation": 0, "average": 0}
_WINDOWS = {"conv2d": (3, 1, 1), "pool2d": (2, 2, 0)}  # kernel, stride, padding
_FLOATS = {"value": 1.0, "scale": 1.0, "epsilon": 1e-5}


@dataclass(frozen=True, slots=True)
class KernelProblem:
    """A kernel in device memory with its arguments, ready to launch any number of times."""

    kernel: Kernel
    arguments: tuple[Any, ...]
    grid: int

    def launch(self, stream: Stream) -> Job:
        """Enqueue it."""
        return self.kernel.launch(stream, *self.arguments, grid=self.grid)


def scalars(name: str, size: int) -> tuple[int | float, ...]:
    """Return the numbers among the arguments of built-in kernel `name`. Raises ToolError for an unknown one."""
    from libnpu.kernels.catalogue import BUILTINS

    base = name.removesuffix(".f16")
    if base not in BUILTINS:
        raise ToolError(f"there is no built-in kernel {name!r}; there are {', '.join(BUILTINS)}, each also with .f16")
    values: dict[str, int | float] = {**_FLOATS, "h": size, "w": size, "rows": size, "cols": size, "count": size * size}
    if base in _WINDOWS:
        kernel, stride, padding = _WINDOWS[base]
        values |= _IMAGE | {f"{what}_{axis}": n for what, n in zip(("kernel", "stride", "pad"), (kernel, stride, padding), strict=True) for axis in "hw"}  # fmt: skip
    else:
        values |= {"batch": 1, "m": 1 if base == "fully_connected" else size, "k": size, "n": size, "activation": 0}
    return tuple(values[scalar] for scalar in BUILTINS[base].scalars)


def check(name: str, size: int, profile: str) -> None:
    """Raise what `make` raises for the kernel and the size: ToolError, KernelArgumentError, ProfileError."""
    from npu_model.profile import load_profile

    _plan(name, size, load_profile(profile))


def _plan(name: str, size: int, profile: Profile) -> Plan:
    from libnpu.kernels.catalogue import BUILTINS
    from libnpu.kernels.params import Unit, plan

    numbers = scalars(name, size)
    buffers = BUILTINS[name.removesuffix(".f16")].buffers
    return plan(name, (*[0] * len(buffers), *numbers), Unit.of(profile))


def make(device: Device, name: str, size: int, code_bytes: int | None = None) -> KernelProblem:
    """Return the problem of size `size` for built-in kernel `name`, with memory of zeros; waits until it is there.

    `code_bytes`: with so long a program, the rest of it never executed. Raises ToolError, KernelArgumentError, NpuError.
    """
    numbers = scalars(name, size)
    if code_bytes is None:
        kernel = device.kernel(name)
    else:
        kernel = device.load(padded_library(name, code_bytes))[name]
    needs = _plan(name, size, device.node.profile)
    stream = device.create_stream()
    memory = [None if need.optional else device.alloc(need.size_bytes) for need in needs.buffers]
    for buffer in memory:
        if buffer is not None:
            stream.fill(buffer, 0)
    stream.synchronize()
    stream.close()
    return KernelProblem(kernel, (*memory, *numbers), needs.grid)


def builtin_kernels() -> tuple[list[ImageKernel], bytes]:
    """Return the kernels of the built-in library, and their code, in which they lie at their offsets."""
    from libnpu import blob
    from libnpu.kernels import builtin_library

    image = blob.read(Path(builtin_library()).read_bytes())
    return image.kernels, image.text


def padded_library(name: str, code_bytes: int) -> bytes:
    """Return a library of built-in kernel `name` alone, with nops behind its program up to `code_bytes`.

    Raises ToolError for a length that is below the program's, above the limit or no whole instructions.
    """
    from npu_model import shave_isa

    from libnpu.blob import KernelSource, kernel_library

    kernels, text = builtin_kernels()
    kernel = next(found for found in kernels if found.name == name)
    least, most = kernel.code_bytes, int(C.NPU_MAX_KERNEL_CODE_BYTES)
    if not least <= code_bytes <= most or code_bytes % INSTRUCTION_BYTES:
        raise ToolError(
            f"{code_bytes} bytes of code for {name!r}; expected a multiple of {INSTRUCTION_BYTES} from {least} to {most}"
        )
    program = text[kernel.text_offset : kernel.text_offset + kernel.code_bytes]
    nops = shave_isa.assemble("nop") * ((code_bytes - least) // INSTRUCTION_BYTES)
    return kernel_library(name, {name: KernelSource(program + nops, kernel.params, kernel.flags, kernel.max_grid)})
