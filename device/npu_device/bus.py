"""BAR0: every register of npu_hw.h with its access rule. A refused access reads all ones, is dropped, and is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from npu_abi import C

if TYPE_CHECKING:
    from npu_device.device import Device

ALL_ONES = 0xFFFFFFFF
HW_VERSION = 1 << 16  # major 1, minor 0

Read = Callable[[], int]
Write = Callable[[int], None]


class Bus:
    """Register accesses of the host. The caller has brought the device to its time before."""

    def __init__(self, device: Device) -> None:
        self._device = device
        fabric = device.fabric
        self._fabric = fabric
        self._reads: dict[int, Read] = {**fabric.memory_registers.reads}
        self._writes: dict[int, Write] = {}
        self._doorbells = range(
            C.NPU_REG_DOORBELL_BASE + C.NPU_DOORBELL_STRIDE,
            C.NPU_REG_DOORBELL_BASE + C.NPU_DOORBELL_STRIDE * C.NPU_NUM_DOORBELLS,
            C.NPU_DOORBELL_STRIDE,
        )
        self.reset()
        self._map_host()
        self._map_mmu()
        self._map_platform()
        self._map_pmu()
        self._map_status()

    def reset(self) -> None:
        """Return the bus's own registers to their reset values."""
        self._fabric.memory_registers.reset()
        self.bad_accesses = 0
        self._liveness = 0
        self._boot_entry = [0, 0]
        self._boot_params = [0, 0]

    def go_dead(self) -> None:
        """Answer nothing any more: every register reads all ones."""
        self.read32 = lambda offset: ALL_ONES  # type: ignore[method-assign]
        self.write32 = lambda offset, value: None  # type: ignore[method-assign]

    def read32(self, offset: int) -> int:
        """Return the register at a byte offset from BAR0."""
        read = self._reads.get(offset)
        if read is not None:
            return read()
        if offset in self._writes or offset in self._doorbells:
            return 0  # write only
        self.bad_accesses += 1
        return ALL_ONES

    def write32(self, offset: int, value: int) -> None:
        """Write the register at a byte offset from BAR0."""
        write = self._writes.get(offset)
        if write is not None:
            write(value & ALL_ONES)
        elif offset in self._doorbells:
            if value & C.NPU_DOORBELL_SET:
                self._fabric.core.ring((offset - int(C.NPU_REG_DOORBELL_BASE)) // int(C.NPU_DOORBELL_STRIDE))
        else:
            self.bad_accesses += 1

    def _map_host(self) -> None:
        reads, writes = self._reads, self._writes
        irq, core = self._fabric.interrupts, self._fabric.core
        reads[C.NPU_REG_HW_VERSION] = lambda: HW_VERSION
        reads[C.NPU_REG_ICB_STATUS] = lambda: irq.status
        reads[C.NPU_REG_ICB_CLEAR] = lambda: 0
        writes[C.NPU_REG_ICB_CLEAR] = irq.clear
        reads[C.NPU_REG_ICB_ENABLE] = lambda: irq.enable
        writes[C.NPU_REG_ICB_ENABLE] = irq.set_enable
        reads[C.NPU_REG_GLOBAL_INT_MASK] = lambda: irq.mask
        writes[C.NPU_REG_GLOBAL_INT_MASK] = irq.set_mask
        reads[C.NPU_REG_HOST_IPC_FIFO] = irq.pop_host
        reads[C.NPU_REG_HOST_IPC_FIFO_STAT] = lambda: min(len(irq.host_fifo), 255) << 16
        reads[C.NPU_REG_BOOT_ENTRY_LO] = lambda: self._boot_entry[0]
        writes[C.NPU_REG_BOOT_ENTRY_LO] = self._write_boot_entry
        self._map_word(C.NPU_REG_BOOT_ENTRY_HI, self._boot_entry_words, 1)
        self._map_word(C.NPU_REG_BOOT_PARAMS_LO, self._boot_params_words, 0)
        self._map_word(C.NPU_REG_BOOT_PARAMS_HI, self._boot_params_words, 1)
        reads[C.NPU_REG_BOOT_STATUS] = lambda: core.status
        writes[C.NPU_REG_CPU_IPC_FIFO] = core.post

    def _boot_entry_words(self) -> list[int]:
        return self._boot_entry

    def _boot_params_words(self) -> list[int]:
        return self._boot_params

    def _map_word(self, offset: int, words: Callable[[], list[int]], index: int) -> None:
        def write(value: int) -> None:
            words()[index] = value

        self._reads[offset] = lambda: words()[index]
        self._writes[offset] = write

    def _write_boot_entry(self, value: int) -> None:
        self._boot_entry[0] = value
        if value & C.NPU_BOOT_ENTRY_DONE:
            low, high = self._boot_params
            self._fabric.core.start((value & ~int(C.NPU_BOOT_ENTRY_DONE)) | self._boot_entry[1] << 32, low | high << 32)

    def _map_mmu(self) -> None:
        reads, writes = self._reads, self._writes
        mmu = self._fabric.mmu

        def enable(value: int) -> None:
            mmu.enabled = bool(value & C.NPU_MMU_ENABLE)

        def set_low(value: int) -> None:
            mmu.context_table_pa = (mmu.context_table_pa & ~ALL_ONES) | (value & ~0xFFF)

        def set_high(value: int) -> None:
            mmu.context_table_pa = (mmu.context_table_pa & ALL_ONES) | value << 32

        def pop(value: int) -> None:
            if mmu.events:
                mmu.events.popleft()

        reads[C.NPU_REG_MMU_CR0] = lambda: int(C.NPU_MMU_ENABLE) if mmu.enabled else 0
        writes[C.NPU_REG_MMU_CR0] = enable
        reads[C.NPU_REG_MMU_CDTAB_LO] = lambda: mmu.context_table_pa & ALL_ONES
        writes[C.NPU_REG_MMU_CDTAB_LO] = set_low
        reads[C.NPU_REG_MMU_CDTAB_HI] = lambda: mmu.context_table_pa >> 32
        writes[C.NPU_REG_MMU_CDTAB_HI] = set_high
        writes[C.NPU_REG_MMU_TLBI_SSID] = self._fabric.invalidate
        writes[C.NPU_REG_MMU_TLBI_ALL] = lambda value: self._fabric.invalidate_all()
        reads[C.NPU_REG_MMU_EVT_COUNT] = lambda: len(mmu.events)
        reads[C.NPU_REG_MMU_EVT_CODE] = lambda: mmu.events[0].code if mmu.events else 0
        reads[C.NPU_REG_MMU_EVT_SSID] = lambda: mmu.events[0].ssid if mmu.events else 0
        reads[C.NPU_REG_MMU_EVT_ADDR_LO] = lambda: mmu.events[0].address & ALL_ONES if mmu.events else 0
        reads[C.NPU_REG_MMU_EVT_ADDR_HI] = lambda: mmu.events[0].address >> 32 if mmu.events else 0
        reads[C.NPU_REG_MMU_EVT_INFO] = lambda: mmu.events[0].info if mmu.events else 0
        writes[C.NPU_REG_MMU_EVT_POP] = pop

    def _map_platform(self) -> None:
        reads, writes = self._reads, self._writes

        def set_liveness(value: int) -> None:
            self._liveness = value

        def reset(value: int) -> None:
            if value & C.NPU_IP_RESET_TRIGGER:
                self._device.reset()

        reads[C.NPU_REG_PLL_FREQ_HZ] = lambda: self._fabric.engine_clock.hz
        reads[C.NPU_REG_TILE_FUSE] = lambda: ALL_ONES & ~((1 << self._fabric.profile.tiles) - 1)
        ready, idle = int(C.NPU_STATUS_READY), int(C.NPU_STATUS_IDLE)
        reads[C.NPU_REG_NPU_STATUS] = lambda: ready | (idle if self._device.idle else 0)
        writes[C.NPU_REG_IP_RESET] = reset
        reads[C.NPU_REG_ID_MAGIC] = lambda: int(C.NPU_HW_MAGIC)
        reads[C.NPU_REG_LIVENESS] = lambda: ~self._liveness & ALL_ONES
        writes[C.NPU_REG_LIVENESS] = set_liveness
        reads[C.NPU_REG_BAD_MMIO] = lambda: self.bad_accesses & ALL_ONES

    def _map_pmu(self) -> None:
        pmu = self._fabric.pmu
        self._reads[C.NPU_REG_PMU_CTRL] = lambda: pmu.control
        self._writes[C.NPU_REG_PMU_CTRL] = pmu.write_control
        for index in range(C.NPU_PMU_COUNT):
            offset = C.NPU_REG_PMU_COUNTER_BASE + 8 * index
            self._reads[offset] = lambda index=index: pmu.read_low(index)  # type: ignore[misc]
            self._reads[offset + 4] = pmu.read_high

    def _map_status(self) -> None:
        reads = self._reads
        device = self._device
        for port in device.ports:
            offset = C.NPU_REG_DMA_STATUS_BASE + C.NPU_DMA_STATUS_STRIDE * port.unit
            reads[offset] = port.status_register
            reads[offset + 4] = lambda port=port: port.tasks_done & ALL_ONES  # type: ignore[misc]
        for barrier in self._fabric.barriers:
            offset = C.NPU_REG_BARRIER_BASE + 8 * barrier.physical_id
            reads[offset] = barrier.counts_register
            reads[offset + 4] = barrier.status_register
        for tile in range(self._fabric.profile.tiles):
            offset = C.NPU_REG_TILE_BASE + 8 * tile
            reads[offset] = lambda tile=tile: device.tile_busy(tile)  # type: ignore[misc]
            reads[offset + 4] = lambda tile=tile: device.tile_tasks_done(tile) & ALL_ONES  # type: ignore[misc]
