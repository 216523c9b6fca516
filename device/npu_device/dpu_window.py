"""Windows over a DPU's input: the matrix of a convolution, sums per channel, maxima per channel.

A Window is the part of the input that one variant reads, as bits in place, with where its outputs lie on it. Positions
outside it are padding: value 0, never the largest. C and NumPy forms give the same bits: every sum adds its terms in
row-major order of the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from npu_model import casts, dtypes
from npu_model.native import Native

F64: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Line:
    """One spatial axis: output o (0-based in the variant) and tap k read position first + o * stride + k * dilation."""

    size: int  # input positions in the window's array
    kernel: int
    stride: int
    dilation: int
    first: int  # may be negative: padding
    outputs: int

    def tap(self, k: int) -> tuple[slice, slice]:
        """Return the outputs whose tap k lies in the input, and the positions that they read."""
        base = self.first + k * self.dilation
        low = max(0, -(base // self.stride))
        high = min(self.outputs, (self.size - 1 - base) // self.stride + 1)
        if high <= low:
            return slice(0, 0), slice(0, 0)
        start = base + low * self.stride
        return slice(low, high), slice(start, start + (high - low - 1) * self.stride + 1, self.stride)

    def counts(self) -> npt.NDArray[np.int64]:
        """Return how many taps of each output lie in the input."""
        positions = np.add.outer(
            np.arange(self.outputs) * self.stride + self.first, np.arange(self.kernel) * self.dilation
        )
        found: npt.NDArray[np.int64] = ((positions >= 0) & (positions < self.size)).sum(axis=1)
        return found


@dataclass(frozen=True, slots=True)
class Window:
    """`bits` is [y, x, channels] in storage type, channels dense, any pixel strides; `dtype` says what they mean."""

    bits: npt.NDArray[Any]
    dtype: int
    zero_point: int
    y: Line
    x: Line

    @property
    def channels(self) -> int:
        """Channels of the window."""
        return int(self.bits.shape[2])

    @property
    def pixels(self) -> int:
        """Outputs."""
        return self.y.outputs * self.x.outputs

    @property
    def depth(self) -> int:
        """Elements under the kernel: columns of the matrix."""
        return self.y.kernel * self.x.kernel * self.channels

    def values(self) -> npt.NDArray[np.float32]:
        """Return the elements less the zero point, exactly."""
        if dtypes.is_float(self.dtype):
            return casts.widen(self.bits, self.dtype)
        values = self.bits.view(dtypes.numpy_dtype(self.dtype)).astype(np.float32)
        if self.zero_point:
            values -= np.float32(self.zero_point)
        return values

    def matrix(self, begin: int, end: int, out: npt.NDArray[Any], native: Native | None) -> npt.NDArray[Any]:
        """Return rows [begin, end) of the matrix [output pixel][tap_y][tap_x][channel] in `out`'s type, in its memory.

        `out` is float64 or float32, one-dimensional, and large enough.
        """
        rows = out[: (end - begin) * self.depth].reshape(end - begin, self.depth)
        if native is None:
            self._matrix_numpy(begin, end, rows)
        else:
            native.lib.npu_im2col(
                self.native(native), begin, end, native.pointer("char[]", rows), int(out.dtype == np.float64),
                native.avx2,
            )  # fmt: skip
        return rows

    def sums(self, weights: F64 | None, native: Native | None) -> F64:
        """Return [pixels, channels]: the sum over the taps inside the input of value * weights[tap, channel] (or value)."""
        acc = np.empty((self.pixels, self.channels), np.float64)
        if native is None:
            return self._sums_numpy(weights, acc)
        span = (self.x.outputs - 1) * self.x.stride + (self.x.kernel - 1) * self.x.dilation + 1
        row_count = max(1, min((self.y.kernel - 1) * self.y.dilation + 1, self.y.size))
        rows = np.empty(row_count * min(span, self.x.size) * self.channels, np.float64)
        held = np.full(row_count, -1, np.int64)
        pointers = np.empty(2 * self.y.kernel * self.x.kernel, np.uintp)
        native.lib.npu_depthwise(
            self.native(native),
            self.y.outputs,
            native.ffi.NULL if weights is None else native.pointer("double[]", weights),
            native.pointer("double[]", acc),
            native.pointer("double[]", rows),
            row_count,
            native.pointer("int64_t[]", held),
            native.pointer("char[]", pointers),
            native.avx2,
        )
        return acc

    def maxima(self) -> npt.NDArray[Any]:
        """Return [pixels, channels]: the largest value under the kernel less the zero point, float32.

        Padding never wins; a window of padding alone gives the type's lowest value. NaN wins; plus zero beats minus zero.
        """
        keys = self._order_keys()
        lowest = _lowest_key(self.dtype)
        across = np.full((self.y.size, self.x.outputs, self.channels), lowest, keys.dtype)
        for k in range(self.x.kernel):
            outputs, inputs = self.x.tap(k)
            np.maximum(across[:, outputs], keys[:, inputs], out=across[:, outputs])
        found = np.full((self.y.outputs, self.x.outputs, self.channels), lowest, keys.dtype)
        for k in range(self.y.kernel):
            outputs, inputs = self.y.tap(k)
            np.maximum(found[outputs], across[inputs], out=found[outputs])
        flat = found.reshape(self.pixels, self.channels)
        if dtypes.is_float(self.dtype):
            return casts.widen(_flip(flat).view(self.bits.dtype), self.dtype)
        return (flat.astype(np.int32) - np.int32(self.zero_point)).astype(np.float32)

    def _order_keys(self) -> npt.NDArray[Any]:
        """Return integers in the order of the values."""
        if not dtypes.is_float(self.dtype):
            return self.bits.view(dtypes.numpy_dtype(self.dtype))
        signed = self.bits.view(f"i{self.bits.itemsize}")
        keys = _flip(signed)
        infinity = _infinity(self.dtype)
        keys[(signed & np.iinfo(signed.dtype).max) > infinity] = np.iinfo(signed.dtype).max  # any NaN
        return keys

    def native(self, native: Native) -> Any:
        """Return a struct npu_window, which points into `bits`."""
        window = native.ffi.new("struct npu_window *")
        if self.bits.size:  # one pixel is contiguous, the whole need not be
            window.act = native.pointer("uint8_t[]", self.bits[0, 0])
        describe(window, self.y, self.x, self.bits.strides, self.channels)
        window.dtype, window.zero_point = self.dtype, self.zero_point
        return window

    def _matrix_numpy(self, begin: int, end: int, rows: npt.NDArray[Any]) -> None:
        values = self.values()
        matrix = np.zeros((self.y.outputs, self.x.outputs, self.y.kernel, self.x.kernel, self.channels), rows.dtype)
        for ky in range(self.y.kernel):
            out_y, in_y = self.y.tap(ky)
            for kx in range(self.x.kernel):
                out_x, in_x = self.x.tap(kx)
                matrix[out_y, out_x, ky, kx] = values[in_y, in_x]
        rows[...] = matrix.reshape(self.pixels, self.depth)[begin:end]

    def _sums_numpy(self, weights: F64 | None, acc: F64) -> F64:
        values = self.values().astype(np.float64)
        acc[...] = 0
        grid = acc.reshape(self.y.outputs, self.x.outputs, self.channels)
        for ky in range(self.y.kernel):
            out_y, in_y = self.y.tap(ky)
            for kx in range(self.x.kernel):
                out_x, in_x = self.x.tap(kx)
                terms = values[in_y, in_x]
                grid[out_y, out_x] += terms if weights is None else terms * weights[ky * self.x.kernel + kx]
        return acc


def describe(window: Any, y: Line, x: Line, strides: tuple[int, ...], channels: int) -> None:
    """Set a struct npu_window but for its bits and their type; `strides` are bytes."""
    window.stride_y, window.stride_x = strides[:2]
    window.in_y, window.in_x = y.size, x.size
    window.kernel_y, window.kernel_x = y.kernel, x.kernel
    window.step_y, window.step_x = y.stride, x.stride
    window.dilation_y, window.dilation_x = y.dilation, x.dilation
    window.first_y, window.first_x = y.first, x.first
    window.out_x, window.channels = x.outputs, channels


def _flip(signed: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return sign-and-magnitude bits as two's complement of the same order, or the other way round."""
    width = signed.itemsize * 8 - 1
    flipped: npt.NDArray[Any] = signed ^ ((signed >> width) & np.iinfo(signed.dtype).max)
    return flipped


def _infinity(dtype: int) -> int:
    return {dtypes.F16: 0x7C00, dtypes.BF16: 0x7F80, dtypes.F32: 0x7F800000}[dtype]


def _lowest_key(dtype: int) -> int:
    """Return the key of minus infinity, or of the smallest integer."""
    return ~_infinity(dtype) if dtypes.is_float(dtype) else dtypes.integer_range(dtype)[0]
