"""npu.h: device memory, host memory, mappings. Arguments are as C passed them, pointers as integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import npu_abi
from npu_abi import C

from libnpu.capi.calls_stream import is_usable
from libnpu.capi.door import require
from libnpu.capi.library import ContextEntry, Library
from libnpu.capi.memory import is_device_pointer, pointer_of
from libnpu.capi.refusal import Refusal
from libnpu.errors import NpuError

if TYPE_CHECKING:
    from libnpu.runtime import Context
    from libnpu.runtime.buffer import Buffer
    from libnpu.runtime.host_memory import HostBuffer, Mapping, Registered

POINTER_BYTES = 8


def npu_malloc(library: Library, ptr: int, size: int, flags: int) -> None:
    """Allocate device memory and write its address to `ptr`."""
    library.door.probe(ptr, POINTER_BYTES, "ptr")
    _no_flags(flags)
    entry = library.context()
    if not _is_empty(library, entry, ptr, size):
        _give(library, entry, ptr, entry.context.alloc(size))


def npu_malloc_async(library: Library, ptr: int, size: int, stream: int) -> None:
    """Allocate for work of `stream` from now on."""
    library.door.probe(ptr, POINTER_BYTES, "ptr")
    queue = library.stream(stream)
    entry = library.entry_of(queue.context)
    if not _is_empty(library, entry, ptr, size):
        _give(library, entry, ptr, queue.context.alloc_async(size, queue))


def _is_empty(library: Library, entry: ContextEntry, ptr: int, size: int) -> bool:
    if size or not entry.context.semantics.empty_allocation:
        return False
    library.door.write_integer(ptr, 0, POINTER_BYTES)
    return True


def _give(library: Library, entry: ContextEntry, ptr: int, buffer: Buffer) -> None:
    try:
        library.door.write_integer(ptr, pointer_of(entry.number, buffer.device_address), POINTER_BYTES)
    except Refusal:
        buffer.release()
        raise


def npu_free(library: Library, ptr: int) -> None:
    """Free device memory by its first address."""
    context = library.context().context
    if not _is_nothing(context, ptr, "ptr"):
        library.memory.allocation(context, ptr).free()


def npu_free_sync(library: Library, ptr: int) -> None:
    """Wait for all work of the context, then free, also when that work failed."""
    context = library.context().context
    if _is_nothing(context, ptr, "ptr"):
        return
    buffer = library.memory.allocation(context, ptr)
    failure: NpuError | None = None
    if is_usable(context):
        try:
            context.synchronize()
        except NpuError as error:
            if error.result > C.NPU_ERROR_DEVICE_PAGE_FAULT:
                raise  # the caller's, not the work's
            failure = error
    buffer.release()
    if failure is not None:
        raise failure


def npu_free_async(library: Library, ptr: int, stream: int) -> None:
    """Free device memory when the earlier work of `stream` has ended."""
    queue = library.stream(stream)
    context = queue.context
    if _is_nothing(context, ptr, "ptr"):
        return
    buffer = library.memory.allocation(context, ptr)
    if is_usable(context):
        buffer.free_async(queue)
    else:
        buffer.release()


def _is_nothing(context: Context, address: int, what: str) -> bool:
    """Whether `address` is NULL and may be freed. Raises NULL_POINTER when it may not."""
    if address or not context.semantics.free_null:
        require(address, what)
        return False
    return True


def npu_mem_get_info(library: Library, free_bytes: int, total_bytes: int) -> None:
    """Write free and total bytes of the current device's memory."""
    library.door.probe(free_bytes, 8, "free_bytes")
    library.door.probe(total_bytes, 8, "total_bytes")
    free, total = library.device().device.memory_info()
    library.door.write_integer(free_bytes, free, 8)
    library.door.write_integer(total_bytes, total, 8)


def npu_pointer_get_attributes(library: Library, attributes: int, ptr: int) -> None:
    """Write what an address is."""
    found = library.door.new_struct("npu_pointer_attributes", attributes, "attributes")
    memory = library.memory
    buffer, kind, base, size, offset = None, int(C.NPU_MEMORY_PAGEABLE), 0, 0, 0
    if is_device_pointer(ptr):
        span = memory.find_device(ptr)
        if span is not None:
            buffer, offset = span.buffer, span.offset
            kind, size = buffer.kind, buffer.size
            base = memory.pointer_to(buffer) if kind == C.NPU_MEMORY_DEVICE else buffer.host_address
    else:
        here = memory.host(ptr)
        if here is not None:
            buffer, kind, offset = here.buffer, here.kind, here.offset
            base, size = buffer.host_address, buffer.size
            if kind == C.NPU_MEMORY_MAPPED:
                mapping = next(m for m in buffer.mappings if m.offset <= offset < m.offset + m.size)
                base, size = mapping.address, mapping.size
    found.kind = kind
    if buffer is not None:
        entry = library.entry_of(buffer.context)
        found.device = entry.device.index
        found.flags = getattr(buffer, "flags", 0)
        found.base = npu_abi.ffi.cast("void *", base)
        found.size_bytes = size
        found.device_pointer = npu_abi.ffi.cast("void *", memory.pointer_to(buffer, offset))
        found.context = npu_abi.ffi.cast("npu_context_t", entry.handle)
    library.door.write(attributes, npu_abi.pack(found))


# ---- host memory ----


def npu_malloc_host(library: Library, ptr: int, size: int, flags: int) -> None:
    """Allocate pinned memory and write its host address to `ptr`."""
    library.door.probe(ptr, POINTER_BYTES, "ptr")
    buffer = library.context().context.alloc_host(size, flags)
    try:
        library.door.write_integer(ptr, buffer.host_address, POINTER_BYTES)
    except Refusal:
        buffer.release()
        raise
    library.memory.begin_at(buffer.host_address)


def npu_free_host(library: Library, ptr: int) -> None:
    """Free pinned memory by its first address."""
    context = library.context().context
    if _is_nothing(context, ptr, "ptr"):
        return
    buffer = _pinned_at(library, context, ptr, int(C.NPU_MEMORY_HOST), "NPU_ERROR_INVALID_VALUE")
    buffer.free()
    library.memory.give_up(ptr)


def npu_host_register(library: Library, ptr: int, size: int, flags: int) -> None:
    """Pin memory that the program has."""
    require(ptr, "ptr")
    if flags & ~C.NPU_REGISTER_SVA:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"flags is {flags:#x}, not of enum npu_register_flag")
    library.context().context.register(ptr, size, sva=bool(flags & C.NPU_REGISTER_SVA))
    library.memory.begin_at(ptr)


def npu_host_unregister(library: Library, ptr: int) -> None:
    """Give the program its memory back."""
    require(ptr, "ptr")
    context = library.context().context
    found = _pinned_at(library, context, ptr, int(C.NPU_MEMORY_REGISTERED), "NPU_ERROR_NOT_REGISTERED")
    registered: Registered = found  # type: ignore[assignment]
    registered.unregister()


def _pinned_at(library: Library, context: Context, address: int, kind: int, unknown: str) -> HostBuffer:
    """Return the pinned memory of a kind that begins at a host address. Raises `unknown` elsewhere, WRONG_CONTEXT."""
    found = library.memory.pinned(address, unknown)
    if found.kind != kind or found.offset:
        raise Refusal(unknown, f"{address:#x} is not the first address of such memory")
    if found.buffer.context is not context:
        raise Refusal("NPU_ERROR_WRONG_CONTEXT", f"{address:#x} is memory of another context")
    buffer: HostBuffer = found.buffer  # type: ignore[assignment]
    return buffer


def npu_host_get_device_pointer(library: Library, device_ptr: int, host_ptr: int, flags: int) -> None:
    """Write the device pointer of an address in pinned memory."""
    library.door.probe(device_ptr, POINTER_BYTES, "device_ptr")
    require(host_ptr, "host_ptr")
    _no_flags(flags)
    try:
        found = library.memory.pinned(host_ptr, "NPU_ERROR_NOT_REGISTERED")
    except NpuError as error:  # also when it was freed
        raise Refusal("NPU_ERROR_NOT_REGISTERED", error.message) from None
    pointer = library.memory.pointer_to(found.buffer, found.offset)
    library.door.write_integer(device_ptr, pointer, POINTER_BYTES)


# ---- mappings ----


def npu_map(library: Library, host_ptr: int, ptr: int, size: int, direction: int) -> None:
    """Let the host look at device memory and write where."""
    library.door.probe(host_ptr, POINTER_BYTES, "host_ptr")
    require(ptr, "ptr")
    span = library.memory.device(library.context().context, ptr)
    mapping = span.buffer.map(direction, span.offset, size)
    try:
        library.door.write_integer(host_ptr, mapping.address, POINTER_BYTES)
    except Refusal:
        mapping.buffer.mappings.remove(mapping)
        raise
    library.memory.begin_at(mapping.address)


def npu_unmap(library: Library, host_ptr: int) -> None:
    """End a mapping by its host address."""
    require(host_ptr, "host_ptr")
    mapping = _mapping_at(library, host_ptr)
    if mapping is None:
        if library.memory.was_given_up(host_ptr):
            raise Refusal("NPU_ERROR_STALE_HANDLE", f"the mapping at {host_ptr:#x} has ended")
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"{host_ptr:#x} is not the address of a mapping")
    mapping.unmap()
    library.memory.give_up(host_ptr)


def _mapping_at(library: Library, address: int) -> Mapping | None:
    """Return the newest mapping that begins at a host address. Raises STALE_HANDLE where the allocation was freed."""
    found = library.memory.host(address)
    if found is None or found.kind != C.NPU_MEMORY_MAPPED:
        return None
    return next((m for m in reversed(found.buffer.mappings) if m.offset == found.offset), None)


def npu_flush(library: Library, host_ptr: int, offset: int, size: int) -> None:
    """Write the host's cache lines of a range back."""
    _shared_at(library, host_ptr).flush(offset, size)


def npu_invalidate(library: Library, host_ptr: int, offset: int, size: int) -> None:
    """Drop the host's cache lines of a range."""
    _shared_at(library, host_ptr).invalidate(offset, size)


def npu_annotate_host_read(library: Library, ptr: int, size: int) -> None:
    """Tell who watches that the host reads memory."""
    memory, offset = _shared_around(library, ptr)
    memory.annotate_read(offset, size)


def npu_annotate_host_write(library: Library, ptr: int, size: int) -> None:
    """Tell who watches that the host writes memory."""
    memory, offset = _shared_around(library, ptr)
    memory.annotate_write(offset, size)


def _shared_around(library: Library, address: int) -> tuple[HostBuffer | Mapping, int]:
    """Return the pinned memory or mapping around a host address, and the offset in it. Raises NULL_POINTER, NOT_REGISTERED."""
    require(address, "ptr")
    try:
        found = library.memory.host(address)
    except NpuError as error:  # it was freed
        raise Refusal("NPU_ERROR_NOT_REGISTERED", error.message) from None
    if found is None:
        raise Refusal("NPU_ERROR_NOT_REGISTERED", f"{address:#x} is neither pinned memory nor mapped")
    if found.kind != C.NPU_MEMORY_MAPPED:
        buffer: HostBuffer = found.buffer  # type: ignore[assignment]
        return buffer, found.offset
    around = [m for m in found.buffer.mappings if m.offset <= found.offset < m.offset + m.size]
    largest = max(around, key=lambda mapping: mapping.offset + mapping.size)
    return largest, found.offset - largest.offset


def _shared_at(library: Library, address: int) -> HostBuffer | Mapping:
    """Return the pinned memory or mapping that begins at a host address. Raises NULL_POINTER, NOT_REGISTERED."""
    require(address, "host_ptr")
    try:
        found = library.memory.host(address)
    except NpuError as error:  # it was freed
        raise Refusal("NPU_ERROR_NOT_REGISTERED", error.message) from None
    if found is not None and found.kind == C.NPU_MEMORY_MAPPED:
        mapping = _mapping_at(library, address)
        if mapping is not None:
            return mapping
    elif found is not None and not found.offset:
        buffer: HostBuffer = found.buffer  # type: ignore[assignment]
        return buffer
    raise Refusal("NPU_ERROR_NOT_REGISTERED", f"no pinned memory and no mapping begins at {address:#x}")


def _no_flags(flags: int) -> None:
    if flags:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"flags is {flags:#x}, and none is defined")
