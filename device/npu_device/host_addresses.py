"""Host addresses of the simulated memory: of ranges that the process reserves and never gives back, first fit.

The system would put each mapping where it likes, so an address that was given up, and that a program still has, would
mean new memory in one run and nothing in the next. Here it is new memory in the same cases in every run, and addresses
that mean nothing stay reserved: what uses them fails.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from bisect import bisect_right
from collections import deque

import numpy as np

RANGE_BYTES = 256 << 20  # chosen: of addresses, not of memory, are reserved at once, or what one mapping takes
GUARD_BYTES = 64 << 10  # chosen: behind each mapping, so that what runs past its end does not run into the next one
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_NONE, _FIXED, _NORESERVE = 0, 0x10, 0x4000  # PROT_NONE, MAP_FIXED, MAP_NORESERVE of Linux
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
_FAILED = ctypes.c_void_p(-1).value
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


def map_file(fd: int, size: int, offset: int = 0, *, at: int) -> None:
    """Map `size` bytes of a file, shared, at an address, in place of what is there. Raises OSError."""
    if _LIBC.mmap(at, size, _READ_WRITE, mmap.MAP_SHARED | _FIXED, fd, offset) != at:
        raise OSError(ctypes.get_errno(), f"mmap of {size} bytes of device memory")


class _Mapping:
    """What keeps a mapping: the base of its arrays."""

    def __init__(self, owner: HostAddresses, place: int, address: int, size: int) -> None:
        self._owner, self._place, self._address, self._size = owner, place, address, size
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (address, False)}

    def __del__(self) -> None:
        self._owner.give_back(self._place, self._address, self._size)


class HostAddresses:
    """The reserved ranges. `map` may be called from any thread.

    A place is a number for an address, counted through all ranges in the order in which they were reserved.
    """

    def __init__(self) -> None:
        self._places: list[int] = []  # where each range begins
        self._bases: list[int] = []  # the same as addresses
        self._end = 0  # of all places
        self._free: list[list[int]] = []  # sorted [place, size] pairs
        self._given_back: deque[list[int]] = deque()  # not in `_free` yet: a collection may come at any moment
        self._lock = threading.Lock()

    def map(self, fd: int, size: int) -> Bytes:
        """Return a file's first `size` bytes, whole pages, in place. The mapping ends with the last view. Raises OSError."""
        place = self._take(size)
        address = self._address_of(place)
        try:
            map_file(fd, size, at=address)
        except OSError:
            self._given_back.append([place, size + GUARD_BYTES])
            raise
        return np.asarray(_Mapping(self, place, address, size))

    def give_back(self, place: int, address: int, size: int) -> None:
        """End a mapping. Its addresses stay reserved."""
        _LIBC.mmap(address, size, _NONE, _RESERVED | _FIXED, -1, 0)
        self._given_back.append([place, size + GUARD_BYTES])

    def _take(self, size: int) -> int:
        """Return the first place with room."""
        need = size + GUARD_BYTES
        with self._lock:
            while self._given_back:
                self._add(self._given_back.popleft())
            index = next((index for index, (_, free) in enumerate(self._free) if free >= need), -1)
            if index < 0:
                self._reserve(max(need, RANGE_BYTES))
            place, free = self._free[index]
            self._free[index:] = [[place + need, free - need]] * (free > need) + self._free[index:][1:]
            return place

    def _reserve(self, size: int) -> None:
        """Reserve a range behind all others. Raises OSError."""
        base = _LIBC.mmap(None, size, _NONE, _RESERVED, -1, 0)
        if base == _FAILED:
            raise OSError(ctypes.get_errno(), f"mmap of {size} bytes of addresses")
        self._end += 1  # a gap: ranges are never joined, wherever they are
        self._places.append(self._end)
        self._bases.append(int(base))
        self._free.append([self._end, size])
        self._end += size

    def _address_of(self, place: int) -> int:
        index = bisect_right(self._places, place) - 1
        return self._bases[index] + place - self._places[index]

    def _add(self, piece: list[int]) -> None:
        """Add a free piece, joined with its neighbours."""
        joined = [piece]
        for place, size in self._free:
            if place + size == piece[0]:
                piece[:] = [place, size + piece[1]]
            elif place == piece[0] + piece[1]:
                piece[1] += size
            else:
                joined.append([place, size])
        self._free = sorted(joined)


HOST_ADDRESSES = HostAddresses()


def _forget_lock() -> None:
    HOST_ADDRESSES._lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)
