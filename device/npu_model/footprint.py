"""The byte ranges that a descriptor reads and writes, exactly: for the MMU, hazard tracking, the compiler and tools.

A footprint is a list of boxes; their union is the set of bytes touched, no byte more. Boxes of one list may overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from npu_abi import C

from npu_model import descriptors, dtypes
from npu_model.descriptors import Axis, Dma, Invariant, Variant

FEW_PAIRS = 256  # up to which comparing each with each beats sorting
WEIGHT_ENTRY_BYTES = 16  # sizeof(struct npu_dpu_weight_entry)

Dims: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(slots=True, unsafe_hash=True)  # nobody changes one; a frozen class takes three times as long to make
class Box:
    """Runs of `width` bytes at addr + sum of i_k * stride_k, 0 <= i_k < count_k; dims outermost (largest stride) first.

    Made by `box`, which brings every set of runs into the one form with positive strides and nothing to merge.
    """

    addr: int
    width: int
    dims: Dims = ()
    end: int = field(init=False, compare=False, repr=False)  # the address after the last byte

    def __post_init__(self) -> None:
        end = self.addr + self.width
        for count, stride in self.dims:
            end += (count - 1) * stride
        self.end = end

    @property
    def size_bytes(self) -> int:
        """Bytes of all runs, counted as often as runs name them."""
        size = self.width
        for count, _ in self.dims:
            size *= count
        return size


Footprint: TypeAlias = tuple[list[Box], list[Box]]


def box(addr: int, width: int, dims: Iterable[tuple[int, int]] = ()) -> Box:
    """Return the Box of these runs; strides may be zero or negative, in any order."""
    if not dims:
        return Box(addr, width)
    kept: list[tuple[int, int]] = []
    for count, stride in dims:
        if stride < 0:
            addr, stride = addr + (count - 1) * stride, -stride
        if count > 1 and stride:
            kept.append((count, stride))
    kept.sort(key=lambda dim: -dim[1])
    merged: list[tuple[int, int]] = []  # innermost first
    for count, stride in reversed(kept):
        if not merged and stride <= width:
            width += (count - 1) * stride
        elif merged and stride == merged[-1][0] * merged[-1][1]:
            merged[-1] = (merged[-1][0] * count, merged[-1][1])
        else:
            merged.append((count, stride))
    return Box(addr, width, tuple(reversed(merged)))


def dma_footprint(record: Any) -> Footprint:
    """Return (reads, writes) of a record of npu_dma_task or npu_dma_descriptor."""
    return dma_boxes(Dma.decode(record))


def dma_boxes(dma: Dma) -> Footprint:
    """Return (reads, writes) of a DMA descriptor."""
    source = ((dma.num_planes, dma.src_plane_stride), (dma.length // dma.src_width, dma.src_stride))
    destination = ((dma.num_planes, dma.dst_plane_stride), (dma.length // dma.dst_width, dma.dst_stride))
    return [box(dma.src, dma.src_width, source)], [box(dma.dst, dma.dst_width, destination)]


def dpu_footprint(record: Any, variants: Any) -> Footprint:
    """Return (reads, writes) of a record of npu_dpu_invariant and the records of its variants. Raises DescriptorError."""
    invariant, parts = _decoded(record, variants)
    return _boxes(_dpu_reads, invariant, parts), _boxes(_dpu_writes, invariant, parts)


def _decoded(record: Any, variants: Any) -> tuple[Invariant, list[Variant]]:
    """Return an invariant and its variants, which lie in it. Raises DescriptorError."""
    invariant, parts = Invariant.decode(record), [Variant.decode(variant) for variant in variants]
    invariant.check_rows()
    for part in parts:
        invariant.check_variant(part)
    return invariant, parts


def _boxes(of: Callable[[Invariant, Variant], list[Box]], invariant: Invariant, variants: list[Variant]) -> list[Box]:
    """Return what `of` gives for the variants, each box once."""
    return list(dict.fromkeys(box for variant in variants for box in of(invariant, variant)))


class DpuFootprints:
    """`dpu_footprint` of the tasks of a list; of those that differ in their addresses alone it is worked out once, and moved."""

    def __init__(self, invariants: Any, variants: Any) -> None:
        """Records of npu_dpu_invariant, and of npu_dpu_variant by their `variant_first` and `variant_count`."""
        self._invariants, self._variants = invariants, variants
        self._addresses = list(zip(*(invariants[name].tolist() for name in (*_READ_FROM, "out_addr")), strict=True))
        self._parts = list(zip(invariants["variant_first"].tolist(), invariants["variant_count"].tolist(), strict=True))
        places = (
            *_READ_FROM,
            "out_addr",
            "barriers_wait_mask",
            "barriers_post_mask",
            "sched_start_after",
            "variant_first",
        )
        self._alike = _bytes_without(invariants, (*places, "tile", "task_id"))
        self._alike_parts = _bytes_without(variants, ("invariant_index",))
        self._sizes = invariants.dtype.itemsize, variants.dtype.itemsize
        self._known: dict[tuple[Any, ...], tuple[list[tuple[int, Box]], list[Box], int]] = {}

    def of(self, index: int) -> Footprint:
        """Return (reads, writes) of an invariant. Raises DescriptorError."""
        *read_from, out = self._addresses[index]
        (first, count), (size, part_size) = self._parts[index], self._sizes
        # The tile of the output says how far the others are, and without a table there is nothing to read of one.
        tile, has_table = (out - C.NPU_CMX_BASE) // C.NPU_CMX_TILE_STRIDE, read_from[-1] != 0
        alike = self._alike[index * size : (index + 1) * size]
        parts = self._alike_parts[first * part_size : (first + count) * part_size]
        key = alike, parts, tile, has_table
        if key not in self._known:
            self._known[key] = *self._apart(index, has_table), out
        reads, writes, written = self._known[key]
        moved = [Box(box.addr + read_from[operand], box.width, box.dims) for operand, box in reads]
        by = out - written
        return list(dict.fromkeys(moved)), [Box(box.addr + by, box.width, box.dims) for box in writes]

    def _apart(self, index: int, has_table: bool) -> tuple[list[tuple[int, Box]], list[Box]]:
        """Return what an invariant reads, as (number of the operand in _READ_FROM, box from its first byte), and what it writes."""
        first, count = self._parts[index]
        invariant, variants = _decoded(self._invariants[index], self._variants[first : first + count])
        places = {name: number << _APART for number, name in enumerate(_READ_FROM, 1)}
        far = replace(invariant, **places if has_table else places | {_READ_FROM[-1]: 0})
        reads = _boxes(_dpu_reads, far, variants)
        operands = [(box.addr >> _APART) - 1 for box in reads]
        return [
            (operand, Box(box.addr - (operand + 1 << _APART), box.width, box.dims))
            for operand, box in zip(operands, reads, strict=True)
        ], _boxes(_dpu_writes, invariant, variants)


def _bytes_without(records: Any, names: Iterable[str]) -> bytes:
    """Return the bytes of records, one after the other, with 0 in those fields and where there are none."""
    found = np.zeros(len(records), records.dtype)
    for name in set(records.dtype.names) - set(names):
        found[name] = records[name]
    return found.tobytes()


_READ_FROM = ("act_addr", "act2_addr", "wt_addr", "wt_table_addr")
_APART = 128  # log2 of a distance that no operand's bytes reach


def _dpu_reads(invariant: Invariant, variant: Variant) -> list[Box]:
    size = dtypes.size_bytes(invariant.act_dtype)
    z_first, z_end = invariant.input_channels(variant)
    z_width = (z_end - z_first) * size
    columns = _positions(invariant.axis_x(variant), variant.start_x, variant.size_x)
    rows = _positions(invariant.axis_y(variant), variant.start_y, variant.size_y)
    found = [
        _tensor_box(invariant.act_addr + z_first * size, z_width, x, invariant.act_stride_x, y, invariant.act_stride_y)
        for y in rows
        for x in columns
    ]
    if invariant.op in descriptors.ELTWISE:
        x = (variant.start_x, 1, variant.size_x, 1)
        y = (variant.start_y, 1, variant.size_y, 1)
        addr = invariant.act2_addr + z_first * size
        found.append(_tensor_box(addr, z_width, x, invariant.act2_stride_x, y, invariant.act2_stride_y))
    if invariant.has_weights:
        found.append(_weights_box(invariant, variant))
    if invariant.wt_table_addr:
        addr = invariant.wt_table_addr + variant.start_z * WEIGHT_ENTRY_BYTES
        found.append(box(addr, variant.size_z * WEIGHT_ENTRY_BYTES))
    return found


def _dpu_writes(invariant: Invariant, variant: Variant) -> list[Box]:
    size = dtypes.size_bytes(invariant.out_dtype)
    x = (variant.start_x, 1, variant.size_x, 1)
    y = (variant.start_y, 1, variant.size_y, 1)
    first = invariant.out_addr + variant.start_z * size
    return [
        _tensor_box(first + shift, variant.size_z * size, x, invariant.out_stride_x, y, invariant.out_stride_y)
        for shift in invariant.out_shifts
    ]


def _weights_box(invariant: Invariant, variant: Variant) -> Box:
    if invariant.op == descriptors.DWCONV:
        size, taps = dtypes.size_bytes(invariant.wt_dtype), invariant.kernel_x * invariant.kernel_y
        return box(invariant.wt_addr + variant.start_z * size, variant.size_z * size, [(taps, invariant.out_z * size)])
    filter_bytes = invariant.filter_bytes
    return box(invariant.wt_addr + variant.start_z * filter_bytes, variant.size_z * filter_bytes)


Span: TypeAlias = tuple[int, int, int, int]  # first position, positions per run, runs, distance of runs


def _tensor_box(addr: int, width: int, x: Span, stride_x: int, y: Span, stride_y: int) -> Box:
    dims = [(y[2], y[3] * stride_y), (y[1], stride_y), (x[2], x[3] * stride_x), (x[1], stride_x)]
    return box(addr + y[0] * stride_y + x[0] * stride_x, width, dims)


def _positions(axis: Axis, start: int, size: int) -> list[Span]:
    """Return the input positions inside the tensor that outputs [start, start + size) read, as disjoint spans."""
    first = start * axis.stride - axis.pad_low
    if not axis.gaps:
        low, high = max(first, 0), min(first + axis.extent(size), axis.input_size)
        return [(low, high - low, 1, 1)] if high > low else []
    taps = np.arange(axis.kernel, dtype=np.int64) * axis.dilation
    touched = np.unique(np.add.outer(np.arange(size, dtype=np.int64) * axis.stride + first, taps))
    touched = touched[(touched >= 0) & (touched < axis.input_size)]
    breaks = np.flatnonzero(np.diff(touched) != 1) + 1
    spans: list[Span] = []
    for piece in np.split(touched, breaks) if touched.size else []:
        position, length = int(piece[0]), len(piece)
        if spans and spans[-1][1] == length:
            head, _, runs, distance = spans[-1]
            step = position - head - (runs - 1) * distance
            if runs == 1 or step == distance:
                spans[-1] = (head, length, runs + 1, step)
                continue
        spans.append((position, length, 1, 1))
    return spans


def runs(of: Box) -> npt.NDArray[np.int64]:
    """Return [n, 2] addresses (first byte, byte after the last) of the box: ascending, disjoint, adjacent ones merged."""
    starts = np.array([of.addr], dtype=np.int64)
    nested, extent = True, of.width
    for count, stride in reversed(of.dims):
        starts = (np.arange(count, dtype=np.int64)[:, None] * stride + starts).reshape(-1)
        nested = nested and extent <= stride
        extent += (count - 1) * stride
    if not nested:
        starts.sort()
    ends = starts + of.width
    first = np.ones(len(starts), dtype=bool)
    first[1:] = starts[1:] > ends[:-1]
    last = np.ones(len(starts), dtype=bool)
    last[:-1] = first[1:]
    return np.stack([starts[first], ends[last]], axis=1)


def overlaps(a: Box, b: Box) -> bool:
    """Tell whether the two boxes share a byte."""
    if a.addr >= b.end or b.addr >= a.end:
        return False
    if not a.dims and not b.dims:
        return True
    common = min(a.end, b.end) - max(a.addr, b.addr)
    if _surely_hits(a, b, common) or _surely_hits(b, a, common):
        return True
    answer = _overlaps_in_lattice(a, b)
    if answer is None:
        answer = _overlaps_in_rows(a, b)
    if answer is None:
        answer = _overlaps_by_runs(a, b)
    return answer


def surely_covers(a: Box, b: Box) -> bool:
    """Tell whether every byte of `b` is one of `a`; False when they are not blocks of one row-major lattice, too."""
    if a.addr > b.addr or a.end < b.end:
        return False
    strides = sorted({stride for _, stride in (*a.dims, *b.dims)}, reverse=True)
    outer, inner = _coordinates(a, strides, a.addr), _coordinates(b, strides, a.addr)
    if outer is None or inner is None:
        return False
    return all(p <= s and s + n <= p + m for (p, m), (s, n) in zip(outer, inner, strict=True))


def _surely_hits(a: Box, b: Box, common: int) -> bool:
    """Tell whether some run of `a` lies whole in the `common` bytes of both spans and is longer than any gap of `b`."""
    own_gap = _largest_gap(a)
    whole_run = not a.dims or common >= 2 * a.width + own_gap
    return whole_run and min(a.width, common) > _largest_gap(b)


def _largest_gap(of: Box) -> int:
    """Return the most bytes between neighbouring runs of a box, or more."""
    gap, extent = 0, of.width
    for count, stride in reversed(of.dims):
        gap = max(gap, stride - extent)
        extent += (count - 1) * stride
    return gap


def any_overlap(a: Iterable[Box], b: Iterable[Box]) -> bool:
    """Tell whether any box of `a` shares a byte with any box of `b`."""
    first, second = list(a), list(b)
    if len(first) * len(second) <= FEW_PAIRS:
        return any(overlaps(one, other) for one in first for other in second)
    entries = sorted(
        [(one.addr, 0, one.end, one) for one in first] + [(one.addr, 1, one.end, one) for one in second], key=_place
    )
    active: tuple[list[tuple[int, Box]], list[tuple[int, Box]]] = ([], [])  # (end, box) that may reach the next address
    for addr, side, end, one in entries:
        others = active[1 - side]
        others[:] = [entry for entry in others if entry[0] > addr]
        if any(overlaps(one, other) for _, other in others):
            return True
        active[side].append((end, one))
    return False


def _place(entry: tuple[int, int, int, Box]) -> tuple[int, int, int]:
    return entry[:3]


def _overlaps_in_lattice(a: Box, b: Box) -> bool | None:
    """Compare index by index when both boxes are blocks of one row-major lattice; None when they are not."""
    strides = sorted({stride for _, stride in (*a.dims, *b.dims)}, reverse=True)
    base = min(a.addr, b.addr)
    first, second = _coordinates(a, strides, base), _coordinates(b, strides, base)
    if first is None or second is None:
        return None
    return all(p < s + n and s < p + m for (p, m), (s, n) in zip(first, second, strict=True))


def _coordinates(of: Box, strides: list[int], base: int) -> list[tuple[int, int]] | None:
    """Return (first index, count) per stride, bytes last; None when a run of an inner index passes the outer stride."""
    counts = {stride: count for count, stride in of.dims}
    if len(counts) != len(of.dims):
        return None
    rest = of.addr - base
    found: list[tuple[int, int]] = []
    for stride in strides:
        index, rest = divmod(rest, stride)
        found.append((index, counts.get(stride, 1)))
    found.append((rest, of.width))
    extent = rest + of.width
    for (index, count), stride in zip(reversed(found[:-1]), reversed(strides), strict=True):
        if extent > stride:
            return None
        extent += (index + count - 1) * stride
    return found


def _overlaps_in_rows(a: Box, b: Box) -> bool | None:
    """Compare one row with one row when both boxes repeat theirs at one distance, none reaching into the next; else None."""
    if not a.dims or not b.dims or a.dims[0][1] != b.dims[0][1]:
        return None
    (rows_a, stride), (rows_b, _) = a.dims[0], b.dims[0]
    base = min(a.addr, b.addr)
    row_a, addr_a = divmod(a.addr - base, stride)
    row_b, addr_b = divmod(b.addr - base, stride)
    one_a, one_b = Box(addr_a, a.width, a.dims[1:]), Box(addr_b, b.width, b.dims[1:])
    if one_a.end > stride or one_b.end > stride:
        return None
    return row_a < row_b + rows_b and row_b < row_a + rows_a and overlaps(one_a, one_b)


def _overlaps_by_runs(a: Box, b: Box) -> bool:
    low, high = max(a.addr, b.addr), min(a.end, b.end)
    first, second = runs(a), runs(b)
    first = first[(first[:, 1] > low) & (first[:, 0] < high)]
    second = second[(second[:, 1] > low) & (second[:, 0] < high)]
    if not len(first) or not len(second):
        return False
    after = np.searchsorted(second[:, 1], first[:, 0], side="right")  # first run of b that ends after a's run begins
    found = after < len(second)
    return bool(np.any(second[after[found], 0] < first[found, 1]))
