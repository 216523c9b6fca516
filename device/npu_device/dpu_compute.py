"""The values of a DPU task, as npu_blob.h defines them at struct npu_dpu_invariant.

1. Each block's window of the input becomes accumulators [pixels, channels]: exact for integers; float64 under numerics
   "exact", rounded once to float32 so that neither tiling nor the machine's BLAS kernel shows (dpu_rounding.py); float32 sums
   in whatever order is fast here under "fast".
2. The PPE (ppe.py) turns them into bits of the result type.
3. The caller publishes the bits when the task ends; nothing is written here.

Convolutions and matrix products go through dpu_native.py where the machine allows it, all three steps in one.

Where the header is silent: the zero point of ELTWISE's second operand is wt_zero_point; integer accumulators wrap at 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from npu_abi import C
from npu_model import casts, descriptors, dtypes
from npu_model.casts import Choice
from npu_model.descriptors import DescriptorError, Variant
from npu_model.footprint import WEIGHT_ENTRY_BYTES
from npu_model.native import Native, load

from npu_device.dpu_native import EXACT, FAST, INTEGER, Convolution, suits
from npu_device.dpu_rounding import Filters
from npu_device.dpu_window import Window
from npu_device.dpu_work import Block, Work
from npu_device.ppe import Ppe
from npu_device.scratch import Scratch

Array: TypeAlias = npt.NDArray[Any]
# address, shape, strides in bytes, element type, for writing -> array in place; raises MemoryFault
View: TypeAlias = Callable[[int, tuple[int, ...], tuple[int, ...], "np.dtype[Any]", bool], Array]
Results: TypeAlias = list[tuple[Array, Array]]

BYTE = np.dtype(np.uint8)
CHUNK_BYTES = 1 << 20  # of the convolution matrix at a time: stays in a core's cache (chosen by benchmarks/dpu.py)
CHUNK_PIXELS = 256  # but at least so many rows, over which BLAS spreads the packing of the weights
EXACT_F32 = 1 << 24  # float32 holds every integer up to this


def execute(record: Any, variants: Any, view: View, numerics: str = "exact", native: Choice = "auto") -> Results:
    """Return `compute` of a record of npu_dpu_invariant and its records of npu_dpu_variant, decoded for this one run."""
    return compute(Work.decode(record, variants), view, numerics, native, Scratch())


def compute(work: Work, view: View, numerics: str, native: Choice, scratch: Scratch) -> Results:
    """Return (destination, bits) per block: arrays of one unsigned type and shape [y, x, z], to be copied at the end.

    DescriptorError for a task that the DPU cannot do; MemoryFault, from `view`, for operands outside memory. `numerics` is
    "exact" or "fast"; a work is always computed under the same, and with the same `native`.
    """
    return Task(work, view, numerics, load() if native == "auto" else native, scratch).run()


class Task:
    """One work bound to memory."""

    __slots__ = ("_exact", "_inv", "_native", "_scratch", "_view", "_work")

    def __init__(self, work: Work, view: View, numerics: str, native: Native | None, scratch: Scratch) -> None:
        if numerics not in ("exact", "fast"):
            raise ValueError(f'numerics {numerics!r} is neither "exact" nor "fast"')
        self._work = work
        self._inv = work.invariant
        self._view = view
        self._exact = numerics == "exact"
        self._native = native
        self._scratch = scratch

    def run(self) -> Results:
        """Return what `compute` returns."""
        inv, view = self._inv, self._view
        dtype = dtypes.storage_dtype(inv.out_dtype)
        results: Results = []
        for block in self._work.blocks:  # faults before any work
            target = block.target
            destination = view(target.address, target.shape, target.strides, dtype, True)
            results.append((destination, np.empty(target.shape, dtype)))
        if suits(inv, self._native):
            for index, (_, out) in enumerate(results):
                self._convolve_native(index, out)
            return results
        with np.errstate(all="ignore"):
            for block, (_, out) in zip(self._work.blocks, results, strict=True):
                self._block(block, out.reshape(block.pixels, block.part.size_z))
        return results

    def _block(self, block: Block, out: Array) -> None:
        inv, variant = self._inv, block.part
        ppe = self._ppe(variant)
        if inv.op in (descriptors.CONV, descriptors.MATMUL):
            self._convolve(block, ppe, out)
            return
        if inv.op in descriptors.ELTWISE:
            self._eltwise(block, ppe, out)
            return
        if inv.op == descriptors.MAXPOOL:
            acc = self._window(block, 0, variant.size_z).maxima()
        else:
            acc = self._sum_taps(block)
        ppe.run(np.ascontiguousarray(acc), out, self._native)

    # ---- operations: accumulators of one variant ----------------------------------------------------------------

    def _convolve_native(self, index: int, out: Array) -> None:
        block, view = self._work.blocks[index], self._view
        prepared = self._work.prepared
        if prepared[index] is None:
            assert self._native is not None
            sums = INTEGER if not self._inv.is_float else EXACT if self._exact else FAST
            prepared[index] = Convolution(self._native, self._inv, block, sums)
        convolution: Convolution = prepared[index]
        first, columns, nbytes = block.part.start_z, block.part.size_z, block.source.size_bytes
        source = view(block.source.address, (nbytes,), (1,), BYTE, False) if nbytes else np.empty(0, np.uint8)
        weights = view(convolution.weights_address, (columns * convolution.filter_bytes,), (1,), BYTE, False)
        if self._inv.has_small_weights:
            weights = _unpacked(weights, self._inv.wt_dtype)
        table = None
        if self._inv.wt_table_addr:
            address = self._inv.wt_table_addr + first * WEIGHT_ENTRY_BYTES
            table = view(address, (columns * WEIGHT_ENTRY_BYTES,), (1,), BYTE, False)
        convolution.run(source, weights, table, out, self._scratch)

    def _convolve(self, block: Block, ppe: Ppe, out: Array) -> None:
        """Multiply matrix and weights chunk by chunk of pixels, group by group, and post-process each chunk."""
        inv, variant = self._inv, block.part
        end_z = variant.start_z + variant.size_z
        first, last = variant.start_z // inv.group_out_z, (end_z - 1) // inv.group_out_z
        wide = inv.is_float and self._exact
        dtype = np.dtype(np.float64 if wide else np.float32)
        groups = []
        for group in range(first, last + 1):
            low = max(variant.start_z, group * inv.group_out_z)
            high = min(end_z, (group + 1) * inv.group_out_z)
            window = self._window(block, (group - first) * inv.group_in_z, inv.group_in_z)
            weights = self._weights(low, high, dtype)
            filters = Filters(weights, inv.wt_dtype, self._native) if wide else None
            columns = slice(low - variant.start_z, high - variant.start_z)
            groups.append((window, weights, filters, columns))
        pixels, depth = groups[0][0].pixels, groups[0][0].depth
        chunk = min(pixels, max(CHUNK_PIXELS, CHUNK_BYTES // (depth * dtype.itemsize)))
        buffer = np.empty(chunk * depth, dtype)
        acc = np.empty((chunk, variant.size_z), np.float64 if not inv.is_float else dtype)
        for begin in range(0, pixels, chunk):
            end = min(begin + chunk, pixels)
            part = acc[: end - begin]
            for window, weights, filters, columns in groups:
                matrix = window.matrix(begin, end, buffer, self._native)
                if filters is not None:
                    filters.product(matrix, part[:, columns])
                elif inv.is_float:
                    np.matmul(matrix, weights.T, out=part[:, columns])
                else:
                    part[:, columns] = self._integer_product(matrix, weights)
            ppe.run(part, out[begin:end], self._native)

    def _integer_product(self, matrix: Array, weights: Array) -> Array:
        """Return the exact product of float32 integers, wrapped at 32 bits: BLAS in blocks whose sums float32 holds."""
        inv = self._inv
        largest = _largest(inv.act_dtype, inv.act_zero_point) * _largest(inv.wt_dtype, inv.wt_zero_point)
        block, depth = max(1, EXACT_F32 // largest), matrix.shape[1]
        total = (matrix[:, :block] @ weights[:, :block].T).astype(np.float64)
        for begin in range(block, depth, block):
            total += matrix[:, begin : begin + block] @ weights[:, begin : begin + block].T
        return _wrap(total, depth * largest)

    def _sum_taps(self, block: Block) -> Array:
        """Depthwise convolution and average pooling."""
        inv, variant = self._inv, block.part
        window = self._window(block, 0, variant.size_z)
        taps = inv.kernel_x * inv.kernel_y
        if inv.op == descriptors.DWCONV:
            sums = window.sums(self._depthwise_weights(variant, taps), self._native)
            if inv.is_float:
                return sums
            return _wrap(
                sums, taps * _largest(inv.act_dtype, inv.act_zero_point) * _largest(inv.wt_dtype, inv.wt_zero_point)
            )
        sums = window.sums(None, self._native)
        counts: Array = np.multiply.outer(window.y.counts(), window.x.counts()).reshape(-1, 1)
        if inv.flags & C.NPU_DPU_FLAG_COUNT_PAD:
            counts = np.full_like(counts, taps)
        sums /= np.maximum(counts, 1)
        return sums

    def _eltwise(self, block: Block, ppe: Ppe, out: Array) -> None:
        """Add or multiply in float32: one rounding, as from the exact result."""
        inv, variant = self._inv, block.part
        first = self._window(block, 0, variant.size_z)
        if (first.y.first, first.x.first) != (0, 0) or first.bits.shape[:2] != (variant.size_y, variant.size_x):
            raise DescriptorError("DPU ELTWISE with padding")
        size = dtypes.size_bytes(inv.act_dtype)
        address = (
            inv.act2_addr
            + variant.start_y * inv.act2_stride_y
            + variant.start_x * inv.act2_stride_x
            + variant.start_z * size
        )
        strides = (inv.act2_stride_y, inv.act2_stride_x, size)
        bits = self._view(address, first.bits.shape, strides, first.bits.dtype, False)
        second = Window(bits, inv.act_dtype, inv.wt_zero_point, first.y, first.x)
        native = self._native
        if native is not None and bits.flags.aligned:
            product = int(inv.op == descriptors.ELTWISE_MUL)
            windows = first.native(native), second.native(native)
            native.lib.npu_eltwise(
                *windows, product, ppe.settings(native), native.pointer("uint8_t[]", out), native.avx2
            )
            return
        a, b = first.values(), second.values()
        acc: Array = a + b if inv.op == descriptors.ELTWISE_ADD else a * b
        ppe.run(acc.reshape(first.pixels, first.channels), out, native)

    # ---- operands -------------------------------------------------------------------------------------------------

    def _window(self, block: Block, first_z: int, channels: int) -> Window:
        """Return channels [first_z, first_z + channels) of the input that the block's windows reach."""
        inv, source = self._inv, block.source
        dtype = dtypes.storage_dtype(inv.act_dtype)
        shape = (*source.shape[:2], channels)
        if block.y.size and block.x.size:
            bits = self._view(source.address + first_z * dtype.itemsize, shape, source.strides, dtype, False)
        else:  # all padding
            bits = np.empty(shape, dtype)
        if not bits.flags.aligned:
            bits = np.array(bits, order="C")
        return Window(bits, inv.act_dtype, inv.act_zero_point, block.y, block.x)

    def _weights(self, low: int, high: int, dtype: np.dtype[Any]) -> Array:
        """Return [high - low, depth] filters of output channels [low, high) as `dtype`."""
        inv = self._inv
        size = dtypes.size_bytes(inv.wt_dtype)
        depth = inv.kernel_y * inv.kernel_x * inv.group_in_z
        if inv.has_small_weights:
            shape, strides = (high - low, inv.filter_bytes), (inv.filter_bytes, 1)
            packed = self._view(inv.wt_addr + low * inv.filter_bytes, shape, strides, BYTE, False)
            return self._integers(_unpacked(packed, inv.wt_dtype), dtype)
        return self._constants(inv.wt_addr + low * depth * size, (high - low, depth), (depth * size, size), dtype)

    def _depthwise_weights(self, variant: Variant, taps: int) -> Array:
        """Return [taps, channels] float64."""
        inv = self._inv
        size = dtypes.size_bytes(inv.wt_dtype)
        address = inv.wt_addr + variant.start_z * size
        return self._constants(address, (taps, variant.size_z), (inv.out_z * size, size), np.dtype(np.float64))

    def _constants(self, address: int, shape: tuple[int, int], strides: tuple[int, int], dtype: np.dtype[Any]) -> Array:
        inv = self._inv
        bits = self._view(address, shape, strides, dtypes.storage_dtype(inv.wt_dtype), False)
        if inv.wt_dtype == dtypes.F16 and dtype == np.float64:
            return casts.f16_to_f64(bits, self._native)
        if dtypes.is_float(inv.wt_dtype):
            return casts.widen(bits, inv.wt_dtype, self._native).astype(dtype, copy=False)
        return self._integers(bits, dtype)

    def _integers(self, bits: Array, dtype: np.dtype[Any]) -> Array:
        values = bits.view(dtypes.numpy_dtype(self._inv.wt_dtype)).astype(dtype)
        if self._inv.wt_zero_point:
            values -= self._inv.wt_zero_point
        return values

    def _ppe(self, variant: Variant) -> Ppe:
        inv = self._inv
        scale = bias = offset = None
        if inv.wt_table_addr:
            address = inv.wt_table_addr + variant.start_z * WEIGHT_ENTRY_BYTES
            table = self._view(address, (variant.size_z, 4), (WEIGHT_ENTRY_BYTES, 4), np.dtype("<u4"), False)
            scale, bias = np.array(table[:, :2].T, order="C").view(np.float32)
            if not inv.is_float and inv.op in (descriptors.CONV, descriptors.DWCONV, descriptors.MATMUL):
                offset = np.array(table[:, 2], order="C").view(np.int32)
        return Ppe(
            scale,
            bias,
            inv.ppe_scale,
            inv.ppe_bias,
            inv.ppe_fn,
            inv.lrelu_slope,
            inv.clamp_low,
            inv.clamp_high,
            inv.out_zero_point,
            inv.out_dtype,
            offset,
        )


def _unpacked(packed: Array, code: int) -> Array:
    """Return the bits of 4-bit integers, two to a byte along the last axis, as bytes of I8 or U8."""
    found = np.empty((*packed.shape, 2), np.uint8)
    np.bitwise_and(packed, 15, out=found[..., 0])
    np.right_shift(packed, 4, out=found[..., 1])
    if code == dtypes.I8:
        found = (found ^ 8) - np.uint8(8)
    return found.reshape(*packed.shape[:-1], -1)


def _largest(dtype: int, zero_point: int) -> int:
    """Return the largest magnitude of a value of integer type `dtype` less the zero point; at least 1."""
    low, high = dtypes.integer_range(dtype)
    return max(abs(low - zero_point), abs(high - zero_point), 1)


def _wrap(total: Array, bound: int) -> Array:
    """Return whole numbers in float64 wrapped to int32 where `bound` lets them leave it."""
    if bound < 1 << 31:
        return total
    return total.astype(np.int64).astype(np.int32).astype(np.float64)
