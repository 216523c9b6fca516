"""SHAVE kernels: generators of programs for the vector cores. Each returns a `Program`; none knows where its operands are.

program = elementwise(("hard_swish", ("in", 0)), (C.NPU_DT_F16,), C.NPU_DT_F16)
template = program.args([Operand(0, C.NPU_DT_F16, (8, 100), (256, 2)), Operand(1, C.NPU_DT_F16, (8, 100), (200, 2))])
block = template([src_address, dst_address])
cycles = cost_cycles(program, template, profile)
"""

from __future__ import annotations

from libnpu.compiler.kernels.attention import flash_sdpa, incremental_sdpa
from libnpu.compiler.kernels.cost import cost_cycles
from libnpu.compiler.kernels.elementwise import convert, elementwise
from libnpu.compiler.kernels.gather import gather
from libnpu.compiler.kernels.program import ArgsTemplate, Operand, Program
from libnpu.compiler.kernels.rope import rope
from libnpu.compiler.kernels.rows import argmax, reduce, softmax
from libnpu.compiler.kernels.turning import unary
from libnpu.errors import Unsupported

__all__ = [
    "ArgsTemplate",
    "Operand",
    "Program",
    "Unsupported",
    "argmax",
    "convert",
    "cost_cycles",
    "elementwise",
    "flash_sdpa",
    "gather",
    "incremental_sdpa",
    "reduce",
    "rope",
    "softmax",
    "unary",
]
