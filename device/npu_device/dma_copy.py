"""What a DMA descriptor does to bytes: gather the source rows into one array, scatter it to the destination rows.

Memory is reached through `view(address, size, write)`, which returns the bytes of one range, or raises MemoryFault. Gather
and scatter are apart because an engine reads when a task starts and writes when it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from npu_model.descriptors import Dma, check_disjoint

Bytes: TypeAlias = npt.NDArray[np.uint8]
View: TypeAlias = Callable[[int, int, bool], Any]


@dataclass(frozen=True, slots=True)
class Pattern:
    """One end of a transfer: planes of rows of `width` bytes, from address `addr`."""

    addr: int
    planes: int
    plane_stride: int
    rows: int
    stride: int
    width: int

    @property
    def low(self) -> int:
        """The lowest address touched."""
        return self.addr + min(0, (self.planes - 1) * self.plane_stride) + min(0, (self.rows - 1) * self.stride)

    @property
    def high(self) -> int:
        """The address after the highest byte touched."""
        rise = max(0, (self.planes - 1) * self.plane_stride) + max(0, (self.rows - 1) * self.stride)
        return self.addr + rise + self.width


def source(dma: Dma) -> Pattern:
    """Return how the descriptor reads; strides may be zero."""
    return Pattern(
        dma.src, dma.num_planes, dma.src_plane_stride, dma.length // dma.src_width, dma.src_stride, dma.src_width
    )


def destination(dma: Dma) -> Pattern:
    """Return how the descriptor writes; DescriptorError when two of its rows share a byte."""
    pattern = Pattern(
        dma.dst, dma.num_planes, dma.dst_plane_stride, dma.length // dma.dst_width, dma.dst_stride, dma.dst_width
    )
    dims = ((pattern.rows, pattern.stride), (pattern.planes, pattern.plane_stride))
    check_disjoint("DMA destination", pattern.width, *dims)
    return pattern


def gather(view: View, record: Any) -> Bytes:
    """Return a copy of the bytes that a record of npu_dma_task or npu_dma_descriptor reads, in their order."""
    pattern = source(Dma.decode(record))
    return np.array(_elements(pattern, view, write=False), order="C").reshape(-1).view(np.uint8)


def scatter(view: View, record: Any, data: Bytes) -> None:
    """Write `data`, as gather returned it, to the destination of the record."""
    target = _elements(destination(Dma.decode(record)), view, write=True)
    target[...] = data.view(target.dtype).reshape(target.shape)


def _elements(pattern: Pattern, view: View, write: bool) -> npt.NDArray[Any]:
    """Return [planes, rows, elements] over memory, in the widest element that rows and strides are multiples of."""
    low, high = pattern.low, pattern.high
    memory = memoryview(view(low, high - low, write)).cast("B")
    offset = pattern.addr - low
    shared = pattern.width | offset
    if pattern.rows > 1:
        shared |= abs(pattern.stride)
    if pattern.planes > 1:
        shared |= abs(pattern.plane_stride)
    unit = min(shared & -shared, 8)
    # NumPy checks the extents of shape and strides against the buffer again.
    return np.ndarray(
        (pattern.planes, pattern.rows, pattern.width // unit),
        np.dtype(f"<u{unit}"),
        memory,
        offset,
        (pattern.plane_stride if pattern.planes > 1 else 0, pattern.stride if pattern.rows > 1 else 0, unit),
    )
