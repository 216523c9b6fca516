"""Handlers: buffer objects."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C

from npu_driver.bo import allows_uncached, check_flags, check_policy, flags_in_force, is_snooped
from npu_driver.cpu_cache import LINE_BYTES, policy_of
from npu_driver.error import KernelError
from npu_driver.mappings import track

if TYPE_CHECKING:
    from collections import deque

    from npu_driver.bo import BufferObject
    from npu_driver.file import Context
    from npu_driver.kernel import Kernel

PAGE = int(C.NPU_PAGE_SIZE)
USERPTR_FLAGS = int(C.NPU_BO_READ_ONLY | C.NPU_BO_SVA)
POLICY_BITS = int(C.NPU_BO_CACHE_MASK | C.NPU_BO_NON_SNOOPED)
MAX_MAPPINGS = int(C.NPU_MAX_MAPPINGS)
VA_END = 1 << int(C.NPU_VA_BITS)


def bo_create(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Make an object. EINVAL for size 0 or flags, ENOSPC without addresses, ENOMEM without
    device memory, ENOBUFS without host memory behind it.
    """
    if not arg.size:
        raise KernelError(errno.EINVAL, "a buffer object of 0 bytes")
    if why := check_flags(arg.flags, allow_uncached=allows_uncached(kernel.params)):
        raise KernelError(errno.EINVAL, why)
    if arg.handle or arg.npu_va:
        raise KernelError(errno.EINVAL, "handle and npu_va are outputs and must be zero")
    context.check_usable()
    bo = context.create_object(arg.size, flags_in_force(arg.flags, kernel.params))
    arg.size, arg.handle, arg.npu_va = bo.size, bo.handle, bo.va
    return 0, []


def userptr_bytes(arg: Any) -> int:
    """Return how many bytes of the caller BO_CREATE_FROM_USERPTR reads: none when it will be refused."""
    return int(arg.size) if _userptr_error(arg) is None else 0


def _userptr_error(arg: Any) -> str | None:
    if not arg.ptr or not arg.size or arg.ptr % PAGE or arg.size % PAGE:
        return f"user memory of {arg.size} bytes at {arg.ptr:#x}: whole pages are needed"
    if arg.size > C.NPU_MAX_USERPTR_BYTES or arg.ptr + arg.size > VA_END:
        return f"user memory of {arg.size} bytes at {arg.ptr:#x}; NPU_MAX_USERPTR_BYTES is {C.NPU_MAX_USERPTR_BYTES}"
    if arg.flags & ~USERPTR_FLAGS:
        return f"flags {arg.flags:#x}; NPU_BO_READ_ONLY and NPU_BO_SVA are allowed"
    if arg.handle or arg.npu_va:
        return "handle and npu_va are outputs and must be zero"
    return None


def bo_create_from_userptr(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Make an object with the content of user memory; its own memory is to take the place of that. EINVAL, EBUSY,
    EOPNOTSUPP as `map_object`, and as `bo_create`.
    """
    if why := _userptr_error(arg):
        raise KernelError(errno.EINVAL, why)
    context.check_usable()
    bo = context.create_object(arg.size, flags_in_force(arg.flags, kernel.params), arg.ptr)
    try:
        kernel.memory.view(bo.pa, bo.size)[:] = segments[0]
        memory = _map(kernel, context, bo, bo.flags, bo.size)
    except KernelError:
        context.free_object(bo)
        raise
    arg.handle, arg.npu_va = bo.handle, bo.va
    return 0, [memory]


def map_object(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Return the object's memory (mmap), as the CPU sees it by the mapping's policy, as the reply's only segment.

    EINVAL for an offset that is not an object's, a length beyond it, or a policy; EOPNOTSUPP for a cached one that the firmware is too old
    for; ENOMEM, ENOBUFS without room for a shadow; EOWNERDEAD for one of imported memory whose owner is gone; ENOMEM for one mapping more
    than a process may have.
    """
    bo = context.mmaps.get(arg.offset)
    if bo is None:
        raise KernelError(errno.EINVAL, f"no mappable buffer object at mmap offset {arg.offset:#x}")
    if not 0 < arg.length <= bo.size:
        raise KernelError(errno.EINVAL, f"{arg.length} bytes of a buffer object of {bo.size} bytes")
    flags = bo.flags
    if arg.flags:
        flags = arg.flags & POLICY_BITS
        if arg.flags != flags | C.NPU_MMAP_POLICY:
            raise KernelError(errno.EINVAL, f"mapping flags {arg.flags:#x}")
        allow_uncached = allows_uncached(kernel.params) or bool(bo.flags & C.NPU_BO_UNCACHED)
        if why := check_policy(flags, allow_uncached=allow_uncached):
            raise KernelError(errno.EINVAL, why)
    return 0, [_map(kernel, context, bo, flags, arg.length)]


def _map(kernel: Kernel, context: Context, bo: BufferObject, flags: int, length: int) -> memoryview:
    params, firmware = kernel.params, kernel.firmware
    if params.coherent and is_snooped(flags):
        firmware.check_snooped()
    policy = policy_of(flags, coherent=bool(params.coherent and firmware.coherent_dma))
    process = context.owner
    mapped = kernel.mapped.setdefault(process.pid, {})
    if len(mapped) >= MAX_MAPPINGS:
        raise KernelError(errno.ENOMEM, f"process {process.pid} has NPU_MAX_MAPPINGS {MAX_MAPPINGS} mappings")
    books = [bo.mappings, mapped]
    notes: list[tuple[deque[Any], Any]] = [(kernel.unmapped, bo)]
    home = bo.home
    heap = home.heap_of(bo.flags) if kernel.contexts.get(home.ssid) is home else None
    shadow = kernel.caches.shadow(bo.pa, policy, heap, process)
    if shadow is not None:
        books.append(shadow.mappings[process])
        notes.append((kernel.caches.ended, (shadow, process)))
    memory = np.frombuffer(kernel.memory.view(bo.pa if shadow is None else shadow.view_pa, length), np.uint8)
    track(memory, books, notes)
    return memoryview(memory)  # type: ignore[arg-type]  # an array is a buffer


def bo_info(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Describe an object. ENOENT for an unknown handle."""
    bo = context.object(arg.handle)
    arg.flags, arg.npu_va, arg.mmap_offset, arg.size = bo.flags, bo.va, bo.mmap_offset, bo.size
    return 0, []


def bo_sync(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Maintain the CPU's caches over a range, line by line: time alone where the device snoops them. A write-combined object
    has no line there, only buffers to drain. ENOENT, EINVAL.
    """
    bo = context.object(arg.handle)
    if arg.direction > C.NPU_SYNC_BIDIRECTIONAL or arg.flags:
        raise KernelError(errno.EINVAL, f"sync direction {arg.direction}, flags {arg.flags:#x}")
    if arg.offset >= bo.size or arg.size > bo.size - arg.offset:
        raise KernelError(errno.EINVAL, f"sync of {arg.size} bytes at {arg.offset} in an object of {bo.size} bytes")
    if kernel.caches.active:
        kernel.caches.sync(bo.pa, arg.direction, arg.offset, arg.size)
    if not bo.flags & C.NPU_BO_WC:
        lines = -(-(arg.offset % LINE_BYTES + arg.size) // LINE_BYTES)
        kernel.now_ps += round(lines * kernel.profile.host.sync_line_ns * 1000)
    return 0, []


def bo_free(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Give a handle back; jobs in flight keep the memory. ENOENT."""
    context.free_object(context.object(arg.handle))
    return 0, []
