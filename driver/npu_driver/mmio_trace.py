"""A device whose registers say who touches them: a line for each access of the driver, interrupt handler included."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from npu_abi import enum

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_driver.device_api import DeviceApi

REGISTERS = sorted((int(member), member.name) for member in enum("npu_hw_reg"))
OFFSETS = [offset for offset, _ in REGISTERS]
PS_PER_S = 10**12


def register_name(offset: int) -> str:
    """Return the name of the register at byte `offset`; in an array, the array's and how far it is."""
    index = bisect_right(OFFSETS, offset) - 1
    if index < 0:
        return hex(offset)
    base, name = REGISTERS[index]
    return name if base == offset else f"{name}+{offset - base:#x}"


class TracedBus:
    """BAR0 of `device`; `write` takes a line."""

    __slots__ = ("_device", "_write")

    def __init__(self, device: DeviceApi, write: Callable[[str], object]) -> None:
        self._device = device
        self._write = write

    def read32(self, offset: int, /) -> int:
        value = self._device.bus.read32(offset)
        self._say("read", offset, value)
        return value

    def write32(self, offset: int, value: int, /) -> None:
        self._say("write", offset, value)
        self._device.bus.write32(offset, value)

    def _say(self, way: str, offset: int, value: int) -> None:
        self._write(f"{self._device.now_ps / PS_PER_S:.9f} mmio {way} {register_name(offset)} {value:#x}")


class TracedDevice:
    """`device` with a `TracedBus`; the rest is the device's own."""

    def __init__(self, device: DeviceApi, write: Callable[[str], object]) -> None:
        self._device = device
        self.bus = TracedBus(device, write)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)
