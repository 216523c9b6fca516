"""npu.h: streams. Arguments are as C passed them, handles as integers."""

from __future__ import annotations

from npu_abi import C

from libnpu.capi.door import require
from libnpu.capi.handles import Kind
from libnpu.capi.library import Library
from libnpu.capi.refusal import Refusal

FOREVER_NS = 1 << 52  # the clock ends before


def npu_create_stream(library: Library, stream: int) -> None:
    """Create a stream on the current device and write its handle."""
    require(stream, "stream")
    entry = library.add_stream(library.device())
    handle = library.handles.insert(Kind.STREAM, entry)
    try:
        library.door.write_integer(stream, handle, 8)
    except Refusal:
        library.handles.remove(Kind.STREAM, handle)
        library.drop_stream(entry)
        raise


def npu_destroy_stream(library: Library, stream: int) -> None:
    """Wait for a stream's work and destroy it, whatever came out."""
    if stream == 0:
        raise Refusal("NPU_ERROR_INVALID_HANDLE", "the default stream cannot be destroyed")
    entry = library.stream(stream)
    library.handles.remove(Kind.STREAM, stream)
    try:
        entry.stream.synchronize()
    finally:
        library.drop_stream(entry)


def npu_synchronize_stream(library: Library, stream: int) -> None:
    """Wait for a stream's work."""
    library.stream(stream).wait()


def npu_synchronize_stream_timeout(library: Library, stream: int, timeout_ns: int) -> None:
    """Wait for a stream's work for at most `timeout_ns`."""
    library.stream(stream).wait(None if timeout_ns >= FOREVER_NS else timeout_ns)


def npu_query_stream(library: Library, stream: int) -> int:
    """Ask whether a stream has work left."""
    entry = library.stream(stream)
    finished = entry.stream.query()
    entry.device.check_usable()
    return int(C.NPU_SUCCESS if finished else C.NPU_NOT_READY)
