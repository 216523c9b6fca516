"""Which device memory a program holds: from an address to its allocation, and what was freed."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from libnpu.capi.refusal import Refusal

if TYPE_CHECKING:
    from libnpu.runtime import DeviceBuffer

REMEMBERED = 4096  # freed ranges that are still recognised


@dataclass(slots=True, eq=False)
class Allocation:
    """Device memory from npu_malloc. `size` is what the program asked for, not the pages behind it."""

    address: int
    size: int
    device: int
    buffer: DeviceBuffer


class Allocations:
    """The live and the recently freed allocations of all devices. Device addresses of different devices may be equal."""

    def __init__(self) -> None:
        self._starts: dict[int, list[int]] = {}  # by device, sorted
        self._live: dict[tuple[int, int], Allocation] = {}
        self._freed: dict[tuple[int, int], int] = {}  # (device, address) -> size, oldest first

    def __len__(self) -> int:
        return len(self._live)

    def clear(self) -> None:
        """Count every live allocation as freed."""
        for key in list(self._live):
            self.take(*key)

    def add(self, allocation: Allocation) -> None:
        """Remember a new allocation; what was freed at its addresses is forgotten."""
        end = allocation.address + allocation.size
        for device, address in list(self._freed):
            if (
                device == allocation.device
                and address < end
                and allocation.address < address + self._freed[device, address]
            ):
                del self._freed[device, address]
        starts = self._starts.setdefault(allocation.device, [])
        starts.insert(bisect_right(starts, allocation.address), allocation.address)
        self._live[allocation.device, allocation.address] = allocation

    def take(self, device: int, address: int) -> Allocation:
        """Remove and return the allocation that starts at `address`.

        Raises STALE_HANDLE when it was freed, WRONG_CONTEXT when it is another device's, INVALID_VALUE when there is none.
        """
        key = (device, address)
        allocation = self._live.pop(key, None)
        if allocation is None:
            if key in self._freed:
                raise Refusal("NPU_ERROR_STALE_HANDLE", f"device memory {address:#x} was freed before")
            inside = self._inside(device, address)
            if inside is not None:
                raise Refusal(
                    "NPU_ERROR_INVALID_VALUE",
                    f"{address:#x} is not the first address of the allocation at {inside.address:#x}",
                )
            raise self._unknown(device, address, "NPU_ERROR_INVALID_VALUE")
        self._starts[device].remove(address)
        self._freed[key] = allocation.size
        if len(self._freed) > REMEMBERED:
            del self._freed[next(iter(self._freed))]
        return allocation

    def find(self, device: int, address: int, unknown: str = "NPU_ERROR_OUT_OF_RANGE") -> Allocation:
        """Return the allocation that contains `address`.

        Raises STALE_HANDLE in freed memory, WRONG_CONTEXT in another device's, `unknown` (a result's name) elsewhere.
        """
        found = self._inside(device, address)
        if found is None:
            raise self._unknown(device, address, unknown)
        return found

    def range(self, device: int, address: int, size: int) -> tuple[Allocation, int]:
        """Return the allocation around `size` bytes at `address`, and their offset in it. Raises as `find`, and OUT_OF_RANGE."""
        found = self.find(device, address)
        offset = address - found.address
        if offset + size > found.size:
            raise Refusal(
                "NPU_ERROR_OUT_OF_RANGE",
                f"{size} bytes at {address:#x} leave the allocation of {found.size} bytes at {found.address:#x}",
            )
        return found, offset

    def _inside(self, device: int, address: int) -> Allocation | None:
        starts = self._starts.get(device, [])
        index = bisect_right(starts, address) - 1
        if index >= 0:
            allocation = self._live[device, starts[index]]
            if address < allocation.address + allocation.size:
                return allocation
        return None

    def _unknown(self, device: int, address: int, unknown: str) -> Refusal:
        for (owner, start), size in self._freed.items():
            if owner == device and start <= address < start + size:
                return Refusal("NPU_ERROR_STALE_HANDLE", f"{address:#x} is in device memory that was freed")
        for owner in self._starts:
            if owner != device and self._inside(owner, address) is not None:
                return Refusal(
                    "NPU_ERROR_WRONG_CONTEXT", f"{address:#x} is memory of device {owner}, and this is device {device}"
                )
        return Refusal(unknown, f"{address:#x} is not device memory")
