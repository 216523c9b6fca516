"""BAR0 as process-context driver code sees it: 32-bit accesses that are counted, because each costs the host time.

The interrupt handler uses the bus directly; its time is part of the profile's `interrupt_ns`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npu_driver.device_api import BusApi


class Registers:
    """Counted register access; `accesses` is the number of the current call, which the kernel takes."""

    __slots__ = ("accesses", "bus")

    def __init__(self, bus: BusApi) -> None:
        self.bus = bus
        self.accesses = 0

    def read(self, offset: int) -> int:
        """Read the register at byte `offset` of BAR0."""
        self.accesses += 1
        return self.bus.read32(offset)

    def peek(self, offset: int) -> int:
        """Read a register at no cost for the host: of the emulator's own calls."""
        return self.bus.read32(offset)

    def write(self, offset: int, value: int) -> None:
        """Write the register at byte `offset` of BAR0."""
        self.accesses += 1
        self.bus.write32(offset, value)
