"""The interrupt handler: which causes are pending, and draining what they stand for.

It only moves what the device queued to who waits for it; killing a context and resetting the device are left to process context. A device
that is gone reads all ones, in every register: no loop here goes on then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_abi import C, name_of

if TYPE_CHECKING:
    from npu_driver.kernel import Kernel

HOST_IPC_FIFO, MMU_EVENT, CORE_FAULT = C.NPU_ICB_HOST_IPC_FIFO, C.NPU_ICB_MMU_EVENT, C.NPU_ICB_CORE_FAULT
CAUSES = HOST_IPC_FIFO | MMU_EVENT | CORE_FAULT
STATUS, CLEAR = C.NPU_REG_ICB_STATUS, C.NPU_REG_ICB_CLEAR
ALL_ONES = 0xFFFFFFFF


class InterruptHandler:
    """What the interrupt line of a kernel's device is connected to."""

    __slots__ = ("_bus", "_ipc", "_kernel", "_running")

    def __init__(self, kernel: Kernel) -> None:
        self._bus = kernel.device.bus
        self._ipc = kernel.ipc
        self._kernel = kernel
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
                    if bus.read32(STATUS) == ALL_ONES:
                        self._kernel.remove()
                        return
                    self._kernel.recovery.want("the management core stopped")
                bus.write32(CLEAR, causes)
        finally:
            self._running = False

    def is_due(self) -> bool:
        """Whether a cause is pending that no interrupt has told of."""
        status = self._bus.read32(STATUS)
        return status != ALL_ONES and bool(status & CAUSES)

    def _drain_faults(self) -> None:
        read32 = self._bus.read32
        for _ in range(C.NPU_MMU_EVTQ_DEPTH):
            if not read32(C.NPU_REG_MMU_EVT_COUNT):
                break
            code = read32(C.NPU_REG_MMU_EVT_CODE)
            if code == ALL_ONES:
                break
            ssid = read32(C.NPU_REG_MMU_EVT_SSID)
            address = read32(C.NPU_REG_MMU_EVT_ADDR_HI) << 32 | read32(C.NPU_REG_MMU_EVT_ADDR_LO)
            info = read32(C.NPU_REG_MMU_EVT_INFO)
            self._bus.write32(C.NPU_REG_MMU_EVT_POP, 1)
            access = "write" if info & 1 else "read"
            engine = name_of("npu_engine", info >> 8 & 0xFF)
            self._kernel.mmu_faults += 1
            self._kernel.lose(ssid, f"{name_of('npu_mmu_event', code)}: {engine} {access} at {address:#x}")
