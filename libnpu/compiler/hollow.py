"""Constants of a plan: arrays of which only shape and type count. Each element is one, and they take no memory.

They keep their kind through views, conversions and arithmetic of NumPy's. Nothing makes them but the import of a model for a plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_BYTES = 1 << 12  # chosen: smaller constants keep their values, which may be axes or scales


class _Hollow(np.ndarray[Any, Any]):
    pass


Shape: TypeAlias = tuple[int, ...]


def hollow(shape: Shape, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array without values."""
    return np.broadcast_to(np.ones((), dtype), shape).view(_Hollow)


def is_hollow(array: NDArray[Any] | None) -> bool:
    """Whether an array has no values, or was computed with one that has none."""
    return isinstance(array, _Hollow)
