"""Weights of 4 bits, two to a byte, become bytes: what the matrix engine multiplies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from npu_model import dtypes
from npu_model.shave_isa import VECTOR_CAPACITY

from libnpu.compiler.kernels.builder import Builder
from libnpu.compiler.kernels.program import ArgsTemplate, Operand, Program
from libnpu.errors import Unsupported

WORD = 4  # bytes that a lane takes at once


@lru_cache(maxsize=1)
def unpack() -> Program:
    """Return the program; operands (in [rows, n / 2], out [rows, n]), uint8, columns side by side, n / 2 whole words of 4 bytes.

    Byte j of a row holds element j in its lower half and element n / 2 + j in its upper one, each 0..15.
    """
    b = Builder("unpack", ["rows", "words", "half", "step", "source", "in_row", "target", "out_row"])
    rows, words, half, step, source, in_row, target, out_row = b.args(*b.words)
    row, count, at, t, word, mask, shift = (b.reg() for _ in range(7))
    packed, upper, lower = b.vreg(), b.vreg(), b.vreg()
    for register, number in ((word, WORD), (mask, 0x0F0F0F0F), (shift, 4)):
        b.emit("li", register, number)
    with b.loop(row, rows, step):
        b.rest(count, rows, row, step)
        b.emit("setvl", count, words)
        b.emit("mov", at, source)
        b.advance(at, row, in_row, t)
        b.emit("vld.i32", packed, at, in_row, word, 0)
        b.emit("mov", at, target)
        b.advance(at, row, out_row, t)
        b.emit("vand.i32.s", lower, packed, mask)
        b.emit("vst.i32", lower, at, out_row, word, 0)
        b.emit("add", at, at, half)
        b.emit("vshr.i32.s", upper, packed, shift)
        b.emit("vand.i32.s", upper, upper, mask)
        b.emit("vst.i32", upper, at, out_row, word, 0)

    def pack(operands: Sequence[Operand]) -> ArgsTemplate:
        packed, out = operands
        if (packed.dtype, out.dtype) != (dtypes.U8, dtypes.U8) or out.dims != (packed.dims[0], 2 * packed.dims[1]):
            raise Unsupported(f"unpack: operands {packed.dims} and {out.dims}")
        (count, half), most = packed.dims, WORD * VECTOR_CAPACITY
        if half % WORD or half > most:
            raise Unsupported(
                f"unpack: rows of {half} bytes; whole words of {WORD} bytes are taken, at most {most} bytes"
            )
        values = {"rows": count, "words": half // WORD, "half": half, "step": min(count, most // half)}
        values |= {"in_row": packed.strides[0], "out_row": out.strides[0]}
        return b.template(values, {"source": packed.address_index, "target": out.address_index})

    return b.program(pack)
