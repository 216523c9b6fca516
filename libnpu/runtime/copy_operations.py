"""Operations that move memory: DMA jobs of the stream, described by COPY commands and their descriptors."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from npu_abi import C, codec, sizeof

from libnpu.runtime.operation import Operation
from libnpu.runtime.transfers import PATTERN_BYTES, Rows, copy_descriptors, fill_descriptors

if TYPE_CHECKING:
    from libnpu.runtime.buffer import Buffer
    from libnpu.runtime.commands import CommandWriter
    from libnpu.runtime.transfers import Records

COPY = codec("npu_cmd_copy", "h.type", "h.size", "desc_offset", "desc_count")
MAX_DESCRIPTORS = 4096  # of a COPY: the firmware's limit
DESCRIPTOR_BYTES = sizeof("npu_dma_descriptor")
STAGE_ALIGNMENT = 64


class Transfer(Operation):
    """What DMA does: `buffers` are the memory at both ends, which must not have been freed."""

    __slots__ = ("_size_bytes", "buffers")

    def __init__(self, name: str, size_bytes: int, buffers: tuple[Buffer, ...]) -> None:
        self.name = name
        self._size_bytes = size_bytes
        self.buffers = buffers

    @property
    def size_bytes(self) -> int:
        """Bytes that it writes."""
        return self._size_bytes

    @abstractmethod
    def descriptors(self, writer: CommandWriter) -> Records:
        """Return the descriptors."""

    def encode(self, writer: CommandWriter) -> None:
        """Place the descriptors and write a COPY for every MAX_DESCRIPTORS of them."""
        writer.touch([buffer.handle for buffer in self.buffers])
        records = self.descriptors(writer)
        address = writer.place(records.tobytes())
        for first in range(0, len(records), MAX_DESCRIPTORS):
            count = min(MAX_DESCRIPTORS, len(records) - first)
            offset = address - writer.bo.va + first * DESCRIPTOR_BYTES
            writer.command(COPY.pack(C.NPU_CMD_COPY, COPY.size, offset, count))


class Copy(Transfer):
    """Copy rows of memory that the device sees, `source`, to others that it sees, `target`."""

    __slots__ = ("source", "target")
    kind = "memcpy"

    def __init__(self, name: str, target: Rows, source: Rows, buffers: tuple[Buffer, ...]) -> None:
        super().__init__(name, target.width * target.height, buffers)
        self.target = target
        self.source = source

    def descriptors(self, writer: CommandWriter) -> Records:
        """Return them for addresses that stay."""
        return copy_descriptors(self.target, self.source, writer.context.profile.dma_ports)


class StagedCopy(Transfer):
    """Copy bytes that the host has given, `content` without gaps, to rows of memory: they travel in the command buffer,
    which is pinned.
    """

    __slots__ = ("_content", "_target")
    kind = "memcpy"

    def __init__(self, name: str, target: Rows, content: bytes, buffers: tuple[Buffer, ...]) -> None:
        super().__init__(name, len(content), buffers)
        self._target = target
        self._content = content

    def descriptors(self, writer: CommandWriter) -> Records:
        """Place the content, and return descriptors that read it there."""
        width, height = self._target.width, self._target.height
        source = Rows(writer.place(self._content, STAGE_ALIGNMENT), width, height, width)
        return copy_descriptors(self._target, source, writer.context.profile.dma_ports)


class Fill(Transfer):
    """Set every byte of a range to `value`, 0 to 255."""

    __slots__ = ("_target", "_value")
    kind = "memset"

    def __init__(self, target: int, size: int, value: int, buffers: tuple[Buffer, ...]) -> None:
        super().__init__(f"fill with {value:#04x}", size, buffers)
        self._target = target
        self._value = value

    def descriptors(self, writer: CommandWriter) -> Records:
        """Place a pattern, and return descriptors that read it again and again."""
        size = self.size_bytes
        pattern = writer.place(bytes([self._value]) * min(size, PATTERN_BYTES), STAGE_ALIGNMENT)
        return fill_descriptors(self._target, size, pattern, writer.context.profile.dma_ports)


class Free(Operation):
    """Hold memory until the stream comes here; it is given back behind the enqueuing."""

    __slots__ = ("_handle",)
    kind = "free"
    capturable = False

    def __init__(self, buffer: Buffer) -> None:
        self.name = f"free of {buffer.size} bytes at {buffer.where}"
        self._handle = buffer.handle

    def encode(self, writer: CommandWriter) -> None:
        """Name the object, so that the driver keeps it until the job has ended."""
        writer.touch([self._handle])
