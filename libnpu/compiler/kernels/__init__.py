"""SHAVE kernels: generators of programs for the vector cores. Each returns a `Program`; none knows where its operands are.

program = elementwise(("hard_swish", ("in", 0)), (C.NPU_DT_F16,), C.NPU_DT_F16)
template = program.args([Operand(0, C.NPU_DT_F16, (8, 100), (256, 2)), Operand(1, C.NPU_DT_F16, (8, 100), (200, 2))])
block = template([src_address, dst_address])
cycles = cost_cycles(program, template, profile)
"""

from __future__ import annotations

from libnpu.compiler.kernels.cost import cost_cycles
from libnpu.compiler.kernels.elementwise import convert, elementwise
from libnpu.compiler.kernels.errors import Unimplemented, Unsupported
from libnpu.compiler.kernels.program import ArgsTemplate, Operand, Program

__all__ = [
    "ArgsTemplate",
    "Operand",
    "Program",
    "Unimplemented",
    "Unsupported",
    "argmax",
    "convert",
    "cost_cycles",
    "elementwise",
    "gather",
    "reduce",
    "softmax",
]


def reduce(kind: str, in_dtype: int, out_dtype: int) -> Program:
    """Return the reduction sum|mean|max|min|prod; operands (in [outer, n, inner], out [outer, inner])."""
    raise Unimplemented("kernel reduce")


def softmax(in_dtype: int, out_dtype: int, log: bool = False) -> Program:
    """Return the softmax or log-softmax along n; operands (in, out), both [outer, n, inner]."""
    raise Unimplemented("kernel softmax")


def gather(data_dtype: int, index_dtype: int) -> Program:
    """Return out[o, i, k] = data[o, index[i], k]; operands data [outer, n, inner], index [count], out [outer, count, inner].

    A negative index counts from the end; one outside [-n, n) is a SHAVE fault.
    """
    raise Unimplemented("kernel gather")


def argmax(in_dtype: int, out_dtype: int) -> Program:
    """Return the index of the first maximum along n; operands (in [outer, n, inner], out [outer, inner] of an integer type)."""
    raise Unimplemented("kernel argmax")
