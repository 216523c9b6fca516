"""Device memory: buffer objects as the runtime uses them, and `Buffer`, which programs hold."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.guard import public
from libnpu.syscalls import Node, Request

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from libnpu.runtime.context import Context


class BufferObject:
    """One object of the driver. `view` is its memory, None when it was made without NPU_BO_MAPPABLE."""

    __slots__ = ("_node", "handle", "size", "va", "view")

    def __init__(self, node: Node, size: int, flags: int) -> None:
        request = Request(C.NPU_IOCTL_BO_CREATE, "npu_bo_create", f"BO_CREATE of {size} bytes")
        request.arg.size, request.arg.flags = size, flags
        node.ioctl(request)
        self._node = node
        self.handle: int = request.arg.handle
        self.va: int = request.arg.npu_va
        self.size: int = request.arg.size
        self.view: memoryview | None = None
        if flags & C.NPU_BO_MAPPABLE:
            info = Request(C.NPU_IOCTL_BO_INFO, "npu_bo_info", "BO_INFO")
            info.arg.handle = self.handle
            node.ioctl(info)
            self.view = node.mmap(info.arg.mmap_offset, self.size)

    def free(self) -> None:
        """Give the object back; a job in flight keeps its memory. Twice is allowed."""
        if self.handle:
            request = Request(C.NPU_IOCTL_BO_FREE, "npu_bo_free", "BO_FREE")
            request.arg.handle = self.handle
            self.view = None
            self.handle = 0
            if self._node.is_usable:  # else the memory went with the device
                self._node.ioctl(request)


@dataclass(frozen=True, slots=True)
class DeviceSpan:
    """Part of a buffer, `size` bytes from `offset`, as a launch argument."""

    buffer: Buffer
    offset: int
    size: int

    @property
    def device_address(self) -> int:
        """Device virtual address of the first byte."""
        return self.buffer.device_address + self.offset


class Buffer:
    """`size` bytes of device memory, poison until written.

    Copies are complete on return and cost host time; they wait for no stream.
    """

    __slots__ = ("_bo", "_copy_ps", "_node", "_values", "context", "device_address", "guard", "offset", "size")

    def __init__(self, context: Context, size: int) -> None:
        size = index(size)
        if size <= 0:
            raise NpuError(C.NPU_ERROR_INVALID_SIZE, f"a buffer of {size} bytes")
        node = context.node
        if size >= 1 << 64:  # the driver cannot even be asked
            raise NpuError(C.NPU_ERROR_OUT_OF_DEVICE_MEMORY, f"{size} bytes asked")
        self.context = context
        self.guard = context.guard
        self._node = node
        self._bo = BufferObject(node, size, C.NPU_BO_MAPPABLE | C.NPU_BO_DMA_MEM)
        self._values = context.compute
        self._copy_ps = 1000 / node.profile.host.copy_bytes_per_ns
        self.size = size
        self.offset = 0  # as a DeviceSpan of the whole
        self.device_address: int = self._bo.va

    @property
    def handle(self) -> int:
        """The driver's handle. Raises STALE_HANDLE after `free`."""
        if not self._bo.handle:
            raise NpuError(C.NPU_ERROR_STALE_HANDLE, f"the buffer at {self.device_address:#x} was freed")
        return self._bo.handle

    @property
    def buffer(self) -> Buffer:
        """This buffer, as a DeviceSpan has it."""
        return self

    def at(self, offset: int, size: int | None = None) -> DeviceSpan:
        """Return the part of `size` bytes (default: the rest) from `offset`."""
        offset = index(offset)
        length = self.size - offset if size is None else index(size)
        self._check(offset, length)
        return DeviceSpan(self, offset, length)

    @public
    def write(self, data: ArrayLike | bytes | memoryview, offset: int = 0) -> None:
        """Copy an array (or bytes) to `offset`. Raises OUT_OF_RANGE when it does not fit."""
        source = _bytes_of(data)
        view = self._view(offset, source.nbytes)
        if self._values:
            view[:] = source.data
        self._node.advance(round(source.nbytes * self._copy_ps))

    @public
    def read(
        self, dtype: DTypeLike = np.uint8, shape: int | tuple[int, ...] | None = None, offset: int = 0
    ) -> NDArray[Any]:
        """Return a copy as an array of `dtype` and `shape` (default: 1-d, the rest of the buffer).

        Raises OUT_OF_RANGE when the buffer does not hold it, INVALID_VALUE for a type without a size or with objects.
        """
        kind = np.dtype(dtype)
        if not kind.itemsize or kind.hasobject:
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"memory cannot be read as {kind}: no bytes have that type")
        lengths = ((self.size - offset) // kind.itemsize,) if shape is None else _lengths(shape)
        if min(lengths, default=0) < 0:
            raise NpuError(C.NPU_ERROR_OUT_OF_RANGE, f"shape {lengths} at {offset} of a buffer of {self.size} bytes")
        return self._copy_out(offset, prod(lengths) * kind.itemsize).view(kind).reshape(lengths)

    @public
    def read_bytes(self, offset: int, size: int) -> bytes:
        """Return a copy of `size` bytes at `offset`. Raises BAD_STATE on a device that computes no values."""
        return self._copy_out(offset, size).tobytes()

    def _copy_out(self, offset: int, size: int) -> NDArray[np.uint8]:
        view = self._view(offset, size)
        if not self._values:
            raise NpuError(
                C.NPU_ERROR_BAD_STATE, "the device was opened with compute=False: its memory holds no values"
            )
        data = np.empty(size, np.uint8)
        self._node.catch_up()
        data[:] = view
        self._node.advance(round(size * self._copy_ps))
        return data

    @public
    def free(self) -> None:
        """Give the memory back; jobs in flight keep it until they end. Twice is allowed."""
        if self._bo.handle:
            self.context.forget_buffer(self)
            self._bo.free()

    def _view(self, offset: int, size: int) -> memoryview:
        self._check(offset, size)
        view = self._bo.view
        assert view is not None
        return view[offset : offset + size]

    def _check(self, offset: int, size: int) -> None:
        if not self._bo.handle:
            raise NpuError(C.NPU_ERROR_STALE_HANDLE, f"the buffer at {self.device_address:#x} was freed")
        if offset < 0 or size < 0 or offset + size > self.size:
            raise NpuError(C.NPU_ERROR_OUT_OF_RANGE, f"{size} bytes at {offset} of a buffer of {self.size} bytes")


def _lengths(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(index, shape)) if isinstance(shape, tuple | list) else (index(shape),)


def _bytes_of(data: ArrayLike | bytes | memoryview) -> NDArray[np.uint8]:
    if isinstance(data, bytes | bytearray):
        return np.frombuffer(data, np.uint8)
    try:
        array = np.ascontiguousarray(data)
    except ValueError as error:  # ragged
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"no array: {error}") from None
    if array.dtype.hasobject:
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"{array.dtype} has Python objects, which have no bytes")
    return array.reshape(-1).view(np.uint8)
