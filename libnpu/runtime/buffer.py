"""`Buffer`: device memory as programs hold it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.arguments import whole
from libnpu.runtime.buffer_object import BufferObject
from libnpu.runtime.copy_operations import Free
from libnpu.runtime.guard import failures_yield_to, public
from libnpu.runtime.host_pages import address_of
from libnpu.runtime.spans import Memory
from libnpu.syscalls import Request

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray

    from libnpu.runtime.host_memory import Mapping
    from libnpu.runtime.job import Job
    from libnpu.runtime.memory import ContextMemory
    from libnpu.runtime.stream import Stream
NO_VIEW = memoryview(b"")


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
        "_pages",
        "_program_view",
        "context",
        "device_address",
        "flags",
        "offset",
        "size",
    )
    kind: ClassVar[int] = int(C.NPU_MEMORY_DEVICE)
    BO_FLAGS: ClassVar[int] = int(C.NPU_BO_MAPPABLE | C.NPU_BO_DMA_MEM | C.NPU_BO_SHAREABLE)

    def __init__(self, context: ContextMemory, size: int, flags: int = 0) -> None:
        if size <= 0:
            raise NpuError(C.NPU_ERROR_INVALID_SIZE, f"a buffer of {size} bytes")
        if size >= 1 << 64:  # the driver cannot even be asked
            raise NpuError(C.NPU_ERROR_OUT_OF_DEVICE_MEMORY, f"{size} bytes asked")
        self.context = context
        self._bo = self._object(size, flags)
        self._is_live = True
        self._mappings: list[Mapping] = []
        self.size = size
        self.flags = 0  # enum npu_host_flag of pinned memory
        self.offset = 0  # as a part of itself
        self.device_address: int = self._bo.va
        self._program_view = self._view_of_program()
        self._pages = self._program_view  # where the program's addresses are
        if context.observer is not None:
            self._pages = context.observer.pages_of(self._program_view)
        self._host_address = address_of(self._pages)

    def _object(self, size: int, flags: int) -> BufferObject:
        """Return its object of the driver; `flags` besides BO_FLAGS."""
        return BufferObject(self.context.node, size, self.BO_FLAGS | flags)

    def _view_of_program(self) -> memoryview:
        if self._bo.flags & C.NPU_BO_NON_SNOOPED:
            return self._bo.map(program=True)
        assert self._bo.view is not None
        return self._bo.view

    @property
    def handle(self) -> int:
        """The driver's handle. Raises STALE_HANDLE after `free`."""
        if not self._is_live:
            gone = self.device_address
            raise NpuError(C.NPU_ERROR_STALE_HANDLE, f"the memory at {self.where} was freed", gone=gone)
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
    def is_snooped(self) -> bool:
        """Whether the device sees what is in the host's caches, so that maintenance changes nothing."""
        return not self._bo.flags & C.NPU_BO_NON_SNOOPED

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

    @property
    def program_view(self) -> memoryview:
        """Its memory as the program's mappings show it. Raises STALE_HANDLE."""
        _ = self.handle
        return self._program_view[: self.size]

    def map_memory(self) -> memoryview:
        """Return a new look past the host's caches. Raises STALE_HANDLE."""
        _ = self.handle
        return self._bo.map_memory()[: self.size]

    @public
    def ipc_handle(self) -> bytes:
        """Return the handle by which other contexts and processes open this memory (`Context.open_ipc_memory`).

        Raises INVALID_VALUE for pinned memory, and for memory that was opened by a handle itself; STALE_HANDLE.
        """
        from libnpu.runtime.ipc import MEMORY, ImportedBuffer, make_handle

        _ = self.handle
        self.context.enter()
        if self.kind != C.NPU_MEMORY_DEVICE or isinstance(self, ImportedBuffer):
            what = (
                "was opened by a handle: that is the one to pass on"
                if self.kind == C.NPU_MEMORY_DEVICE
                else "is pinned memory"
            )
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"the memory at {self.where} {what}")
        if self.context.observer is not None:
            self.context.observer.shown(self)
        handle = make_handle(self.context.node, MEMORY, self._bo, self.size)
        if self.context.observer is not None:
            self.context.observer.exported(self, handle)
        return handle

    def store(self, offset: int, source: NDArray[np.uint8]) -> None:
        """Let the host copy bytes in; the range was checked."""
        context = self.context
        if context.observer is not None:
            context.observer.accessed(self, offset, source.nbytes, write=True, what="write")
        if self.has_values:
            self.view[offset : offset + source.nbytes] = source.data
        context.charge_copy(source.nbytes)

    def load(self, offset: int, size: int) -> NDArray[np.uint8]:
        """Let the host copy bytes out; the range was checked. Raises BAD_STATE on a device that computes no values."""
        self.check_values()
        if self.context.observer is not None:
            self.context.observer.accessed(self, offset, size, write=False, what="read")
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
        direction = whole(direction, "direction")
        self.context.enter()
        if direction not in (C.NPU_TO_DEVICE, C.NPU_FROM_DEVICE, C.NPU_BIDIRECTIONAL):
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"direction {direction} is none of enum npu_direction")
        self._check(offset, length)
        if not length:
            raise NpuError(C.NPU_ERROR_INVALID_SIZE, "a mapping of 0 bytes")
        self.context.node.catch_up()
        mapping = Mapping(self, offset, length, direction)
        self._mappings.append(mapping)
        if self.context.observer is not None:
            self.context.observer.shown(self)
        return mapping

    @property
    def mappings(self) -> list[Mapping]:
        """The mappings that have not ended, oldest first."""
        return self._mappings

    def annotate(self, offset: int, size: int | None, *, write: bool) -> None:
        """Tell who watches that the host reads or writes a range in place. Raises OUT_OF_RANGE, INVALID_SIZE."""
        offset = whole(offset, "offset")
        length = self.size - offset if size is None else whole(size, "size")
        self._check(offset, length)
        if not length:
            raise NpuError(C.NPU_ERROR_INVALID_SIZE, f"0 bytes at {offset} to annotate")
        if self.context.observer is not None:
            self.context.observer.annotated(self, offset, length, write=write)

    def synchronise(self, offset: int, size: int | None, direction: int, mapping: Mapping | None = None) -> None:
        """Maintain the host's caches over the lines of a range (enum npu_sync_dir), by a mapping if there is one. Raises OUT_OF_RANGE,
        INVALID_SIZE.
        """
        offset = whole(offset, "offset")
        length = self.size - offset if size is None else whole(size, "size")
        self._check(offset, length)
        if not length:
            raise NpuError(C.NPU_ERROR_INVALID_SIZE, f"0 bytes at {offset} to synchronise")
        self.context.enter()
        request = Request(C.NPU_IOCTL_BO_SYNC, "npu_bo_sync", "BO_SYNC")
        request.arg.handle, request.arg.direction = self.handle, direction
        request.arg.offset, request.arg.size = offset, length
        if self.context.observer is not None:
            what = "flush" if direction == C.NPU_SYNC_TO_DEVICE else "invalidate"
            made = mapping.direction_name if mapping is not None else None
            self.context.observer.maintained(self, offset, length, what, made)
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
        stream.make_room()
        _ = self.handle  # another thread may have freed it meanwhile
        job = stream.enqueue(Free(self), settle=False)
        self.release(job)
        stream.settle(job)

    def release(self, job: Job | None = None) -> None:
        """Become stale, by `job` if there is one; the driver gets the memory back as soon as every job that uses it has been
        handed to it.
        """
        if self._is_live:
            if self.context.observer is not None:
                self.context.observer.freed(self, job)
            self.context.forget_buffer(self)
            self._is_live = False
            self._mappings.clear()
            self._program_view = self._pages = NO_VIEW
            self.context.free_object(self._bo)

    def __enter__(self) -> Self:
        return self

    @public
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with failures_yield_to(kind):
            self.free()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.size} bytes at {self.device_address:#x}>"
