"""Strided copies as DMA descriptors: any view to any view of the same shape and element size, in as few descriptors as possible.

A descriptor walks planes, and within a plane rows of one width and stride at each end (npu_blob.h, struct npu_dma_descriptor).
A copy with more levels than that becomes several descriptors.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations, product
from math import prod
from typing import TYPE_CHECKING

from npu_model.footprint import box

from libnpu.compiler.lower.view import View, merge_dims
from libnpu.compiler.program import Access, DmaPayload, Ref

if TYPE_CHECKING:
    from collections.abc import Iterator

Dim = tuple[int, int, int]  # count, source stride, destination stride
Rows = tuple[int, int]  # width, stride
Plan = tuple[
    tuple[Dim, ...], Dim, int, Rows, Rows
]  # loops outside, planes, bytes per plane, source rows, destination rows


def copies(dst: View, src: View) -> Iterator[tuple[DmaPayload, Access, Access]]:
    """Yield (descriptor, bytes read, bytes written) of each DMA that together copy `src` to `dst`."""
    if dst.shape != src.shape or dst.dtype.itemsize != src.dtype.itemsize:
        raise AssertionError(f"copy of {src.shape} {src.dtype} to {dst.shape} {dst.dtype}")
    order = dst.order()
    ordered_src, ordered_dst = src.permuted(order), dst.permuted(order)
    shape, (source, target) = merge_dims(ordered_dst.shape, [ordered_src.strides, ordered_dst.strides])
    dims = tuple((n, s, d) for n, s, d in zip(shape, source, target, strict=True) if n > 1)
    outer, plane, length, src_rows, dst_rows = _plan(dims, dst.dtype.itemsize)
    for index in product(*(range(n) for n, _, _ in outer)):
        src_offset = src.offset + sum(i * s for i, (_, s, _) in zip(index, outer, strict=True))
        dst_offset = dst.offset + sum(i * d for i, (_, _, d) in zip(index, outer, strict=True))
        payload = DmaPayload(
            src=Ref(src.target, src_offset),
            dst=Ref(dst.target, dst_offset),
            length=length,
            num_planes=plane[0],
            src_plane_stride=plane[1] if plane[0] > 1 else 0,
            dst_plane_stride=plane[2] if plane[0] > 1 else 0,
            src_width=src_rows[0],
            src_stride=src_rows[1],
            dst_width=dst_rows[0],
            dst_stride=dst_rows[1],
        )
        yield payload, _side(payload, True), _side(payload, False)


def _rows(side: int, dims: tuple[Dim, ...], width: int) -> Rows | None:
    """Describe `dims` (innermost last, runs of `width` bytes) as uniform rows at one end; None when they are not."""
    row, rows = width, False
    stride = span = 0
    for dim in reversed(dims):
        n, step = dim[0], dim[side]
        if not rows and step == row:
            row *= n
        elif not rows:
            rows, stride, span = True, step, step * n
        elif step == span:
            span *= n
        else:
            return None
    return row, stride


@lru_cache(maxsize=4096)
def _plan(dims: tuple[Dim, ...], itemsize: int) -> Plan:
    """Return the descriptor shape with the fewest descriptors, then the fewest planes."""
    width, rest = itemsize, dims
    if rest and rest[-1][1] == rest[-1][2] == itemsize:
        width, rest = itemsize * rest[-1][0], rest[:-1]
    best: tuple[tuple[int, int], Plan] | None = None
    for candidate in permutations(rest) if len(rest) <= 4 else [rest]:
        for loops in range(len(candidate) + 1):
            for planes in range(min(1, len(candidate) - loops) + 1):
                inside = candidate[loops + planes :]
                src_rows, dst_rows = _rows(1, inside, width), _rows(2, inside, width)
                if src_rows is None or dst_rows is None:
                    continue
                plane = candidate[loops] if planes else (1, 0, 0)
                score = (prod(n for n, _, _ in candidate[:loops]), plane[0])
                if best is None or score < best[0]:
                    length = width * prod(n for n, _, _ in inside)
                    best = (score, (candidate[:loops], plane, length, src_rows, dst_rows))
    assert best is not None
    return best[1]


def _side(payload: DmaPayload, source: bool) -> Access:
    """Return the bytes at one end of a descriptor."""
    ref = payload.src if source else payload.dst
    width = payload.src_width if source else payload.dst_width
    stride = payload.src_stride if source else payload.dst_stride
    plane = payload.src_plane_stride if source else payload.dst_plane_stride
    found = box(ref.offset, width, [(payload.num_planes, plane), (payload.length // width, stride)])
    return Access(ref.target, found.addr, found.width, found.dims)
