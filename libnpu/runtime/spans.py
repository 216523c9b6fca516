"""Parts of device memory: what a buffer and its parts can both do, and `DeviceSpan`, a part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C

from libnpu.errors import Asked, NpuError
from libnpu.runtime.arguments import dtype_of, truth, whole, wrong
from libnpu.runtime.guard import public, told

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from libnpu.runtime.buffer import Buffer
    from libnpu.runtime.guard import Guard

DLPACK_CPU, DLPACK_EXTENSION = 1, 12  # DLDeviceType of dlpack.h


class Memory(ABC):
    """`size` bytes at `offset` of `buffer`: what a buffer and its parts have in common.

    `write` and `read` are quick looks by the host: they cost its time, are complete on return and wait for no stream.
    `Context.copy`, and `numpy.asarray(buffer)`, are behind what was enqueued.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def buffer(self) -> Buffer:
        """The buffer that it is part of."""

    @property
    def guard(self) -> Guard:
        """The lock of the device."""
        return self.buffer.context.guard

    offset: int
    size: int

    @told
    def at(self, offset: int, size: int | None = None) -> DeviceSpan:
        """Return the part of `size` bytes (default: the rest) from `offset`. Raises OUT_OF_RANGE."""
        offset = whole(offset, "offset")
        length = self.size - offset if size is None else whole(size, "size")
        self._check(offset, length)
        return DeviceSpan(self.buffer, self.offset + offset, length)

    def __getitem__(self, part: slice) -> DeviceSpan:
        """Return bytes start to stop, as a slice of a sequence does; steps other than 1 are refused (INVALID_VALUE)."""
        if not isinstance(part, slice):
            raise TypeError(f"memory is taken in slices, not by {type(part).__name__}")
        try:
            start, stop, step = part.indices(self.size)
        except TypeError:
            raise TypeError(
                f"the ends of a slice of memory must be integers, not {part.start!r}, {part.stop!r}"
            ) from None
        if step != 1:
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"step {step} of a slice of memory; 1 is allowed")
        return self.at(start, max(0, stop - start))

    def __len__(self) -> int:
        return self.size

    @public
    def write(self, data: ArrayLike | bytes | memoryview, offset: int = 0) -> None:
        """Copy an array (or bytes) to `offset`, without waiting for work. Raises OUT_OF_RANGE when it does not fit."""
        offset, source = whole(offset, "offset"), bytes_of(data)
        self._check(offset, source.nbytes)
        self.buffer.store(self.offset + offset, source)

    @public
    def read(
        self, dtype: DTypeLike = np.uint8, shape: int | tuple[int, ...] | None = None, offset: int = 0
    ) -> NDArray[Any]:
        """Return a copy as an array of `dtype` and `shape` (default: 1-d, the rest), without waiting for work.

        Raises OUT_OF_RANGE when the memory does not hold it, INVALID_VALUE for a type without a size or with objects,
        DEVICE_LOST when a fault has ended the context.
        """
        offset, kind = whole(offset, "offset"), dtype_of(dtype, "dtype")
        if not kind.itemsize or kind.hasobject:
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"memory cannot be read as {kind}: no bytes have that type")
        lengths = ((self.size - offset) // kind.itemsize,) if shape is None else _lengths(shape)
        if min(lengths, default=0) < 0:
            message = f"shape {lengths} at {offset} of a buffer of {self.size} bytes"
            raise NpuError(C.NPU_ERROR_OUT_OF_RANGE, message, asked=self.asked(offset, offset))
        return self._load(offset, prod(lengths) * kind.itemsize).view(kind).reshape(lengths)

    @public
    def read_bytes(self, offset: int, size: int) -> bytes:
        """Return a copy of `size` bytes at `offset`. Raises BAD_STATE on a device that computes no values."""
        return self._load(whole(offset, "offset"), whole(size, "size")).tobytes()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the bytes as uint8 or converted to `dtype`: a copy behind all work of the default stream; of pinned
        memory the memory itself, as it is now.
        """
        kind = None if dtype is None else dtype_of(dtype, "dtype")
        copy = None if copy is None else truth(copy, "copy")
        array = self._in_place()
        if array is None or copy:
            if copy is False:
                raise ValueError("device memory cannot be an array without a copy")
            array = np.empty(self.size, np.uint8)
            self.buffer.context.copy(array, self)
        return array if kind is None else array.astype(kind, copy=False)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return (kDLCPU, 0) for pinned memory, (kDLExtDev, 0) for memory that other libraries cannot use in place."""
        return (DLPACK_EXTENSION if self._in_place() is None else DLPACK_CPU), 0

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Return a capsule of the memory itself when it is pinned; otherwise of a copy in host memory, for
        `dl_device=(kDLCPU, 0)`, and BufferError for anything else.
        """
        array, copy = self._in_place(), None if copy is None else truth(copy, "copy")
        version, place = _pair(max_version, "max_version"), _pair(dl_device, "dl_device")
        if array is not None:
            return array.__dlpack__(stream=None, max_version=version, dl_device=place, copy=copy)
        if place != (DLPACK_CPU, 0) or copy is False:
            raise BufferError("device memory is exported as a copy in host memory only: dl_device=(1, 0), copy=True")
        return self.__array__().__dlpack__()

    def _in_place(self) -> NDArray[np.uint8] | None:
        """Return the memory itself when the host may use it in place."""
        whole = self.buffer.host_array
        return None if whole is None else whole[self.offset : self.offset + self.size]

    def _load(self, offset: int, size: int) -> NDArray[np.uint8]:
        self._check(offset, size)
        if self.buffer.context.has_failed:
            self.buffer.context.check()
        return self.buffer.load(self.offset + offset, size)

    def _check(self, offset: int, size: int) -> None:
        _ = self.buffer.handle
        if offset < 0 or size < 0 or offset + size > self.size:
            message = f"{size} bytes at {offset} of a buffer of {self.size} bytes"
            raise NpuError(C.NPU_ERROR_OUT_OF_RANGE, message, asked=self.asked(offset, offset + size))

    def asked(self, start: int, end: int) -> Asked:
        """Return what an error says of bytes [start, end) that it does not have."""
        return Asked(start, end, self.size, self.buffer, self.offset)


class DeviceSpan(Memory):
    """Part of a buffer, which can stand wherever a buffer can."""

    __slots__ = ("_buffer", "offset", "size")

    def __init__(self, buffer: Buffer, offset: int, size: int) -> None:
        self._buffer = buffer
        self.offset = offset
        self.size = size

    @property
    def buffer(self) -> Buffer:
        """The buffer that it is part of."""
        return self._buffer

    @property
    def device_address(self) -> int:
        """Device virtual address of the first byte."""
        return self._buffer.device_address + self.offset

    def __repr__(self) -> str:
        return f"<{self.size} bytes at {self.offset} of {self._buffer!r}>"


def _pair(value: tuple[int, int] | None, name: str) -> tuple[int, int] | None:
    """Return a pair of integers, None for None."""
    if value is None:
        return None
    if not isinstance(value, tuple) or len(value) != 2:
        raise wrong(value, name, "a pair of integers")
    return whole(value[0], name), whole(value[1], name)


def _lengths(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    return tuple(whole(length, "shape") for length in (shape if isinstance(shape, tuple | list) else (shape,)))


def bytes_of(data: ArrayLike | bytes | memoryview) -> NDArray[np.uint8]:
    """Return an array (or bytes) as bytes. Raises INVALID_VALUE for what is none, or has Python objects."""
    if isinstance(data, bytes | bytearray):
        return np.frombuffer(data, np.uint8)
    try:
        array = np.ascontiguousarray(data)
    except ValueError as error:  # ragged
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"no array: {error}") from None
    if array.dtype.hasobject:
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"{array.dtype} has Python objects, which have no bytes")
    return array.reshape(-1).view(np.uint8)
