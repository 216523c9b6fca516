"""Which device memory a program holds: from a pointer to its allocation, and what was freed."""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.capi.refusal import Refusal

if TYPE_CHECKING:
    from libnpu.runtime import Buffer

DEVICE_SHIFT = 40  # chosen: above every device address
MAX_DEVICES = 128  # chosen: then a pointer looks like a user-space address, 47 bits
REMEMBERED = 4096  # freed ranges that are still recognised

assert C.NPU_VA_USER_END <= 1 << DEVICE_SHIFT


def pointer_of(device: int, device_address: int) -> int:
    """Return what C holds for an address of device number `device`: no two devices share a pointer."""
    return device << DEVICE_SHIFT | device_address


@dataclass(slots=True, eq=False)
class Range:
    """Device memory that a program holds or held. `size` is what it asked for, not the pages behind it."""

    pointer: int
    size: int

    @property
    def device(self) -> int:
        """The number of its device."""
        return self.pointer >> DEVICE_SHIFT

    @property
    def end(self) -> int:
        """The pointer behind its last byte."""
        return self.pointer + self.size


@dataclass(slots=True, eq=False)
class Allocation(Range):
    """Device memory from npu_malloc, live."""

    buffer: Buffer

    def device_address(self, pointer: int) -> int:
        """Return the device address of a pointer into it."""
        return self.buffer.device_address + pointer - self.pointer


class Allocations:
    """The live and the recently freed allocations of all devices. None overlaps another."""

    def __init__(self) -> None:
        self._starts: list[int] = []  # sorted
        self._ranges: dict[int, Range] = {}  # by pointer
        self._freed: dict[int, None] = {}  # pointers, oldest first

    def __len__(self) -> int:
        return len(self._ranges) - len(self._freed)

    def clear(self) -> None:
        """Count every live allocation as freed."""
        for found in list(self._ranges.values()):
            if isinstance(found, Allocation):
                self._mark_freed(found)

    def add(self, allocation: Allocation) -> None:
        """Remember a new allocation; what was freed at its addresses is forgotten."""
        index = bisect_right(self._starts, allocation.pointer)
        if index and self._ranges[self._starts[index - 1]].end > allocation.pointer:
            index -= 1
        while index < len(self._starts) and self._starts[index] < allocation.end:
            self._forget(self._starts[index])
        insort(self._starts, allocation.pointer)
        self._ranges[allocation.pointer] = allocation

    def take(self, device: int, pointer: int) -> Allocation:
        """Remove and return the allocation that starts at `pointer`.

        Raises STALE_HANDLE when it was freed, WRONG_CONTEXT when it is another device's, INVALID_VALUE when there is none.
        """
        found = self.find(device, pointer, "NPU_ERROR_INVALID_VALUE")
        if found.pointer != pointer:
            raise Refusal(
                "NPU_ERROR_INVALID_VALUE",
                f"{pointer:#x} is not the first address of the allocation at {found.pointer:#x}",
            )
        self._mark_freed(found)
        return found

    def find(self, device: int, pointer: int, unknown: str = "NPU_ERROR_OUT_OF_RANGE") -> Allocation:
        """Return the allocation that contains `pointer`.

        Raises WRONG_CONTEXT in memory that is or was another device's, STALE_HANDLE in freed memory, `unknown` (a result's
        name) elsewhere.
        """
        index = bisect_right(self._starts, pointer) - 1
        found = self._ranges[self._starts[index]] if index >= 0 else None
        if found is None or pointer >= found.end:
            raise Refusal(unknown, f"{pointer:#x} is not device memory")
        if found.device != device:
            raise Refusal(
                "NPU_ERROR_WRONG_CONTEXT",
                f"{pointer:#x} is memory of device {found.device}, and this is device {device}",
            )
        if not isinstance(found, Allocation):
            raise Refusal("NPU_ERROR_STALE_HANDLE", f"{pointer:#x} is in device memory that was freed")
        return found

    def range(self, device: int, pointer: int, size: int) -> tuple[Allocation, int]:
        """Return the allocation around `size` bytes at `pointer`, and their offset in it. Raises as `find`, and OUT_OF_RANGE."""
        found = self.find(device, pointer)
        offset = pointer - found.pointer
        if offset + size > found.size:
            raise Refusal(
                "NPU_ERROR_OUT_OF_RANGE",
                f"{size} bytes at {pointer:#x} leave the allocation of {found.size} bytes at {found.pointer:#x}",
            )
        return found, offset

    def _mark_freed(self, allocation: Allocation) -> None:
        self._ranges[allocation.pointer] = Range(allocation.pointer, allocation.size)
        self._freed[allocation.pointer] = None
        if len(self._freed) > REMEMBERED:
            self._forget(next(iter(self._freed)))

    def _forget(self, pointer: int) -> None:
        del self._freed[pointer], self._ranges[pointer]
        del self._starts[bisect_right(self._starts, pointer) - 1]
