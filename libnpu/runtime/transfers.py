"""DMA descriptors of copies: 1-D of any length, 2-D with any pitches, patterns; and whether two ranges of rows overlap.

A descriptor's length has 32 bits and its strides 31 and a sign, and the firmware deals the descriptors of a COPY to the
ports in turn, so copies are cut: each port gets its share of a large one, and no piece is longer than PIECE_BYTES.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from npu_abi import dtype

Records = np.ndarray[Any, np.dtype[np.void]]

DESCRIPTOR = dtype("npu_dma_descriptor", reserved=True)
PIECE_BYTES = 16 << 20  # chosen: the device holds a whole piece between its read and its write
SHARED_BYTES = 4096  # chosen: from here on the ports share a copy; below, a second descriptor costs more than it saves
LINE_BYTES = 64  # pieces begin on lines of the destination's memory
MAX_STRIDE = (1 << 31) - 1
PATTERN_BYTES = 1024  # chosen: one run of the DMA engine; a fill then is as fast as a copy


@dataclass(frozen=True, slots=True)
class Rows:
    """`height` rows of `width` bytes, `pitch` apart, from `start`. One row, or rows side by side, are 1-D."""

    start: int
    width: int
    height: int = 1
    pitch: int = 0

    @property
    def extent(self) -> int:
        """Bytes from the first to the last one."""
        return self.pitch * (self.height - 1) + self.width if self.width and self.height else 0

    def moved(self, start: int) -> Rows:
        """Return the same rows from another address."""
        return Rows(start, self.width, self.height, self.pitch)


def copy_descriptors(target: Rows, source: Rows, ports: int) -> Records:
    """Return the descriptors of a copy between rows of the same width and height, neither zero."""
    width, height = target.width, target.height
    if height == 1 or (target.pitch == width and source.pitch == width):
        return _linear(target.start, source.start, width * height, ports)
    if width > PIECE_BYTES:
        rows = [
            _linear(target.start + row * target.pitch, source.start + row * source.pitch, width, ports)
            for row in range(height)
        ]
        return np.concatenate(rows)
    count = PIECE_BYTES // width if max(target.pitch, source.pitch) <= MAX_STRIDE else 1
    if width * height >= SHARED_BYTES:
        count = min(count, -(-height // ports))
    first = np.arange(0, height, count, dtype=np.uint64)
    records = np.zeros(len(first), DESCRIPTOR)
    records["num_planes"] = 1
    records["length"] = np.minimum(count, height - first.astype(np.int64)) * width
    for end, region in (("src", source), ("dst", target)):
        records[end] = np.uint64(region.start) + first * np.uint64(region.pitch)
        records[f"{end}_width"] = width
        records[f"{end}_stride"] = region.pitch if count > 1 else 0
    return records


def fill_descriptors(target: int, size: int, pattern: int, ports: int) -> Records:
    """Return the descriptors that write the PATTERN_BYTES at address `pattern` again and again to `size` bytes."""
    whole = size // PATTERN_BYTES * PATTERN_BYTES
    records = _linear(target, 0, whole, ports, PATTERN_BYTES) if whole else np.zeros(0, DESCRIPTOR)
    records["src"] = pattern
    records["src_width"] = PATTERN_BYTES
    if size > whole:
        records = np.concatenate([records, _linear(target + whole, pattern, size - whole, 1)])
    return records


def _linear(target: int, source: int, size: int, ports: int, unit: int = LINE_BYTES) -> Records:
    """Return the descriptors of `size` bytes; all pieces but the last are multiples of `unit`."""
    pieces = -(-size // PIECE_BYTES)
    if size >= SHARED_BYTES:
        pieces += -pieces % ports
    piece = -(-size // pieces)
    piece += -piece % unit
    first = np.arange(0, size, piece, dtype=np.uint64)
    records = np.zeros(len(first), DESCRIPTOR)
    records["src"], records["dst"] = np.uint64(source) + first, np.uint64(target) + first
    records["num_planes"] = 1
    for name in ("length", "src_width", "dst_width"):
        records[name] = np.minimum(piece, size - first.astype(np.int64))
    return records


def overlap(a: Rows, b: Rows) -> bool:
    """Whether two ranges of rows of the same width and height, in one address space, share a byte; gaps do not count."""
    width, last = a.width, a.height - 1
    if a.start + a.extent <= b.start or b.start + b.extent <= a.start:
        return False
    if last <= 0:
        return True
    if not a.pitch or not b.pitch:  # only a region of one row has none
        return True
    # Rows of `a` that lie between the first and the last row of `b`: i in first ... end.
    first = max(0, (b.start - width - a.start) // a.pitch + 1)
    end = min(last, -(-(b.start + last * b.pitch + width - a.start) // a.pitch) - 1)
    if end < first:
        return False
    # Row i touches one of `b` when (offset + i * a.pitch) mod b.pitch <= 2 * width - 2.
    window, offset = 2 * width - 1, a.start + first * a.pitch - b.start + width - 1
    if window >= b.pitch:
        return True
    low = -offset % b.pitch
    if low + window > b.pitch:
        return True
    found = _first_between(a.pitch, b.pitch, low, low + window - 1)
    return found is not None and first + found <= end


def _first_between(step: int, modulus: int, low: int, high: int) -> int | None:
    """Return the smallest n >= 0 with low <= n * step mod modulus <= high, where 0 <= low <= high < modulus."""
    step %= modulus
    if not low:
        return 0
    if not step:
        return None
    n = -(-low // step)
    if n * step <= high:
        return n
    turns = _first_between(modulus % step, step, -high % step, -low % step)
    return None if turns is None else -(-(low + modulus * turns) // step)
