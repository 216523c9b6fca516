"""Copies that change the order of elements, or what lies between them: by SHAVEs, where a DMA port would move single elements and take longer.

A DMA port spends a cycle or more on each run of bytes, however short. A SHAVE turns tiles in its registers, there are several of
them, and what they read and write crosses to and from DDR in long runs. The bits are copied as integers of the same size.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_model.dtypes import code_of_numpy

from libnpu.compiler import kernels
from libnpu.compiler.lower.boxes import chunks, cuts_of_long_runs, tile_boxes
from libnpu.compiler.lower.shave_tiler import KERNEL_DIMS, launch_element_by_element, ways
from libnpu.compiler.lower.view import View, merge_dims

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npu_model.profile import Profile

    from libnpu.compiler.ir import Node
    from libnpu.compiler.lower.builder import Builder

_BITS: dict[int, np.dtype[Any]] = {1: np.dtype(np.int8), 2: np.dtype(np.int16), 4: np.dtype(np.int32)}
_SAMPLE = 1 << 15  # elements that the cycles of a copy are taken from; chosen
_GAIN = 2  # times as fast as DMA that SHAVEs have to be, by this rough prediction; chosen: they have other work


def relayout(builder: Builder, dst: View, src: View, node: Node) -> bool:
    """Append the tasks that copy `src` to `dst` of the same shape; False when DMA should do it."""
    bits = _BITS.get(dst.dtype.itemsize)
    repeats = any(stride == 0 and count > 1 for stride, count in zip(src.strides, src.shape, strict=True))
    if bits is None or repeats or (src.order() == dst.order() and not _is_spread_in_cmx(src, dst)):
        return False
    src, dst = replace(src, dtype=bits), replace(dst, dtype=bits)
    code = code_of_numpy(bits)
    programs = kernels.unary(("in", 0), code, code)
    order = dst.order()
    if not _is_worth_it(builder, programs, dst, src):
        return False

    def emit(tiles: list[View], tile: View) -> None:
        launch_element_by_element(builder, node, programs, [tiles[0].permuted(order), tile.permuted(order)])

    axes, steps = cuts_of_long_runs(src, dst)
    orders, used = [src.order(), order], [src.in_cmx]
    tile_boxes(builder, node, [src], dst, dst.shape, orders, axes, used, builder.shaves, emit, steps=steps)
    return True


def _is_spread_in_cmx(*views: View) -> bool:
    """Whether no two elements of some view lie side by side, and each such view is where SHAVEs can use it."""
    steps = [[stride for stride, count in zip(v.strides, v.shape, strict=True) if count > 1] for v in views]
    spread = [view for view, each in zip(views, steps, strict=True) if each and min(each) > view.dtype.itemsize]
    return bool(spread) and all(view.in_cmx for view in spread)


def _is_worth_it(builder: Builder, programs: Sequence[kernels.Program], dst: View, src: View) -> bool:
    profile, order = builder.profile, dst.order()
    size = chunks(dst.shape, order, max(1, prod(dst.shape) // _SAMPLE))
    views = [view.sliced([0] * len(size), size).permuted(order) for view in (src, dst)]
    start = profile.shave.startup_cycles
    dims, steps = merge_dims(views[0].shape, [view.strides for view in views])
    if len(dims) > KERNEL_DIMS:
        return False
    sample = [replace(view, shape=tuple(dims), strides=tuple(step)) for view, step in zip(views, steps, strict=True)]
    cycles = min(way[0] for way in ways(profile, programs, sample)) - start
    each = cycles * prod(dst.shape) / prod(size) / builder.shaves
    return (start + each) * 1e12 / profile.shave.clock_hz * _GAIN < _dma_ps(profile, dst, src)


def _dma_ps(profile: Profile, dst: View, src: View) -> float:
    """Return about how long a DMA port takes, by the runs of bytes that lie together on both sides."""
    order = dst.order()
    dims, (a, b) = merge_dims(dst.permuted(order).shape, [src.permuted(order).strides, dst.permuted(order).strides])
    size = dst.dtype.itemsize
    run = dims[-1] if dims and a[-1] == b[-1] == size else 1
    dma = profile.dma
    each = -(-max(run * size, dma.min_run_bytes) // dma.bytes_per_cycle) + dma.run_cycles
    return prod(dst.shape) / run * each * 1e12 / dma.clock_hz
