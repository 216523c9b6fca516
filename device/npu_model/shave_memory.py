"""Loads and stores of the vector core: strided tiles between memory types and 32-bit registers, and the bytes they touch.

`Memory` is what a core sees: a device gives its CMX window and MMU, a compiler a block of arguments.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from npu_abi import C
from numpy.typing import NDArray

from npu_model import casts
from npu_model import shave_math as sm
from npu_model.shave_opcodes import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32

Array = NDArray[Any]
Runs = tuple[int, int, tuple[tuple[int, int], ...]]  # (address, width, ((count, stride), ...)): width bytes, repeated

ADDRESS_LIMIT = 1 << int(C.NPU_VA_BITS)


class Memory(Protocol):
    """Memory by device virtual address."""

    def view(self, addr: int, nbytes: int, write: bool) -> Array:
        """Return uint8[nbytes] at `addr`, writable when `write`; raises the owner's fault when it is not mapped."""
        ...

    def check(self, addr: int, nbytes: int, write: bool) -> None:
        """Raise what `view` raises: instead of it where there are no values."""
        ...


HALF = np.dtype(np.float16)
STORAGE: dict[int, np.dtype[Any]] = {
    F16: np.dtype(np.uint16),
    BF16: np.dtype(np.uint16),
    F32: np.dtype(np.float32),
    F64: np.dtype(np.float64),
    I8: np.dtype(np.int8),
    U8: np.dtype(np.uint8),
    I16: np.dtype(np.int16),
    U16: np.dtype(np.uint16),
    I32: np.dtype(np.int32),
    U32: np.dtype(np.uint32),
    I64: np.dtype(np.int64),
    BOOL: np.dtype(np.uint8),
}


class Access(NamedTuple):
    """A tile in memory: `base` is its lowest byte, `span` the bytes to its last.

    `elements` counts the elements that are accessed one by one because the inner dimension is not dense; 0 otherwise.
    """

    base: int
    span: int
    width: int
    dims: tuple[tuple[int, int], ...]
    elements: int

    @property
    def box(self) -> Runs:
        """The bytes as a box."""
        return (self.base, self.width, self.dims)

    @property
    def run_count(self) -> int:
        """Contiguous runs of `width` bytes."""
        count = 1
        for n, _ in self.dims:
            count *= n
        return count


def access(base: int, size: int, rows: int, cols: int, row_stride: int, col_stride: int) -> Access:
    """Return the bytes of a tile of elements of `size` bytes. A dimension with stride 0 is read once.

    The tile is strided when its inner dimension (columns, or rows of a single column) is not dense.
    """
    low = base
    if rows == 1 or row_stride == 0:
        rows, row_stride = 1, 0
    elif row_stride < 0:
        low += row_stride * (rows - 1)
        row_stride = -row_stride
    if cols == 1 or col_stride == 0:
        cols, col_stride = 1, 0
    elif col_stride < 0:
        low += col_stride * (cols - 1)
        col_stride = -col_stride
    if cols > 1:
        if col_stride != size:
            span = size + (cols - 1) * col_stride + (rows - 1) * row_stride
            if rows == 1:
                return Access(low, span, size, ((cols, col_stride),), cols)
            if row_stride == size:
                return Access(low, span, size * rows, ((cols, col_stride),), rows * cols)
            return Access(low, span, size, ((rows, row_stride), (cols, col_stride)), rows * cols)
        size *= cols
        if rows > 1 and row_stride != size:
            return Access(low, size + (rows - 1) * row_stride, size, ((rows, row_stride),), 0)
        return Access(low, size * rows, size * rows, (), 0)
    if rows > 1 and row_stride != size:
        return Access(low, size + (rows - 1) * row_stride, size, ((rows, row_stride),), rows)
    return Access(low, size * rows, size * rows, (), 0)


def _widen_f16(bits: Array) -> Array:
    """Return fp32 of fp16 bits."""
    if bits.size <= sm.SMALL:
        return bits.view(HALF).astype(sm.F32, order="C")
    return casts.f16_to_f32(bits)


def load(raw: Array, type_: int, as_float: bool) -> Array:
    """Return memory elements as fp32 (float types, or `as_float`) or s32; a copy.

    f64 rounds to fp32; i64 and u32 saturate to s32 and round to fp32; bool is 0 or 1.
    """
    if type_ == F32:
        return raw.astype(sm.F32, order="C")
    if type_ == F16:
        return _widen_f16(raw)
    if type_ == BF16:
        return casts.bf16_to_f32(raw)
    if type_ == F64:
        with np.errstate(over="ignore"):
            return raw.astype(sm.F32, order="C")
    if type_ == BOOL:
        raw = raw != 0
    if as_float:
        return raw.astype(sm.F32, order="C")
    if type_ in (I64, U32):
        raw = np.clip(raw, None if type_ == U32 else sm.INT32_MIN, sm.INT32_MAX)
    return raw.astype(sm.S32, order="C")


def store(values: Array, out: Array, type_: int) -> int:
    """Write fp32 or s32 `values` to memory elements: float types round to nearest even, integer types round and saturate.

    NaN becomes the one quiet NaN of a float type.

    Returns how many finite values became an fp16 infinity.

    bool stores 1 for every value but zero (NaN is 1).
    """
    if type_ in (F32, F64):
        out[...] = sm.canonical(values)
    elif type_ == F16:
        if sm.is_plain(values):
            out.view(HALF)[...] = values
            return 0
        bits = casts.f32_to_f16(sm.canonical(values))
        out[...] = bits
        if casts.f16_infinities(bits):
            return casts.f16_overflows(values)
    elif type_ == BF16:
        out[...] = casts.f32_to_bf16(sm.canonical(values))
    elif type_ == BOOL:
        out[...] = values != 0
    elif type_ == I32 and values.dtype == sm.S32:
        out[...] = values
    else:
        info = np.iinfo(STORAGE[type_])
        out[...] = sm.to_int(values, info.min, info.max, info.dtype)
    return 0
