"""Gather along one axis: rows (or elements) of a table by an index vector."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from npu_model import dtypes
from npu_model.shave_isa import VECTOR_CAPACITY

from libnpu.compiler.kernels.builder import ZERO, Builder, is_float, store
from libnpu.compiler.kernels.program import ArgsTemplate, Operand, Program
from libnpu.errors import Unsupported

_WORDS = (
    *("outer", "count", "inner", "n", "chunk_count", "chunk_inner"),
    *("data", "data_outer", "data_n", "data_inner"),
    *("index", "index_stride"),
    *("out", "out_outer", "out_count", "out_inner"),
)


@lru_cache(maxsize=64)
def gather(data_dtype: int, index_dtype: int) -> Program:
    """Return out[o, i, k] = data[o, index[i], k]; operands data [outer, n, inner], index [count], out [outer, count, inner].

    A negative index counts from the end; one outside [-n, n) is a SHAVE fault. 64-bit data passes through 32-bit registers.
    """
    if is_float(index_dtype) or index_dtype == dtypes.BOOL:
        raise Unsupported(f"gather by {dtypes.name(index_dtype)}")
    floats = is_float(data_dtype)
    b = Builder(f"gather {dtypes.name(data_dtype)} by {dtypes.name(index_dtype)}", _WORDS)
    outer, count, inner, n, chunk_count, chunk_inner = b.args(*_WORDS[:6])
    data, data_outer, data_n, data_inner = b.args(*_WORDS[6:10])
    index, index_stride = b.args(*_WORDS[10:12])
    out, out_outer, out_count, out_inner = b.args(*_WORDS[12:])
    i, k, o, rows, cols, address, t = (b.reg() for _ in range(7))
    chosen, negative, value = b.vreg(), b.vreg(), b.vreg()
    with b.loop(i, count, chunk_count):
        b.rest(rows, count, i, chunk_count)
        b.emit("li", cols, 1)
        b.emit("setvl", rows, cols)
        b.emit("mov", address, index)
        b.advance(address, i, index_stride, t)
        b.emit(f"vld.{dtypes.name(index_dtype)}.col", chosen, address, index_stride, ZERO, 0)
        b.emit("vlt.i32.s", negative, chosen, ZERO)
        b.emit("vmul.i32.s", negative, negative, n)
        b.emit("vadd.i32", chosen, chosen, negative)
        with b.loop(o, outer), b.loop(k, inner, chunk_inner):
            b.rest(cols, inner, k, chunk_inner)
            b.emit("setvl", rows, cols)
            b.emit("mov", address, data)
            b.advance(address, o, data_outer, t)
            b.advance(address, k, data_inner, t)
            b.emit(f"vgather.{dtypes.name(data_dtype)}", value, chosen, address, n, data_n, data_inner)
            b.emit("mov", address, out)
            b.advance(address, o, out_outer, t)
            b.advance(address, i, out_count, t)
            b.advance(address, k, out_inner, t)
            store(b, value, floats, data_dtype, address, out_count, out_inner, "")

    def pack(operands: Sequence[Operand]) -> ArgsTemplate:
        table, chooser, target = operands
        if (table.dtype, chooser.dtype, target.dtype) != (data_dtype, index_dtype, data_dtype):
            raise Unsupported(f"operands of {b.name} have dtypes {[operand.dtype for operand in operands]}")
        outer, n, inner = table.dims
        (count,) = chooser.dims
        if target.dims != (outer, count, inner) or 0 in (*target.dims, n):
            raise Unsupported(f"{b.name}: dims {[operand.dims for operand in operands]}")
        cols = min(inner, VECTOR_CAPACITY)
        values = {"outer": outer, "count": count, "inner": inner, "n": n}
        values |= {"chunk_count": min(count, VECTOR_CAPACITY // cols), "chunk_inner": cols}
        values |= dict(zip(("data_outer", "data_n", "data_inner"), table.strides, strict=True))
        values |= dict(zip(("out_outer", "out_count", "out_inner"), target.strides, strict=True))
        values["index_stride"] = chooser.strides[0]
        addresses = {"data": table.address_index, "index": chooser.address_index, "out": target.address_index}
        return b.template(values, addresses)

    return b.program(pack)
