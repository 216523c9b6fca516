"""A blob's inputs and outputs: what they are, and whether an array is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C
from npu_model import dtypes

from libnpu.errors import NpuError
from libnpu.runtime.arguments import mapping_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

# Types that the device computes in narrower ones: the range, and how a message says it.
_INSIDE: dict[np.dtype[Any], tuple[int | float, int | float, str]] = {
    np.dtype(np.int64): (-(1 << 31), (1 << 31) - 1, "in 32 bits"),
    np.dtype(np.uint64): (0, (1 << 32) - 1, "in 32 bits"),
    np.dtype(np.float64): (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max), "as float32"),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A network input or output: dense, row-major. `dtype` is an enum npu_dtype code."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The NumPy type of an element."""
        return dtypes.numpy_dtype(self.dtype)

    def check(self, value: Any, on_device: bool = True) -> NDArray[Any]:
        """Return `value` as a contiguous array of this type and shape.

        Raises INVALID_VALUE naming expected and found. What is beyond the type that the device computes in is refused, if it is `on_device`.
        """
        try:
            array = np.asarray(value)
        except ValueError as error:  # ragged
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"{self.name!r} is no array: {error}") from None
        if array.dtype != self.numpy_dtype:
            raise NpuError(
                C.NPU_ERROR_INVALID_VALUE, f"{self.name!r} is {array.dtype}, the blob expects {self.numpy_dtype}"
            )
        if array.shape != self.shape:
            raise NpuError(
                C.NPU_ERROR_INVALID_VALUE,
                f"SHAPE_MISMATCH: {self.name!r} has shape {array.shape}, the blob expects {self.shape}",
            )
        if on_device and array.dtype in _INSIDE and array.size:
            self._check_range(array, *_INSIDE[array.dtype])
        return np.ascontiguousarray(array).reshape(self.shape)

    def _check_range(self, array: NDArray[Any], low: int | float, high: int | float, how: str) -> None:
        finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
        for extreme in (finite.min(initial=array.dtype.type(0)).item(), finite.max(initial=array.dtype.type(0)).item()):
            if not low <= extreme <= high:
                raise NpuError(
                    C.NPU_ERROR_INVALID_VALUE,
                    f"{self.name!r} holds {extreme}; the device computes {array.dtype} {how}, {low} to {high}",
                )


def check_names(given: Mapping[str, object], expected: Iterable[str], what: str) -> None:
    """Raise INVALID_VALUE unless `given` has the names that are expected, TypeError when it is no mapping."""
    found = set(mapping_of(given, what))
    missing, unknown = sorted(set(expected) - found), sorted(found - set(expected), key=repr)
    if missing or unknown:
        parts = [f"missing {', '.join(map(repr, missing))}"] if missing else []
        parts += [f"unknown {', '.join(map(repr, unknown))}"] if unknown else []
        names = ", ".join(map(repr, expected)) or "none"
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"{what}: {'; '.join(parts)}; the blob has {names}")
