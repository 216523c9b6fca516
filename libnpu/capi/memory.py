"""From an address that C passed to the memory of the runtime that is there.

A device pointer is `number << 40 | device address`, with the number of its context. Numbers begin at 256 and never come again: so no pointer is ever
the address of host memory, and none of a context that is gone is taken for another's. All other addresses are the host's: pinned memory and mappings
are found in the contexts' books, the rest is pageable, the program's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from npu_abi import C

from libnpu.capi.refusal import Refusal
from libnpu.errors import Asked, NpuError
from libnpu.runtime.copy_ends import End
from libnpu.runtime.spans import DeviceSpan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.capi.door import Door
    from libnpu.capi.library import ContextEntry, Library
    from libnpu.runtime import Context
    from libnpu.runtime.buffer import Buffer
    from libnpu.runtime.memory import Found

CONTEXT_SHIFT = 40  # npu.h: above every device address
FIRST_NUMBER = 1 << 8  # then bit 48 or a higher one of a pointer is set, and user space ends below it
LAST_NUMBER = (1 << 23) - 1
DEVICE_MASK = (1 << CONTEXT_SHIFT) - 1
REMEMBERED = 4096  # host addresses that were given up and are still recognised
PINNED = (C.NPU_MEMORY_HOST, C.NPU_MEMORY_REGISTERED)

assert C.NPU_VA_USER_END <= 1 << CONTEXT_SHIFT


def pointer_of(number: int, device_address: int) -> int:
    """Return what C holds for a device address of context `number`: no two contexts share a pointer."""
    return number << CONTEXT_SHIFT | device_address


def is_device_pointer(address: int) -> bool:
    """Whether an address is a device pointer, of whatever context."""
    return FIRST_NUMBER <= address >> CONTEXT_SHIFT <= LAST_NUMBER


@dataclass(frozen=True, slots=True)
class ProgramEnd(End):
    """Pageable memory as an end of a copy: rows go through the door. BAD_ADDRESS; a write happens whole or not at all."""

    door: Door | None = None
    address: int = 0

    def lines(self, width: int, height: int, pitch: int) -> NDArray[np.uint8]:
        """Return a copy of rows from its start."""
        assert self.door is not None
        if height == 1 or pitch == width:
            return np.frombuffer(self.door.read(self.address, width * height), np.uint8).reshape(height, width)
        self.door.read(self.address + pitch * (height - 1), width)  # before memory for a size that cannot be right
        found = np.empty((height, width), np.uint8)
        for i, line in enumerate(found):
            self.door.read_into(line.data, self.address + i * pitch)
        return found

    def put(self, content: NDArray[np.uint8], pitch: int) -> None:
        """Write rows."""
        assert self.door is not None
        height, width = content.shape
        content = np.ascontiguousarray(content)
        if height == 1 or pitch == width:
            self.door.write(self.address, content.data.cast("B"))
            return
        self.check_writable(width, height, pitch)
        for i, line in enumerate(content):
            self.door.write(self.address + i * pitch, line.data)

    def check_writable(self, width: int, height: int, pitch: int) -> None:
        """Raise BAD_ADDRESS unless every byte of the rows can be written."""
        assert self.door is not None
        if height == 1 or pitch == width:
            self.door.probe(self.address, width * height, "dst")
            return
        for i in range(height):
            self.door.probe(self.address + i * pitch, width, "dst")


class Memory:
    """The memory of all contexts of a library, by the addresses that C has."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._given_up: dict[int, None] = {}  # host addresses, oldest first

    # ---- device pointers ----

    def device(
        self, context: Context | None, pointer: int, unknown: str = "NPU_ERROR_OUT_OF_RANGE", size: int = 1
    ) -> DeviceSpan:
        """Return device or pinned memory of `context` (None: of any) from a device pointer, at which `size` bytes are asked for, to the end
        of its allocation.

        Raises STALE_HANDLE in freed memory, WRONG_CONTEXT in memory that is another context's, `unknown` (a result's name)
        elsewhere.
        """
        entry = self._entry(pointer, unknown)
        buffer = entry.context.device_memory.find(pointer & DEVICE_MASK)
        if buffer is None:
            raise Refusal(unknown, f"{pointer:#x} is not device memory", asked=_behind(entry.context, pointer, size))
        if context is not None and entry.context is not context:
            raise Refusal("NPU_ERROR_WRONG_CONTEXT", f"{pointer:#x} is memory of another context")
        return buffer.at((pointer & DEVICE_MASK) - buffer.device_address)

    def around(self, address: int) -> tuple[Buffer | None, int]:
        """Return the buffer that an address lies in, and where in it; None and 0 for what is not there."""
        try:
            if is_device_pointer(address):
                span = self.device(None, address)
                return span.buffer, span.offset
            found = self.host(address)
        except NpuError:
            return None, 0
        return (found.buffer, found.offset) if found is not None else (None, 0)

    def find_device(self, pointer: int) -> DeviceSpan | None:
        """Return what a device pointer points to, None for nothing. Raises STALE_HANDLE."""
        try:
            return self.device(None, pointer)
        except NpuError as error:
            if error.result != C.NPU_ERROR_OUT_OF_RANGE:
                raise
            return None

    def _entry(self, pointer: int, unknown: str) -> ContextEntry:
        number = pointer >> CONTEXT_SHIFT
        entry = self._library.context_of_number(number)
        if entry is None:
            if FIRST_NUMBER <= number <= self._library.last_number:
                raise Refusal("NPU_ERROR_STALE_HANDLE", f"{pointer:#x} was memory of a context that has ended")
            raise Refusal(unknown, f"{pointer:#x} is not device memory")
        return entry

    def allocation(self, context: Context, pointer: int) -> Buffer:
        """Return the device memory of `context` that begins at `pointer`. Raises as `device`, INVALID_VALUE elsewhere."""
        span = self.device(context, pointer, "NPU_ERROR_INVALID_VALUE")
        if span.offset or span.buffer.kind != C.NPU_MEMORY_DEVICE:
            raise Refusal("NPU_ERROR_INVALID_VALUE", f"{pointer:#x} is not the first address of an allocation")
        return span.buffer

    def pointer_to(self, buffer: Buffer, offset: int = 0) -> int:
        """Return the device pointer to a byte of a buffer: its host address when the device has it there too."""
        if buffer.device_address == buffer.host_address:
            return buffer.host_address + offset
        return pointer_of(self._library.entry_of(buffer.context).number, buffer.device_address + offset)

    # ---- host addresses ----

    def host(self, address: int) -> Found | None:
        """Return the pinned memory or mapping at a host address, None for pageable memory.

        Raises STALE_HANDLE in pinned memory that was freed.
        """
        stale: NpuError | None = None
        for entry in self._library.contexts:
            try:
                found = entry.context.find_host(address)
            except NpuError as error:  # another context may have the pages by now
                stale = error
                continue
            if found is not None:
                return found
        if stale is not None:
            raise stale
        return None

    def pinned(self, address: int, unknown: str) -> Found:
        """Return the pinned memory at a host address. Raises STALE_HANDLE, `unknown` elsewhere."""
        found = self.host(address)
        if found is None or found.kind not in PINNED:
            if address in self._given_up:
                raise Refusal("NPU_ERROR_STALE_HANDLE", f"{address:#x} was given up before", gone=address)
            raise Refusal(unknown, f"{address:#x} is not pinned memory")
        return found

    def give_up(self, address: int) -> None:
        """Remember that the pinned memory or mapping at a host address has ended."""
        self._given_up[address] = None
        if len(self._given_up) > REMEMBERED:
            del self._given_up[next(iter(self._given_up))]

    def was_given_up(self, address: int) -> bool:
        """Whether something at a host address has ended, and nothing has begun there since."""
        return address in self._given_up

    def begin_at(self, address: int) -> None:
        """Note that there is something at a host address."""
        self._given_up.pop(address, None)

    @staticmethod
    def host_addresses(context: Context) -> list[int]:
        """Return the host addresses of a context's pinned memory and mappings, which end with it."""
        memory = list(context.device_memory)
        pinned = [buffer.host_address for buffer in memory if buffer.kind == C.NPU_MEMORY_HOST]
        return pinned + [mapping.address for buffer in memory for mapping in buffer.mappings]

    # ---- both ----

    def seen_by_device(self, context: Context, address: int, unknown: str, size: int = 1) -> DeviceSpan:
        """Return memory that the device sees, from a device pointer or an address of pinned memory, at which `size` bytes are asked for, to
        its allocation's end.

        Raises STALE_HANDLE, WRONG_CONTEXT, `unknown` elsewhere.
        """
        if is_device_pointer(address):
            return self.device(context, address, unknown, size)
        found = self.host(address)
        if found is None:
            raise Refusal(unknown, f"{address:#x} is neither device memory nor pinned memory")
        if found.buffer.context is not context:
            raise Refusal("NPU_ERROR_WRONG_CONTEXT", f"{address:#x} is pinned memory of another context")
        return found.buffer.at(found.offset)

    def end(self, context: Context, address: int, extent: int) -> End:
        """Return an end of a copy of `extent` bytes. Raises OUT_OF_RANGE, STALE_HANDLE, WRONG_CONTEXT."""
        if is_device_pointer(address) or self.host(address) is not None:
            span = self.seen_by_device(context, address, "NPU_ERROR_OUT_OF_RANGE", extent)
            if extent > span.size:
                raise Refusal(
                    "NPU_ERROR_OUT_OF_RANGE",
                    f"{extent} bytes at {address:#x} leave an allocation of {span.buffer.size} bytes, {span.size} are left",
                    asked=span.asked(0, extent),
                )
            return End(span.buffer, span.offset, span.size)
        return self.program_end(address, extent)

    def program_end(self, address: int, extent: int) -> ProgramEnd:
        """Return host memory, of whatever kind, as an end that the host copies."""
        return ProgramEnd(None, 0, extent, None, self._library.door, address)


def _behind(context: Context, pointer: int, size: int) -> Asked | None:
    """Return what is asked for at a device pointer as bytes behind the allocation before it, None without one."""
    address = pointer & DEVICE_MASK
    buffer = context.device_memory.before(address)
    return (
        buffer.asked(address - buffer.device_address, address - buffer.device_address + size)
        if buffer is not None
        else None
    )
