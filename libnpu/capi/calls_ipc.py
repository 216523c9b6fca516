"""npu.h: several processes. Arguments are as C passed them, handles and pointers as integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from npu_abi import C

from libnpu.capi.door import require
from libnpu.capi.handles import Kind
from libnpu.capi.library import Library
from libnpu.capi.memory import pointer_of
from libnpu.capi.refusal import Refusal
from libnpu.runtime.ipc import ImportedBuffer
from libnpu.runtime.ipc_event import IpcEvent

if TYPE_CHECKING:
    from libnpu.runtime import Event

POINTER_BYTES = 8
HANDLE_BYTES = int(C.NPU_IPC_HANDLE_BYTES)


def npu_ipc_get_mem_handle(library: Library, handle: int, ptr: int) -> None:
    """Write the handle of an allocation."""
    library.door.probe(handle, HANDLE_BYTES, "handle")
    require(ptr, "ptr")
    library.door.write(handle, library.memory.allocation(library.context().context, ptr).ipc_handle())


def npu_ipc_open_mem_handle(library: Library, ptr: int, handle: int, flags: int) -> None:
    """Map the memory of a handle in the current context and write its address to `ptr`."""
    library.door.probe(ptr, POINTER_BYTES, "ptr")
    if flags:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"flags is {flags:#x}, and none is defined")
    content = _read(library, handle)
    entry = library.context()
    buffer = entry.context.open_ipc_memory(content)
    try:
        library.door.write_integer(ptr, pointer_of(entry.number, buffer.device_address), POINTER_BYTES)
    except Refusal:
        buffer.release()
        raise


def npu_ipc_close_mem_handle(library: Library, ptr: int) -> None:
    """End a mapping that a handle has opened."""
    require(ptr, "ptr")
    buffer = library.memory.allocation(library.context().context, ptr)
    if not isinstance(buffer, ImportedBuffer):
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"{ptr:#x} is memory of npu_malloc: npu_free is for that")
    buffer.close()


def npu_ipc_get_event_handle(library: Library, handle: int, event: int) -> None:
    """Write the handle of an event."""
    library.door.probe(handle, HANDLE_BYTES, "handle")
    found = cast("Event", library.handles.get(Kind.EVENT, event))
    if not isinstance(found, IpcEvent):
        raise Refusal("NPU_ERROR_INVALID_VALUE", "the event was made without NPU_EVENT_INTERPROCESS")
    library.door.write(handle, found.ipc_handle())


def npu_ipc_open_event_handle(library: Library, event: int, handle: int) -> None:
    """Open the event of a handle in the current context and write its own handle here."""
    library.door.probe(event, POINTER_BYTES, "event")
    content = _read(library, handle)
    made = library.context().context.open_ipc_event(content)
    library.give_handle(event, Kind.EVENT, made, made.context, made.destroy)


def _read(library: Library, handle: int) -> bytes:
    require(handle, "handle")
    return bytes(library.door.read(handle, HANDLE_BYTES))
