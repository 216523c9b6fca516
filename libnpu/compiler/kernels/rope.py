"""Rotary position embedding: pairs of elements are turned by angles whose cosines and sines are operands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from npu_model.shave_isa import VECTOR_CAPACITY

from libnpu.compiler.kernels.builder import Builder, is_float, memory_type, store
from libnpu.compiler.kernels.program import ArgsTemplate, Operand, Program
from libnpu.errors import Unsupported

_NAMES = ("x", "cos", "sin", "out")


@lru_cache(maxsize=64)
def rope(in_dtypes: tuple[int, int, int], out_dtype: int) -> Program:
    """Return the program; operands (x, cosines, sines, out), all [outer, rows, 2, n], the third axis being that of pairs.

    out(0) = x(0) · cos(0) - x(1) · sin(0) and out(1) = x(1) · cos(1) + x(0) · sin(1), in fp32. Strides of 0 repeat.
    """
    codes = (*in_dtypes, out_dtype)
    if not all(map(is_float, codes)):
        raise Unsupported("rope of integers")
    sides = [f"{name}_{what}" for name in _NAMES for what in ("base", "outer", "row", "pair", "col")]
    b = Builder("rope", ["outer", "rows", "n", "step", *sides])
    outer, rows, n, step = b.args("outer", "rows", "n", "step")
    i, row, count, at, t, row_stride, col_stride = (b.reg() for _ in range(7))
    first, second, cos, sin, turned = (b.vreg() for _ in range(5))

    def place(name: str, half: int) -> None:
        b.arg(f"{name}_base", at)
        b.advance(at, i, b.arg(f"{name}_outer", t), t)
        b.arg(f"{name}_row", row_stride)
        b.advance(at, row, row_stride, t)
        if half:
            b.emit("add", at, at, b.arg(f"{name}_pair", t))
        b.arg(f"{name}_col", col_stride)

    def load(register: str, name: str, half: int) -> None:
        place(name, half)
        kind = memory_type(in_dtypes[_NAMES.index(name)])
        b.emit(f"vld.{kind}", register, at, row_stride, col_stride, 0)

    with b.loop(i, outer), b.loop(row, rows, step):
        b.rest(count, rows, row, step)
        b.emit("setvl", count, n)
        load(first, "x", 0)
        load(second, "x", 1)
        for half, (straight, across, combine) in enumerate(((first, second, "vsub"), (second, first, "vadd"))):
            load(cos, "cos", half)
            load(sin, "sin", half)
            b.emit("vmul.f32", cos, cos, straight)
            b.emit("vmul.f32", sin, sin, across)
            b.emit(f"{combine}.f32", turned, cos, sin)
            place("out", half)
            store(b, turned, True, out_dtype, at, row_stride, col_stride, "")

    def pack(operands: Sequence[Operand]) -> ArgsTemplate:
        if tuple(operand.dtype for operand in operands) != codes:
            raise Unsupported(f"operands of rope must have dtypes {codes}")
        dims = operands[-1].dims
        if any(operand.dims != dims for operand in operands) or len(dims) != 4 or dims[2] != 2:
            raise Unsupported(f"rope: operands {[operand.dims for operand in operands]}")
        if dims[3] > VECTOR_CAPACITY:
            raise Unsupported(f"rope: rows of {dims[3]} pairs, at most {VECTOR_CAPACITY}")
        values = {"outer": dims[0], "rows": dims[1], "n": dims[3], "step": min(dims[1], VECTOR_CAPACITY // dims[3])}
        for name, operand in zip(_NAMES, operands, strict=True):
            for what, stride in zip(("outer", "row", "pair", "col"), operand.strides, strict=True):
                values[f"{name}_{what}"] = stride
        addresses = {f"{name}_base": operand.address_index for name, operand in zip(_NAMES, operands, strict=True)}
        return b.template(values, addresses)

    return b.program(pack)
