"""What a DMA descriptor does to bytes: gather the source rows into one array, scatter it to the destination rows.

Memory is reached through `view(address, size, write)`, which returns the bytes of one range, or raises MemoryFault. Gather
and scatter are apart because an engine reads when a task starts and writes when it ends. A Move is what both need of a
descriptor, worked out once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from npu_model.descriptors import Dma, check_disjoint
from npu_model.footprint import dma_boxes
from npu_model.memory_runs import Runs

from npu_device.claims import Claim

Bytes: TypeAlias = npt.NDArray[np.uint8]
View: TypeAlias = Callable[[int, int, bool], Any]
Dims: TypeAlias = tuple[tuple[int, int], ...]  # (count, stride in bytes), outermost first


_ELEMENTS = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}


class Pattern(NamedTuple):
    """One end of a transfer: elements of `dtype` in `shape` and `strides`, from `offset` in the bytes [low, low + span)."""

    low: int
    span: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, addr: int, width: int, dims: Dims) -> Pattern:
        """Return rows of `width` bytes at address `addr` plus each stride of `dims`, in the widest element that fits all."""
        kept = [(count, stride) for count, stride in dims if count > 1]
        if not kept:
            unit = min(width & -width, 8)
            return cls(addr, width, 0, (width // unit,), (unit,), _ELEMENTS[unit])
        low = addr + sum(min(0, (count - 1) * stride) for count, stride in kept)
        high = addr + width + sum(max(0, (count - 1) * stride) for count, stride in kept)
        offset = addr - low
        while kept and kept[-1][1] == width:  # rows side by side are one
            width *= kept.pop()[0]
        shared = width | offset
        for _, stride in kept:
            shared |= abs(stride)
        unit = min(shared & -shared, 8)
        shape = (*(count for count, _ in kept), width // unit)
        strides = (*(stride for _, stride in kept), unit)
        return cls(low, high - low, offset, shape, strides, _ELEMENTS[unit])

    def lines(self, line_bytes: int) -> int:
        """Return how many lines its rows touch, each for itself."""
        width = self.shape[-1] * self.strides[-1]
        if len(self.shape) == 1:
            return (self.low % line_bytes + width - 1) // line_bytes + 1
        starts = np.array([self.low + self.offset])
        for count, stride in zip(self.shape[:-1], self.strides[:-1], strict=True):
            starts = (starts[:, None] + np.arange(count) * stride).reshape(-1)
        return int(((starts % line_bytes + width - 1) // line_bytes + 1).sum())

    def runs(self, physical: Callable[[int, int], list[tuple[int, int]]]) -> Runs:
        """Return its rows in physical memory, in their order, as `physical` translates a range of addresses."""
        pieces = physical(self.low, self.span)
        if len(self.shape) == 1:
            return np.array(pieces, np.int64)
        starts = np.array([self.low + self.offset])
        width = self.shape[-1] * self.strides[-1]
        for count, stride in zip(self.shape[:-1], self.strides[:-1], strict=True):
            starts = (starts[:, None] + np.arange(count) * stride).reshape(-1)
        if len(pieces) == 1:
            return np.stack([starts + (pieces[0][0] - self.low), np.full(len(starts), width)], axis=1)
        return np.array([piece for start in starts.tolist() for piece in physical(start, width)], np.int64)

    def array(self, view: View, write: bool) -> npt.NDArray[Any]:
        """Return the elements in place. Raises MemoryFault."""
        memory = view(self.low, self.span, write)
        if len(self.shape) == 1:
            found: npt.NDArray[Any] = np.frombuffer(memory, np.uint8)
            return found
        # NumPy checks the extents of shape and strides against the buffer again.
        return np.ndarray(self.shape, self.dtype, memoryview(memory).cast("B"), self.offset, self.strides)


class Move:
    """A descriptor, checked: its two ends, and their byte ranges."""

    __slots__ = ("_claim", "_dma", "size_bytes", "source", "target")

    def __init__(self, source: Pattern, target: Pattern, dma: Dma) -> None:
        self.source = source
        self.target = target
        self.size_bytes = dma.length * dma.num_planes
        self._dma = dma
        self._claim: Claim | None = None

    @property
    def claim(self) -> Claim:
        """What it reads and writes. Worked out on first use: times alone do not need it."""
        if self._claim is None:
            self._claim = Claim(dma_boxes(self._dma))
        return self._claim

    @classmethod
    def decode(cls, record: Any) -> Move:
        """Return the move of a record of npu_dma_task or npu_dma_descriptor.

        DescriptorError when its fields do not fit together or two destination rows share a byte.
        """
        return cls.of(Dma.decode(record))

    @classmethod
    def of(cls, dma: Dma) -> Move:
        """Return the move of a descriptor. DescriptorError when two destination rows share a byte."""
        source = ((dma.num_planes, dma.src_plane_stride), (dma.length // dma.src_width, dma.src_stride))
        target = ((dma.num_planes, dma.dst_plane_stride), (dma.length // dma.dst_width, dma.dst_stride))
        check_disjoint("DMA destination", dma.dst_width, *target)
        return cls(
            Pattern.of(dma.src, dma.src_width, source),
            Pattern.of(dma.dst, dma.dst_width, target),
            dma,
        )

    def gather(self, view: View, memory: Bytes) -> Bytes:
        """Return a copy of the bytes that the source names, in their order, at the start of `memory`."""
        source = self.source.array(view, write=False)
        data = memory[: self.size_bytes]
        data.view(source.dtype).reshape(source.shape)[...] = source
        return data

    def scatter(self, view: View, data: Bytes) -> None:
        """Write `data`, as gather returned it, to the destination."""
        target = self.target.array(view, write=True)
        target[...] = data.view(target.dtype).reshape(target.shape)
