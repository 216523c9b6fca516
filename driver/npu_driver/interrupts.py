"""The interrupt handler: which causes are pending, and draining what they stand for.

It only moves what the device queued to who waits for it; killing a context is left to process context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_abi import C, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_driver.device_api import BusApi
    from npu_driver.ipc import Ipc

HOST_IPC_FIFO, MMU_EVENT, CORE_FAULT = C.NPU_ICB_HOST_IPC_FIFO, C.NPU_ICB_MMU_EVENT, C.NPU_ICB_CORE_FAULT
CAUSES = HOST_IPC_FIFO | MMU_EVENT | CORE_FAULT
STATUS, CLEAR = C.NPU_REG_ICB_STATUS, C.NPU_REG_ICB_CLEAR


class InterruptHandler:
    """`on_fault(ssid, text)` hears of translation faults, `note(text)` writes to the kernel log."""

    __slots__ = ("_bus", "_ipc", "_note", "_on_fault", "_running")

    def __init__(
        self, bus: BusApi, ipc: Ipc, on_fault: Callable[[int, str], None], note: Callable[[str], None]
    ) -> None:
        self._bus = bus
        self._ipc = ipc
        self._on_fault = on_fault
        self._note = note
        self._running = False

    def handle(self) -> None:
        """Serve all pending causes.

        The line's rising edge calls it; a cause that re-raises meanwhile is served by the running call.
        """
        if self._running:
            return
        self._running = True
        try:
            bus = self._bus
            while causes := bus.read32(STATUS) & CAUSES:
                if causes & MMU_EVENT:
                    self._drain_faults()
                if causes & HOST_IPC_FIFO:
                    self._ipc.drain()
                if causes & CORE_FAULT:
                    self._note("the management core stopped")
                bus.write32(CLEAR, causes)
        finally:
            self._running = False

    def _drain_faults(self) -> None:
        read32 = self._bus.read32
        while read32(C.NPU_REG_MMU_EVT_COUNT):
            code = name_of("npu_mmu_event", read32(C.NPU_REG_MMU_EVT_CODE))
            ssid = read32(C.NPU_REG_MMU_EVT_SSID)
            address = read32(C.NPU_REG_MMU_EVT_ADDR_HI) << 32 | read32(C.NPU_REG_MMU_EVT_ADDR_LO)
            info = read32(C.NPU_REG_MMU_EVT_INFO)
            self._bus.write32(C.NPU_REG_MMU_EVT_POP, 1)
            access = "write" if info & 1 else "read"
            engine = name_of("npu_engine", info >> 8 & 0xFF)
            self._on_fault(ssid, f"{code}: {engine} {access} at {address:#x}")
