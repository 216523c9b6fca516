"""Weights of 4 bits, two to a byte, become bytes: what the matrix engine multiplies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from npu_model import dtypes
from npu_model.shave_isa import VECTOR_CAPACITY

from libnpu.compiler.kernels.builder import Builder
from libnpu.compiler.kernels.program import ArgsTemplate, Operand, Program
from libnpu.errors import Unsupported


@lru_cache(maxsize=1)
def unpack() -> Program:
    """Return the program; operands (in [rows, n / 2], out [rows, n]), uint8, columns side by side.

    Byte j of a row holds element j in its lower half and element n / 2 + j in its upper one, each 0..15.
    """
    b = Builder("unpack", ["rows", "half", "step", "source", "in_row", "target", "out_row"])
    rows, half, step, source, in_row, target, out_row = b.args(*b.words)
    row, count, at, t, one, mask, shift = (b.reg() for _ in range(7))
    pair, half_byte = b.vreg(), b.vreg()
    for register, number in ((one, 1), (mask, 15), (shift, 4)):
        b.emit("li", register, number)
    with b.loop(row, rows, step):
        b.rest(count, rows, row, step)
        b.emit("setvl", count, half)
        b.emit("mov", at, source)
        b.advance(at, row, in_row, t)
        b.emit("vld.u8", pair, at, in_row, one, 0)
        b.emit("mov", at, target)
        b.advance(at, row, out_row, t)
        b.emit("vand.i32.s", half_byte, pair, mask)
        b.emit("vst.u8", half_byte, at, out_row, one, 0)
        b.emit("add", at, at, half)
        b.emit("vshr.i32.s", pair, pair, shift)
        b.emit("vst.u8", pair, at, out_row, one, 0)

    def pack(operands: Sequence[Operand]) -> ArgsTemplate:
        packed, out = operands
        if (packed.dtype, out.dtype) != (dtypes.U8, dtypes.U8) or out.dims != (packed.dims[0], 2 * packed.dims[1]):
            raise Unsupported(f"unpack: operands {packed.dims} and {out.dims}")
        if packed.dims[1] > VECTOR_CAPACITY:
            raise Unsupported(f"unpack: rows of {packed.dims[1]} bytes, at most {VECTOR_CAPACITY}")
        count, width = packed.dims
        values = {"rows": count, "half": width, "step": min(count, VECTOR_CAPACITY // width)}
        values |= {"in_row": packed.strides[0], "out_row": out.strides[0]}
        return b.template(values, {"source": packed.address_index, "target": out.address_index})

    return b.program(pack)
