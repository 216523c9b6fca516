"""Working memory of units that compute values or hold bytes in flight."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]


class Scratch:
    """Memory for one computation at a time, kept from one to the next."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def take(self, nbytes: int) -> Bytes:
        """Return at least `nbytes` bytes of any content."""
        if len(self._bytes) < nbytes:
            self._bytes = np.empty(nbytes, np.uint8)
        return self._bytes
