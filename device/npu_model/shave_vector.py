"""Vector instructions of the SHAVE core. Each handler derives the result's shape and its cycles, then, when computing, its values.

Arrays in registers are never modified in place: a register is replaced by a new array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npu_model import shave_math as sm
from npu_model.shave_faults import ShaveFaultCode, ShaveUnsupported
from npu_model.shave_machine import Handler, Machine, Shape
from npu_model.shave_math import F32, S32, Array
from npu_model.shave_memory import STORAGE, Access, access, load, store
from npu_model.shave_opcodes import (
    BF16,
    F16,
    FLAG_COL,
    FLAG_FLOAT,
    FLAG_ROW,
    I32,
    INSN_BYTES,
    TYPE_BYTES,
    VECTOR_CAPACITY,
)
from npu_model.shave_opcodes import F32 as TYPE_F32

VECTOR, INT_SCALAR, FLOAT_SCALAR = 0, 1, 2  # what operand b is


def _broadcast(m: Machine, x: Shape, y: Shape) -> Shape:
    if x == y:
        return x
    rows = x[0] if y[0] == 1 else y[0]
    cols = x[1] if y[1] == 1 else y[1]
    if x[0] not in (1, rows) or x[1] not in (1, cols):
        raise m.fault(ShaveFaultCode.SHAPE, f"{x} with {y}")
    if rows * cols > VECTOR_CAPACITY:
        raise m.fault(ShaveFaultCode.VECTOR_LENGTH, f"{rows} x {cols}")
    return rows, cols


def _charge(m: Machine, shape: Shape, type_: int, special: bool) -> None:
    count = shape[0] * shape[1]
    groups = -(-count // m.lanes[type_])
    m.cycles += m.issue + (groups * m.special if special else groups)
    m.elements += count


def _value(m: Machine, register: int, dtype: np.dtype[Any]) -> Array:
    """Return a register's bits as `dtype`."""
    array = m.v[register]
    assert array is not None
    return array if array.dtype is dtype else array.view(dtype)


def _set(m: Machine, register: int, shape: Shape, value: Array | None) -> None:
    m.shapes[register] = shape
    m.v[register] = value


def _int_scalar(value: int) -> Any:
    """Return the low 32 bits of a register as s32."""
    return np.int32(((value + 0x80000000) & 0xFFFFFFFF) - 0x80000000)


def setvl(m: Machine, arg: tuple[int, int]) -> int | None:
    """Set the vector length to [rows, cols]."""
    rows, cols = m.r[arg[0]], m.r[arg[1]]
    if rows < 1 or cols < 1 or rows * cols > VECTOR_CAPACITY:
        raise m.fault(ShaveFaultCode.VECTOR_LENGTH, f"{rows} x {cols}")
    m.rows, m.cols = rows, cols
    return None


def _extent(m: Machine, flags: int) -> Shape:
    """Return the tile that ROW and COL select of the vector length."""
    return (1 if flags & FLAG_ROW else m.rows), (1 if flags & FLAG_COL else m.cols)


def _tile(view: Array, type_: int, offset: int, shape: Shape, row_stride: int, col_stride: int) -> Array:
    """Return the elements of a strided tile in the bytes `view`; bounds are checked."""
    strides = (row_stride if shape[0] > 1 else 0, col_stride if shape[1] > 1 else 0)
    return np.ndarray(shape, STORAGE[type_], view, offset, strides)


def vld(m: Machine, arg: tuple[int, int, int, int, int, int, int]) -> int | None:
    """Load a strided tile."""
    d, a, b, c, offset, type_, flags = arg
    r = m.r
    rows, cols = _extent(m, flags)
    row_stride, col_stride = r[b], r[c]
    base = r[a] + offset
    m.shapes[d] = (rows, cols)
    size = TYPE_BYTES[type_]
    if col_stride == size and (rows == 1 or row_stride == size * cols):
        m.touch_run(base, size * rows * cols, False)
        if m.compute:
            raw = m.memory.view(base, size * rows * cols, False).view(STORAGE[type_]).reshape(rows, cols)
            m.v[d] = load(raw, type_, bool(flags & FLAG_FLOAT))
        return None
    tile = access(base, size, rows, cols, row_stride, col_stride)
    m.touch(tile, False)
    if m.compute:
        view = m.memory.view(tile.base, tile.span, False)
        shape = (1 if row_stride == 0 else rows, 1 if col_stride == 0 else cols)
        value = load(
            _tile(view, type_, base - tile.base, shape, row_stride, col_stride), type_, bool(flags & FLAG_FLOAT)
        )
        m.v[d] = value if shape == (rows, cols) else np.broadcast_to(value, (rows, cols))
    return None


def vst(m: Machine, arg: tuple[int, int, int, int, int, int, int]) -> int | None:
    """Store a strided tile; the register broadcasts to it. A stride of 0 over several elements has no meaning and faults."""
    d, a, b, c, offset, type_, flags = arg
    r = m.r
    rows, cols = _extent(m, flags)
    row_stride, col_stride = r[b], r[c]
    shape = m.shape(d)
    if _broadcast(m, shape, (rows, cols)) != (rows, cols):
        raise m.fault(ShaveFaultCode.SHAPE, f"store of {shape} as {rows} x {cols}")
    if (rows > 1 and row_stride == 0) or (cols > 1 and col_stride == 0):
        raise m.fault(ShaveFaultCode.ADDRESS, "store with stride 0")
    base = r[a] + offset
    size = TYPE_BYTES[type_]
    if col_stride == size and (rows == 1 or row_stride == size * cols):
        m.touch_run(base, size * rows * cols, True)
        if m.compute:
            out = m.memory.view(base, size * rows * cols, True).view(STORAGE[type_]).reshape(rows, cols)
            store(_value(m, d, _register_dtype(type_, flags)), out, type_)
        return None
    tile = access(base, size, rows, cols, row_stride, col_stride)
    m.touch(tile, True)
    if m.compute:
        view = m.memory.view(tile.base, tile.span, True)
        out = _tile(view, type_, base - tile.base, (rows, cols), row_stride, col_stride)
        store(_value(m, d, _register_dtype(type_, flags)), out, type_)
    return None


def _register_dtype(type_: int, flags: int) -> np.dtype[Any]:
    return F32 if flags & FLAG_FLOAT or type_ in (F16, BF16, TYPE_F32) else S32


def _indexed(m: Machine, arg: tuple[int, ...], write: bool) -> tuple[Access, Shape]:
    """Return the bounding tile of a gather or scatter and the shape of its index; logs and charges the access.

    Element (i, j) is at r[b] + index[i, j] * r[imm] + j * r[imm2], 0 <= index < r[c]. The log holds the bounding box of all indices.
    """
    _, a, b, c, index_stride, col_stride, type_, _ = arg
    index_stride, col_stride = m.r[index_stride], m.r[col_stride]
    size = TYPE_BYTES[type_]
    index_shape = m.shape(a)
    if _broadcast(m, index_shape, (m.rows, m.cols)) != (m.rows, m.cols):
        raise m.fault(ShaveFaultCode.SHAPE, f"index {index_shape} for {m.rows} x {m.cols}")
    limit = m.r[c]
    if not 1 <= limit < 1 << 31:
        raise m.fault(ShaveFaultCode.INDEX, f"limit {limit}")
    tile = access(m.r[b], size, limit, m.cols, index_stride, col_stride)
    cycles = m.cycles
    traffic = m.writes if write else m.reads
    total = traffic.total_bytes
    m.touch(tile, write)
    traffic.total_bytes = total + size * m.rows * m.cols
    rate = m.store_bytes if write else m.load_bytes
    if index_shape[1] == 1 and col_stride == size:
        m.cycles = cycles + m.issue + m.rows * -(-size * m.cols // rate)
    else:
        m.cycles = cycles + m.issue - (-m.rows * m.cols // m.strided)
    return tile, index_shape


def _table(m: Machine, arg: tuple[int, ...], tile: Access, write: bool) -> tuple[Array, Any]:
    """Return the table [limit, cols] in memory and the checked index that selects the tile from it."""
    _, a, b, c, index_stride, col_stride, type_, _ = arg
    index_stride, col_stride = m.r[index_stride], m.r[col_stride]
    limit = m.r[c]
    view = m.memory.view(tile.base, tile.span, write)
    table = _tile(view, type_, m.r[b] - tile.base, (limit, m.cols), index_stride, col_stride)
    index = np.broadcast_to(_value(m, a, S32), (m.rows, m.shape(a)[1]))
    low, high = int(index.min()), int(index.max())
    if low < 0 or high >= limit:
        raise m.fault(ShaveFaultCode.INDEX, f"index {low if low < 0 else high} with limit {limit}")
    if index.shape[1] == 1:
        return table, index[:, 0]
    return table, (index, np.arange(m.cols)[None, :])


def vgather(m: Machine, arg: tuple[int, ...]) -> int | None:
    """Load elements, or rows of elements, by index."""
    tile, _ = _indexed(m, arg, False)
    value = None
    if m.compute:
        table, index = _table(m, arg, tile, False)
        value = load(table[index], arg[6], bool(arg[7] & FLAG_FLOAT))
    _set(m, arg[0], (m.rows, m.cols), value)
    return None


def vscatter(m: Machine, arg: tuple[int, ...]) -> int | None:
    """Store elements, or rows of elements, by index; of equal indices the last row wins."""
    d, type_ = arg[0], arg[6]
    if _broadcast(m, m.shape(d), (m.rows, m.cols)) != (m.rows, m.cols):
        raise m.fault(ShaveFaultCode.SHAPE, f"scatter of {m.shape(d)}")
    tile, _ = _indexed(m, arg, True)
    if m.compute:
        table, index = _table(m, arg, tile, True)
        converted: Array = np.empty((m.rows, m.cols), STORAGE[type_])
        store(_value(m, d, _register_dtype(type_, arg[7])), converted, type_)
        table[index] = converted
    return None


def vsplat(m: Machine, arg: tuple[int, int, int]) -> int | None:
    """Make a [1, 1] vector of a scalar register."""
    d, b, type_ = arg
    value = _int_scalar(m.r[b]) if type_ == I32 else m.f[b]
    _charge(m, (1, 1), type_, False)
    _set(m, d, (1, 1), np.full((1, 1), value))
    return None


def viota(m: Machine, arg: tuple[int, int]) -> int | None:
    """Number the elements of the tile in row-major order."""
    d, flags = arg
    shape = _extent(m, flags)
    _charge(m, shape, I32, False)
    _set(m, d, shape, np.arange(shape[0] * shape[1], dtype=S32).reshape(shape) if m.compute else None)
    return None


def vmov(m: Machine, arg: tuple[int, int]) -> int | None:
    """Copy a register."""
    d, a = arg
    shape = m.shape(a)
    _charge(m, shape, TYPE_F32, False)
    _set(m, d, shape, m.v[a])
    return None


def vbcast(m: Machine, arg: tuple[int, int]) -> int | None:
    """Broadcast a register to the vector length."""
    d, a = arg
    shape = (m.rows, m.cols)
    if _broadcast(m, m.shape(a), shape) != shape:
        raise m.fault(ShaveFaultCode.SHAPE, f"{m.shape(a)} to {shape}")
    _charge(m, shape, TYPE_F32, False)
    _set(m, d, shape, np.broadcast_to(_value(m, a, S32), shape) if m.compute else None)
    return None


def vtrans(m: Machine, arg: tuple[int, int]) -> int | None:
    """Transpose."""
    d, a = arg
    rows, cols = m.shape(a)
    _charge(m, (rows, cols), TYPE_F32, False)
    _set(m, d, (cols, rows), np.ascontiguousarray(_value(m, a, S32).T) if m.compute else None)
    return None


def vext(m: Machine, arg: tuple[int, int, int, int, int]) -> int | None:
    """Copy one element to a scalar register."""
    d, a, b, c, type_ = arg
    rows, cols = m.shape(a)
    i, j = m.r[b], m.r[c]
    if not (0 <= i < rows and 0 <= j < cols):
        raise m.fault(ShaveFaultCode.INDEX, f"element ({i}, {j}) of {rows} x {cols}")
    _charge(m, (1, 1), type_, False)
    if not m.compute:
        raise ShaveUnsupported(m.pc * INSN_BYTES, "vext cannot be followed without computing values")
    if type_ == I32:
        m.r[d] = int(_value(m, a, S32)[i, j])
    else:
        m.f[d] = _value(m, a, F32)[i, j]
    return None


def vsel(m: Machine, arg: tuple[int, int, int, int]) -> int | None:
    """Take b where the s32 condition a is not zero, else c."""
    d, a, b, c = arg
    shape = _broadcast(m, _broadcast(m, m.shape(a), m.shape(b)), m.shape(c))
    _charge(m, shape, TYPE_F32, False)
    _set(m, d, shape, np.where(_value(m, a, S32) != 0, _value(m, b, S32), _value(m, c, S32)) if m.compute else None)
    return None


def vfma(m: Machine, arg: tuple[int, int, int, int, int]) -> int | None:
    """Multiply and add."""
    d, a, b, c, type_ = arg
    shape = _broadcast(m, _broadcast(m, m.shape(a), m.shape(b)), m.shape(c))
    _charge(m, shape, type_, False)
    value = None
    if m.compute:
        value = sm.fused(_value(m, a, F32), _value(m, b, F32), _value(m, c, F32))
        if type_ != TYPE_F32:
            value = sm.round_f16(value)
    _set(m, d, shape, value)
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
            shape = _broadcast(m, x_shape, m.shape(b))
    count = shape[0] * shape[1]
    groups = -(-count // m.lanes[type_])
    m.cycles += m.issue + (groups * m.special if special else groups)
    m.elements += count
    m.shapes[d] = shape
    if m.compute:
        x = _value(m, a, dtype)
        if form == VECTOR:
            y = _value(m, b, dtype)
        elif form == FLOAT_SCALAR:
            y = m.f[b]
        else:
            y = _int_scalar(m.r[b])
        if reverse:
            x, y = y, x
        if divides and not np.all(y):
            raise m.fault(ShaveFaultCode.DIVIDE_BY_ZERO)
        value = function(x, y)
        m.v[d] = sm.round_f16(value) if round16 else value
    return None


def unary(m: Machine, arg: Any) -> int | None:
    """Run an instruction of one operand; `arg` is made by `shave_decode`."""
    d, a, function, dtype, type_, special, round16 = arg
    shape = m.shapes[a]
    if shape is None:
        shape = m.shape(a)
    count = shape[0] * shape[1]
    groups = -(-count // m.lanes[type_])
    m.cycles += m.issue + (groups * m.special if special else groups)
    m.elements += count
    m.shapes[d] = shape
    if m.compute:
        value = function(_value(m, a, dtype))
        m.v[d] = sm.round_f16(value) if round16 else value
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
    "vrmax": _max,
    "vrmin": _min,
    "vargmax": _argmax,
}
REDUCE_I32 = {**REDUCE_F32, "vrsum": _sum_i32, "vrprod": _prod_i32}


def reduction(m: Machine, arg: Any) -> int | None:
    """Reduce the columns (COL, to [R, 1]) or the rows (ROW, to [1, C]); `arg` is made by `shave_decode`."""
    d, a, axis, function, dtype, type_, round16 = arg
    rows, cols = m.shape(a)
    _charge(m, (rows, cols), type_, False)
    value = None
    if m.compute:
        value = function(_value(m, a, dtype), axis)
        if round16:
            value = sm.round_f16(value)
    _set(m, d, (rows, 1) if axis == 1 else (1, cols), value)
    return None


HANDLERS: dict[str, Handler] = {
    "setvl": setvl,
    "vld": vld,
    "vst": vst,
    "vgather": vgather,
    "vscatter": vscatter,
    "vsplat": vsplat,
    "viota": viota,
    "vmov": vmov,
    "vbcast": vbcast,
    "vtrans": vtrans,
    "vext": vext,
    "vsel": vsel,
    "vfma": vfma,
}
