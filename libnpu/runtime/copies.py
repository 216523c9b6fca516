"""Copies and fills in stream order, and copies that are complete on return.

An end of a copy is memory that the device sees (buffers, pinned and registered memory, mappings, parts of them, and
arrays that lie in them) or pageable: any other memory of the host. Between memory that the device sees, a copy is a DMA
job of the stream. With a pageable end:

1. complete on return: the stream's earlier work is waited for, and the host copies through its mapping of the memory
   (synchronous copies; asynchronous ones where `Pageable` says so);
2. staged: the host copies into the job's command buffer and returns, DMA copies on when the stream comes to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C

from libnpu.errors import NpuError, Unsupported
from libnpu.runtime.arguments import whole
from libnpu.runtime.buffer import Buffer, Memory
from libnpu.runtime.copy_operations import Copy, Fill, StagedCopy
from libnpu.runtime.operation import Marker
from libnpu.runtime.semantics import Pageable
from libnpu.runtime.transfers import Rows, overlap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.runtime.context import Context
    from libnpu.runtime.job import Job
    from libnpu.runtime.stream import Stream


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

    def carry(self) -> None:
        """Let the host copy."""
        content = self.source.lines(self.width, self.height, self.source_pitch)
        self.target.put(content, self.target_pitch)


# ---- on streams: see the methods of Stream and Context --------------------------------------------------------------


def copy(stream: Stream, dst: Any, src: Any, size: int | None = None) -> Job | None:
    """Copy in stream order; see `Stream.copy`."""
    stream.check_open()
    move = linear(stream.context, dst, src, size)
    return _enqueue(stream, move) if move else None


def copy_2d(stream: Stream, dst: Any, dst_pitch: int, src: Any, src_pitch: int, width: int, height: int) -> Job | None:
    """Copy rows in stream order; see `Stream.copy_2d`."""
    stream.check_open()
    move = rows(stream.context, dst, dst_pitch, src, src_pitch, width, height)
    return _enqueue(stream, move) if move else None


def copy_and_wait(stream: Stream, dst: Any, src: Any, size: int | None = None) -> None:
    """Copy behind the stream's earlier work; complete on return."""
    stream.check_open()
    move = linear(stream.context, dst, src, size)
    if move:
        _complete(stream, move)


def copy_2d_and_wait(
    stream: Stream, dst: Any, dst_pitch: int, src: Any, src_pitch: int, width: int, height: int
) -> None:
    """Copy rows behind the stream's earlier work; complete on return."""
    stream.check_open()
    move = rows(stream.context, dst, dst_pitch, src, src_pitch, width, height)
    if move:
        _complete(stream, move)


def fill(stream: Stream, dst: Any, value: int) -> Job | None:
    """Set bytes in stream order; see `Stream.fill`."""
    stream.check_open()
    operation = fill_operation(stream.context, dst, value)
    return stream.enqueue(operation) if operation else None


def copy_operation(context: Context, dst: Any, src: Any, size: int | None = None) -> Copy | None:
    """Return a copy of memory that the device sees, None for one of no bytes. Raises as `Stream.copy`, and Unsupported
    for pageable memory.
    """
    move = linear(context, dst, src, size)
    if move is None:
        return None
    operation = move.operation()
    if operation is None:
        raise Unsupported("a copy of pageable memory, which the device does not see, as a job of its own")
    return operation


def fill_operation(context: Context, dst: Any, value: int) -> Fill | None:
    """Return a fill, None for one of no bytes. Raises as `Stream.fill`."""
    target = end_of(context, dst, written=True)
    value = whole(value, "value") & 0xFF
    if not target.size:
        return None
    if target.buffer is None:
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, "pageable memory cannot be filled: the device does not see it")
    return Fill(target.buffer.device_address + target.offset, target.size, value, (target.buffer,))


def copy_peer(dst: Memory, src: Memory) -> None:
    """Copy between contexts or devices; see `Context.copy_peer`. Each side's lock is held for its own part only."""
    for memory in (dst, src):
        if not isinstance(memory, Memory):
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"memory of a device is copied, not {type(memory).__name__}")
    if src.size > dst.size:
        raise NpuError(C.NPU_ERROR_OUT_OF_RANGE, f"{src.size} bytes for memory of {dst.size} bytes")
    source, target = src.buffer.context, dst.buffer.context
    if source is target:
        source.copy(dst, src)
        return
    _ = dst.buffer.handle  # raises STALE_HANDLE before anything is waited for
    if not src.size:
        return
    if not (source.compute and target.compute):
        raise Unsupported("a copy to another context on a device without values (compute=False)")
    carried = np.empty(src.size, np.uint8)
    source.copy(carried, src)
    target.copy(dst, carried)


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
            raise NpuError(C.NPU_ERROR_OUT_OF_RANGE, f"{needed} bytes of a {what} of {end.size} bytes")


def _disjoint(move: Move) -> Move:
    """Raise OVERLAP when both ends have a byte of one buffer."""
    target, source = move.target, move.source
    if target.buffer is not None and target.buffer is source.buffer and overlap(move.written, move.read):
        size = f"{move.width} bytes" if move.height == 1 else f"{move.height} rows of {move.width} bytes"
        raise NpuError(C.NPU_ERROR_OVERLAP, f"{size} at {target.offset} and at {source.offset} of one buffer overlap")
    return move


def _enqueue(stream: Stream, move: Move) -> Job | None:
    operation = move.operation()
    if operation is not None:
        return stream.enqueue(operation)
    if move.target.buffer is None and move.source.buffer is None:
        raise Unsupported("an asynchronous copy from pageable to pageable memory: the device sees neither")
    if stream.capturing is not None:
        raise stream.capturing.refusal("a copy of pageable memory")
    rule = stream.context.semantics.pageable
    if rule is Pageable.REFUSE:
        why = "the stream cannot copy pageable memory asynchronously; pin it, or copy synchronously"
        raise NpuError(C.NPU_ERROR_NOT_PERMITTED, why)
    if rule is Pageable.STAGED and move.target.buffer is not None:
        return stream.enqueue(move.staged())
    _complete(stream, move)
    return None


def _complete(stream: Stream, move: Move) -> None:
    """Copy behind the stream's earlier work, and wait."""
    context = stream.context
    context.refuse_while_capturing("a copy that waits")
    operation = move.operation()
    if operation is not None:
        stream.enqueue(operation)
        stream.synchronize()
        return
    target, source = move.target.buffer, move.source.buffer
    if source is not None:
        source.check_values()
    if context.semantics.legacy_default_stream or context.can_stop:
        stream.enqueue(Marker("copy of pageable memory"))  # waits, or is aborted, as a copy by the device would be
    stream.synchronize()
    for buffer in (target, source):
        if buffer is not None:
            _ = buffer.handle  # another thread may have freed it meanwhile
    context.node.catch_up()
    if target is None or target.has_values:
        move.carry()
    context.charge_copy(move.width * move.height)
