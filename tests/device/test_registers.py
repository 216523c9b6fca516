"""BAR0 as npu_hw.h says it: access rules, reset values, interrupts, reset."""

import zlib
from importlib.util import find_spec
from pathlib import Path

import pytest
from npu_abi import C, offsetof
from npu_device import Device

from tests.device.rig import CMX, Blob, Rig

ALL_ONES = 0xFFFFFFFF


def image_file():
    return (Path(find_spec("npu_firmware").origin).parent / "npu_fw.bin").read_bytes()


def test_identification_and_reset_values():
    bus = Device("npu-40xx").bus
    assert bus.read32(C.NPU_REG_ID_MAGIC) == 0x4550554E
    assert bus.read32(C.NPU_REG_HW_VERSION) >> 16 == 1
    assert bus.read32(C.NPU_REG_GLOBAL_INT_MASK) == 1
    assert bus.read32(C.NPU_REG_ICB_ENABLE) == 0
    assert bus.read32(C.NPU_REG_BOOT_STATUS) == C.NPU_BOOT_OFF
    assert bus.read32(C.NPU_REG_TILE_FUSE) == ALL_ONES & ~0b111111
    assert bus.read32(C.NPU_REG_PLL_FREQ_HZ) == 1_700_000_000
    assert bus.read32(C.NPU_REG_NPU_STATUS) == 3
    assert bus.read32(C.NPU_REG_HOST_IPC_FIFO) == 0
    assert bus.read32(C.NPU_REG_PMU_CTRL) == 1


@pytest.mark.parametrize(
    "offset",
    [0x4, C.NPU_REG_ICB_STATUS + 1, C.NPU_BAR0_SIZE, -4, C.NPU_REG_DOORBELL_BASE, C.NPU_REG_BARRIER_BASE + 8 * 32],
)
def test_a_refused_access_reads_all_ones_and_is_counted(offset):
    bus = Device("unit").bus
    assert bus.read32(offset) == ALL_ONES
    bus.write32(offset, 1)
    assert bus.read32(C.NPU_REG_BAD_MMIO) == 2


def test_a_write_to_a_read_only_register_is_dropped_and_counted():
    bus = Device("unit").bus
    bus.write32(C.NPU_REG_ID_MAGIC, 0)
    assert bus.read32(C.NPU_REG_ID_MAGIC) == 0x4550554E
    assert bus.read32(C.NPU_REG_BAD_MMIO) == 1


def test_write_only_registers_read_zero():
    bus = Device("unit").bus
    for offset in (
        C.NPU_REG_CPU_IPC_FIFO,
        C.NPU_REG_DOORBELL_BASE + 0x1000,
        C.NPU_REG_MMU_TLBI_ALL,
        C.NPU_REG_IP_RESET,
    ):
        assert bus.read32(offset) == 0
    assert bus.read32(C.NPU_REG_BAD_MMIO) == 0


def test_liveness_reads_the_complement():
    bus = Device("unit").bus
    bus.write32(C.NPU_REG_LIVENESS, 0x12345678)
    assert bus.read32(C.NPU_REG_LIVENESS) == 0xEDCBA987


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda image: b"\0" + image[1:], C.NPU_BOOT_BAD_IMAGE),
        (lambda image: image[:-1] + b"\1", C.NPU_BOOT_BAD_IMAGE),
        (lambda image: image[:8] + b"\xff" * 4 + image[12:], C.NPU_BOOT_BAD_IMAGE),
    ],
)
def test_a_damaged_image_does_not_boot(change, status):
    rig = Rig(boot=False)
    assert rig.boot(change(image_file())) == status
    assert rig.messages == []


def test_wrong_boot_parameters_are_refused():
    assert Rig(boot=False).boot(magic=0) == C.NPU_BOOT_BAD_PARAMS


@pytest.mark.parametrize(
    "wrong", [{"boot_type": 2}, {"scheduling_mode": 1}, {"reserved0": 1}, {"reserved": [0] * 99 + [1]}]
)
def test_boot_parameters_that_nobody_knows_stop_the_boot(wrong):
    assert Rig(boot=False).boot(**wrong) == C.NPU_BOOT_BAD_PARAMS


@pytest.mark.parametrize(("field", "at"), [("reserved0", 4), ("reserved", 4096 - 353), ("api_version", 8)])
def test_an_image_with_reserved_bits_does_not_boot(field, at):
    image = bytearray(image_file())
    image[offsetof("npu_fw_header", field) + at] = 1
    crc = offsetof("npu_fw_header", "crc32")
    image[crc : crc + 4] = bytes(4)
    image[crc : crc + 4] = zlib.crc32(image).to_bytes(4, "little")
    assert Rig(boot=False).boot(bytes(image)) == C.NPU_BOOT_BAD_IMAGE


def test_firmware_whose_mailbox_is_not_mapped_crashes_and_raises_core_fault():
    rig = Rig(boot=False)
    assert rig.boot(ipc_rx_va=0x9F000000) == C.NPU_BOOT_CRASHED


def test_reset_clears_everything_and_the_device_boots_again():
    rig = Rig()
    blob = Blob()
    bar = blob.barrier()
    src = rig.alloc(65536)
    blob.add_dma(src, CMX, 32768, posts=[bar])
    blob.add_dma(CMX, src, 32768, waits=[bar], port=1)
    rig.enqueue(rig.inference(blob))
    rig.device.run_until(rig.device.now_ps + 3_000_000)  # in the middle of the first copy
    assert rig.bus.read32(C.NPU_REG_DMA_STATUS_BASE) & 1
    assert rig.bus.read32(C.NPU_REG_BARRIER_BASE + 4) == 1
    rig.bus.write32(C.NPU_REG_IP_RESET, 1)
    assert rig.device.next_event_ps() is None
    assert rig.bus.read32(C.NPU_REG_DMA_STATUS_BASE) == 0
    assert rig.bus.read32(C.NPU_REG_BARRIER_BASE + 4) == 0
    assert rig.bus.read32(C.NPU_REG_BOOT_STATUS) == C.NPU_BOOT_OFF
    assert rig.device.counters() == [0] * C.NPU_PMU_COUNT
    rig.messages.clear()
    assert rig.boot() == C.NPU_BOOT_RUNNING
    assert [m.type for m in rig.messages] == [C.NPU_JSM_BOOT_DONE]


def test_the_line_rises_again_when_a_message_remains():
    device = Device("unit")
    calls = []
    device.connect_irq(lambda: (calls.append(1), device.bus.read32(C.NPU_REG_HOST_IPC_FIFO)))
    device.bus.write32(C.NPU_REG_ICB_ENABLE, C.NPU_ICB_HOST_IPC_FIFO)
    device.bus.write32(C.NPU_REG_GLOBAL_INT_MASK, 0)
    device.fabric.interrupts.push_host(64)
    device.fabric.interrupts.push_host(128)
    assert len(calls) == 1  # the line stayed high
    device.bus.write32(C.NPU_REG_ICB_CLEAR, C.NPU_ICB_HOST_IPC_FIFO)
    assert len(calls) == 2


def test_masked_interrupts_arrive_when_the_mask_goes():
    device = Device("unit")
    calls = []
    device.connect_irq(lambda: calls.append(1))
    device.bus.write32(C.NPU_REG_ICB_ENABLE, C.NPU_ICB_HOST_IPC_FIFO)
    device.fabric.interrupts.push_host(64)
    assert calls == []
    device.bus.write32(C.NPU_REG_GLOBAL_INT_MASK, 0)
    assert calls == [1]
