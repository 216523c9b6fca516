"""Copies and fills in stream order, and copies that are complete on return.

Between memory that the device sees, a copy is a DMA job of the stream. With a pageable end (`copy_ends.py`):

1. complete on return: the stream's earlier work is waited for, and the host copies through its mapping of the memory
   (synchronous copies; asynchronous ones where `Pageable` says so);
2. staged: the host copies into the job's command buffer and returns, DMA copies on when the stream comes to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C

from libnpu.errors import NpuError, Unsupported
from libnpu.runtime.arguments import whole
from libnpu.runtime.copy_ends import Move, end_of, linear, rows
from libnpu.runtime.copy_operations import Copy, Fill
from libnpu.runtime.operation import Marker
from libnpu.runtime.semantics import Pageable
from libnpu.runtime.spans import Memory

if TYPE_CHECKING:
    from libnpu.runtime.context import Context
    from libnpu.runtime.job import Job
    from libnpu.runtime.stream import Stream


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
        message = f"{src.size} bytes for memory of {dst.size} bytes"
        raise NpuError(C.NPU_ERROR_OUT_OF_RANGE, message, asked=dst.asked(0, src.size))
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
        stream.complete()
        return
    target, source = move.target.buffer, move.source.buffer
    if source is not None:
        source.check_values()
    if context.semantics.legacy_default_stream or context.can_stop:
        stream.enqueue(Marker("copy of pageable memory"))  # waits, or is aborted, as a copy by the device would be
    stream.complete()
    for buffer in (target, source):
        if buffer is not None:
            _ = buffer.handle  # another thread may have freed it meanwhile
    context.node.catch_up()
    if target is None or target.has_values:
        move.note(context.observer)
        move.carry()
    context.charge_copy(move.width * move.height)
