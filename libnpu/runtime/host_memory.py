"""Memory that host and device share: pinned memory of the library, memory of the program that was pinned, and mappings of
device memory.

All of it is pages of the device's memory, so what one side writes the other reads; nothing orders the two but waits.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from npu_abi import C, name_of

from libnpu.errors import Asked, NpuError, Unsupported
from libnpu.runtime import host_pages
from libnpu.runtime.arguments import whole
from libnpu.runtime.buffer import Buffer
from libnpu.runtime.buffer_object import BufferObject
from libnpu.runtime.guard import failures_yield_to, public

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray

    from libnpu.runtime.guard import Guard
    from libnpu.runtime.job import Job
    from libnpu.runtime.memory import ContextMemory

PAGE = host_pages.PAGE_BYTES
_HOST_FLAGS = {
    C.NPU_HOST_CACHED: 0,
    C.NPU_HOST_WRITE_COMBINED: int(C.NPU_BO_WC),
    C.NPU_HOST_UNCACHED: int(C.NPU_BO_UNCACHED),
    C.NPU_HOST_NON_COHERENT: int(C.NPU_BO_NON_SNOOPED),
}


class HostBuffer(Buffer):
    """Pinned host memory; made by `Context.alloc_host`. The host uses it in place, by `array`, `view` or `address`, and
    sees in it what the device had written by the end of the last call.

    An array that was taken stays readable after `free`; its bytes then belong to nobody.
    """

    __slots__ = ()
    kind: ClassVar[int] = int(C.NPU_MEMORY_HOST)
    BO_FLAGS: ClassVar[int] = int(C.NPU_BO_MAPPABLE)

    def __init__(self, context: ContextMemory, size: int, flags: int = int(C.NPU_HOST_CACHED)) -> None:
        if flags not in _HOST_FLAGS:
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"flags {flags} is none of enum npu_host_flag")
        try:
            super().__init__(context, size, _HOST_FLAGS[flags])
        except NpuError as error:
            if flags == C.NPU_HOST_UNCACHED and error.errno == errno.EINVAL:
                raise Unsupported("NPU_HOST_UNCACHED: the module parameter allow_uncached is 0") from None
            raise
        self.flags = flags

    def _object(self, size: int, flags: int) -> BufferObject:
        return BufferObject(self.context.node, size, self.BO_FLAGS | flags, program=True)

    def _view_of_program(self) -> memoryview:
        assert self._bo.view is not None
        return self._bo.view

    @property
    def address(self) -> int:
        """Host address of the first byte. Raises STALE_HANDLE."""
        _ = self.handle
        return self.host_address

    @property
    def array(self) -> NDArray[np.uint8]:
        """The memory itself as a uint8 array. Raises STALE_HANDLE."""
        array = np.frombuffer(self.view, np.uint8)
        return array if self.context.observer is None else self.context.observer.array_of(self, array)

    @property
    def host_array(self) -> NDArray[np.uint8]:
        """As `array`."""
        return self.array

    @public
    def flush(self, offset: int = 0, size: int | None = None) -> None:
        """Write the host's cache lines of a range back, before the device reads them (NPU_HOST_NON_COHERENT), or drain its
        write-combining buffers. Where the device snoops no byte changes: it takes time, more for more lines, of
        write-combined memory a system call's alone. Raises OUT_OF_RANGE, INVALID_SIZE.
        """
        self.synchronise(offset, size, C.NPU_SYNC_TO_DEVICE)

    @public
    def invalidate(self, offset: int = 0, size: int | None = None) -> None:
        """Drop the host's cache lines of a range, before it reads what the device wrote; as `flush`."""
        self.synchronise(offset, size, C.NPU_SYNC_FROM_DEVICE)

    @public
    def annotate_read(self, offset: int = 0, size: int | None = None) -> None:
        """Tell the checker that the host reads a range here, by means that it does not see: memoryviews, ctypes, other libraries.
        Raises OUT_OF_RANGE, INVALID_SIZE.
        """
        self.annotate(offset, size, write=False)

    @public
    def annotate_write(self, offset: int = 0, size: int | None = None) -> None:
        """As `annotate_read`, that it writes."""
        self.annotate(offset, size, write=True)

    def __buffer__(self, flags: int) -> memoryview:
        """Return the memory itself (Python 3.12: memoryview(buffer); before, `view`)."""
        return self.view


class Registered(HostBuffer):
    """Memory of the program that is pinned; made by `Context.register`. `unregister`, or `with`, ends that; until then a
    child of a fork shares the memory with its parent.
    """

    __slots__ = ("_address", "_owner", "_sva")
    kind: ClassVar[int] = int(C.NPU_MEMORY_REGISTERED)

    def __init__(self, context: ContextMemory, address: int, size: int, owner: object, *, sva: bool = False) -> None:
        host_pages.check_pinnable(address, size)
        self._address = address
        self._sva = sva
        super().__init__(context, size)
        self._owner = owner  # a view of the program's object, which must not go before its pages do
        view = self._bo.view
        assert view is not None
        try:
            host_pages.show_at(host_pages.address_of(view), address, size)
        except BaseException:
            self._is_live = False
            self._bo.free()
            raise

    def _object(self, size: int, flags: int) -> BufferObject:
        if size > C.NPU_MAX_USERPTR_BYTES:
            raise NpuError(C.NPU_ERROR_OUT_OF_DEVICE_MEMORY, f"{size} bytes at {self._address:#x} to register")
        node, content = self.context.node, host_pages.bytes_at(self._address, size)
        return BufferObject.of_user_memory(node, self._address, content, C.NPU_BO_SVA if self._sva else 0)

    @staticmethod
    def extent_of(memory: Any, size: int | None) -> tuple[int, int, object]:
        """Return address, size and owner of memory that is to be pinned. Raises INVALID_SIZE, MISALIGNED, INVALID_VALUE."""
        owner = None
        if not isinstance(memory, int | np.integer):
            try:
                view = memoryview(memory).cast("B")
                address = host_pages.address_of(view)
            except (TypeError, ValueError) as error:
                raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"no writable contiguous memory: {error}") from None
            owner, size = view, view.nbytes if size is None else whole(size, "size")
            if size > view.nbytes:
                message = f"{size} bytes of memory that has {view.nbytes}"
                raise NpuError(C.NPU_ERROR_OUT_OF_RANGE, message, asked=Asked(0, size, view.nbytes))
        else:
            address = whole(memory, "memory")
            if size is None:
                raise NpuError(C.NPU_ERROR_INVALID_SIZE, f"the memory at {address:#x} needs a size")
            size = whole(size, "size")
        if size <= 0:
            raise NpuError(C.NPU_ERROR_INVALID_SIZE, f"{size} bytes at {address:#x} to register")
        if address % PAGE or size % PAGE:
            raise NpuError(
                C.NPU_ERROR_MISALIGNED, f"{size} bytes at {address:#x}: both must be multiples of {PAGE} (pages)"
            )
        if address < 0 or address + size > 1 << 64:
            raise NpuError(C.NPU_ERROR_BAD_ADDRESS, f"{size} bytes at {address:#x}")
        return address, size, owner

    @property
    def host_address(self) -> int:
        """Where the program has it."""
        return self._address

    @public
    def unregister(self) -> None:
        """Make it the program's own private memory again; the content stays. Raises NOT_REGISTERED when it is so already,
        IN_USE while work in flight uses it.
        """
        if not self._is_live:
            raise NpuError(C.NPU_ERROR_NOT_REGISTERED, f"the memory at {self._address:#x} is not registered")
        if self.context.node.is_usable and self.context.is_in_flight(self):
            raise NpuError(C.NPU_ERROR_IN_USE, f"work in flight uses the {self.size} bytes at {self.where}")
        self.release()

    def free(self) -> None:
        """Unregister it. Twice is allowed."""
        if self._is_live:
            self.unregister()

    def free_async(self, stream: object = None) -> None:
        """Registered memory cannot be given back in stream order: raises Unsupported."""
        raise Unsupported("registered memory is the program's: wait for the stream, then unregister it")

    def release(self, job: Job | None = None) -> None:
        """Give the program its memory back, whatever happens to the context."""
        if self._is_live:
            assert self._bo.view is not None
            host_pages.make_private(self._address, self._bo.view[: self.size])
            super().release(job)
            self._owner = None


class Mapping:
    """A look of the host at device memory; made by `Buffer.map`. `with`, `unmap` or a free of the buffer ends it."""

    __slots__ = ("buffer", "direction", "offset", "size")

    def __init__(self, buffer: Buffer, offset: int, size: int, direction: int) -> None:
        self.buffer = buffer
        self.offset = offset
        self.size = size
        self.direction = direction  # enum npu_direction

    @property
    def guard(self) -> Guard:
        """The lock of the device."""
        return self.buffer.context.guard

    @property
    def direction_name(self) -> str:
        """`direction` as a word of enum npu_direction, without its prefix."""
        return name_of("npu_direction", self.direction).removeprefix("NPU_")

    @property
    def view(self) -> memoryview:
        """The memory itself, read-only when the host said that it only reads. Raises STALE_HANDLE."""
        self._check()
        view = self.buffer.program_view[self.offset : self.offset + self.size]
        return view.toreadonly() if self.direction == C.NPU_FROM_DEVICE else view

    @property
    def array(self) -> NDArray[np.uint8]:
        """`view` as a uint8 array."""
        array, observer = np.frombuffer(self.view, np.uint8), self.buffer.context.observer
        return array if observer is None else observer.array_of(self.buffer, array)

    @property
    def address(self) -> int:
        """Host address of the first byte. Raises STALE_HANDLE."""
        self._check()
        return self.buffer.host_address + self.offset

    @public
    def flush(self, offset: int = 0, size: int | None = None) -> None:
        """As `HostBuffer.flush`."""
        self._synchronise(offset, size, C.NPU_SYNC_TO_DEVICE)

    @public
    def invalidate(self, offset: int = 0, size: int | None = None) -> None:
        """As `HostBuffer.invalidate`."""
        self._synchronise(offset, size, C.NPU_SYNC_FROM_DEVICE)

    @public
    def annotate_read(self, offset: int = 0, size: int | None = None) -> None:
        """As `HostBuffer.annotate_read`."""
        self._annotate(offset, size, write=False)

    @public
    def annotate_write(self, offset: int = 0, size: int | None = None) -> None:
        """As `HostBuffer.annotate_write`."""
        self._annotate(offset, size, write=True)

    @public
    def unmap(self) -> None:
        """End it. Raises STALE_HANDLE when it has ended, IN_USE while work in flight uses the buffer."""
        self._check()
        context = self.buffer.context
        context.enter()
        if context.observer is not None:
            context.observer.unmapped(self.buffer, self.offset, self.size)
        if context.is_in_flight(self.buffer):
            raise NpuError(C.NPU_ERROR_IN_USE, f"work in flight uses the mapped memory at {self.buffer.where}")
        self.buffer.mappings.remove(self)

    def __enter__(self) -> Self:
        return self

    @public
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with failures_yield_to(kind):
            if self in self.buffer.mappings:
                self.unmap()

    def _synchronise(self, offset: int, size: int | None, direction: int) -> None:
        self.buffer.synchronise(*self._range(offset, size), direction, self)

    def _annotate(self, offset: int, size: int | None, *, write: bool) -> None:
        self.buffer.annotate(*self._range(offset, size), write=write)

    def _range(self, offset: int, size: int | None) -> tuple[int, int]:
        """Return a range of it as one of the buffer, offset and bytes. Raises STALE_HANDLE, OUT_OF_RANGE."""
        self._check()
        offset = whole(offset, "offset")
        length = self.size - offset if size is None else whole(size, "size")
        if offset < 0 or offset + length > self.size:
            message = f"{length} bytes at {offset} of a mapping of {self.size} bytes"
            asked = Asked(offset, offset + length, self.size, self.buffer, self.offset)
            raise NpuError(C.NPU_ERROR_OUT_OF_RANGE, message, asked=asked)
        return self.offset + offset, length

    def _check(self) -> None:
        if self not in self.buffer.mappings:
            raise NpuError(C.NPU_ERROR_STALE_HANDLE, "the mapping has ended")
