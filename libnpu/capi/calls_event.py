"""npu.h: events and notifies. Arguments are as C passed them, handles and pointers as integers."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, cast

from npu_abi import C

from libnpu.capi.calls_stream import timeout_of
from libnpu.capi.handles import Kind
from libnpu.capi.library import Library
from libnpu.capi.refusal import Refusal

if TYPE_CHECKING:
    from libnpu.runtime import Event, Notify

HANDLE_BYTES = 8


def npu_create_event(library: Library, event: int, flags: int) -> None:
    """Create an event in the current context and write its handle."""
    library.door.probe(event, HANDLE_BYTES, "event")
    if flags & ~(C.NPU_EVENT_DISABLE_TIMING | C.NPU_EVENT_INTERPROCESS):
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"flags is {flags:#x}, not of enum npu_event_flag")
    timing, interprocess = not flags & C.NPU_EVENT_DISABLE_TIMING, bool(flags & C.NPU_EVENT_INTERPROCESS)
    made = library.context().context.create_event(timing=timing, interprocess=interprocess)
    library.give_handle(event, Kind.EVENT, made, made.context, made.destroy)


def npu_destroy_event(library: Library, event: int) -> None:
    """Destroy an event."""
    found = _event(library, event)
    library.handles.remove(Kind.EVENT, event)
    found.destroy()


def npu_record_event(library: Library, event: int, stream: int) -> None:
    """Record the stream's work enqueued so far."""
    _event(library, event).record(library.stream(stream))


def npu_stream_wait_event(library: Library, stream: int, event: int) -> None:
    """Let the stream's later work wait for what the event has recorded."""
    queue = library.stream(stream)
    queue.wait_event(_event(library, event))


def npu_reset_event(library: Library, event: int, stream: int) -> None:
    """Make the event one that was never recorded."""
    found, queue = _event(library, event), library.stream(stream)
    queue.check_open()
    queue.check_context(found.context, "the event")
    found.reset()


def npu_synchronize_event(library: Library, event: int) -> None:
    """Wait for what the event recorded."""
    _event(library, event).synchronize()


def npu_synchronize_event_timeout(library: Library, event: int, timeout_ns: int) -> None:
    """Wait for what the event recorded, for at most `timeout_ns`."""
    _event(library, event).synchronize(timeout_of(timeout_ns))


def npu_query_event(library: Library, event: int) -> int:
    """Ask whether what the event recorded has happened."""
    return int(C.NPU_SUCCESS if _event(library, event).query() else C.NPU_NOT_READY)


def npu_event_elapsed_time(library: Library, duration_ns: int, start: int, end: int) -> None:
    """Write the device time from one event to another, in nanoseconds."""
    library.door.probe(duration_ns, 8, "duration_ns")
    elapsed = _event(library, start).elapsed_ns(_event(library, end))
    library.door.write(duration_ns, struct.pack("<d", elapsed))


def npu_event_get_timestamp(library: Library, time_ps: int, event: int) -> None:
    """Write the device time at which what the event recorded had happened."""
    library.door.probe(time_ps, 8, "time_ps")
    library.door.write_integer(time_ps, _event(library, event).timestamp_ps, 8)


def npu_create_notify(library: Library, notify: int, flags: int) -> None:
    """Create a notify in the current context and write its handle."""
    library.door.probe(notify, HANDLE_BYTES, "notify")
    if flags:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"flags is {flags:#x}, and none is defined")
    made = library.context().context.create_notify()
    library.give_handle(notify, Kind.NOTIFY, made, made.context, made.destroy)


def npu_destroy_notify(library: Library, notify: int) -> None:
    """Destroy a notify that no work in flight uses."""
    _notify(library, notify).destroy()
    library.handles.remove(Kind.NOTIFY, notify)


def npu_record_notify(library: Library, notify: int, stream: int) -> None:
    """Give one token in stream order."""
    _notify(library, notify).record(library.stream(stream))


def npu_wait_notify(library: Library, notify: int, stream: int) -> None:
    """Let the stream's later work wait for one token, and take it."""
    _notify(library, notify).wait(library.stream(stream))


def _event(library: Library, handle: int) -> Event:
    return cast("Event", library.handles.get(Kind.EVENT, handle))


def _notify(library: Library, handle: int) -> Notify:
    return cast("Notify", library.handles.get(Kind.NOTIFY, handle))
