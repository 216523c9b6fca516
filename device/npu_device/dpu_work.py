"""A DPU task as work: the descriptor checked once, its variants joined into the blocks that are computed at a time.

Addresses are those of the descriptor, relative to the job; nothing here touches memory. Joining changes no bit: a result
depends on the input under its kernel and on its channel's weights alone, and every sum is exact before it is rounded, or
added in one order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from npu_model import descriptors, dtypes
from npu_model.descriptors import Axis, DescriptorError, Invariant, Variant
from npu_model.footprint import dpu_footprint

from npu_device.claims import Claim
from npu_device.dpu_window import Line

MAX_JOINED = 64  # variants that are tested for joining; the test compares pairs


@dataclass(frozen=True, slots=True)
class Place:
    """An array [y, x, channels] in memory, strides in bytes."""

    address: int
    shape: tuple[int, int, int]
    strides: tuple[int, int, int]

    @property
    def size_bytes(self) -> int:
        """Bytes from the first to the last; 0 when there is none."""
        if not all(self.shape):
            return 0
        return self.strides[2] + sum(
            (count - 1) * stride for count, stride in zip(self.shape, self.strides, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Block:
    """A box of the output: `target` where it goes, `source` the input inside the tensor that its windows reach."""

    part: Variant
    y: Line
    x: Line
    source: Place
    target: Place

    @property
    def pixels(self) -> int:
        """Output pixels."""
        return self.part.size_y * self.part.size_x


class Work:
    """An invariant and the blocks of its variants, from `records`. `prepared` belongs to who computes them: one entry per block."""

    __slots__ = ("_claim", "blocks", "invariant", "prepared", "records")

    def __init__(self, invariant: Invariant, blocks: tuple[Block, ...], record: Any, variants: Any) -> None:
        self.invariant = invariant
        self.blocks = blocks
        self.records = record, variants
        self._claim: Claim | None = None
        self.prepared: list[Any] = [None] * len(blocks)

    @property
    def claim(self) -> Claim:
        """What it reads and writes. Worked out on first use: it takes longer than all else, and times alone do not need it."""
        if self._claim is None:
            self._claim = Claim(dpu_footprint(*self.records))
        return self._claim

    @classmethod
    def decode(cls, record: Any, variants: Any) -> Work:
        """Return the work of a record of npu_dpu_invariant and the records of its variants. Raises DescriptorError."""
        invariant = Invariant.decode(record)
        parts = [Variant.decode(variant) for variant in variants]
        for part in parts:
            invariant.check_variant(part)
        blocks = tuple(_block(invariant, part) for part in parts)
        joined = join(parts)
        if joined is not None:
            try:
                invariant.check_variant(joined)
                blocks = (_block(invariant, joined),)
            except DescriptorError:  # too large, or rows overlap where those of one variant do not
                pass
        return cls(invariant, blocks, record, variants)


def join(parts: list[Variant]) -> Variant | None:
    """Return the box that several variants of the same padding cover without overlap or hole, or None."""
    if not 1 < len(parts) <= MAX_JOINED:
        return None
    boxes = [
        (p.start_x, p.start_y, p.start_z, p.start_x + p.size_x, p.start_y + p.size_y, p.start_z + p.size_z)
        for p in parts
    ]
    low = [min(box[axis] for box in boxes) for axis in range(3)]
    size = [max(box[axis + 3] for box in boxes) - low[axis] for axis in range(3)]
    first = parts[0]
    padding = (first.pad_left, first.pad_right, first.pad_top, first.pad_bottom)
    if any((p.pad_left, p.pad_right, p.pad_top, p.pad_bottom) != padding for p in parts):
        return None
    if sum(p.size_x * p.size_y * p.size_z for p in parts) != size[0] * size[1] * size[2]:
        return None
    for index, a in enumerate(boxes):
        for b in boxes[:index]:
            if a[0] < b[3] and b[0] < a[3] and a[1] < b[4] and b[1] < a[4] and a[2] < b[5] and b[2] < a[5]:
                return None
    return Variant(low[0], low[1], low[2], size[0], size[1], size[2], *padding)


def _block(inv: Invariant, part: Variant) -> Block:
    size = dtypes.size_bytes(inv.out_dtype)
    row, pixel = inv.out_stride_y, inv.out_stride_x
    descriptors.check_disjoint("DPU output", part.size_z * size, (part.size_x, pixel), (part.size_y, row))
    address = inv.out_addr + part.start_y * row + part.start_x * pixel + part.start_z * size
    target = Place(address, (part.size_y, part.size_x, part.size_z), (row, pixel, size))
    low_y, y = _line(inv.axis_y(part), part.start_y, part.size_y)
    low_x, x = _line(inv.axis_x(part), part.start_x, part.size_x)
    first, end = inv.input_channels(part)
    size = dtypes.size_bytes(inv.act_dtype)
    row, pixel = inv.act_stride_y, inv.act_stride_x
    if y.size and x.size:
        descriptors.check_disjoint("DPU input", (end - first) * size, (x.size, pixel), (y.size, row))
    address = inv.act_addr + low_y * row + low_x * pixel + first * size
    return Block(part, y, x, Place(address, (y.size, x.size, end - first), (row, pixel, size)), target)


def _line(axis: Axis, start: int, outputs: int) -> tuple[int, Line]:
    """Return the first input position that these outputs read, and the axis with positions counted from there."""
    first = start * axis.stride - axis.pad_low
    low = min(max(first, 0), axis.input_size)
    high = max(min(first + axis.extent(outputs), axis.input_size), low)
    return low, Line(high - low, axis.kernel, axis.stride, axis.dilation, first - low, outputs)
