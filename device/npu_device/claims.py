"""What a running task reads and writes, in a form in which two tasks are quickly found to have nothing in common.

Each side has a mask with one bit per granule of memory, addresses wrapping around: disjoint masks mean disjoint bytes. Only
tasks whose masks meet are compared box by box. A list of tasks that runs again has the same claims: what two of them were found
to have in common is kept.
"""

from __future__ import annotations

from functools import lru_cache

from npu_model.footprint import Box, Footprint, any_overlap

from npu_device.cmx import in_window

GRANULE_SHIFT = 10
MASK_BITS = 4096  # with granules of 1 KiB: two tiles of CMX side by side
MASK = (1 << MASK_BITS) - 1
KEPT_PAIRS = 1 << 14  # some hundred bytes each (chosen): tasks of a large model, each with those that run beside it


class Claim:
    """Footprint of a task. Its masks, and the place of what lies in the CMX window, are worked out when it is first compared."""

    __slots__ = ("_masks", "_reads", "_shift", "_writes")

    def __init__(self, footprint: Footprint, shift: int = 0) -> None:
        """Take (reads, writes); what lies in the CMX window is `shift` bytes further up."""
        self._reads, self._writes = footprint
        self._shift = shift
        self._masks: tuple[int, int] | None = None

    @property
    def footprint(self) -> Footprint:
        """What it was made of, where it is by now."""
        return self._reads, self._writes

    def shifted(self, offset: int) -> Claim:
        """Return the claim with what lies in the CMX window moved up by `offset`."""
        return Claim((self._reads, self._writes), self._shift + offset)

    def reads_from(self, other: Claim) -> bool:
        """Tell whether this task reads a byte that `other` writes."""
        return bool(self._placed()[0] & other._placed()[1]) and any_overlap(self._reads, other._writes)

    def writes_over(self, other: Claim) -> bool:
        """Tell whether both tasks write some byte."""
        return bool(self._placed()[1] & other._placed()[1]) and any_overlap(self._writes, other._writes)

    def _placed(self) -> tuple[int, int]:
        """Put the boxes where they are, once; return the masks of reads and writes."""
        masks = self._masks
        if masks is None:
            if self._shift:
                self._reads, self._writes = _shifted(self._reads, self._shift), _shifted(self._writes, self._shift)
                self._shift = 0
            masks = self._masks = _mask(self._reads), _mask(self._writes)
        return masks


@lru_cache(maxsize=KEPT_PAIRS)
def conflict(first: Claim, second: Claim) -> tuple[bool, bool]:
    """Tell of each of two tasks that run at a time whether the other one makes its bytes undefined: writes what it reads or writes."""
    both_write = first.writes_over(second)
    return both_write or first.reads_from(second), both_write or second.reads_from(first)


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
