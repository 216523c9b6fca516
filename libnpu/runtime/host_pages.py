"""Pages of this process: which of them are ordinary private memory, and how device memory takes their place.

Device memory is shared mappings of the machine's DRAM. mremap with an old size of 0 maps such pages once more, and
MREMAP_FIXED puts them where the program's were, in one step; the way back moves private pages there.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C

from libnpu.errors import NpuError

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE_BYTES = int(C.NPU_PAGE_SIZE)
MAY_MOVE, FIXED = 1, 2  # MREMAP_* of Linux
PRIVATE_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
DRAM_NAME = "/memfd:npu-dram"  # as the machine names its memory
FAILED = ctypes.c_void_p(-1).value
ATTRIBUTE_BYTES = 64  # at least a pthread_attr_t of glibc on 64-bit machines, 56 bytes on x86-64

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = _LIBC.mremap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
_LIBC.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.pthread_self.restype = ctypes.c_void_p
_LIBC.pthread_getattr_np.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
_LIBC.pthread_attr_getstack.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
_LIBC.pthread_attr_destroy.argtypes = [ctypes.c_void_p]


@dataclass(frozen=True, slots=True)
class Area:
    """A mapping of the process, as /proc/self/maps has it: `mode` is such as "rw-p", `inode` 0 without a file."""

    low: int
    high: int
    mode: str
    inode: int
    name: str

    @property
    def is_device_memory(self) -> bool:
        """Whether its pages are a device's."""
        return self.name.startswith(DRAM_NAME)


def areas(address: int, size: int) -> Iterator[Area]:
    """Yield what is mapped in a range, in order, cut to it."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            span, mode, _, _, inode, *name = line.split(maxsplit=5)
            low, high = (int(text, 16) for text in span.split("-"))
            low, high = max(low, address), min(high, address + size)
            if low < high:
                yield Area(low, high, mode, int(inode), name[0].strip() if name else "")


def check_pinnable(address: int, size: int) -> None:
    """Raise unless all pages of the range are private, readable and writable; of a file they are copies on write, as
    initialised data of a program.

    ALREADY_REGISTERED for memory of a device, BAD_ADDRESS for everything else, the calling thread's stack included.
    """
    end, at, where = address + size, address, f"{size} bytes at {address:#x}"
    for area in areas(address, size):
        if area.is_device_memory:
            raise NpuError(C.NPU_ERROR_ALREADY_REGISTERED, f"{where}: {area.low:#x} is pinned memory")
        if area.low > at:
            break
        if area.mode[:2] != "rw" or area.mode[3] != "p":
            what = f"{area.name or 'memory'} with access {area.mode}"
            why = f"{area.low:#x} is {what}; private read-write memory is needed"
            raise NpuError(C.NPU_ERROR_BAD_ADDRESS, f"{where}: {why}")
        if area.inode and not _is_readable(area):
            raise NpuError(C.NPU_ERROR_BAD_ADDRESS, f"{where}: {area.name or 'the file'} ends before {area.high:#x}")
        at = area.high
    if at < end:
        raise NpuError(C.NPU_ERROR_BAD_ADDRESS, f"{where}: {at:#x} is not mapped")
    low, high = _stack()
    if address < high and low < end:
        why = f"{max(low, address):#x} is the stack of the calling thread, which is in use"
        raise NpuError(C.NPU_ERROR_BAD_ADDRESS, f"{where}: {why}")


def _is_readable(area: Area) -> bool:
    """Whether all pages are there: behind the end of a file that became shorter are none."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        try:
            for page in range(area.low, area.high, PAGE_BYTES):
                os.pread(memory.fileno(), 1, page)
        except OSError:
            return False
    return True


def bytes_at(address: int, size: int) -> memoryview:
    """Return the writable memory at a host address; nothing keeps it alive."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def address_of(view: memoryview) -> int:
    """Return the host address of a writable view."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class _Alias:
    """What keeps a mapping: the base of its array."""

    def __init__(self, address: int, size: int) -> None:
        self._address, self._size = address, size
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (address, False)}

    def __del__(self) -> None:
        _LIBC.munmap(self._address, self._size)


def alias(view: memoryview) -> memoryview:
    """Return shared pages at addresses of their own, too, until the last view of them goes. Raises OUT_OF_HOST_MEMORY."""
    size = -(-len(view) // PAGE_BYTES) * PAGE_BYTES
    address = _LIBC.mremap(address_of(view), 0, size, MAY_MOVE, None)
    if address == FAILED:
        raise _no_memory(size)
    return memoryview(np.asarray(_Alias(address, size)))[: len(view)]  # type: ignore[arg-type]  # an array is a buffer


def show_at(source: int, target: int, size: int) -> None:
    """Show the shared pages at `source` at `target` too, in place of what is there. Raises OUT_OF_HOST_MEMORY."""
    _remap(source, 0, target, size)


def make_private(address: int, content: memoryview) -> None:
    """Put private pages with `content` in place of a device's pages at `address`. What the program has unmapped since
    stays as it is. Raises OUT_OF_HOST_MEMORY.
    """
    for area in list(areas(address, len(content))):
        if area.is_device_memory:
            _make_private(area.low, content[area.low - address : area.high - address])


def _make_private(address: int, content: memoryview) -> None:
    size = len(content)
    fresh = _LIBC.mmap(None, size, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0)
    if fresh == FAILED:
        raise _no_memory(size)
    bytes_at(fresh, size)[:] = content
    try:
        _remap(fresh, size, address, size)
    except NpuError:
        _LIBC.munmap(fresh, size)
        raise


def _remap(source: int, old_size: int, target: int, size: int) -> None:
    if _LIBC.mremap(source, old_size, size, MAY_MOVE | FIXED, target) == FAILED:
        raise _no_memory(size)


def _no_memory(size: int) -> NpuError:
    code = ctypes.get_errno()
    return NpuError(C.NPU_ERROR_OUT_OF_HOST_MEMORY, f"mapping of {size} bytes: {os.strerror(code)}", errno=code)


def _stack() -> tuple[int, int]:
    """Return the address range of the calling thread's stack."""
    attributes: Any = ctypes.create_string_buffer(ATTRIBUTE_BYTES)
    low, size = ctypes.c_void_p(), ctypes.c_size_t()
    if _LIBC.pthread_getattr_np(_LIBC.pthread_self(), attributes):
        return 0, 0
    _LIBC.pthread_attr_getstack(attributes, ctypes.byref(low), ctypes.byref(size))
    _LIBC.pthread_attr_destroy(attributes)
    return low.value or 0, (low.value or 0) + size.value
