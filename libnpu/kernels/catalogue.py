"""The built-in kernels: their names, parameters and programs. A kernel `x` computes in fp32; `x.f16` has fp16 buffers.

Values of fp16 kernels are fp32 in registers and are rounded where they are stored; the DPU rounds its sums once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from npu_abi import C

from libnpu.blob import KernelParam, KernelSource
from libnpu.kernels import convolution, elementwise, matrix, pooling, rows
from libnpu.kernels.assembler import Program

_READ, _WRITTEN, _BOTH = C.NPU_ARG_IN, C.NPU_ARG_OUT, C.NPU_ARG_INOUT
FLOATS = ("scale", "value", "epsilon")  # scalars that are no integers
DTYPES = {"f32": C.NPU_DT_F32, "f16": C.NPU_DT_F16}


@dataclass(frozen=True, slots=True)
class Builtin:
    """A kernel before its type is chosen. `buffers` are (name, enum npu_arg_direction), in order, before the scalars."""

    program: Callable[[str], Program]
    buffers: dict[str, int]
    scalars: tuple[str, ...]


_INPUT_OUTPUT = {"input": _READ, "output": _WRITTEN}
_TWO_INPUTS = {"input": _READ, "other": _READ, "output": _WRITTEN}
_WITH_BIAS = {"input": _READ, "weights": _READ, "bias": _READ, "output": _WRITTEN}
_WINDOW = ("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w")

BUILTINS = {
    "conv2d": Builtin(convolution.conv2d, _WITH_BIAS, ("n", "c", "h", "w", "k", *_WINDOW, "groups", "activation")),
    "pool2d": Builtin(pooling.pool2d, _INPUT_OUTPUT, ("n", "c", "h", "w", *_WINDOW, "average")),
    "fully_connected": Builtin(matrix.fully_connected, _WITH_BIAS, ("m", "k", "n", "activation")),
    "matmul": Builtin(matrix.matmul, {"input": _READ, "weights": _READ, "output": _WRITTEN}, ("batch", "m", "k", "n")),
    "add": Builtin(lambda dtype: elementwise.elementwise("add", dtype), _TWO_INPUTS, ("count",)),
    "mul": Builtin(lambda dtype: elementwise.elementwise("mul", dtype), _TWO_INPUTS, ("count",)),
    "relu": Builtin(lambda dtype: elementwise.elementwise("relu", dtype), _INPUT_OUTPUT, ("count",)),
    "softmax": Builtin(rows.softmax, _INPUT_OUTPUT, ("rows", "cols")),
    "layernorm": Builtin(
        rows.layernorm,
        {"input": _READ, "gamma": _READ, "beta": _READ, "output": _WRITTEN},
        ("rows", "cols", "epsilon"),
    ),
    "reduce_sum": Builtin(rows.reduce_sum, _INPUT_OUTPUT, ("rows", "cols")),
    "copy": Builtin(elementwise.copy_kernel, _INPUT_OUTPUT, ("count",)),
    "fill": Builtin(elementwise.fill_kernel, {"output": _WRITTEN}, ("value", "count")),
    "scale_add": Builtin(
        lambda dtype: elementwise.elementwise("scale_add", dtype),
        {"input": _READ, "output": _BOTH},
        ("scale", "count"),
    ),
}


def sources() -> dict[str, KernelSource]:
    """Return all kernels of the library by name."""
    found = {}
    for name, builtin in BUILTINS.items():
        for dtype, code in DTYPES.items():
            program = builtin.program(dtype)
            params = tuple(
                KernelParam(buffer, C.NPU_ARG_BUFFER, direction, code) for buffer, direction in builtin.buffers.items()
            ) + tuple(_scalar(scalar) for scalar in builtin.scalars)
            assert program.params == tuple(param.name for param in params), name
            found[name if dtype == "f32" else f"{name}.{dtype}"] = KernelSource(program.text(), params)
    return found


def _scalar(name: str) -> KernelParam:
    if name in FLOATS:
        return KernelParam(name, C.NPU_ARG_FLOAT, C.NPU_ARG_IN, C.NPU_DT_F32)
    return KernelParam(name, C.NPU_ARG_INT, C.NPU_ARG_IN, C.NPU_DT_I64)
