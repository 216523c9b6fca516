"""Handlers: buffer objects."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from npu_abi import C

from npu_driver.bo import check_flags
from npu_driver.error import KernelError

if TYPE_CHECKING:
    from npu_driver.file import Context
    from npu_driver.kernel import Kernel

CACHE_LINE_BYTES = 64  # of the host's CPU


def bo_create(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Make an object. EINVAL for size 0 or flags, ENOSPC without addresses, ENOMEM without
    device memory, ENOBUFS without host memory behind it.
    """
    if not arg.size:
        raise KernelError(errno.EINVAL, "a buffer object of 0 bytes")
    if why := check_flags(arg.flags):
        raise KernelError(errno.EINVAL, why)
    if arg.flags & C.NPU_BO_NON_SNOOPED:
        raise KernelError(errno.EOPNOTSUPP, "NPU_BO_NON_SNOOPED is not implemented")
    if arg.handle or arg.npu_va:
        raise KernelError(errno.EINVAL, "handle and npu_va are outputs and must be zero")
    context.check_usable()
    bo = context.create_object(arg.size, arg.flags)
    arg.size, arg.handle, arg.npu_va = bo.size, bo.handle, bo.va
    return 0, []


def bo_info(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Describe an object. ENOENT for an unknown handle."""
    bo = context.object(arg.handle)
    arg.flags, arg.npu_va, arg.mmap_offset, arg.size = bo.flags, bo.va, bo.mmap_offset, bo.size
    return 0, []


def bo_sync(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Clean the CPU's caches over a range, line by line: time alone, for the device snoops them. A write-combined object has
    no line there. ENOENT, EINVAL.
    """
    bo = context.object(arg.handle)
    if arg.direction > C.NPU_SYNC_BIDIRECTIONAL or arg.flags:
        raise KernelError(errno.EINVAL, f"sync direction {arg.direction}, flags {arg.flags:#x}")
    if arg.offset >= bo.size or arg.size > bo.size - arg.offset:
        raise KernelError(errno.EINVAL, f"sync of {arg.size} bytes at {arg.offset} in an object of {bo.size} bytes")
    if not bo.flags & C.NPU_BO_WC:
        lines = -(-(arg.offset % CACHE_LINE_BYTES + arg.size) // CACHE_LINE_BYTES)
        kernel.now_ps += round(lines * kernel.profile.host.sync_line_ns * 1000)
    return 0, []


def bo_free(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Give a handle back; jobs in flight keep the memory. ENOENT."""
    context.free_object(context.object(arg.handle))
    return 0, []
