"""Runs of contiguous bytes in physical memory: what a transfer is to the memory path."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Runs: TypeAlias = npt.NDArray[np.int64]  # [n, 2]: first address, bytes
NO_RUNS: Runs = np.zeros((0, 2), np.int64)


def access_count(runs: Runs, access_bytes: int) -> int:
    """Return how many aligned accesses the runs are parts of. One that begins in the access in which the one before ends shares it."""
    if len(runs) == 1:
        start, nbytes = runs[0].tolist()
        return int(start % access_bytes + nbytes - 1) // access_bytes + 1
    if not len(runs):
        return 0
    first, last = runs[:, 0] // access_bytes, (runs[:, 0] + runs[:, 1] - 1) // access_bytes
    return int((last - first + 1).sum()) - int(np.count_nonzero(first[1:] == last[:-1]))
