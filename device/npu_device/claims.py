"""What a running task reads and writes, in a form in which two tasks are quickly found to have nothing in common.

Each side has a mask with one bit per granule of memory, addresses wrapping around: disjoint masks mean disjoint bytes. Only
tasks whose masks meet are compared box by box.
"""

from __future__ import annotations

from dataclasses import dataclass

from npu_model.footprint import Box, Footprint, any_overlap

from npu_device.cmx import in_window

GRANULE_SHIFT = 10
MASK_BITS = 4096  # with granules of 1 KiB: two tiles of CMX side by side
MASK = (1 << MASK_BITS) - 1


@dataclass(frozen=True, slots=True)
class Claim:
    """Footprint of a task."""

    reads: list[Box]
    writes: list[Box]
    read_mask: int
    write_mask: int

    @classmethod
    def of(cls, footprint: Footprint) -> Claim:
        """Return the claim of (reads, writes)."""
        reads, writes = footprint
        return cls(reads, writes, _mask(reads), _mask(writes))

    def shifted(self, offset: int) -> Claim:
        """Return the claim with what lies in the CMX window moved up by `offset`."""
        return Claim.of((_shifted(self.reads, offset), _shifted(self.writes, offset)))

    def reads_from(self, other: Claim) -> bool:
        """Tell whether this task reads a byte that `other` writes."""
        return bool(self.read_mask & other.write_mask) and any_overlap(self.reads, other.writes)

    def writes_over(self, other: Claim) -> bool:
        """Tell whether both tasks write some byte."""
        return bool(self.write_mask & other.write_mask) and any_overlap(self.writes, other.writes)


def _shifted(boxes: list[Box], offset: int) -> list[Box]:
    return [Box(box.addr + offset, box.width, box.dims) if in_window(box.addr) else box for box in boxes]


def _mask(boxes: list[Box]) -> int:
    mask = 0
    for box in boxes:
        first = box.addr >> GRANULE_SHIFT
        count = (box.end - 1 >> GRANULE_SHIFT) - first + 1
        if count >= MASK_BITS:
            return MASK
        bits = (1 << count) - 1 << first % MASK_BITS
        mask |= bits & MASK | bits >> MASK_BITS
    return mask
