"""Instructions that move tiles between memory and vector registers: length, loads, stores, gather, scatter."""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np

from npu_model.shave_faults import ShaveFaultCode
from npu_model.shave_machine import STRIDED_WORK, VECTOR_WORK, Handler, Machine, Shape, access_cycles
from npu_model.shave_math import F32, S32, Array
from npu_model.shave_memory import STORAGE, Access, access, load, store
from npu_model.shave_opcodes import BF16, F16, F64, FLAG_FLOAT, TYPE_BYTES, VECTOR_CAPACITY
from npu_model.shave_opcodes import F32 as TYPE_F32


def setvl(m: Machine, arg: tuple[int, int]) -> int | None:
    """Set the vector length to [rows, cols]."""
    rows, cols = m.r[arg[0]], m.r[arg[1]]
    if rows < 1 or cols < 1 or rows * cols > VECTOR_CAPACITY:
        raise m.fault(ShaveFaultCode.VECTOR_LENGTH, f"{rows} x {cols}")
    m.rows, m.cols = rows, cols
    return None


def _tile(view: Array, type_: int, offset: int, shape: Shape, row_stride: int, col_stride: int) -> Array:
    """Return the elements of a strided tile in the bytes `view`; bounds are checked."""
    strides = (row_stride if shape[0] > 1 else 0, col_stride if shape[1] > 1 else 0)
    return np.ndarray(shape, STORAGE[type_], view, offset, strides)


def vld(m: Machine, arg: tuple[int, int, int, int, int, int, int]) -> int | None:
    """Load a strided tile."""
    d, a, b, c, offset, type_, flags = arg
    r = m.r
    rows, cols = m.extent(flags)
    row_stride, col_stride = r[b], r[c]
    base = r[a] + offset
    m.shapes[d] = (rows, cols)
    size = TYPE_BYTES[type_]
    if col_stride == size and (rows == 1 or row_stride == size * cols):
        nbytes = size * rows * cols
        m.load(d, m.touch_run(base, nbytes, False))
        if m.compute:
            raw: Array = np.ndarray((rows, cols), STORAGE[type_], m.memory.view(base, nbytes, False))
            m.v[d] = load(raw, type_, bool(flags & FLAG_FLOAT))
        else:
            m.memory.check(base, nbytes, False)
        return None
    tile = access(base, size, rows, cols, row_stride, col_stride)
    m.load(d, m.touch(tile, False))
    if m.compute:
        view = m.memory.view(tile.base, tile.span, False)
        shape = (1 if row_stride == 0 else rows, 1 if col_stride == 0 else cols)
        value = load(
            _tile(view, type_, base - tile.base, shape, row_stride, col_stride), type_, bool(flags & FLAG_FLOAT)
        )
        m.v[d] = value if shape == (rows, cols) else np.broadcast_to(value, (rows, cols))
    else:
        m.memory.check(tile.base, tile.span, False)
    return None


def vst(m: Machine, arg: tuple[int, int, int, int, int, int, int]) -> int | None:
    """Store a strided tile; the register broadcasts to it. A stride of 0 over several elements has no meaning and faults."""
    d, a, b, c, offset, type_, flags = arg
    r = m.r
    rows, cols = m.extent(flags)
    row_stride, col_stride = r[b], r[c]
    shape = m.shape(d)
    if m.broadcast(shape, (rows, cols)) != (rows, cols):
        raise m.fault(ShaveFaultCode.SHAPE, f"store of {shape} as {rows} x {cols}")
    if (rows > 1 and row_stride == 0) or (cols > 1 and col_stride == 0):
        raise m.fault(ShaveFaultCode.ADDRESS, "store with stride 0")
    base = r[a] + offset
    size = TYPE_BYTES[type_]
    if col_stride == size and (rows == 1 or row_stride == size * cols):
        nbytes = size * rows * cols
        m.store(m.touch_run(base, nbytes, True), d)
        if m.compute:
            out: Array = np.ndarray((rows, cols), STORAGE[type_], m.memory.view(base, nbytes, True))
            m.overflows += store(m.value(d, _register_dtype(type_, flags)), out, type_)
        else:
            m.memory.check(base, nbytes, True)
        return None
    tile = access(base, size, rows, cols, row_stride, col_stride)
    m.store(m.touch(tile, True), d)
    if m.compute:
        view = m.memory.view(tile.base, tile.span, True)
        out = _tile(view, type_, base - tile.base, (rows, cols), row_stride, col_stride)
        m.overflows += store(m.value(d, _register_dtype(type_, flags)), out, type_)
    else:
        m.memory.check(tile.base, tile.span, True)
    return None


def _register_dtype(type_: int, flags: int) -> np.dtype[Any]:
    return F32 if flags & FLAG_FLOAT or type_ in (F16, BF16, TYPE_F32, F64) else S32


def _indexed(m: Machine, arg: tuple[int, ...], write: bool) -> tuple[Access, Shape]:
    """Return the bounding tile of a gather or scatter and the shape of its index; logs and charges the access.

    Element (i, j) is at r[b] + index[i, j] * r[imm] + j * r[imm2], 0 <= index < r[c]. The log holds the bounding box of all indices.
    """
    d, a, b, c, index_stride, col_stride, type_, _ = arg
    index_stride, col_stride = m.r[index_stride], m.r[col_stride]
    size = TYPE_BYTES[type_]
    index_shape = m.shape(a)
    if m.broadcast(index_shape, (m.rows, m.cols)) != (m.rows, m.cols):
        raise m.fault(ShaveFaultCode.SHAPE, f"index {index_shape} for {m.rows} x {m.cols}")
    limit = m.r[c]
    if not 1 <= limit < 1 << 31:
        raise m.fault(ShaveFaultCode.INDEX, f"limit {limit}")
    tile = access(m.r[b], size, limit, m.cols, index_stride, col_stride)
    m.check_span(tile.base, tile.span)
    m.work += VECTOR_WORK + m.rows * m.cols * STRIDED_WORK
    if index_shape[1] == 1 and col_stride == size:
        count, width, step = m.rows, size * m.cols, index_stride
        busy = access_cycles(count, width, m.store_bytes if write else m.load_bytes)
    else:
        count, width, step = m.rows * m.cols, size, gcd(index_stride, col_stride)
        busy = access_cycles(1, count, m.strided)
    m.count_accesses(count, width, write)
    (m.writes if write else m.reads).add_indexed(m.pc, tile, count, width, step)
    if write:
        m.store(busy, d, a)
    else:
        m.load(d, busy, (a,))
    return tile, index_shape


def _table(m: Machine, arg: tuple[int, ...], tile: Access, write: bool) -> tuple[Array, Any]:
    """Return the table [limit, cols] in memory and the checked index that selects the tile from it."""
    _, a, b, c, index_stride, col_stride, type_, _ = arg
    index_stride, col_stride = m.r[index_stride], m.r[col_stride]
    limit = m.r[c]
    view = m.memory.view(tile.base, tile.span, write)
    table = _tile(view, type_, m.r[b] - tile.base, (limit, m.cols), index_stride, col_stride)
    index = m.value(a, S32)
    low, high = int(np.minimum.reduce(index, axis=None)), int(np.maximum.reduce(index, axis=None))
    if low < 0 or high >= limit:
        raise m.fault(ShaveFaultCode.INDEX, f"index {low if low < 0 else high} with limit {limit}")
    if index.shape[0] != m.rows:
        index = np.broadcast_to(index, (m.rows, index.shape[1]))
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
    else:
        m.memory.check(tile.base, tile.span, False)
    m.set(arg[0], (m.rows, m.cols), value)
    return None


def vscatter(m: Machine, arg: tuple[int, ...]) -> int | None:
    """Store elements, or rows of elements, by index; of equal indices the last row wins."""
    d, type_ = arg[0], arg[6]
    if m.broadcast(m.shape(d), (m.rows, m.cols)) != (m.rows, m.cols):
        raise m.fault(ShaveFaultCode.SHAPE, f"scatter of {m.shape(d)}")
    tile, _ = _indexed(m, arg, True)
    if m.compute:
        table, index = _table(m, arg, tile, True)
        converted: Array = np.empty((m.rows, m.cols), STORAGE[type_])
        m.overflows += store(m.value(d, _register_dtype(type_, arg[7])), converted, type_)
        table[index] = converted
    else:
        m.memory.check(tile.base, tile.span, True)
    return None


HANDLERS: dict[str, Handler] = {
    "setvl": setvl,
    "vld": vld,
    "vst": vst,
    "vgather": vgather,
    "vscatter": vscatter,
}
