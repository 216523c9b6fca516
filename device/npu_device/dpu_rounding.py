"""Products of matrices whose every element rounds to float32 as the exact sum would.

BLAS adds in an order of its own, which changes with the shape of the matrices and the machine. In float64 the difference is far
below float32's last bit, but a sum near the middle between two float32 values may still fall either way. So:

1. BLAS computes the product in float64.
2. No order of additions errs by more than depth * 2^-53 * |row| * |column| (Cauchy-Schwarz over the standard bound).
   None errs at all when every value is a multiple of 2^-g (fp16: g = 24) and |row| * |column| is at most 2^(53 - 2g).
3. Elements that this distance could carry over a rounding boundary, about one in ten thousand, are summed exactly.
"""

from __future__ import annotations

import math
import struct
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from npu_model import dtypes
from npu_model.native import Native

F64: TypeAlias = npt.NDArray[np.float64]


def exact_below(dtype: int) -> float:
    """Return the product of norms up to which no sum of products of two values of float type `dtype` errs; 0 = none."""
    return 2.0 ** (53 - 48) if dtype == dtypes.F16 else 0.0


class Filters:
    """The right-hand side: weights [columns, depth], C-contiguous, values of enum npu_dtype `dtype` as float64."""

    __slots__ = ("_exact_below", "_native", "_norms", "weights")

    def __init__(self, weights: F64, dtype: int, native: Native | None) -> None:
        self.weights = weights
        self._exact_below = exact_below(dtype)
        self._native = native
        self._norms = _norms(weights, native)

    def product(self, matrix: F64, out: F64) -> None:
        """Write matrix @ weights.T to `out`, [rows, columns] with dense columns; `matrix` is C-contiguous."""
        np.matmul(matrix, self.weights.T, out=out)
        native = self._native
        if native is None:
            self._settle_numpy(matrix, _norms(matrix, None), out)
            return
        rows, depth = matrix.shape
        native.lib.npu_settle(
            native.pointer("double[]", out[0]),
            out.strides[0] // out.itemsize,
            native.pointer("double[]", matrix),
            rows,
            native.pointer("double[]", self.weights),
            native.pointer("double[]", self._norms),
            len(self.weights),
            depth,
            self._exact_below,
            native.avx2,
        )

    def _settle_numpy(self, matrix: F64, norms: F64, out: F64) -> None:
        reach = np.multiply.outer(norms, self._norms)
        bound = matrix.shape[1] * (2.0**-53 + 2.0**-73) * np.where(reach <= self._exact_below, 0, reach)
        doubtful = (out - bound).astype(np.float32) != (out + bound).astype(np.float32)
        doubtful &= np.isfinite(out) & np.isfinite(bound)
        for row, column in np.argwhere(doubtful).tolist():
            out[row, column] = _exact_sum((matrix[row] * self.weights[column]).tolist())


def _norms(matrix: F64, native: Native | None) -> F64:
    """Return no less than the Euclidean norm of each row."""
    if native is None:
        exact: F64 = np.sqrt(np.einsum("ij,ij->i", matrix, matrix)) * (1 + 2.0**-20)
        return exact
    out = np.empty(len(matrix), np.float64)
    native.lib.npu_norms(
        native.pointer("double[]", matrix), *matrix.shape, native.pointer("double[]", out), native.avx2
    )
    return out


def _exact_sum(terms: list[float]) -> float:
    """Return the sum rounded to odd: a double that rounds to float32 as the exact sum does."""
    total = math.fsum(terms)
    left = math.fsum([*terms, -total])
    if left and not struct.unpack("<Q", struct.pack("<d", total))[0] & 1:
        return math.nextafter(total, math.copysign(math.inf, left))
    return total
