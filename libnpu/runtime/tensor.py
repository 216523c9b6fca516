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

INT32 = np.iinfo(np.int32)


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

    def check(self, value: Any) -> NDArray[Any]:
        """Return `value` as a contiguous array of this type and shape.

        Raises INVALID_VALUE naming expected and found. The device computes integers in 32 bits: a wider one is refused.
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
                C.NPU_ERROR_INVALID_VALUE, f"{self.name!r} has shape {array.shape}, the blob expects {self.shape}"
            )
        if array.dtype == np.int64 and array.size:
            for extreme in (int(array.min()), int(array.max())):
                if not INT32.min <= extreme <= INT32.max:
                    raise NpuError(
                        C.NPU_ERROR_INVALID_VALUE,
                        f"{self.name!r} holds {extreme}; the device computes int64 in 32 bits, "
                        f"{INT32.min} to {INT32.max}",
                    )
        return np.ascontiguousarray(array).reshape(self.shape)


def check_names(given: Mapping[str, object], expected: Iterable[str], what: str) -> None:
    """Raise INVALID_VALUE unless `given` has the names that are expected, TypeError when it is no mapping."""
    found = set(mapping_of(given, what))
    missing, unknown = sorted(set(expected) - found), sorted(found - set(expected), key=repr)
    if missing or unknown:
        parts = [f"missing {', '.join(map(repr, missing))}"] if missing else []
        parts += [f"unknown {', '.join(map(repr, unknown))}"] if unknown else []
        names = ", ".join(map(repr, expected)) or "none"
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"{what}: {'; '.join(parts)}; the blob has {names}")
