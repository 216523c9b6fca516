"""How a DPU walks a workload: blocks, contexts, taps that see padding only, and the lines that its two streams read.

Vectorised: `inv` and `variants` are records of npu_dpu_invariant and npu_dpu_variant, one pair per workload.

1. A block is 4 x 4 pixels (16 rows of a matmul) by 16 channels: what the array works on at a time, ragged or full.
2. A context is what the accumulators hold: 16, 8 or 4 blocks of pixels by 4, 8 or 16 of channels (enum npu_mpe_grid).
   Element-wise operations have 8 by 8 whatever the record says.
3. Operands come in lines: of one pixel's channels, or of one output channel's weights of a tap. Every tap reads its pixels
   again, once for all channels of a context; a context reads its weights once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from npu_abi import C

from npu_model import descriptors, dtypes

Cycles: TypeAlias = npt.NDArray[np.int64]
Records: TypeAlias = npt.NDArray[np.void]

BLOCK_PIXELS, BLOCK_CHANNELS = 4, 16
LINE_BYTES = 32
ROW_TAPS, ROW_CHANNELS = 3, 32  # columns of the kernel, and most channels of a workload, for which rows are kept
GRIDS = {C.NPU_MPE_16X16: "16x16", C.NPU_MPE_8X16: "8x16", C.NPU_MPE_4X16: "4x16"}  # as the profiles name them
_SIZES = np.ones(256, dtype=np.int64)  # by type
_SIZES[: C.NPU_DT_COUNT] = [dtypes.size_bytes(code) for code in range(C.NPU_DT_COUNT)]
# Context of each grid: pixels along y, pixels along x, channels.
_CONTEXTS = np.array([(16, 16, 64), (8, 16, 128), (4, 16, 256)], dtype=np.int64)


class Walk:
    """The walk of each workload; every attribute is an array, or a number, per workload."""

    def __init__(self, inv: Records, variants: Records) -> None:
        self.inv, self.variants = inv, variants
        op = ints(inv, "op")
        self.array = among(op, (descriptors.CONV, descriptors.MATMUL))
        self.eltwise = among(op, descriptors.ELTWISE)
        self.depthwise = op == descriptors.DWCONV
        self.taps = taps(inv)
        self.depth = group_in_z(inv)  # input channels of an output channel
        size_x, size_y, self.channels = (ints(variants, "size_" + axis) for axis in "xyz")
        line = op == descriptors.MATMUL  # has rows only: they fill blocks and contexts as a line
        self.pixels = size_x * size_y
        self.pixel_blocks = np.where(
            line,
            ceil_div(self.pixels, BLOCK_PIXELS**2),
            ceil_div(size_x, BLOCK_PIXELS) * ceil_div(size_y, BLOCK_PIXELS),
        )
        self.grid = np.where(self.eltwise, C.NPU_MPE_8X16, np.minimum(ints(inv, "mpe_grid"), len(_CONTEXTS) - 1))
        rows, columns, deep = _CONTEXTS[self.grid].T
        rows, columns = np.where(line, 1, rows), np.where(line, rows * columns, columns)
        self.pixel_contexts = ceil_div(size_x, columns) * ceil_div(size_y, rows)
        self.channel_contexts = ceil_div(self.channels, deep)
        # What is written after all else: the last context, or the last block where nothing is summed up over a context.
        last = ((size_x - 1) % columns + 1) * ((size_y - 1) % rows + 1), (self.channels - 1) % deep + 1
        self.last_pixels, self.last_channels = (
            np.where(self.eltwise, np.minimum(size, block), size)
            for size, block in zip(last, (BLOCK_PIXELS**2, BLOCK_CHANNELS), strict=True)
        )
        # A block of channels works on one group's input; a context reads the input of all groups it has.
        group_out = np.maximum(ints(inv, "out_z") // np.maximum(ints(inv, "groups"), 1), 1)
        self.groups = np.where(self.array, ceil_div(self.channels, group_out), 1)
        self.channel_blocks = self.groups * ceil_div(np.minimum(group_out, self.channels), BLOCK_CHANNELS)

    def tap_blocks(self) -> tuple[Cycles, Cycles]:
        """Return for how many (block of pixels, kernel tap) a pixel sees input, and for how many all see padding."""
        total = self.pixel_blocks * self.taps
        padded = ints(self.variants, "pad_left") + ints(self.variants, "pad_right")
        padded += ints(self.variants, "pad_top") + ints(self.variants, "pad_bottom")
        some = np.flatnonzero((ints(self.inv, "op") == descriptors.CONV) & (padded > 0))
        live = total.copy()
        if len(some):
            live[some] = self._live(some, "x", "pad_left") * self._live(some, "y", "pad_top")
        return live, total - live

    def _live(self, some: Cycles, axis: str, pad_field: str) -> Cycles:
        """Return of workloads `some`, along one axis, how many (blocks, tap) have an output that reads an input there."""
        inputs, kernel = ints(self.inv, "in_" + axis)[some], ints(self.inv, "kernel_" + axis)[some]
        stride, dilation = (
            np.maximum(ints(self.inv, "stride_" + axis)[some], 1),
            ints(self.inv, "dilation_" + axis)[some],
        )
        start, size = ints(self.variants, "start_" + axis)[some], ints(self.variants, "size_" + axis)[some]
        pad = ints(self.variants, pad_field)[some]
        found = np.zeros(len(some), dtype=np.int64)
        for tap in range(int(kernel.max())):
            first = np.maximum(ceil_div(pad - tap * dilation, stride) - start, 0)
            last = np.minimum((inputs - 1 + pad - tap * dilation) // stride - start, size - 1)
            blocks = last // BLOCK_PIXELS - first // BLOCK_PIXELS + 1
            found += np.where((tap < kernel) & (last >= first), blocks, 0)
        return found

    def reads(self, live: Cycles, row_columns: int) -> tuple[Cycles, Cycles]:
        """Return the bytes of the stream at the pixels' side and of that at the channels' side.

        `live`: of tap_blocks. `row_columns`: columns that a depthwise kernel of three columns with stride 1 reads of a row
        of a block instead of three times four; 0 where the device keeps no rows.
        """
        act, weight = sizes(self.inv, "act_dtype"), sizes(self.inv, "wt_dtype")
        keeps = self.depthwise & (self.channels <= ROW_CHANNELS) & (row_columns > 0)
        for name, value in (("kernel_x", ROW_TAPS), ("stride_x", 1), ("dilation_x", 1)):
            keeps &= ints(self.inv, name) == value
        columns = np.where(keeps, row_columns * ints(self.inv, "kernel_y"), BLOCK_PIXELS * self.taps)
        own = self.pixel_blocks * BLOCK_PIXELS * columns * lines(self.channels * act)
        shared = live * BLOCK_PIXELS**2 * lines(self.depth * act) * np.maximum(self.groups, self.channel_contexts)
        depth_bytes = self.depth * weight
        if (halved := ints(self.inv, "flags") & C.NPU_DPU_FLAG_WEIGHTS_4BIT != 0).any():
            depth_bytes = np.where(halved, ceil_div(depth_bytes, 2), depth_bytes)
        array_weights = self.channels * self.taps * lines(depth_bytes) * self.pixel_contexts
        own_weights = self.taps * lines(self.channels * weight) * self.pixel_contexts
        pixels = np.where(self.array, shared, own)
        channels = np.select([self.array, self.depthwise, self.eltwise], [array_weights, own_weights, own], 0)
        return pixels, channels


def taps(inv: Records) -> Cycles:
    """Return the kernel taps of each record; 1 where there is no window."""
    windowed = ~among(ints(inv, "op"), (descriptors.MATMUL, *descriptors.ELTWISE))
    return np.where(windowed, ints(inv, "kernel_x") * ints(inv, "kernel_y"), 1)


def group_in_z(inv: Records) -> Cycles:
    """Return the input channels of one group."""
    return ints(inv, "in_z") // np.maximum(ints(inv, "groups"), 1)


def sizes(inv: Records, field: str) -> Cycles:
    """Return the bytes of an element of the type in `field`."""
    found: Cycles = _SIZES[inv[field]]
    return found


def among(codes: npt.NDArray[Any], wanted: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return which codes are among those, of which there are few."""
    found: npt.NDArray[np.bool_] = np.logical_or.reduce([codes == code for code in wanted])
    return found


def lines(nbytes: Cycles) -> Cycles:
    """Return `nbytes` rounded up to whole lines, in bytes."""
    return ceil_div(nbytes, LINE_BYTES) * LINE_BYTES


def ints(records: Records, field: str) -> Cycles:
    """Return a field as int64."""
    values: Cycles = records[field].astype(np.int64)
    return values


def ceil_div(a: Cycles, b: int | Cycles) -> Cycles:
    """Return a / b rounded up."""
    return -(-a // b)
