"""Strided views on buffers: where the elements of a value are. Reshape, Transpose, Slice and Expand are arithmetic on views.

A view has the value's logical axes (ONNX order) and one byte stride per axis; the physical order of a tensor is the order of
its strides. Pure data; nothing here emits an operation (see `copy.py`, `builder.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from npu_model.footprint import box

from libnpu.compiler.program import Access, Buffer, DdrTensor, Ref

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

Order = tuple[int, ...]
ALIGNMENT = 64  # of buffers in CMX and of constants in the weights section


def aligned(size_bytes: int) -> int:
    """Return the bytes that an allocation of `size_bytes` takes."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(slots=True, frozen=True)
class View:
    """Elements of `target`: element i is at `offset` + sum of i[k] * strides[k] bytes. Stride 0 repeats."""

    target: Buffer | DdrTensor
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def in_cmx(self) -> bool:
        """Whether an engine can use it as an operand without a DMA."""
        return isinstance(self.target, Buffer)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements when dense, repetition included."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def ref(self) -> Ref:
        """The address of its first element."""
        return Ref(self.target, self.offset)

    def sliced(self, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int] | None = None) -> View:
        """Return the box of `sizes` elements from `starts`, every `steps`-th."""
        steps = steps or (1,) * len(self.shape)
        offset = self.offset + sum(a * s for a, s in zip(starts, self.strides, strict=True))
        strides = tuple(s * k for s, k in zip(self.strides, steps, strict=True))
        return replace(self, offset=offset, shape=tuple(sizes), strides=strides)

    def permuted(self, perm: Sequence[int]) -> View:
        """Return the view whose axis i is this one's axis perm[i]."""
        return replace(self, shape=tuple(self.shape[p] for p in perm), strides=tuple(self.strides[p] for p in perm))

    def broadcast(self, shape: Sequence[int]) -> View:
        """Return the view repeated to `shape` by NumPy's rule (axes align at the end)."""
        extra = len(shape) - len(self.shape)
        old, strides = (1,) * extra + self.shape, (0,) * extra + self.strides
        wanted = tuple(s if n == m else 0 for s, n, m in zip(strides, old, shape, strict=True))
        return replace(self, shape=tuple(shape), strides=wanted)

    def reshaped(self, shape: Sequence[int]) -> View | None:
        """Return the same elements, in row-major order, under `shape`; None when no strides describe them."""
        old = [(n, s) for n, s in zip(self.shape, self.strides, strict=True) if n != 1]
        groups: list[tuple[int, int]] = []  # merged (count, innermost stride), outermost first
        for n, s in old:
            if groups and groups[-1][1] == s * n:
                groups[-1] = (groups[-1][0] * n, s)
            else:
                groups.append((n, s))
        strides = [0] * len(shape)
        at, left, step = len(groups) - 1, 1, 0
        for axis in range(len(shape) - 1, -1, -1):
            n = shape[axis]
            if n == 1:
                continue
            if left == 1:
                if at < 0:
                    return None
                left, step = groups[at]
                at -= 1
            if left % n:
                return None
            strides[axis] = step
            left, step = left // n, step * n
        if left != 1 or at >= 0:
            return None
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def order(self) -> Order:
        """Return its axes, outermost in memory first; axes of one element, or repeated, keep their logical place as far as possible."""
        order = list(range(len(self.shape)))
        movable = [k for k in order if self.shape[k] > 1 and self.strides[k] != 0]
        ranked = iter(sorted(movable, key=lambda k: (-abs(self.strides[k]), k)))
        return tuple(next(ranked) if k in movable else k for k in order)

    def access(self) -> Access:
        """Return the exact bytes that it covers."""
        found = box(self.offset, self.dtype.itemsize, list(zip(self.shape, self.strides, strict=True)))
        return Access(self.target, found.addr, found.width, found.dims)


def dense_strides(shape: Sequence[int], order: Order, itemsize: int) -> tuple[int, ...]:
    """Return the byte strides of a dense tensor whose axes lie in `order`, outermost first."""
    strides = [0] * len(shape)
    step = itemsize
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def dense(
    target: Buffer | DdrTensor,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    order: Order | None = None,
    offset: int = 0,
) -> View:
    """Return a dense view of `shape` on `target`, row-major unless `order` says otherwise."""
    axes = order if order is not None else tuple(range(len(shape)))
    return View(target, offset, tuple(shape), dense_strides(shape, axes, dtype.itemsize), dtype)


def merge_dims(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Drop axes of one element and merge neighbours that every operand walks as one.

    `strides` has one row per operand. Returns the merged shape (at least one axis) and the merged rows.
    """
    dims: list[int] = []
    steps: list[list[int]] = []  # per merged axis: the stride of each operand
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        row = [s[axis] for s in strides]
        if dims and all(outer == inner * n for outer, inner in zip(steps[-1], row, strict=True)):
            dims[-1] *= n
            steps[-1] = row
        else:
            dims.append(n)
            steps.append(row)
    if not dims:
        return [1], [[0] for _ in strides]
    return dims, [[step[i] for step in steps] for i in range(len(strides))]
