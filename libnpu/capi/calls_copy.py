"""npu.h: copies and fills. Arguments are as C passed them, pointers as integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import npu_abi
from npu_abi import C

from libnpu.capi.door import require
from libnpu.capi.library import Library
from libnpu.capi.memory import ProgramEnd, is_device_pointer
from libnpu.capi.refusal import Refusal
from libnpu.errors import Asked, Unsupported

if TYPE_CHECKING:
    from libnpu.runtime import Context
    from libnpu.runtime.copy_ends import End
    from libnpu.runtime.spans import DeviceSpan
    from libnpu.runtime.stream import Stream

KIND_OF = {  # by whether dst and src are device pointers
    (True, False): int(C.NPU_MEMCPY_HOST_TO_DEVICE),
    (False, True): int(C.NPU_MEMCPY_DEVICE_TO_HOST),
    (True, True): int(C.NPU_MEMCPY_DEVICE_TO_DEVICE),
    (False, False): int(C.NPU_MEMCPY_HOST_TO_HOST),
}


@dataclass(frozen=True, slots=True)
class Side:
    """An end as C passed it: `pitch` bytes from row to row."""

    address: int
    pitch: int

    def extent(self, width: int, height: int) -> int:
        """Return the bytes from the first to the last one."""
        return self.pitch * (height - 1) + width if width and height else 0


def npu_memcpy(library: Library, dst: int, dst_max: int, src: int, size: int, kind: int) -> None:
    """Copy on the default stream; complete on return."""
    npu_memcpy_2d(library, dst, size, dst_max, src, size, size, 1, kind)


def npu_memcpy_async(library: Library, dst: int, dst_max: int, src: int, size: int, kind: int, stream: int) -> None:
    """Copy in stream order."""
    npu_memcpy_2d_async(library, dst, size, dst_max, src, size, size, 1, kind, stream)


def npu_memcpy_2d(
    library: Library,
    dst: int,
    dst_pitch: int,
    dst_max: int,
    src: int,
    src_pitch: int,
    width: int,
    height: int,
    kind: int,
) -> None:
    """Copy rows on the default stream; complete on return."""
    target, source = Side(dst, dst_pitch), Side(src, src_pitch)
    kind = check_copy(library, target, source, dst_max, width, height, kind)
    context = library.context().context
    copy_rows(context, ends_of(library, context, target, source, width, height, kind), target, source, width, height)


def npu_memcpy_2d_async(
    library: Library,
    dst: int,
    dst_pitch: int,
    dst_max: int,
    src: int,
    src_pitch: int,
    width: int,
    height: int,
    kind: int,
    stream: int,
) -> None:
    """Copy rows in stream order."""
    target, source = Side(dst, dst_pitch), Side(src, src_pitch)
    kind = check_copy(library, target, source, dst_max, width, height, kind)
    queue = library.stream(stream)
    if kind == C.NPU_MEMCPY_HOST_TO_HOST:
        raise Unsupported("an asynchronous copy from host memory to host memory")
    ends = ends_of(library, queue.context, target, source, width, height, kind)
    copy_rows(queue, ends, target, source, width, height)


def copy_rows(by: Context | Stream, ends: tuple[End, End], target: Side, source: Side, width: int, height: int) -> None:
    """Copy rows between `ends`, which are what `target` and `source` point to."""
    written, read = ends
    if height == 1:
        by.copy(written, read, width)
    else:
        by.copy_2d(written, target.pitch, read, source.pitch, width, height)


def check_copy(library: Library, target: Side, source: Side, dst_max: int, width: int, height: int, kind: int) -> int:
    """Check what needs no look at the memory; return the kind, never NPU_MEMCPY_DEFAULT."""
    if kind != C.NPU_MEMCPY_DEFAULT and kind not in KIND_OF.values():
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"kind {kind} is none of enum npu_memcpy_kind")
    require(target.address, "dst")
    require(source.address, "src")
    if height > 1 and min(target.pitch, source.pitch) < width:
        raise Refusal("NPU_ERROR_INVALID_SIZE", f"pitches {target.pitch} and {source.pitch} for rows of {width} bytes")
    check_bound(library, target.address, target.extent(width, height), dst_max)
    said = KIND_OF[is_device_pointer(target.address), is_device_pointer(source.address)]
    if kind not in (said, C.NPU_MEMCPY_DEFAULT):
        names = [npu_abi.name_of("npu_memcpy_kind", k) for k in (kind, said)]
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"kind is {names[0]}, and the pointers are {names[1]}")
    return said


def ends_of(
    library: Library, context: Context, target: Side, source: Side, width: int, height: int, kind: int
) -> tuple[End, End]:
    """Return destination and source. Raises OUT_OF_RANGE, STALE_HANDLE, WRONG_CONTEXT, BAD_ADDRESS."""
    memory = library.memory
    if not (width and height):  # nothing is looked at
        return memory.program_end(target.address, 0), memory.program_end(source.address, 0)
    end = memory.program_end if kind == C.NPU_MEMCPY_HOST_TO_HOST else lambda *where: memory.end(context, *where)
    written = end(target.address, target.extent(width, height))
    read = end(source.address, source.extent(width, height))
    if isinstance(written, ProgramEnd) and written.size:
        written.check_writable(width, height, target.pitch)
    return written, read


def npu_memset(library: Library, dst: int, dst_max: int, value: int, size: int) -> None:
    """Set memory on the default stream; complete on return."""
    require(dst, "dst")
    check_bound(library, dst, size, dst_max)
    context = library.context().context
    context.fill(filled(library, context, dst, size), value)


def npu_memset_async(library: Library, dst: int, dst_max: int, value: int, size: int, stream: int) -> None:
    """Set memory in stream order."""
    require(dst, "dst")
    check_bound(library, dst, size, dst_max)
    queue = library.stream(stream)
    queue.fill(filled(library, queue.context, dst, size), value)


def filled(library: Library, context: Context, dst: int, size: int) -> DeviceSpan | End:
    """Return the memory that a memset writes. Raises OUT_OF_RANGE, STALE_HANDLE, WRONG_CONTEXT."""
    if not size and is_device_pointer(dst):
        return library.memory.program_end(dst, 0)
    span = library.memory.seen_by_device(context, dst, "NPU_ERROR_OUT_OF_RANGE", size)
    return span.at(0, size)


def npu_memcpy_peer(library: Library, dst: int, dst_max: int, src: int, size: int) -> None:
    """Copy device memory to device memory of any context."""
    require(dst, "dst")
    require(src, "src")
    check_bound(library, dst, size, dst_max)
    if not size and is_device_pointer(dst) and is_device_pointer(src):
        return
    target = library.memory.device(None, dst, size=size).at(0, size)
    source = library.memory.device(None, src, size=size).at(0, size)
    source.buffer.context.copy_peer(target, source)


def check_bound(library: Library, dst: int, extent: int, dst_max: int) -> None:
    """Raise OUT_OF_RANGE when more is written than the caller allows."""
    if extent > dst_max:
        asked = Asked(0, extent, dst_max, *library.memory.around(dst))
        raise Refusal("NPU_ERROR_OUT_OF_RANGE", f"size is {extent}, above dst_max {dst_max}", asked=asked)
