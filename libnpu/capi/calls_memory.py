"""npu.h: device memory and copies. Arguments are as C passed them, pointers as integers."""

from __future__ import annotations

from npu_abi import C

from libnpu.capi.allocations import Allocation, pointer_of
from libnpu.capi.door import require
from libnpu.capi.library import Library
from libnpu.capi.refusal import Refusal


def npu_malloc(library: Library, ptr: int, size: int, flags: int) -> None:
    """Allocate device memory and write its address to `ptr`."""
    require(ptr, "ptr")
    if size == 0:
        raise Refusal("NPU_ERROR_INVALID_SIZE", "size is 0")
    if flags:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"flags is {flags:#x}, and none is defined")
    entry = library.device()
    buffer = entry.device.alloc(size)
    pointer = pointer_of(entry.index, buffer.device_address)
    try:
        library.door.write_integer(ptr, pointer, 8)
    except Refusal:
        buffer.free()
        raise
    library.allocations.add(Allocation(pointer, size, buffer))


def npu_free(library: Library, ptr: int) -> None:
    """Free device memory by its first address."""
    if ptr:
        library.allocations.take(library.device().index, ptr).buffer.free()


def npu_mem_get_info(library: Library, free_bytes: int, total_bytes: int) -> None:
    """Write free and total bytes of the current device's memory."""
    library.door.probe(free_bytes, 8, "free_bytes")
    library.door.probe(total_bytes, 8, "total_bytes")
    free, total = library.device().device.memory_info()
    library.door.write_integer(free_bytes, free, 8)
    library.door.write_integer(total_bytes, total, 8)


def npu_memcpy(library: Library, dst: int, dst_max: int, src: int, size: int, kind: int) -> None:
    """Copy on the default stream."""
    npu_memcpy_async(library, dst, dst_max, src, size, kind, 0)


def npu_memcpy_async(library: Library, dst: int, dst_max: int, src: int, size: int, kind: int, stream: int) -> None:
    """Copy in stream order; complete on return, since host memory is pageable."""
    if kind not in (C.NPU_MEMCPY_HOST_TO_DEVICE, C.NPU_MEMCPY_DEVICE_TO_HOST, C.NPU_MEMCPY_DEVICE_TO_DEVICE):
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"kind {kind} is none of enum npu_memcpy_kind")
    require(dst, "dst")
    require(src, "src")
    _check_bound(size, dst_max)
    entry = library.stream(stream)
    index = entry.device.index
    target = None if kind == C.NPU_MEMCPY_DEVICE_TO_HOST else library.allocations.range(index, dst, size)
    source = None if kind == C.NPU_MEMCPY_HOST_TO_DEVICE else library.allocations.range(index, src, size)
    if source and target and dst < src + size and src < dst + size:
        raise Refusal("NPU_ERROR_OVERLAP", f"{size} bytes at {src:#x} and at {dst:#x} overlap")
    if size == 0:
        return
    entry.wait()
    data = source[0].buffer.read_bytes(source[1], size) if source else library.door.read(src, size)
    if target:
        target[0].buffer.write(data, target[1])
    else:
        library.door.write(dst, data)


def npu_memset(library: Library, dst: int, dst_max: int, value: int, size: int) -> None:
    """Set device memory on the default stream."""
    npu_memset_async(library, dst, dst_max, value, size, 0)


def npu_memset_async(library: Library, dst: int, dst_max: int, value: int, size: int, stream: int) -> None:
    """Set device memory in stream order."""
    require(dst, "dst")
    _check_bound(size, dst_max)
    entry = library.stream(stream)
    allocation, offset = library.allocations.range(entry.device.index, dst, size)
    if size:
        entry.wait()
        allocation.buffer.write(bytes([value & 0xFF]) * size, offset)


def _check_bound(size: int, dst_max: int) -> None:
    if size > dst_max:
        raise Refusal("NPU_ERROR_OUT_OF_RANGE", f"size is {size}, above dst_max {dst_max}")
