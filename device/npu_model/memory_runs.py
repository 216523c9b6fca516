"""Runs of contiguous bytes in physical memory: what a transfer is to the memory path."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Runs: TypeAlias = npt.NDArray[np.int64]  # [n, 2]: first address, bytes
NO_RUNS: Runs = np.zeros((0, 2), np.int64)
