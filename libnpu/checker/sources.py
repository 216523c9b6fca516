"""What copies read of pinned memory, whose stores are not seen one by one: evidence of a store by the bytes themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libnpu.runtime.buffer import Buffer
    from libnpu.runtime.transfers import Rows


class Source:
    """Pinned memory that a copy reads, and what was in it when the copy was enqueued."""

    def __init__(self, buffer: Buffer, rows: Rows) -> None:
        self.buffer = buffer
        self.rows = rows
        self.digest = self._now()

    @property
    def has_changed(self) -> bool:
        """Whether the bytes are others by now."""
        return self.buffer.is_live and self.digest != self._now()

    @property
    def is_flushed(self) -> bool:
        """Whether memory has the bytes that the program sees."""
        memory = self.buffer.map_memory()
        return self.digest == self._digest_of(memory)

    def _now(self) -> int:
        return self._digest_of(self.buffer.program_view)

    def _digest_of(self, view: memoryview) -> int:
        digest = 0
        for row in rows_of(view, self.buffer, self.rows):
            digest = crc32(row, digest)
        return digest


def rows_of(view: memoryview, buffer: Buffer, rows: Rows) -> Iterator[memoryview]:
    """Yield rows of device addresses of a buffer as a view of it shows them."""
    offset = rows.start - buffer.device_address
    for row in range(rows.height):
        start = offset + row * rows.pitch
        yield view[start : start + rows.width]
