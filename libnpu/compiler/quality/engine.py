"""What the matrix engine takes at least for a layer, into whatever tasks and workloads it is cut; in cycles of one DPU.

The engine's cost model (device/npu_model/cycles.py) lasts as long as the slowest of multiplying, reading, post-processing and
writing. Each of these is taken here for the layer in one piece, of all grids and contexts the cheapest: what is cut needs no
fewer blocks, lines and contexts, as no two of the pixels (or channels) at a block's distance share one. Start-up, what the last
context writes, and operands in other tiles are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from npu_model import dtypes
from npu_model.cycles import MPE_POSITIONS
from npu_model.dpu_walk import BLOCK_CHANNELS, BLOCK_PIXELS, GRIDS, LINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npu_model.profile import Dpu

_CONTEXT_CHANNELS = (64, 128, 256)  # of each grid, in the order of GRIDS
_CONTEXT_PIXELS = (256, 128, 64)


@dataclass(slots=True, frozen=True)
class Layer:
    """One product or pooling: `images` times a plane of `pixels` (rows, columns) with `channels` out of `depth` in, of a group each.

    `taps` has, along rows and along columns, for each tap of the kernel the outputs that see input there; of pooling and
    depthwise all. `is_line`: pixels may fill blocks as one line.
    """

    images: int
    pixels: tuple[int, int]
    channels: int
    groups: int
    depth: int
    taps: tuple[Sequence[int], Sequence[int]]
    is_line: bool
    act: int  # enum npu_dtype, as the next two
    weight: int
    out: int
    own_channels: bool = False  # each output channel reads one input channel
    has_weights: bool = True
    keeps_rows: bool = False  # the device may read a row of a depthwise kernel once
    in_steps: bool = False  # each window may be pooled in parts, which fill blocks
    has_small_weights: bool = False  # two to a byte


def least_cycles(layer: Layer, dpu: Dpu) -> float:
    """Return the cycles of one DPU for all of a layer."""
    area = prod(layer.pixels)
    act, weight, out = (dtypes.size_bytes(code) for code in (layer.act, layer.weight, layer.out))
    act_rates = [dpu.act_read_bytes_per_cycle[name] for name in GRIDS.values()]
    wt_rates = [dpu.wt_read_bytes_per_cycle[name] for name in GRIDS.values()]
    tap_count = len(layer.taps[0]) * len(layer.taps[1])
    if layer.own_channels:
        blocks = _blocks(layer, layer.pixels)
        columns = BLOCK_PIXELS * tap_count
        if layer.keeps_rows and dpu.dw_row_columns:
            columns = min(columns, dpu.dw_row_columns * min(len(layer.taps[0]), len(layer.taps[1])))
        pixels_least = blocks * BLOCK_PIXELS * columns * _lines(layer.channels * act)
        if layer.in_steps:
            pixels_least = min(pixels_least, area * tap_count * _lines(layer.channels * act))
        each_context = tap_count * _lines(layer.channels * weight) if layer.has_weights else 0
        operand = layer.weight if layer.has_weights else layer.act
        slowest = [area * layer.channels * tap_count / dpu.dw_macs_per_cycle[dtypes.name(operand)]]
        pixels_cycles = pixels_least / max(act_rates)
    else:
        live = sum(_blocks(layer, (rows, columns)) for rows in layer.taps[0] for columns in layer.taps[1])
        array = dpu.macs_per_cycle[dtypes.name(layer.weight)]
        blocks = layer.groups * -(-(layer.channels // layer.groups) // BLOCK_CHANNELS)
        contexts = -(-area * layer.channels // (_CONTEXT_PIXELS[0] * _CONTEXT_CHANNELS[0]))
        slowest = [live * blocks * -(-layer.depth * MPE_POSITIONS // array) + contexts * dpu.context_cycles]
        each_read = live * BLOCK_PIXELS**2 * _lines(layer.depth * act)
        pixels_cycles = each_read * max(
            layer.groups / max(act_rates), _cover(layer.channels, _CONTEXT_CHANNELS, tuple(act_rates))
        )
        pixels_least = each_read * max(layer.groups, -(-layer.channels // max(_CONTEXT_CHANNELS)))
        depth_bytes = layer.depth * weight
        if layer.has_small_weights:
            depth_bytes = -(-depth_bytes // 2)
        each_context = layer.channels * tap_count * _lines(depth_bytes)
    weights_least = each_context * -(-area // max(_CONTEXT_PIXELS))
    slowest += [
        pixels_cycles,
        each_context * _cover(area, _CONTEXT_PIXELS, tuple(wt_rates)),
        (pixels_least + weights_least) / dpu.cmx_read_bytes_per_cycle,
        area * _lines(layer.channels * out) / dpu.cmx_write_bytes_per_cycle,
        area * layer.channels / _ppe(layer.act, dpu),
    ]
    workloads = -(-layer.channels // dpu.dw_channels) if layer.own_channels else 1  # the first one is a start
    return layer.images * (max(slowest) + (workloads - 1) * dpu.workload_cycles)


def least_eltwise_cycles(elements: int, dtype: int, dpu: Dpu) -> float:
    """Return the cycles of one DPU for a sum or product of two tensors of `elements` of a type (enum npu_dtype)."""
    own = elements * dtypes.size_bytes(dtype)
    return max(
        elements / dpu.eltwise_elements_per_cycle,
        2 * own / dpu.cmx_read_bytes_per_cycle,
        own / dpu.act_read_bytes_per_cycle["8x16"],
        own / dpu.wt_read_bytes_per_cycle["8x16"],
        own / dpu.cmx_write_bytes_per_cycle,
        elements / _ppe(dtype, dpu),
    )


def _ppe(operand: int, dpu: Dpu) -> int:
    return dpu.ppe_float_elements_per_cycle if dtypes.is_float(operand) else dpu.ppe_elements_per_cycle


def _blocks(layer: Layer, pixels: tuple[int, int]) -> int:
    if layer.is_line:
        return -(-prod(pixels) // BLOCK_PIXELS**2)
    return -(-pixels[0] // BLOCK_PIXELS) * -(-pixels[1] // BLOCK_PIXELS)


def _lines(nbytes: int) -> int:
    return -(-nbytes // LINE_BYTES) * LINE_BYTES


@lru_cache(maxsize=4096)
def _cover(count: int, sizes: tuple[int, ...], rates: tuple[int, ...]) -> float:
    """Return the least sum of 1 / rate over contexts of `sizes` that cover `count`: how often a byte is read, by the rates."""
    step, largest = min(sizes), max(sizes)
    whole = max(0, count // largest - 1)
    least = [0.0]
    for units in range(1, -(-(count - whole * largest) // step) + 1):
        least.append(
            min(1 / rate + least[max(0, units - size // step)] for size, rate in zip(sizes, rates, strict=True))
        )
    return whole * largest * min(1 / (size * rate) for size, rate in zip(sizes, rates, strict=True)) + least[-1]
