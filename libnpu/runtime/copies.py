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
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C

from libnpu.errors import NpuError, Unsupported
from libnpu.runtime.buffer import Buffer, Memory
from libnpu.runtime.copy_operations import Copy, Fill, StagedCopy
from libnpu.runtime.operation import Marker
from libnpu.runtime.semantics import Pageable
from libnpu.runtime.transfers import Rows, overlap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.runtime.command_list import CommandList
    from libnpu.runtime.context import Context
    from libnpu.runtime.job import Job
    from libnpu.runtime.operation import Operation
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


def copy(stream: Stream, dst: Any, src: Any, size: int | None = None) -> Job | None:
    """Copy in stream order; see `Stream.copy`."""
    request = _linear(stream, dst, src, size)
    return _enqueue(stream, *request) if request else None


def copy_2d(stream: Stream, dst: Any, dst_pitch: int, src: Any, src_pitch: int, width: int, height: int) -> Job | None:
    """Copy rows in stream order; see `Stream.copy_2d`."""
    request = _rows(stream, dst, dst_pitch, src, src_pitch, width, height)
    return _enqueue(stream, *request) if request else None


def copy_and_wait(stream: Stream, dst: Any, src: Any, size: int | None = None) -> None:
    """Copy behind the stream's earlier work; complete on return."""
    request = _linear(stream, dst, src, size)
    if request:
        _complete(stream, *request)


def copy_2d_and_wait(
    stream: Stream, dst: Any, dst_pitch: int, src: Any, src_pitch: int, width: int, height: int
) -> None:
    """Copy rows behind the stream's earlier work; complete on return."""
    request = _rows(stream, dst, dst_pitch, src, src_pitch, width, height)
    if request:
        _complete(stream, *request)


def fill(stream: Stream, dst: Any, value: int) -> Job | None:
    """Set bytes in stream order; see `Stream.fill`."""
    operation = fill_operation(stream, dst, value)
    return stream.enqueue(operation) if operation is not None else None


def fill_operation(queue: Stream | CommandList, dst: Any, value: int) -> Operation | None:
    """Return a fill, None for one of no bytes."""
    queue.check_open()
    target = end_of(queue.context, dst, written=True)
    if target.buffer is None:
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, "pageable memory cannot be filled: the device does not see it")
    value = index(value) & 0xFF
    if not target.size:
        return None
    address = target.buffer.device_address + target.offset
    return Fill(address, target.size, value, (target.buffer,))


def copy_operation(commands: CommandList, dst: Any, src: Any, size: int | None = None) -> Operation | None:
    """Return a copy for a command list, None for one of no bytes. Raises Unsupported for pageable memory."""
    request = _linear(commands, dst, src, size)
    if request is None:
        return None
    target, dst_pitch, source, src_pitch, width, height = request
    if target.buffer is None or source.buffer is None:
        raise Unsupported("a copy of pageable memory in a command list")
    rows = target.rows(width, height, dst_pitch), source.rows(width, height, src_pitch)
    return Copy(f"copy {source.side} to {target.side}", *rows, (target.buffer, source.buffer))


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
    """Return an end of a copy. Raises WRONG_CONTEXT, STALE_HANDLE, OUT_OF_RANGE for an array that is pinned only in part,
    INVALID_VALUE for what is no contiguous memory, or is read-only and to be written.
    """
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
    if found is None:
        return End(None, 0, host.nbytes, host)
    if found.offset + host.nbytes > found.buffer.size:
        raise NpuError(
            C.NPU_ERROR_OUT_OF_RANGE,
            f"{host.nbytes} bytes at {address:#x} leave the pinned memory of {found.buffer.size} bytes at {found.base:#x}",
        )
    return End(found.buffer, found.offset, host.nbytes)


def _host_bytes(memory: Any, *, written: bool) -> NDArray[np.uint8]:
    """Return an array or other buffer of the host as bytes, in place."""
    try:
        view = memoryview(memory)
    except TypeError:
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"{type(memory).__name__} is no memory") from None
    if written and view.readonly:
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, "the destination is read-only memory")
    if not view.c_contiguous or (isinstance(memory, np.ndarray) and memory.dtype.hasobject):
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, "the memory is not contiguous bytes; copy_2d copies rows")
    return np.frombuffer(memory, np.uint8) if view.nbytes else np.zeros(0, np.uint8)


Request = tuple[End, int, End, int, int, int]  # target, its pitch, source, its pitch, width, height


def _linear(stream: Stream | CommandList, dst: Any, src: Any, size: int | None) -> Request | None:
    """Return a 1-D copy, checked; None for one of no bytes."""
    target, source = _ends(stream, dst, src)
    size = source.size if size is None else index(size)
    if size < 0:
        raise NpuError(C.NPU_ERROR_INVALID_SIZE, f"a copy of {size} bytes")
    _check_room(target, source, size, size)
    if not size:
        return None
    return _disjoint((target, size, source, size, size, 1))


def _rows(
    stream: Stream, dst: Any, dst_pitch: int, src: Any, src_pitch: int, width: int, height: int
) -> Request | None:
    """Return a 2-D copy, checked; None for one of no bytes."""
    target, source = _ends(stream, dst, src)
    dst_pitch, src_pitch, width, height = index(dst_pitch), index(src_pitch), index(width), index(height)
    if width < 0 or height < 0:
        raise NpuError(C.NPU_ERROR_INVALID_SIZE, f"a copy of {height} rows of {width} bytes")
    if height > 1 and min(dst_pitch, src_pitch) < width:
        raise NpuError(
            C.NPU_ERROR_INVALID_SIZE, f"pitches {dst_pitch} and {src_pitch} for rows of {width} bytes, which overlap"
        )
    if not width or not height:
        return None
    _check_room(target, source, dst_pitch * (height - 1) + width, src_pitch * (height - 1) + width)
    return _disjoint((target, dst_pitch, source, src_pitch, width, height))


def _ends(stream: Stream | CommandList, dst: Any, src: Any) -> tuple[End, End]:
    stream.check_open()
    return end_of(stream.context, dst, written=True), end_of(stream.context, src, written=False)


def _check_room(target: End, source: End, written: int, read: int) -> None:
    for end, needed, what in ((target, written, "destination"), (source, read, "source")):
        if needed > end.size:
            raise NpuError(C.NPU_ERROR_OUT_OF_RANGE, f"{needed} bytes of a {what} of {end.size} bytes")


def _disjoint(request: Request) -> Request:
    """Raise OVERLAP when both ends have a byte of one buffer."""
    target, dst_pitch, source, src_pitch, width, height = request
    if target.buffer is not None and target.buffer is source.buffer:
        written, read = target.rows(width, height, dst_pitch), source.rows(width, height, src_pitch)
        if overlap(written, read):
            size = f"{width} bytes" if height == 1 else f"{height} rows of {width} bytes"
            raise NpuError(
                C.NPU_ERROR_OVERLAP, f"{size} at {target.offset} and at {source.offset} of one buffer overlap"
            )
    return request


def _enqueue(
    stream: Stream, target: End, dst_pitch: int, source: End, src_pitch: int, width: int, height: int
) -> Job | None:
    name = f"copy {source.side} to {target.side}"
    if target.buffer is not None and source.buffer is not None:
        rows = target.rows(width, height, dst_pitch), source.rows(width, height, src_pitch)
        return stream.enqueue(Copy(name, *rows, (target.buffer, source.buffer)))
    if target.buffer is None and source.buffer is None:
        raise Unsupported("an asynchronous copy from pageable to pageable memory: the device sees neither")
    if stream.capturing is not None:
        raise stream.capturing.refusal("a copy of pageable memory")
    rule = stream.context.semantics.pageable
    if rule is Pageable.REFUSE:
        why = "the stream cannot copy pageable memory asynchronously; pin it, or copy synchronously"
        raise NpuError(C.NPU_ERROR_NOT_PERMITTED, why)
    if rule is Pageable.STAGED and target.buffer is not None:
        content = source.lines(width, height, src_pitch).tobytes()
        written = target.rows(width, height, dst_pitch)
        return stream.enqueue(StagedCopy(name, written, content, (target.buffer,)))
    _complete(stream, target, dst_pitch, source, src_pitch, width, height)
    return None


def _complete(
    stream: Stream, target: End, dst_pitch: int, source: End, src_pitch: int, width: int, height: int
) -> None:
    """Copy behind the stream's earlier work, and wait."""
    context = stream.context
    if target.buffer is not None and source.buffer is not None:
        _enqueue(stream, target, dst_pitch, source, src_pitch, width, height)
        stream.synchronize()
        return
    if source.buffer is not None:
        source.buffer.check_values()
    if context.semantics.legacy_default_stream:
        stream.enqueue(Marker("copy of pageable memory"))  # waits for other streams' work as a copy does
    stream.synchronize()
    for end in (target, source):  # another thread may have freed it meanwhile
        if end.buffer is not None:
            _ = end.buffer.handle
    context.node.catch_up()
    if target.buffer is None or target.buffer.has_values:
        target.lines(width, height, dst_pitch)[...] = source.lines(width, height, src_pitch)
    context.charge_copy(width * height)
