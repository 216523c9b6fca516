"""npu.h: streams. Arguments are as C passed them, handles and pointers as integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.capi.door import require
from libnpu.capi.handles import Kind
from libnpu.capi.library import Library
from libnpu.capi.refusal import Refusal
from libnpu.errors import NpuError
from libnpu.runtime.semantics import InFlight

if TYPE_CHECKING:
    from libnpu.runtime import Context, Stream

HANDLE_BYTES = 8
FOREVER_NS = 1 << 52  # the clock ends before


def timeout_of(timeout_ns: int) -> int | None:
    """Return a time-out of npu.h in nanoseconds, None for ever."""
    return None if timeout_ns >= FOREVER_NS else timeout_ns


def npu_create_stream(library: Library, stream: int) -> None:
    """Create a stream of normal priority in the current context and write its handle."""
    npu_create_stream_with_priority(library, stream, int(C.NPU_STREAM_DEFAULT), int(C.NPU_PRIORITY_NORMAL))


def npu_create_stream_with_priority(library: Library, stream: int, flags: int, priority: int) -> None:
    """Create a stream in the current context and write its handle."""
    library.door.probe(stream, HANDLE_BYTES, "stream")
    if flags & ~C.NPU_STREAM_NON_BLOCKING:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"flags is {flags:#x}; NPU_STREAM_NON_BLOCKING is all there is")
    context = library.context().context
    made = context.create_stream(blocking=not flags, priority=priority)
    library.give_handle(stream, Kind.STREAM, made, context, made.close)


def npu_destroy_stream(library: Library, stream: int) -> None:
    """Destroy a stream; its handle is stale also when work of it has failed."""
    if stream == 0:
        raise Refusal("NPU_ERROR_INVALID_HANDLE", "the default stream cannot be destroyed")
    queue = library.stream(stream)
    if queue.capturing is not None or queue.context.semantics.destroy_stream is not InFlight.WAIT:
        queue.close()  # may refuse
        library.handles.remove(Kind.STREAM, stream)
        return
    library.handles.remove(Kind.STREAM, stream)
    try:
        if is_usable(queue.context):
            queue.synchronize()
    finally:
        queue.close()


def is_usable(context: Context) -> bool:
    """Whether no error of the device has ended the context: else what it holds can be given up, and no more."""
    try:
        context.check()
    except NpuError:
        return False
    return True


def npu_synchronize_stream(library: Library, stream: int) -> None:
    """Wait for a stream's work."""
    library.stream(stream).synchronize()


def npu_synchronize_stream_timeout(library: Library, stream: int, timeout_ns: int) -> None:
    """Wait for a stream's work for at most `timeout_ns`."""
    library.stream(stream).synchronize(timeout_of(timeout_ns))


def npu_query_stream(library: Library, stream: int) -> int:
    """Ask whether a stream has work left."""
    return int(C.NPU_SUCCESS if library.stream(stream).query() else C.NPU_NOT_READY)


def npu_get_stream_id(library: Library, stream: int, id: int) -> None:
    """Write a number that no other stream of the process has."""
    library.door.probe(id, 8, "id")
    library.door.write_integer(id, stream_id(library, library.stream(stream)), 8)


def stream_id(library: Library, stream: Stream) -> int:
    """Return the number of a stream: its context's, and above it, from bit 32, its own in the context."""
    return library.entry_of(stream.context).number << 32 | stream.id


def npu_stream_add_host_function(library: Library, stream: int, function: int, user_data: int) -> None:
    """Call a C function when the stream's earlier work has ended."""
    queue = library.stream(stream)
    require(function, "function")

    def run() -> None:
        library.door.call(function, user_data)

    run.__name__ = "of the program"  # its name in records and reports, the same wherever the program lies
    queue.add_host_function(run)


def npu_stream_set_failure_mode(library: Library, stream: int, mode: int) -> None:
    """Choose what happens behind an operation that failed."""
    from libnpu.runtime import FailureMode

    queue = library.stream(stream)
    modes = {int(C.NPU_CONTINUE_ON_FAILURE): FailureMode.CONTINUE, int(C.NPU_STOP_ON_FAILURE): FailureMode.STOP}
    if mode not in modes:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"mode {mode} is none of enum npu_failure_mode")
    queue.set_failure_mode(modes[mode])


def npu_stream_abort(library: Library, stream: int) -> None:
    """Take the stream's work off the device."""
    library.stream(stream).abort()
