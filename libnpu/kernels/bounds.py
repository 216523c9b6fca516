"""How much of what the watchdog allows a block of a built-in kernel uses at most, for given sizes and a grid.

The work of a program is that of its parts (`work`), which run as often as its loops turn, and that of the operations that it starts. Here are the
loops of each program: how it cuts the work into tiles and chunks, with the same arithmetic as the program itself. A block is taken to have as
many tiles as any block has, all of the largest size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import npu_abi
import numpy as np
from npu_abi import C
from npu_model import cycles
from npu_model.shave_machine import STRIDED_WORK

from libnpu.kernels.catalogue import BUILTINS
from libnpu.kernels.convolution import LARGEST_WIDTH
from libnpu.kernels.convolution import SMALLEST_SHARE as CONV_SHARE
from libnpu.kernels.elementwise import LEAST
from libnpu.kernels.matrix import LARGEST_TILE, SMALLEST_SHARE
from libnpu.kernels.operations import CAPACITY, HEADER_BYTES, ITEM_BYTES, TRANSPOSED_ROWS
from libnpu.kernels.pooling import LARGE, LARGE_READS, LARGE_STEPS
from libnpu.kernels.rows import PIECE_BUFFERS
from libnpu.kernels.streams import FEWEST_CHUNKS
from libnpu.kernels.work import ONCE, Part

_DTYPES = {"f32": C.NPU_DT_F32, "f16": C.NPU_DT_F16}


@dataclass(frozen=True, slots=True)
class Block:
    """What a block does at most: work, and operations started."""

    work: int
    starts: int


Bound = Callable[[int], Block]  # from the number of blocks


class TileError(ValueError):
    """Not even the smallest tile fits in the CMX of a block."""


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel for elements of a type, on blocks with `cmx_bytes` bytes of CMX."""

    kernel: str
    dtype: str
    cmx_bytes: int

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return ITEM_BYTES[self.dtype]

    @property
    def parts(self) -> Mapping[str, Part]:
        """The parts of the program."""
        return _parts(self.kernel, self.dtype)

    def room(self, buffers: int) -> int:
        """Return the bytes for `buffers` buffers, as `operations.room`."""
        return self.cmx_bytes - HEADER_BYTES - 64 * buffers

    def once(self, elements: int = 0) -> int:
        """Return the work outside of loops; `elements` of the longest vector there but for that which clears the descriptors."""
        return self.parts[ONCE].work(1, max(elements, HEADER_BYTES // 4))

    def transposed(self, part: str, rows: int, cols: int) -> int:
        """Return the work of `operations.transpose`."""
        high = min(rows, max(CAPACITY // cols, TRANSPOSED_ROWS))
        wide = min(cols, CAPACITY // high)
        down, across = ceil_div(rows, high), ceil_div(cols, wide)
        work = self.parts[f"{part} rows"].work(down) + self.parts[f"{part} chunk"].work(down * across, rows * cols)
        # A chunk of one column is read, and one of one row written, element by element.
        apart = (rows if across > 1 and cols % wide == 1 else 0) + (cols if down > 1 and rows % high == 1 else 0)
        return work + apart * STRIDED_WORK


@lru_cache(maxsize=64)
def _parts(kernel: str, dtype: str) -> Mapping[str, Part]:
    return BUILTINS[kernel].program(dtype).meter.parts


@lru_cache(maxsize=256)
def _dpu(
    dtype: str, op: int, size: tuple[int, int, int], depth: int, kernel: tuple[int, int], stride: tuple[int, int]
) -> int:
    """Return the work of a DPU operation: `size` outputs along x, y, z; kernel and stride along x, y."""
    invariant, variant = (np.zeros(1, npu_abi.dtype(f"npu_dpu_{name}")) for name in ("invariant", "variant"))
    values = {
        "op": op, "groups": 1, "variant_count": 1, "in_z": depth, "kernel_x": kernel[0], "kernel_y": kernel[1], "stride_x": stride[0],
        "stride_y": stride[1], "dilation_x": 1, "dilation_y": 1, "out_z": size[2],
    }  # fmt: skip
    for name, value in {**values, **dict.fromkeys(("act_dtype", "wt_dtype", "out_dtype"), _DTYPES[dtype])}.items():
        invariant[name] = value
    for axis, value in zip("xyz", size, strict=True):
        variant[f"size_{axis}"] = value
    macs, read = cycles.dpu_macs(invariant, variant), cycles.dpu_read_bytes(invariant, variant)
    return (int(macs[0]) >> 3) + int(read[0]) + size[0] * size[1] * size[2] * ITEM_BYTES[dtype]


def ceil_div(a: int, b: int) -> int:
    """Return a / b rounded up."""
    return -(-a // b)


def _fresh(items: int, span: int) -> int:
    """Return the most runs of `span` equal items, one behind the other, that `items` of them reach into."""
    return min(items, (items - 2) // span + 2)


# ---- kernels over contiguous units ----


def _streamed(
    p: Program, units: int, limit: int, least: int, loads: tuple[int, ...], stores: tuple[int, ...], cols: int
) -> Block:
    """Return what `streams.run` does for `units` units of `cols` elements; `loads` and `stores` are the bytes of a unit of each operand."""
    unit_bytes, operands = sum(loads) + sum(stores), len(loads) + len(stores)
    chunk = min(p.room(2 * operands) // (unit_bytes * 2), limit, max(ceil_div(units, FEWEST_CHUNKS), least))
    chunks = ceil_div(units, chunk)
    work = p.parts["chunk"].work(chunks, units * cols, units, chunks * cols)
    return Block(work + units * unit_bytes, chunks * operands)


def elementwise(p: Program, count: int, loads: int) -> Bound:
    """Return the bound of a kernel that makes one element of `loads` elements."""

    def bound(grid: int) -> Block:
        es, most = p.item_bytes, ceil_div(count, grid)
        found = [_streamed(p, units, CAPACITY, LEAST, (es,) * loads, (es,), 1) for units in {most, max(most - 1, 1)}]
        return Block(max(b.work for b in found) + p.once(), max(b.starts for b in found))

    return bound


def moved(p: Program, count: int) -> Bound:
    """Return the bound of copy and fill, which are a DMA or two for each block."""
    return lambda grid: Block(p.once(4096) + ceil_div(count, grid) * p.item_bytes, 2)


def rows(p: Program, count: int, cols: int, results: int, reads: int) -> Bound:
    """Return the bound of a kernel over `count` rows, which makes `results` elements of one. Of each piece of a long row `reads` operands are read,
    over all passes.
    """
    es = p.item_bytes
    limit = min(CAPACITY // cols, p.room(4) // (cols * es * 4))
    size = min(p.room(PIECE_BUFFERS) // (64 * PIECE_BUFFERS) * 64 // es, CAPACITY)

    def short(units: int) -> Block:
        return _streamed(p, units, limit, 1, (cols * es,), (results * es,), cols)

    def long(units: int) -> Block:
        pieces = ceil_div(cols, size)
        work = p.parts["row"].work(1, 1) + p.parts["piece"].work(pieces, cols) + (cols * reads + results) * es
        return Block(units * work, units * (pieces * reads + ceil_div(results, size)))

    def bound(grid: int) -> Block:
        most = ceil_div(count, grid)
        found = [(short if limit else long)(units) for units in {most, max(most - 1, 1)}]
        return Block(max(b.work for b in found) + p.once(cols), max(b.starts for b in found))

    return bound


# ---- windows ----


@dataclass(frozen=True, slots=True)
class Window:
    """A window over images: sizes along h and w."""

    n: int
    size: tuple[int, int]
    out: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]

    @property
    def taps(self) -> int:
        """Positions of the window."""
        return self.kernel[0] * self.kernel[1]

    def inputs(self, outputs: int, axis: int) -> int:
        """Return the inputs under `outputs` outputs along an axis."""
        return (outputs - 1) * self.stride[axis] + self.kernel[axis]


def conv2d(p: Program, s: Window, c: int, k: int, groups: int) -> Bound:
    """Return the bound of a convolution; `c` and `k` are channels of a group. TileError when not the smallest tile fits."""
    es, parts = p.item_bytes, p.parts

    def bound(grid: int) -> Block:
        (high, wide, broad), halvings = conv_tile(p, s, c, k, groups, grid)
        span, across = ceil_div(s.out[0], high) * ceil_div(s.out[1], broad) * s.n, ceil_div(k, wide)
        items = ceil_div(span * across * groups, grid)
        fresh = _fresh(items, span)
        pixels = min(s.inputs(high, 0), s.size[0]) * min(s.inputs(broad, 1), s.size[1])
        item = (pixels * c + high * broad * wide) * es
        item += p.transposed("in", c, pixels) + p.transposed("out", high * broad, wide)
        item += _dpu(p.dtype, C.NPU_DPU_CONV, (broad, high, wide), c, s.kernel[::-1], s.stride[::-1])
        weights = parts["weights"].work(1, wide * 4) + wide * s.taps * c * es
        if s.taps > 1 and c > 1 and s.taps * c <= CAPACITY:
            weights += parts["turn"].work(wide, wide * s.taps * c)
        work = p.once() + parts["halve"].work(halvings) + parts["item"].work(items) + items * item + fresh * weights
        return Block(work, 3 * items + fresh)

    return bound


def conv_tile(p: Program, s: Window, c: int, k: int, groups: int, grid: int) -> tuple[tuple[int, int, int], int]:
    """Return rows, channels and columns of a tile, and how often `convolution._tiles` tries. TileError when not the smallest fits."""
    es = p.item_bytes
    wide, span, high, tries = min(k, LARGEST_WIDTH), s.out[1], 0, 0
    if s.n * s.size[0] * s.size[1] < k * s.taps:
        wide = min(wide, max(ceil_div(k * groups, grid), CONV_SHARE))
    while not high:
        if tries:
            if max(wide, span) < 2:
                raise TileError
            before = span
            if wide < span:
                span = ceil_div(span, 2)
            if before == span:
                wide = ceil_div(wide, 2)
        tries += 1
        row = min(s.inputs(span, 1), s.size[1]) * c * 2 * es
        left = p.room(6) - wide * (s.taps * c * es + 16) - (s.kernel[0] - s.stride[0]) * row
        high = max(left, 0) // (s.stride[0] * row + span * wide * 2 * es)
    wide = ceil_div(k, ceil_div(k, wide))
    span = ceil_div(s.out[1], ceil_div(s.out[1], span))
    columns = s.n * groups * ceil_div(k, wide) * ceil_div(s.out[1], span)
    high = ceil_div(s.out[0], min(high, s.out[0]))
    high = max(high, ceil_div(columns * high, grid) * grid // columns)
    return (ceil_div(s.out[0], high), wide, span), tries


def pool2d(p: Program, s: Window, c: int, average: bool) -> Bound:
    """Return the bound of a pooling. TileError when not one row of outputs fits."""
    es, parts, planes = p.item_bytes, p.parts, s.n * c
    wide, out_w, large = s.size[1] + 2 * s.pad[1], s.out[1], s.taps > LARGE
    line, room = wide * es, p.room(4) - large * wide * 4
    high = pool_rows(p, s)
    by_stride = STRIDED_WORK if s.stride[1] > 1 or out_w == 1 else 4 if large else es

    def taken(part: str, times: int, elements: int) -> int:
        """Return the work of positions of a window; what an element of a load with the window's stride counts is `by_stride`."""
        combined = parts[f"{part} sum" if average else f"{part} maximum"]
        return parts[part].work(times, elements, by_stride=by_stride) + combined.work(times, elements)

    def bound(grid: int) -> Block:
        deep = 1
        if high == s.out[0]:
            plane = s.inputs(high, 0) * line + high * out_w * es
            tiles = ceil_div(planes, min(room // plane, planes))
            deep = ceil_div(planes, ceil_div(tiles, grid) * grid)
        items = ceil_div(ceil_div(s.out[0], high) * ceil_div(planes, deep), grid)
        images = min(items * deep, planes) if high == s.out[0] else items
        lines = images * high
        outputs = lines * out_w
        work = p.once() + parts["item"].work(items) + parts["plane"].work(images)
        work += images * min(s.size[0], s.inputs(high, 0)) * s.size[1] * es + outputs * es
        if any(s.pad):
            filled = deep * s.inputs(high, 0) * wide
            work += items * parts["fill"].work(ceil_div(filled, CAPACITY), filled)
        if large:
            work += parts["row"].work(lines, outputs)
            pieces = ceil_div(wide, CAPACITY)
            work += lines * (parts["columns"].work(pieces, wide) + s.kernel[0] * taken("column tap", pieces, wide))
            work += taken("across", lines * s.kernel[1], outputs * s.kernel[1])
        else:
            work += parts["small plane"].work(images, outputs) + parts["tap row"].work(images * s.kernel[0])
            work += taken("tap", images * s.taps, outputs * s.taps)
        if average:
            if large:
                work += parts["row divide"].work(lines, outputs)
                work += parts["row counts"].work(lines, outputs, lines, outputs)
            else:
                work += parts["divide"].work(images, outputs)
                work += parts["counts"].work(items, items * high * out_w, items * high, items * out_w)
        return Block(work, 2 * items)

    return bound


def pool_rows(p: Program, s: Window) -> int:
    """Return the output rows of a tile. TileError when not one fits."""
    wide, out_w = s.size[1] + 2 * s.pad[1], s.out[1]
    line, room = wide * p.item_bytes, p.room(4)
    if s.taps > LARGE:
        room -= wide * 4
    high = max(room - (s.kernel[0] - s.stride[0]) * line, 0) // (s.stride[0] * line + out_w * p.item_bytes)
    if not high:
        raise TileError
    high = min(high, s.out[0], CAPACITY // out_w)
    if s.taps > LARGE:
        high = min(high, max(min(LARGE_STEPS // sum(s.kernel), LARGE_READS // (out_w * s.kernel[1])), 1))
    return high


# ---- matrices ----


def matrix(p: Program, batch: int, m: int, k: int, n: int) -> Bound:
    """Return the bound of matmul and fully_connected. TileError when not the smallest tile fits."""
    es, parts = p.item_bytes, p.parts

    def bound(grid: int) -> Block:
        (high, wide), halvings = matrix_tile(p, batch, m, k, n, grid)
        down, across = ceil_div(m, high), ceil_div(n, wide)
        items = ceil_div(down * across * batch, grid)
        row_loads = items if down > 1 else _fresh(items, across)
        weight_loads = _fresh(items, down)
        work = p.once() + parts["halve"].work(halvings + 1) + parts["item"].work(items)
        work += items * (_dpu(p.dtype, C.NPU_DPU_MATMUL, (high, 1, wide), k, (1, 1), (1, 1)) + high * wide * es)
        work += parts["load rows"].work(row_loads) + row_loads * high * k * es
        work += parts["load weights"].work(weight_loads) + weight_loads * wide * k * es
        work += parts["weights"].work(weight_loads, weight_loads * wide * 4)
        if p.kernel == "matmul":
            work += weight_loads * p.transposed("turn", k, wide)
        return Block(work, 2 * items + row_loads + weight_loads)

    return bound


def matrix_tile(p: Program, batch: int, m: int, k: int, n: int, grid: int) -> tuple[tuple[int, int], int]:
    """Return rows and columns of a tile, and how often `matrix._shrink` halves. TileError when not the smallest fits."""
    high, wide, halvings = min(m, LARGEST_TILE), min(n, LARGEST_TILE), 0
    while True:
        fits = ((high + wide) * k + high * wide) * 2 * p.item_bytes + wide * 16 <= p.room(7)
        if not fits and max(high, wide) < 2:
            raise TileError
        few = ceil_div(m, high) * ceil_div(n, wide) * batch < grid and max(high, wide) > SMALLEST_SHARE
        if fits and not few:
            break
        halvings += 1
        before = high
        if wide < high + (high != m):
            high = ceil_div(high, 2)
        if before == high:
            wide = ceil_div(wide, 2)
    return (ceil_div(m, ceil_div(m, high)), ceil_div(n, ceil_div(n, wide))), halvings
