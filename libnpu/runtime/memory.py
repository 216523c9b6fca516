"""The memory of a context: what is allocated, pinned and mapped in it, by address, and what becomes of it at a free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime import copies
from libnpu.runtime.address_book import AddressBook
from libnpu.runtime.arguments import truth, whole, wrong
from libnpu.runtime.buffer import Buffer
from libnpu.runtime.guard import public, told
from libnpu.runtime.host_memory import HostBuffer, Registered
from libnpu.runtime.semantics import InFlight
from libnpu.runtime.spans import bytes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from libnpu.runtime.buffer_object import BufferObject
    from libnpu.runtime.guard import Guard
    from libnpu.runtime.ipc import ImportedBuffer
    from libnpu.runtime.job import Job
    from libnpu.runtime.observer import Observer
    from libnpu.runtime.semantics import Semantics
    from libnpu.runtime.spans import Memory
    from libnpu.runtime.stream import Stream
    from libnpu.syscalls import Node

B = TypeVar("B", bound=Buffer)


@dataclass(frozen=True, slots=True)
class Found:
    """What an address is: `offset` bytes behind the start of `buffer`; `kind` is of enum npu_memory_kind."""

    kind: int
    buffer: Buffer
    offset: int

    @property
    def base(self) -> int:
        """First address of the allocation, of the kind that was asked about: the host's, or the device's."""
        return self.buffer.device_address if self.kind == C.NPU_MEMORY_DEVICE else self.buffer.host_address


class ContextMemory:
    """The part of `Context` that is about memory."""

    guard: Guard
    node: Node
    semantics: Semantics
    compute: bool

    def __init__(self) -> None:
        self.device_memory: AddressBook[Buffer] = AddressBook()
        self.host_memory: AddressBook[Buffer] = AddressBook()  # by where the host has it

    if TYPE_CHECKING:  # the rest of a Context
        is_alive: bool
        observer: Observer | None
        has_failed: bool

        def check(self) -> None: ...
        def enter(self) -> None: ...
        def stream_of(self, stream: Stream | None, what: str) -> Stream: ...
        def charge_copy(self, size: int) -> None: ...
        def refuse_while_capturing(self, what: str) -> None: ...
        def jobs_using(self, handle: int) -> list[Job]: ...
        @property
        def streams(self) -> Sequence[Stream]: ...
        @property
        def default_stream(self) -> Stream: ...

    @public
    def alloc(self, nbytes: int) -> Buffer:
        """Allocate device memory, page aligned, poison until written. Raises INVALID_SIZE, OUT_OF_DEVICE_MEMORY."""
        nbytes = whole(nbytes, "nbytes")
        self.enter()
        return self._note(Buffer(self, nbytes))

    @public
    def alloc_async(self, nbytes: int, stream: Stream | None = None) -> Buffer:
        """Allocate for work that is enqueued in `stream` (None: the default stream) from now on, or ordered behind it.

        When there is no memory left, it waits for what `stream` is about to free. Raises as `alloc`.
        """
        nbytes = whole(nbytes, "nbytes")
        stream = self.stream_of(stream, "the stream")
        stream.check_open()
        try:
            buffer = self.alloc(nbytes)
        except NpuError as error:
            if error.result != C.NPU_ERROR_OUT_OF_DEVICE_MEMORY or not stream.jobs:
                raise
            stream.finish_all()
            buffer = self.alloc(nbytes)
        if self.observer is not None and stream.capturing is None:
            self.observer.allocated_in(buffer, stream)
        return buffer

    @public
    def alloc_host(self, nbytes: int, flags: int = int(C.NPU_HOST_CACHED)) -> HostBuffer:
        """Allocate pinned host memory, page aligned, poison until written. `flags` is of enum npu_host_flag.

        Raises INVALID_SIZE, OUT_OF_DEVICE_MEMORY, INVALID_VALUE for other flags, Unsupported for UNCACHED where the
        module parameters do not allow it.

        >>> pinned, memory = device.alloc_host(4), device.to_device([5, 6, 7, 8])
        >>> job = device.default_stream.copy(pinned, memory[8:12])
        >>> pinned.array.tolist()  # nobody has waited
        [255, 255, 255, 255]
        >>> device.synchronize()
        >>> pinned.array.tolist()
        [6, 0, 0, 0]
        """
        nbytes, flags = whole(nbytes, "nbytes"), whole(flags, "flags")
        self.enter()
        return self._note(HostBuffer(self, nbytes, flags))

    @public
    def open_ipc_memory(self, handle: bytes) -> ImportedBuffer:
        """Return the memory of a `Buffer.ipc_handle` of another context or process, at an address of this context.

        Raises INVALID_VALUE for what is no such handle, INVALID_HANDLE when its owner has freed the memory, or has it on another
        device; OUT_OF_DEVICE_MEMORY for its page tables.
        """
        from libnpu.runtime.ipc import ImportedBuffer

        self.enter()
        buffer = self._note(ImportedBuffer(self, handle))
        if self.observer is not None:
            self.observer.opened(buffer, bytes(handle))
        return buffer

    @public
    def register(self, memory: Any, size: int | None = None, *, sva: bool = False) -> Registered:
        """Pin memory that the program has: an address and a size, or a writable array (or other buffer) of whole pages of
        private memory. The content stays. `sva`: the device has it at the same address as the host, so that pointers into
        it are device pointers; raises OUT_OF_RESOURCES when something else is there.

        Raises MISALIGNED, INVALID_SIZE, ALREADY_REGISTERED, BAD_ADDRESS for memory that is not mapped, not writable, or
        shared with files or processes, OUT_OF_DEVICE_MEMORY.

        >>> import mmap
        >>> memory = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        >>> with device.register(memory) as registered:
        ...     device.primary.fill(registered[:3], 65)
        >>> memory[:4]
        b'AAA\\x00'
        """
        sva = truth(sva, "sva")
        self.enter()
        address, size, owner = Registered.extent_of(memory, size)
        if self.host_memory.overlaps(address, size):
            raise NpuError(C.NPU_ERROR_ALREADY_REGISTERED, f"{size} bytes at {address:#x}: pinned memory is among them")
        return self._note(Registered(self, address, size, owner, sva=sva))

    def _note(self, buffer: B) -> B:
        self.device_memory.add(buffer.device_address, buffer.size, buffer)
        self.host_memory.add(buffer.host_address, buffer.size, buffer)
        if self.observer is not None:
            self.observer.allocated(buffer)
        return buffer

    @public
    def find(self, address: int) -> Found | None:
        """Return what is at a device address or host address, None for pageable memory. Raises STALE_HANDLE in memory
        that was freed.

        >>> pinned = device.alloc_host(100)
        >>> found = device.primary.find(pinned.address + 7)
        >>> found.buffer is pinned, found.offset
        (True, 7)
        """
        address = whole(address, "address")
        buffer = self.device_memory.find(address)
        if buffer is not None and (buffer.device_address != buffer.host_address):
            return Found(int(C.NPU_MEMORY_DEVICE), buffer, address - buffer.device_address)
        return self.find_host(address)

    def find_host(self, address: int) -> Found | None:
        """Return what is at a host address; as `find`."""
        address = whole(address, "address")
        buffer = self.host_memory.find(address)
        if buffer is None:
            return None
        offset = address - buffer.host_address
        if buffer.kind != C.NPU_MEMORY_DEVICE:
            return Found(buffer.kind, buffer, offset)
        if any(m.offset <= offset < m.offset + m.size for m in buffer.mappings):
            return Found(int(C.NPU_MEMORY_MAPPED), buffer, offset)
        return None

    @public
    def copy(self, dst: Any, src: Any, size: int | None = None) -> None:
        """Copy `size` bytes (default: all of `src`) on the default stream; complete on return.

        As `Stream.copy`, and from pageable memory to pageable memory too. Raises the errors of the stream's earlier work.
        """
        self.enter()
        copies.copy_and_wait(self.default_stream, dst, src, size)

    @public
    def copy_2d(self, dst: Any, dst_pitch: int, src: Any, src_pitch: int, width: int, height: int) -> None:
        """Copy rows on the default stream; complete on return. As `Stream.copy_2d` and `copy`.

        >>> matrix, column = device.to_device(bytearray(range(6))), bytearray(2)
        >>> device.primary.copy_2d(column, 1, matrix[1:], 3, width=1, height=2)
        >>> list(column)
        [1, 4]
        """
        self.enter()
        copies.copy_2d_and_wait(self.default_stream, dst, dst_pitch, src, src_pitch, width, height)

    @public
    def fill(self, dst: Any, value: int) -> None:
        """Set every byte of `dst` on the default stream; complete on return. As `Stream.fill`.

        >>> memory = device.to_device(bytearray(4))
        >>> device.primary.fill(memory[1:3], 9)
        >>> memory.read().tolist()
        [0, 9, 9, 0]
        """
        self.enter()
        self.refuse_while_capturing("a fill that waits")
        stream = self.default_stream
        if copies.fill(stream, dst, value) is not None:
            stream.complete()

    @told
    def copy_peer(self, dst: Memory, src: Memory) -> None:
        """Copy memory of any context or device to memory of any other, `src.size` bytes; complete on return.

        Waits for the default streams of both. The host carries the bytes. Raises OUT_OF_RANGE, STALE_HANDLE, OVERLAP.
        """
        copies.copy_peer(dst, src)

    @public
    def to_device(self, array: ArrayLike) -> Buffer:
        """Return new device memory with the bytes of `array`, copied on the default stream. Raises INVALID_VALUE for no
        array, and for one of Python objects.

        >>> bytes(device.primary.to_device([1, 2, 3]).read(int, 3).tolist())
        b'\\x01\\x02\\x03'
        """
        source = bytes_of(array)
        buffer = self.alloc(source.nbytes)
        try:
            self.copy(buffer, source)
        except BaseException:
            buffer.free()
            raise
        return buffer

    def from_dlpack(self, tensor: Any) -> Buffer:
        """Return new device memory with the bytes of another library's tensor in host memory (`__dlpack__`).

        Raises Unsupported for a tensor elsewhere.
        """
        if not hasattr(tensor, "__dlpack_device__"):
            raise wrong(tensor, "tensor", "a tensor with __dlpack__")
        device_type, _ = tensor.__dlpack_device__()
        if device_type != 1:
            raise NpuError(C.NPU_ERROR_NOT_SUPPORTED, f"a tensor on a DLPack device of type {device_type}; 1 (CPU) is")
        try:
            array = np.from_dlpack(tensor)
        except BufferError as error:
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"the tensor: {error}") from None
        return self.to_device(array)

    # ---- for the other modules of the runtime ----

    def buffer_at(self, address: int, size: int) -> Buffer:
        """Return the buffer that holds `size` bytes at a device address.

        Raises ARG_KIND when none does, ARG_SIZE when it ends before, STALE_HANDLE when it was freed.
        """
        buffer = self.device_memory.find(address)
        if buffer is None:
            raise NpuError(C.NPU_ERROR_ARG_KIND, f"{address:#x} is not device memory")
        left = buffer.device_address + buffer.size - address
        if size > left:
            asked = buffer.asked(buffer.size - left, buffer.size - left + size)
            raise NpuError(
                C.NPU_ERROR_ARG_SIZE, f"{left} bytes are left at {address:#x}, {size} are needed", asked=asked
            )
        return buffer

    def is_in_flight(self, buffer: Buffer) -> bool:
        """Whether work in flight uses it, as of now."""
        for stream in self.streams:
            stream.drained()  # takes note of what has ended
        return bool(self.jobs_using(buffer.handle))

    def check_free(self, buffer: Buffer) -> None:
        """Do before a free what `Semantics.free` says. Raises IN_USE."""
        self.refuse_while_capturing("a free")
        if not self.node.is_usable:
            return
        self.refuse_while_capturing("a free")
        rule = self.semantics.free
        if rule is InFlight.WAIT:
            for stream in self.streams:
                stream.finish_all()
        elif rule is InFlight.REFUSE and self.is_in_flight(buffer):
            raise NpuError(C.NPU_ERROR_IN_USE, f"work in flight uses the {buffer.size} bytes at {buffer.where}")

    def free_object(self, bo: BufferObject) -> None:
        """Free a buffer object, but not before the driver has every job that names it: from then on it keeps the memory
        itself.
        """
        held = [job for job in self.jobs_using(bo.handle) if not job.submitted]
        left = len(held)

        def ended(_: Job) -> None:
            nonlocal left
            left -= 1
            if not left:
                bo.free()

        for job in held:
            job.ends.append(ended)
        if not held:
            bo.free()

    def forget_buffer(self, buffer: Buffer) -> None:
        """Note that a buffer is gone."""
        self.device_memory.remove(buffer.device_address)
        if buffer.kind == C.NPU_MEMORY_REGISTERED:
            self.host_memory.erase(buffer.host_address)  # it is the program's own again
        else:
            self.host_memory.remove(buffer.host_address)

    def end_memory(self) -> None:
        """Make all memory stale: the context has ended."""
        for buffer in self.device_memory:
            buffer.release()
