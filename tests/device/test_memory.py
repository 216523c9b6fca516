"""DRAM, translation and CMX: what is mapped is reached, what is not faults with its first address."""

import os

import numpy as np
import pytest
from npu_abi import C
from npu_device import Device, MemoryFault
from npu_device.dram import Dram, OutOfMemory

from tests.device.rig import CMX, SSID, Rig

PAGE = 4096


@pytest.fixture
def rig():
    return Rig(register=False)


@pytest.fixture
def mmu(rig):
    return rig.device.fabric.mmu


def test_fresh_memory_is_poison_also_after_reuse():
    dram = Dram(1 << 20, poison=True)
    pa = dram.alloc(100)
    assert pa % PAGE == 0
    assert bytes(dram.view(pa, PAGE)) == b"\xff" * PAGE
    dram.view(pa, 4)[:] = b"1234"
    dram.free(pa)
    assert bytes(dram.view(dram.alloc(100), 4)) == b"\xff" * 4


def test_capacity_is_a_limit_and_freed_neighbours_merge():
    dram = Dram(8 * PAGE, poison=False)
    pages = [dram.alloc(PAGE) for _ in range(8)]
    with pytest.raises(OutOfMemory):
        dram.alloc(1)
    for pa in (pages[3], pages[5], pages[4]):
        dram.free(pa)
    assert dram.alloc(3 * PAGE) == pages[3]
    with pytest.raises(ValueError):
        dram.free(pages[4])


def test_a_view_outside_every_extent_is_refused():
    dram = Dram(1 << 20, poison=False)
    pa = dram.alloc(PAGE)
    for bad in (0, pa - PAGE, pa + (1 << 30)):
        with pytest.raises(ValueError):
            dram.view(bad, 1)


def test_the_descriptor_maps_the_same_bytes():
    import mmap

    dram = Dram(1 << 20, poison=False)
    pa = dram.alloc(2 * PAGE)
    fd, offset = dram.fd(pa)
    with mmap.mmap(fd, PAGE, offset=offset) as other:
        other[0:4] = b"host"
    assert bytes(dram.view(pa, 4)) == b"host"


def test_a_mapped_range_is_one_view_and_its_end_faults(rig, mmu):
    va = rig.alloc(bytes(range(256)) * 48)  # three pages
    assert mmu.view(SSID, va + 4000, 1000, False).tolist() == (list(range(256)) * 48)[4000:5000]
    with pytest.raises(MemoryFault) as fault:
        mmu.view(SSID, va + 3 * PAGE - 8, 16, True)
    assert (fault.value.address, fault.value.code) == (va + 3 * PAGE, C.NPU_MMU_EVT_TRANSLATION)


def test_an_unmapped_page_faults_and_another_context_does_not_see_it(rig, mmu):
    va = rig.alloc(16)
    with pytest.raises(MemoryFault) as fault:
        mmu.view(SSID + 1, va, 1, False)
    assert fault.value.code == C.NPU_MMU_EVT_BAD_SSID
    with pytest.raises(MemoryFault) as fault:
        mmu.view(SSID, 1 << 48, 1, False)
    assert fault.value.code == C.NPU_MMU_EVT_ADDR_SIZE


def test_read_only_pages_refuse_writes(rig, mmu):
    va = rig.alloc(16, flags=C.NPU_PTE_RO)
    mmu.view(SSID, va, 16, False)
    with pytest.raises(MemoryFault) as fault:
        mmu.view(SSID, va, 16, True)
    assert (fault.value.code, fault.value.write) == (C.NPU_MMU_EVT_PERMISSION, True)


def test_a_stale_translation_stays_until_it_is_invalidated(rig, mmu):
    va = rig.alloc(b"old!")
    assert mmu.view(SSID, va, 4, False).tobytes() == b"old!"
    new_pa = rig.dram.alloc(PAGE)
    rig.dram.view(new_pa, 4)[:] = b"new!"
    rig.map(SSID, va, new_pa, PAGE)
    assert mmu.view(SSID, va, 4, False).tobytes() == b"old!"
    rig.bus.write32(C.NPU_REG_MMU_TLBI_SSID, SSID + 1)
    assert mmu.view(SSID, va, 4, False).tobytes() == b"old!"
    rig.bus.write32(C.NPU_REG_MMU_TLBI_SSID, SSID)
    assert mmu.view(SSID, va, 4, False).tobytes() == b"new!"


def test_a_disabled_mmu_faults(rig, mmu):
    va = rig.alloc(16)
    rig.bus.write32(C.NPU_REG_MMU_CR0, 0)
    rig.bus.write32(C.NPU_REG_MMU_TLBI_ALL, 0)
    with pytest.raises(MemoryFault):
        mmu.view(SSID, va, 1, False)


def test_pages_that_are_not_contiguous_read_as_a_copy(rig, mmu):
    va, pages = 0x9000_0000, [rig.dram.alloc(PAGE) for _ in range(3)]
    for i, pa in enumerate(reversed(pages)):
        rig.dram.view(pa, PAGE)[:] = bytes([i]) * PAGE
        rig.map(SSID, va + i * PAGE, pa, PAGE)
    assert mmu.view(SSID, va + PAGE - 1, PAGE + 2, False).tolist() == [0] + [1] * PAGE + [2]


def test_pages_that_are_not_contiguous_are_written_in_place(rig, mmu):
    va = 0x9100000
    pages = [rig.dram.alloc(4096) for _ in range(5)]
    for index, page in enumerate((4, 0, 2)):
        rig.map(SSID, va + 4096 * index, pages[page], 4096)
    view = mmu.view(SSID, va + 4000, 4096 + 200, True)
    view[:] = 7
    assert rig.dram.view(pages[4], 4096)[3999:].tobytes() == b"\xff" + bytes([7]) * 96
    assert rig.dram.view(pages[0], 4096).tobytes() == bytes([7]) * 4096
    assert rig.dram.view(pages[2], 4096)[:105].tobytes() == bytes([7]) * 104 + b"\xff"
    rig.dram.view(pages[0], 1)[0] = 9
    assert view[96] == 9
    assert mmu.view(SSID, va + 4000, 200, True)[96] == 9


def test_a_write_that_runs_into_a_read_only_page_faults_there(rig, mmu):
    va = 0x9200000
    pages = [rig.dram.alloc(4096) for _ in range(3)]
    rig.map(SSID, va, pages[2], 4096)
    rig.map(SSID, va + 4096, pages[0], 4096, C.NPU_PTE_RO)
    with pytest.raises(MemoryFault) as fault:
        mmu.view(SSID, va, 8192, True)
    assert (fault.value.address, fault.value.code) == (va + 4096, C.NPU_MMU_EVT_PERMISSION)


def test_a_context_table_that_points_nowhere_faults(rig, mmu):
    rig.bus.write32(C.NPU_REG_MMU_CDTAB_HI, 0x7FFF)
    rig.bus.write32(C.NPU_REG_MMU_TLBI_ALL, 0)
    with pytest.raises(MemoryFault):
        mmu.view(0, C.NPU_VA_GLOBAL_BASE, 1, False)


def test_cmx_is_bounded_by_the_tiles_of_the_job():
    rig = Rig("npu-37xx")
    from npu_device.cmx import AddressSpace

    fabric = rig.device.fabric
    space = AddressSpace(fabric.mmu, fabric.cmx, SSID, (1,))
    space.view(CMX, 16, True)[:] = 7
    assert (fabric.cmx.tile(1)[:16] == 7).all()
    workspace = rig.device.profile.cmx.workspace_bytes
    for address, nbytes in ((CMX + workspace - 8, 16), (CMX + C.NPU_CMX_TILE_STRIDE, 1), (CMX + workspace, 1)):
        with pytest.raises(MemoryFault) as fault:
            space.view(address, nbytes, False)
        assert fault.value.code == C.NPU_MMU_EVT_CMX_RANGE
    with pytest.raises(MemoryFault):
        space.array(CMX + workspace - 8, (2, 2), (8, 4), np.dtype(np.float32))


def test_two_devices_live_side_by_side():
    one, two = Device("unit"), Device("npu-40xx")
    pa, pb = one.dram.alloc(PAGE), two.dram.alloc(PAGE)
    one.dram.view(pa, 1)[0] = 1
    two.dram.view(pb, 1)[0] = 2
    one.run_until(10)
    assert (one.dram.view(pa, 1)[0], two.dram.view(pb, 1)[0], one.now_ps, two.now_ps) == (1, 2, 10, 0)


def test_a_slice_of_cmx_is_poison_for_each_block_whoever_had_the_tile():
    rig = Rig("npu-37xx")
    from npu_device.cmx import AddressSpace, SliceSpace

    fabric = rig.device.fabric
    workspace = rig.device.profile.cmx.workspace_bytes
    size = workspace // 2

    def block(shave):
        return SliceSpace(fabric.mmu, fabric.cmx, SSID, 0, shave * size, size)

    neighbour = block(1)
    for address, nbytes in ((CMX, 8), (CMX + size - 8, 8), (CMX + 4096, 100)):
        block(0).view(address, nbytes, True)[:] = 7
        neighbour.view(CMX + 64, 4, True)[:] = 9
        assert (block(0).view(CMX, size, False) == 0xFF).all()
        assert (neighbour.view(CMX + 64, 4, False) == 9).all()
    block(0).array(CMX + 256, (2, 2), (8, 4), np.dtype(np.float32))[:] = 1
    assert (block(0).view(CMX, size, False) == 0xFF).all()
    inference = AddressSpace(fabric.mmu, fabric.cmx, SSID, (0,))
    inference.view(CMX, workspace, True)[:] = 7
    for _ in range(2):
        assert (block(0).view(CMX, size, False) == 0xFF).all()
        assert (block(1).view(CMX, size, False) == 0xFF).all()
        block(1).view(CMX + 512, 64, True)[:] = 3
    fabric.cmx.poison(0)
    assert (inference.view(CMX, workspace, False) == 0xFF).all()


def test_heaps_share_no_extent_and_a_closed_one_goes_with_its_last_allocation():
    dram = Dram(1 << 20, poison=False)
    kernel, one, other = dram.alloc(PAGE), dram.alloc(PAGE, 2), dram.alloc(PAGE, 2)
    assert dram.fd(one)[0] == dram.fd(other)[0] != dram.fd(kernel)[0]
    fd = dram.fd(one)[0]
    dram.free(one)
    dram.close_heap(2)
    os.fstat(fd)  # `other` is in it
    assert dram.fd(dram.alloc(PAGE, 2))[0] != fd
    dram.free(other)
    with pytest.raises(OSError):
        os.fstat(fd)
    with pytest.raises(ValueError):
        dram.locate(other)


def test_an_extent_that_a_process_has_cannot_be_cut():
    dram = Dram(1 << 20, poison=False)
    fd, _ = dram.fd(dram.alloc(PAGE))
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)


def test_a_view_is_found_in_its_extent():
    dram = Dram(1 << 20, poison=False)
    pa = dram.alloc(2 * PAGE)
    assert dram.find(dram.view(pa + 100, 8)) == (dram.fd(pa)[0], dram.fd(pa)[1] + 100, 1 << 20)
    with pytest.raises(ValueError):
        dram.find(memoryview(bytearray(8)))
