"""Convolutions and matrix products of whole blocks in C (npu_model/convolve.c): the fast way, the same bits.

What does not depend on memory is set once per block; each run adds addresses.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from npu_model import dtypes
from npu_model.descriptors import CONV, MATMUL, Invariant
from npu_model.native import Native

from npu_device.dpu_rounding import exact_below
from npu_device.dpu_window import describe
from npu_device.dpu_work import Block
from npu_device.scratch import Bytes, Scratch

EXACT, FAST, INTEGER = 0, 1, 2  # enum npu_sums of native.h, which a test compares


def suits(inv: Invariant, native: Native | None) -> bool:
    """Tell whether `Convolution` can do the blocks of a task: vector instructions, operands aligned to their elements."""
    if native is None or not native.avx2 or inv.op not in (CONV, MATMUL):
        return False
    size, weight_size = dtypes.size_bytes(inv.act_dtype), dtypes.size_bytes(inv.wt_dtype)
    unaligned = (inv.act_addr | inv.act_stride_x | inv.act_stride_y) % size or inv.wt_addr % weight_size
    return not unaligned and not inv.wt_table_addr % 4


class Convolution:
    """A block with its settings for the C function. `sums` is EXACT, FAST or INTEGER."""

    __slots__ = ("_native", "_settings", "filter_bytes", "scratch_bytes", "weights_address")

    def __init__(self, native: Native, inv: Invariant, block: Block, sums: int) -> None:
        part = block.part
        self._native = native
        self._settings = settings = native.ffi.new("struct npu_convolution *")
        describe(settings.window, block.y, block.x, block.source.strides, inv.group_in_z)
        settings.window.dtype, settings.window.zero_point = inv.act_dtype, inv.act_zero_point
        ppe = settings.ppe
        ppe.uniform_scale, ppe.uniform_bias = inv.ppe_scale, inv.ppe_bias
        ppe.clamp_low, ppe.clamp_high = inv.clamp_low, inv.clamp_high
        ppe.lrelu_slope, ppe.zero_point = inv.lrelu_slope, inv.out_zero_point
        ppe.fn, ppe.dtype = inv.ppe_fn, inv.out_dtype
        settings.pixels, settings.columns = block.pixels, part.size_z
        settings.group_columns, settings.first_column = inv.group_out_z, part.start_z % inv.group_out_z
        settings.exact_below = exact_below(inv.wt_dtype)
        settings.weight_dtype, settings.weight_zero_point, settings.sums = inv.wt_dtype, inv.wt_zero_point, sums
        settings.avx512 = native.avx512
        self.filter_bytes = inv.filter_bytes
        self.weights_address = inv.wt_addr + part.start_z * self.filter_bytes
        self.scratch_bytes = int(native.lib.npu_convolve_scratch(settings))

    def run(self, source: Bytes, weights: Bytes, table: Bytes | None, out: npt.NDArray[Any], scratch: Scratch) -> None:
        """Write the block's bits to `out`, C-contiguous. `source` starts at its first element, and may be empty."""
        pointer, settings = self._native.pointer, self._settings
        held = [pointer("uint8_t[]", source), pointer("uint8_t[]", weights), pointer("uint8_t[]", out)]
        settings.window.act, settings.weights, settings.out = held
        if table is not None:
            settings.table = table_pointer = pointer("float[]", table)
            held.append(table_pointer)
        memory = scratch.take(self.scratch_bytes)
        self._native.lib.npu_convolve(settings, pointer("uint8_t[]", memory))
