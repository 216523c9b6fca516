"""npu.h: contexts. Arguments are as C passed them, handles and pointers as integers."""

from __future__ import annotations

from typing import cast

from npu_abi import C

from libnpu.capi.handles import Kind
from libnpu.capi.library import ContextEntry, Library
from libnpu.capi.refusal import Refusal

HANDLE_BYTES = 8


def npu_create_context(library: Library, context: int, flags: int) -> None:
    """Make a context on the current device, the calling thread's current one, and write its handle."""
    library.door.probe(context, HANDLE_BYTES, "context")
    if flags:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"flags is {flags:#x}, and none is defined")
    entry = library.create_context()
    try:
        library.door.write_integer(context, entry.handle, HANDLE_BYTES)
    except Refusal:
        library.destroy_context(entry, force=True)
        raise
    library.select_context(entry)


def npu_destroy_context(library: Library, context: int, flags: int) -> None:
    """End a context."""
    entry = _context(library, context)
    if flags & ~C.NPU_DESTROY_FORCE:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"flags is {flags:#x}; NPU_DESTROY_FORCE is all there is")
    library.destroy_context(entry, force=bool(flags))


def npu_set_current_context(library: Library, context: int) -> None:
    """Make a context the calling thread's current one; NULL is the current device's primary one."""
    if context:
        library.select_context(_context(library, context))
    else:
        library.select(library.current)


def npu_get_current_context(library: Library, context: int) -> None:
    """Write the handle of the thread's current context, NULL for a primary one."""
    library.door.probe(context, HANDLE_BYTES, "context")
    entry = library.chosen_context
    library.door.write_integer(context, entry.handle if entry else 0, HANDLE_BYTES)


def npu_synchronize_context(library: Library) -> None:
    """Wait for every stream of the current context."""
    library.context().context.synchronize()


def _context(library: Library, handle: int) -> ContextEntry:
    return cast("ContextEntry", library.handles.get(Kind.CONTEXT, handle))
