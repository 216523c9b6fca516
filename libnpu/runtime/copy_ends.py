"""The two ends of a copy, and copies that were checked.

An end is memory that the device sees (buffers, pinned and registered memory, mappings, parts of them, and arrays that
lie in them) or pageable: any other memory of the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C

from libnpu.errors import Asked, NpuError
from libnpu.runtime.arguments import whole
from libnpu.runtime.buffer import Buffer
from libnpu.runtime.copy_operations import Copy, StagedCopy
from libnpu.runtime.spans import Memory
from libnpu.runtime.transfers import Rows, overlap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.runtime.context import Context
    from libnpu.runtime.observer import Observer


@dataclass(frozen=True, slots=True)
class End:
    """One end of a copy: `size` bytes at `offset` of `buffer`, or pageable memory: `host` (then buffer is None)."""

    buffer: Buffer | None
    offset: int
    size: int
    host: NDArray[np.uint8] | None = None

    @property
    def side(self) -> str:
        """Where it is, for people."""
        return "device" if self.buffer is not None and self.buffer.kind == C.NPU_MEMORY_DEVICE else "host"

    def rows(self, width: int, height: int, pitch: int) -> Rows:
        """Return rows from its start, by device address, in memory that the device sees."""
        assert self.buffer is not None
        return Rows(self.buffer.device_address + self.offset, width, height, pitch)

    def lines(self, width: int, height: int, pitch: int) -> NDArray[np.uint8]:
        """Return rows from its start as the host sees them, in place: `[height, width]`."""
        if self.buffer is not None:
            memory = np.frombuffer(self.buffer.view, np.uint8)[self.offset : self.offset + self.size]
        else:
            assert self.host is not None
            memory = self.host
        return np.lib.stride_tricks.as_strided(memory, (height, width), (pitch, 1))

    def put(self, content: NDArray[np.uint8], pitch: int) -> None:
        """Let the host write `content`, `[height, width]`, to rows from its start."""
        height, width = content.shape
        self.lines(width, height, pitch)[...] = content


@dataclass(frozen=True, slots=True)
class Move:
    """A copy of `height` rows of `width` bytes, checked; neither is 0."""

    target: End
    target_pitch: int
    source: End
    source_pitch: int
    width: int
    height: int

    @property
    def name(self) -> str:
        """What people call it: the direction."""
        return f"copy {self.source.side} to {self.target.side}"

    @property
    def written(self) -> Rows:
        """Where it writes, by device address."""
        return self.target.rows(self.width, self.height, self.target_pitch)

    @property
    def read(self) -> Rows:
        """Where it reads, by device address."""
        return self.source.rows(self.width, self.height, self.source_pitch)

    def operation(self) -> Copy | None:
        """Return it as a DMA job, None when an end is pageable."""
        target, source = self.target.buffer, self.source.buffer
        if target is None or source is None:
            return None
        return Copy(self.name, self.written, self.read, (target, source))

    def staged(self) -> StagedCopy:
        """Return it as a DMA job that brings the source's bytes of this moment."""
        assert self.target.buffer is not None
        content = self.source.lines(self.width, self.height, self.source_pitch).tobytes()
        return StagedCopy(self.name, self.written, content, (self.target.buffer,))

    def note(self, observer: Observer | None) -> None:
        """Tell an observer what `carry` does to memory that the device sees."""
        for end, pitch, write in ((self.target, self.target_pitch, True), (self.source, self.source_pitch, False)):
            if observer is not None and end.buffer is not None:
                for row in range(self.height):
                    observer.accessed(end.buffer, end.offset + row * pitch, self.width, write=write, what=self.name)

    def carry(self) -> None:
        """Let the host copy."""
        content = self.source.lines(self.width, self.height, self.source_pitch)
        self.target.put(content, self.target_pitch)


def end_of(context: Context, memory: Any, *, written: bool) -> End:
    """Return an end of a copy; an End is one already. Raises WRONG_CONTEXT, STALE_HANDLE, OUT_OF_RANGE for what leaves the
    library's memory, INVALID_VALUE for what is no contiguous memory, or is read-only and to be written.
    """
    if isinstance(memory, End):
        return memory
    if isinstance(memory, Memory):
        buffer = memory.buffer
        if buffer.context is not context:
            raise NpuError(C.NPU_ERROR_WRONG_CONTEXT, f"the memory at {buffer.where} is another context's")
        _ = buffer.handle  # raises STALE_HANDLE
        return End(buffer, memory.offset, memory.size)
    host = _host_bytes(memory, written=written)
    if not host.nbytes:
        return End(None, 0, 0, host)
    address = host.ctypes.data
    found = context.find_host(address)
    inside = found is not None and found.offset + host.nbytes <= found.buffer.size
    if found is None or (not inside and found.kind == C.NPU_MEMORY_REGISTERED):
        return End(None, 0, host.nbytes, host)  # what is registered in part is pageable memory of the program
    if not inside:
        raise NpuError(
            C.NPU_ERROR_OUT_OF_RANGE,
            f"{host.nbytes} bytes at {address:#x} leave the pinned memory of {found.buffer.size} bytes at {found.base:#x}",
            asked=found.buffer.asked(found.offset, found.offset + host.nbytes),
        )
    return End(found.buffer, found.offset, host.nbytes)


def _host_bytes(memory: Any, *, written: bool) -> NDArray[np.uint8]:
    """Return an array or other buffer of the host as bytes, in place."""
    array = memory
    if not isinstance(memory, np.ndarray):
        try:
            array = np.asarray(memoryview(memory))
        except (TypeError, ValueError):
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"{type(memory).__name__} is no memory") from None
    if written and not array.flags.writeable:
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, "the destination is read-only memory")
    if not array.flags.c_contiguous or array.dtype.hasobject:
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, "the memory is not contiguous bytes; copy_2d copies rows")
    flat: NDArray[np.uint8] = array.reshape(-1).view(np.uint8)
    return flat


def linear(context: Context, dst: Any, src: Any, size: int | None) -> Move | None:
    """Return a 1-D copy, checked; None for one of no bytes."""
    target, source = end_of(context, dst, written=True), end_of(context, src, written=False)
    size = source.size if size is None else whole(size, "size")
    if size < 0:
        raise NpuError(C.NPU_ERROR_INVALID_SIZE, f"a copy of {size} bytes")
    _check_room(target, source, size, size)
    return _disjoint(Move(target, size, source, size, size, 1)) if size else None


def rows(context: Context, dst: Any, dst_pitch: int, src: Any, src_pitch: int, width: int, height: int) -> Move | None:
    """Return a 2-D copy, checked; None for one of no bytes."""
    target, source = end_of(context, dst, written=True), end_of(context, src, written=False)
    dst_pitch, src_pitch = whole(dst_pitch, "dst_pitch"), whole(src_pitch, "src_pitch")
    width, height = whole(width, "width"), whole(height, "height")
    if width < 0 or height < 0:
        raise NpuError(C.NPU_ERROR_INVALID_SIZE, f"a copy of {height} rows of {width} bytes")
    if not width or not height:
        return None
    if height == 1:
        dst_pitch = src_pitch = width  # unused
    if min(dst_pitch, src_pitch) < width:
        raise NpuError(
            C.NPU_ERROR_INVALID_SIZE, f"pitches {dst_pitch} and {src_pitch} for rows of {width} bytes, which overlap"
        )
    _check_room(target, source, dst_pitch * (height - 1) + width, src_pitch * (height - 1) + width)
    return _disjoint(Move(target, dst_pitch, source, src_pitch, width, height))


def _check_room(target: End, source: End, written: int, read: int) -> None:
    for end, needed, what in ((target, written, "destination"), (source, read, "source")):
        if needed > end.size:
            message = f"{needed} bytes of a {what} of {end.size} bytes"
            asked = Asked(0, needed, end.size, end.buffer, end.offset)
            raise NpuError(C.NPU_ERROR_OUT_OF_RANGE, message, asked=asked)


def _disjoint(move: Move) -> Move:
    """Raise OVERLAP when both ends have a byte of one buffer."""
    target, source = move.target, move.source
    if target.buffer is not None and target.buffer is source.buffer and overlap(move.written, move.read):
        size = f"{move.width} bytes" if move.height == 1 else f"{move.height} rows of {move.width} bytes"
        raise NpuError(C.NPU_ERROR_OVERLAP, f"{size} at {target.offset} and at {source.offset} of one buffer overlap")
    return move
