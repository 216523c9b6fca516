"""Device memory: buffer objects as the runtime uses them, and `Buffer`, which programs hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.arguments import whole
from libnpu.runtime.copy_operations import Free
from libnpu.runtime.guard import failures_yield_to, public
from libnpu.runtime.host_pages import address_of
from libnpu.syscalls import Node, Request

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from libnpu.runtime.guard import Guard
    from libnpu.runtime.host_memory import Mapping
    from libnpu.runtime.memory import ContextMemory
    from libnpu.runtime.stream import Stream

DLPACK_CPU, DLPACK_EXTENSION = 1, 12  # DLDeviceType of dlpack.h
LINE_BYTES = 64  # of the host's caches


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
        start, stop, step = part.indices(self.size)
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
        offset, kind = whole(offset, "offset"), np.dtype(dtype)
        if not kind.itemsize or kind.hasobject:
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"memory cannot be read as {kind}: no bytes have that type")
        lengths = ((self.size - offset) // kind.itemsize,) if shape is None else _lengths(shape)
        if min(lengths, default=0) < 0:
            raise NpuError(C.NPU_ERROR_OUT_OF_RANGE, f"shape {lengths} at {offset} of a buffer of {self.size} bytes")
        return self._load(offset, prod(lengths) * kind.itemsize).view(kind).reshape(lengths)

    @public
    def read_bytes(self, offset: int, size: int) -> bytes:
        """Return a copy of `size` bytes at `offset`. Raises BAD_STATE on a device that computes no values."""
        return self._load(whole(offset, "offset"), whole(size, "size")).tobytes()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the bytes as uint8 or converted to `dtype`: a copy behind all work of the default stream; of pinned
        memory the memory itself, as it is now.
        """
        array = self._in_place()
        if array is None or copy:
            if copy is False:
                raise ValueError("device memory cannot be an array without a copy")
            array = np.empty(self.size, np.uint8)
            self.buffer.context.copy(array, self)
        return array if dtype is None else array.astype(dtype, copy=False)

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
        array = self._in_place()
        if array is not None:
            return array.__dlpack__(stream=None, max_version=max_version, dl_device=dl_device, copy=copy)
        if dl_device is None or tuple(dl_device) != (DLPACK_CPU, 0) or copy is False:
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
            raise NpuError(C.NPU_ERROR_OUT_OF_RANGE, f"{size} bytes at {offset} of a buffer of {self.size} bytes")


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


class Buffer(Memory):
    """`size` bytes of a context's memory, poison until written; `with` frees it. Made by `Context.alloc`.

    >>> with device.alloc(8) as buffer:
    ...     buffer.write(b"abcd", 2)
    ...     bytes(buffer[2:4].read())
    b'ab'
    """

    __slots__ = (
        "__weakref__",
        "_bo",
        "_host_address",
        "_is_live",
        "_mappings",
        "context",
        "device_address",
        "flags",
        "offset",
        "size",
    )
    kind: ClassVar[int] = int(C.NPU_MEMORY_DEVICE)
    BO_FLAGS: ClassVar[int] = int(C.NPU_BO_MAPPABLE | C.NPU_BO_DMA_MEM)

    def __init__(self, context: ContextMemory, size: int, flags: int = 0) -> None:
        if size <= 0:
            raise NpuError(C.NPU_ERROR_INVALID_SIZE, f"a buffer of {size} bytes")
        if size >= 1 << 64:  # the driver cannot even be asked
            raise NpuError(C.NPU_ERROR_OUT_OF_DEVICE_MEMORY, f"{size} bytes asked")
        self.context = context
        self._bo = BufferObject(context.node, size, self.BO_FLAGS | flags)
        self._is_live = True
        self._mappings: list[Mapping] = []
        self.size = size
        self.flags = 0  # enum npu_host_flag of pinned memory
        self.offset = 0  # as a part of itself
        self.device_address: int = self._bo.va
        assert self._bo.view is not None
        self._host_address = address_of(self._bo.view)

    @property
    def handle(self) -> int:
        """The driver's handle. Raises STALE_HANDLE after `free`."""
        if not self._is_live:
            raise NpuError(C.NPU_ERROR_STALE_HANDLE, f"the memory at {self.where} was freed")
        return self._bo.handle

    @property
    def buffer(self) -> Buffer:
        """This buffer, as a part of it has it."""
        return self

    @property
    def host_array(self) -> NDArray[np.uint8] | None:
        """The memory itself when the host may use it in place, without a mapping. Raises STALE_HANDLE."""
        _ = self.handle
        return None

    @property
    def is_live(self) -> bool:
        """Whether it has not been freed."""
        return self._is_live

    @property
    def host_address(self) -> int:
        """Where the host has it; of no use after `free`."""
        return self._host_address

    @property
    def where(self) -> str:
        """Its address, for messages."""
        address = self.device_address if self.kind == C.NPU_MEMORY_DEVICE else self.host_address
        return f"{address:#x}"

    @property
    def view(self) -> memoryview:
        """Its memory as the library reaches it, without a call. Raises STALE_HANDLE."""
        _ = self.handle
        assert self._bo.view is not None
        return self._bo.view[: self.size]

    def store(self, offset: int, source: NDArray[np.uint8]) -> None:
        """Let the host copy bytes in; the range was checked."""
        context = self.context
        if self.has_values:
            self.view[offset : offset + source.nbytes] = source.data
        context.charge_copy(source.nbytes)

    def load(self, offset: int, size: int) -> NDArray[np.uint8]:
        """Let the host copy bytes out; the range was checked. Raises BAD_STATE on a device that computes no values."""
        self.check_values()
        data = np.empty(size, np.uint8)
        self.context.node.catch_up()
        data[:] = self.view[offset : offset + size]
        self.context.charge_copy(size)
        return data

    @property
    def has_values(self) -> bool:
        """Whether its bytes mean something: pinned memory's always do to the host."""
        return self.context.compute or self.kind != C.NPU_MEMORY_DEVICE

    def check_values(self) -> None:
        """Raise BAD_STATE when its bytes mean nothing."""
        if not self.has_values:
            raise NpuError(
                C.NPU_ERROR_BAD_STATE, "the device was opened with compute=False: its memory holds no values"
            )

    @public
    def map(self, direction: int = int(C.NPU_BIDIRECTIONAL), offset: int = 0, size: int | None = None) -> Mapping:
        """Let the host look at `size` bytes (default: the rest) from `offset` in place. `direction` (enum npu_direction)
        says what it will do there. The device writes the same memory, so the program synchronises first.

        Raises INVALID_SIZE, OUT_OF_RANGE, INVALID_VALUE for a direction, STALE_HANDLE.
        """
        from libnpu.runtime.host_memory import Mapping

        offset = whole(offset, "offset")
        length = self.size - offset if size is None else whole(size, "size")
        self.context.enter()
        if direction not in (C.NPU_TO_DEVICE, C.NPU_FROM_DEVICE, C.NPU_BIDIRECTIONAL):
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"direction {direction} is none of enum npu_direction")
        self._check(offset, length)
        if not length:
            raise NpuError(C.NPU_ERROR_INVALID_SIZE, "a mapping of 0 bytes")
        self.context.node.catch_up()
        mapping = Mapping(self, offset, length, direction)
        self._mappings.append(mapping)
        return mapping

    @property
    def mappings(self) -> list[Mapping]:
        """The mappings that have not ended, oldest first."""
        return self._mappings

    def synchronise(self, offset: int, size: int | None, direction: int) -> None:
        """Clean the host's caches over the lines of a range (enum npu_sync_dir). Raises OUT_OF_RANGE, INVALID_SIZE."""
        offset = whole(offset, "offset")
        length = self.size - offset if size is None else whole(size, "size")
        self._check(offset, length)
        if not length:
            raise NpuError(C.NPU_ERROR_INVALID_SIZE, f"0 bytes at {offset} to synchronise")
        self.context.enter()
        request = Request(C.NPU_IOCTL_BO_SYNC, "npu_bo_sync", "BO_SYNC")
        request.arg.handle, request.arg.direction = self.handle, direction
        request.arg.offset = offset - offset % LINE_BYTES
        end = offset + length
        request.arg.size = end + -end % LINE_BYTES - request.arg.offset
        self.context.node.ioctl(request)

    @public
    def free(self) -> None:
        """Give the memory back. Twice is allowed. Work in flight that uses it: `Semantics.free`; the memory itself goes
        when that work has ended. Raises IN_USE under `strict`.
        """
        if self._is_live:
            self.context.check_free(self)
            self.release()

    @public
    def free_async(self, stream: Stream | None = None) -> None:
        """Give the memory back when the earlier work of `stream` (None: the default stream) has ended; it is stale at
        once. Raises STALE_HANDLE when it was freed before, WRONG_CONTEXT.
        """
        _ = self.handle
        stream = self.context.stream_of(stream, "the buffer")
        job = stream.enqueue(Free(self), settle=False)
        self.release()
        stream.settle(job)

    def release(self) -> None:
        """Become stale; the driver gets the memory back as soon as every job that uses it has been handed to it."""
        if self._is_live:
            self.context.forget_buffer(self)
            self._is_live = False
            self._mappings.clear()
            self.context.free_object(self._bo)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with failures_yield_to(kind):
            self.free()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.size} bytes at {self.device_address:#x}>"


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
