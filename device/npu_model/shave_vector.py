"""Vector instructions of the SHAVE core on registers: each derives its result's shape and cycles, then, when computing, values.

Arrays in registers are never modified in place: a register is replaced by a new array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npu_model import shave_math as sm
from npu_model.shave_faults import ShaveFaultCode, ShaveUnsupported
from npu_model.shave_machine import VECTOR_UNIT, Handler, Machine
from npu_model.shave_math import F32, S32, Array
from npu_model.shave_opcodes import F32 as TYPE_F32
from npu_model.shave_opcodes import I32, INSN_BYTES

VECTOR, INT_SCALAR, FLOAT_SCALAR = 0, 1, 2  # what operand b is


def _int_scalar(value: int) -> Any:
    """Return the low 32 bits of a register as s32."""
    return np.int32(((value + 0x80000000) & 0xFFFFFFFF) - 0x80000000)


def vsplat(m: Machine, arg: tuple[int, int, int]) -> int | None:
    """Make a [1, 1] vector of a scalar register."""
    d, b, type_ = arg
    value = _int_scalar(m.r[b]) if type_ == I32 else m.f[b]
    m.move(d, (1, 1), type_, ())
    m.set(d, (1, 1), value.reshape(1, 1))
    return None


def viota(m: Machine, arg: tuple[int, int]) -> int | None:
    """Number the elements of the tile in row-major order."""
    d, flags = arg
    shape = m.extent(flags)
    m.move(d, shape, I32, ())
    m.set(d, shape, np.arange(shape[0] * shape[1], dtype=S32).reshape(shape) if m.compute else None)
    return None


def vmov(m: Machine, arg: tuple[int, int]) -> int | None:
    """Copy a register."""
    d, a = arg
    shape = m.shape(a)
    m.move(d, shape, TYPE_F32, (a,))
    m.set(d, shape, m.v[a])
    return None


def vbcast(m: Machine, arg: tuple[int, int]) -> int | None:
    """Broadcast a register to the vector length."""
    d, a = arg
    shape = (m.rows, m.cols)
    if m.broadcast(m.shape(a), shape) != shape:
        raise m.fault(ShaveFaultCode.SHAPE, f"{m.shape(a)} to {shape}")
    m.move(d, shape, TYPE_F32, (a,))
    m.set(d, shape, np.broadcast_to(m.value(a, S32), shape) if m.compute else None)
    return None


def vtrans(m: Machine, arg: tuple[int, int]) -> int | None:
    """Transpose."""
    d, a = arg
    rows, cols = m.shape(a)
    m.move(d, (rows, cols), TYPE_F32, (a,))
    m.first[d] = m.last[d]  # the first column has the last element of a row
    m.set(d, (cols, rows), np.ascontiguousarray(m.value(a, S32).T) if m.compute else None)
    return None


def vext(m: Machine, arg: tuple[int, int, int, int, int]) -> int | None:
    """Copy one element to a scalar register."""
    d, a, b, c, type_ = arg
    rows, cols = m.shape(a)
    i, j = m.r[b], m.r[c]
    if not (0 <= i < rows and 0 <= j < cols):
        raise m.fault(ShaveFaultCode.INDEX, f"element ({i}, {j}) of {rows} x {cols}")
    _, m.cycles = m.stream(VECTOR_UNIT, 1, (a,), m.cycles)
    m.work += 1
    if not m.compute:
        raise ShaveUnsupported(m.pc * INSN_BYTES, "vext cannot be followed without computing values")
    if type_ == I32:
        m.r[d] = int(m.value(a, S32)[i, j])
    else:
        m.f[d] = m.value(a, F32)[i, j]
    return None


def vsel(m: Machine, arg: tuple[int, int, int, int]) -> int | None:
    """Take b where the s32 condition a is not zero, else c."""
    d, a, b, c = arg
    shape = m.broadcast(m.broadcast(m.shape(a), m.shape(b)), m.shape(c))
    m.arithmetic(d, shape, TYPE_F32, False, (a, b, c))
    m.set(d, shape, np.where(m.value(a, S32) != 0, m.value(b, S32), m.value(c, S32)) if m.compute else None)
    return None


def vfma(m: Machine, arg: tuple[int, int, int, int, int]) -> int | None:
    """Multiply and add."""
    d, a, b, c, type_ = arg
    shape = m.broadcast(m.broadcast(m.shape(a), m.shape(b)), m.shape(c))
    m.arithmetic(d, shape, type_, False, (a, b, c))
    value = None
    if m.compute:
        value = sm.fused(m.value(a, F32), m.value(b, F32), m.value(c, F32))
        if type_ != TYPE_F32:
            value = m.round_f16(value)
    m.set(d, shape, value)
    return None


def binary(m: Machine, arg: Any) -> int | None:
    """Run an instruction of two operands; `arg` is made by `shave_decode`."""
    d, a, b, form, reverse, function, dtype, type_, special, round16, divides = arg
    x_shape = m.shapes[a]
    if x_shape is None:
        x_shape = m.shape(a)
    shape = x_shape
    if form == VECTOR:
        y_shape = m.shapes[b]
        if y_shape != x_shape:
            shape = m.broadcast(x_shape, m.shape(b))
    m.arithmetic(d, shape, type_, special, (a, b) if form == VECTOR else (a,))
    m.shapes[d] = shape
    if m.compute:
        x = m.value(a, dtype)
        if form == VECTOR:
            y = m.value(b, dtype)
        elif form == FLOAT_SCALAR:
            y = m.f[b]
        else:
            y = _int_scalar(m.r[b])
        if reverse:
            x, y = y, x
        if divides and not np.all(y):
            raise m.fault(ShaveFaultCode.DIVIDE_BY_ZERO)
        value = function(x, y)
        m.v[d] = m.round_f16(value) if round16 else value
    return None


def unary(m: Machine, arg: Any) -> int | None:
    """Run an instruction of one operand; `arg` is made by `shave_decode`."""
    d, a, function, dtype, type_, special, round16 = arg
    shape = m.shapes[a]
    if shape is None:
        shape = m.shape(a)
    m.arithmetic(d, shape, type_, special, (a,))
    m.shapes[d] = shape
    if m.compute:
        value = function(m.value(a, dtype))
        m.v[d] = m.round_f16(value) if round16 else value
    return None


def compared(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Return a comparison whose result is s32 0 or 1."""

    def compare(x: Array, y: Array) -> Array:
        return function(x, y).astype(S32)

    return compare


def _along_rows(x: Array, axis: int) -> Array:
    """Return float64 `x`, dense, with `axis` last: the order of a float sum then depends on its length only."""
    return x.astype(np.float64, order="C") if axis == 1 else np.ascontiguousarray(x.T, np.float64)


def _sum_f32(x: Array, axis: int) -> Array:
    total: Array = np.add.reduce(_along_rows(x, axis), axis=1).astype(F32)
    return np.expand_dims(total, axis)


def _prod_f32(x: Array, axis: int) -> Array:
    product: Array = np.multiply.reduce(_along_rows(x, axis), axis=1).astype(F32)
    return np.expand_dims(product, axis)


def _sum_i32(x: Array, axis: int) -> Array:
    return np.asarray(np.add.reduce(x, axis=axis, dtype=np.int64, keepdims=True)).astype(S32)


def _prod_i32(x: Array, axis: int) -> Array:
    return np.asarray(np.multiply.reduce(x, axis=axis, dtype=np.int64, keepdims=True)).astype(S32)


def _max(x: Array, axis: int) -> Array:
    return np.asarray(np.maximum.reduce(x, axis=axis, keepdims=True))


def _min(x: Array, axis: int) -> Array:
    return np.asarray(np.minimum.reduce(x, axis=axis, keepdims=True))


def _argmax(x: Array, axis: int) -> Array:
    return np.asarray(np.argmax(x, axis=axis, keepdims=True)).astype(S32)


REDUCE_F32: dict[str, Callable[[Array, int], Array]] = {
    "vrsum": _sum_f32,
    "vrprod": _prod_f32,
    "vrmax": sm.most_along,
    "vrmin": sm.least_along,
    "vargmax": _argmax,
}
REDUCE_I32 = {**REDUCE_F32, "vrsum": _sum_i32, "vrprod": _prod_i32, "vrmax": _max, "vrmin": _min}


def reduction(m: Machine, arg: Any) -> int | None:
    """Reduce the columns (COL, to [R, 1]) or the rows (ROW, to [1, C]); `arg` is made by `shave_decode`."""
    d, a, axis, function, dtype, type_, round16 = arg
    rows, cols = m.shape(a)
    m.arithmetic(d, (rows, cols), type_, False, (a,))
    m.first[d] = m.last[d]
    value = None
    if m.compute:
        value = function(m.value(a, dtype), axis)
        if round16:
            value = m.round_f16(value)
    m.set(d, (rows, 1) if axis == 1 else (1, cols), value)
    return None


HANDLERS: dict[str, Handler] = {
    "vsplat": vsplat,
    "viota": viota,
    "vmov": vmov,
    "vbcast": vbcast,
    "vtrans": vtrans,
    "vext": vext,
    "vsel": vsel,
    "vfma": vfma,
}
