"""Matrix products of constants, in an order of additions that is the same on every machine.

A BLAS library picks its order by the processor that it finds, and what the compiler computes goes into the blob.
"""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

BLOCK_BYTES = 1 << 18  # of sums that are worked on at a time, chosen for a level-2 cache; it has no part in the values


def matmul(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """Return a @ b in float64 for operands of any rank that NumPy's takes: products rounded, then added in order of k.

    Raises ValueError for shapes that do not fit.
    """
    left = a.astype(np.float64).reshape((1, *a.shape) if a.ndim == 1 else a.shape)
    right = b.astype(np.float64).reshape((*b.shape, 1) if b.ndim == 1 else b.shape)
    if not a.ndim or not b.ndim or left.shape[-1] != right.shape[-2]:
        raise ValueError(f"a matrix product of {a.shape} and {b.shape}")
    stack = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    rows, columns = left.shape[-2], right.shape[-1]
    left = np.broadcast_to(left, (*stack, *left.shape[-2:]))
    right = np.broadcast_to(right, (*stack, *right.shape[-2:]))
    sums = np.zeros((*stack, rows, columns))
    step = max(1, BLOCK_BYTES // max(1, 8 * columns))
    with np.errstate(all="ignore"):
        for index in product(*map(range, stack)):
            for first in range(0, rows, step):
                _add_products(sums[index][first : first + step], left[index][first : first + step], right[index])
    shape = list(stack) + ([rows] if a.ndim > 1 else []) + ([columns] if b.ndim > 1 else [])
    return sums.reshape(shape)


def _add_products(sums: NDArray[np.float64], a: NDArray[np.float64], b: NDArray[np.float64]) -> None:
    """Add a @ b to `sums` [rows, columns]."""
    term = np.empty_like(sums)
    for column, row in zip(np.ascontiguousarray(a.T), b, strict=True):
        np.multiply(column[:, None], row, out=term)
        np.add(sums, term, out=sums)


def convolve(
    x: NDArray[Any], weights: NDArray[Any], window: dict[str, Sequence[int]], group: int
) -> NDArray[np.float64]:
    """Return the convolution of x [N, C, ...] with weights [O, C / group, ...] in float64, for any number of dimensions.

    `window` has `pads` (all begins, then all ends), `strides` and `dilations`. Raises ValueError for shapes that do not fit.
    """
    rank = x.ndim - 2
    kernel, pads, strides, dilations = weights.shape[2:], window["pads"], window["strides"], window["dilations"]
    each, filters = weights.shape[1], len(weights) // group
    if weights.ndim != x.ndim or each * group != x.shape[1] or filters * group != len(weights):
        raise ValueError(f"a convolution of {x.shape} with {weights.shape} in {group} groups")
    around = [(0, 0), (0, 0), *((pads[i], pads[rank + i]) for i in range(rank))]
    padded = np.pad(x.astype(np.float64), around)
    counts = [(size - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1 for i, size in enumerate(padded.shape[2:])]
    if min(counts, default=1) < 0:
        raise ValueError(f"a kernel {kernel} that is larger than the padded input {padded.shape}")
    pixels = math.prod(counts)
    # [K, N · pixels] of one group at a time, k running over channels, then over the kernel
    parts = []
    for index in range(group):
        taps = [
            padded[(slice(None), index * each + channel, *_strided(place, counts, strides, dilations))].reshape(-1)
            for channel in range(each)
            for place in product(*map(range, kernel))
        ]
        columns = np.stack(taps) if taps else np.zeros((0, len(x) * pixels))
        rows = weights[index * filters : (index + 1) * filters].reshape(filters, -1)
        parts.append(matmul(rows, columns).reshape(filters, len(x), *counts))
    return np.moveaxis(np.concatenate(parts), 0, 1)


def _strided(
    place: Sequence[int], counts: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[slice]:
    """Return what a kernel element at `place` meets: one slice per dimension, `counts` long."""
    starts = [at * dilation for at, dilation in zip(place, dilations, strict=True)]
    return [
        slice(start, start + (count - 1) * step + 1 if count else start, step)
        for start, count, step in zip(starts, counts, strides, strict=True)
    ]
