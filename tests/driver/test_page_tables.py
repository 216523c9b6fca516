"""Page tables as the device reads them: a walk written from npu_hw.h's text, over the bytes in DRAM."""

from __future__ import annotations

import struct

import pytest
from npu_device.dram import Dram
from npu_driver.memory import Memory
from npu_driver.mmu import AddressSpace

MIB = 1 << 20


@pytest.fixture
def memory():
    return Memory(Dram(64 * MIB, True), 64 * MIB)


def walk(memory, root, va):
    """Return the leaf of `va`, or None. Bits 47:39, 38:30, 29:21, 20:12; VALID bit 0, TABLE bit 1."""
    table = root
    for shift in (39, 30, 21):
        (entry,) = struct.unpack_from("<Q", memory.view(table, 4096), (va >> shift & 511) * 8)
        if not entry & 1:
            return None
        assert entry & 0xFFF == 0x3
        table = entry & 0x0000FFFFFFFFF000
    (leaf,) = struct.unpack_from("<Q", memory.view(table, 4096), (va >> 12 & 511) * 8)
    return leaf if leaf & 1 else None


def test_a_mapped_page_has_address_access_flag_and_valid(memory):
    space = AddressSpace(memory)
    space.map(0x80000000, 0x1_2345_6000, 1)
    assert walk(memory, space.root_pa, 0x80000000) == 0x1_2345_6000 | 1 << 10 | 1


def test_read_only_sets_bit_7(memory):
    space = AddressSpace(memory)
    space.map(0x80000000, 0x1_0000_0000, 1, read_only=True)
    assert walk(memory, space.root_pa, 0x80000000) & 0x80


def test_neighbours_of_a_mapping_are_not_valid(memory):
    space = AddressSpace(memory)
    space.map(0x1_0000_1000, 0x1_0000_0000, 1)
    assert walk(memory, space.root_pa, 0x1_0000_0000) is None
    assert walk(memory, space.root_pa, 0x1_0000_2000) is None


def test_a_mapping_across_leaf_tables_is_contiguous(memory):
    space = AddressSpace(memory)
    va, pa, pages = 0x3FFF_F000, 0x1_0000_0000, 1500  # crosses 1 GiB and several 2 MiB tables
    space.map(va, pa, pages)
    leaves = [walk(memory, space.root_pa, va + i * 4096) for i in range(pages)]
    assert leaves == [pa + i * 4096 | 0x401 for i in range(pages)]


def test_unmap_clears_only_its_pages(memory):
    space = AddressSpace(memory)
    space.map(0x80000000, 0x1_0000_0000, 4)
    space.unmap(0x80001000, 2)
    found = [walk(memory, space.root_pa, 0x80000000 + i * 4096) is not None for i in range(4)]
    assert found == [True, False, False, True]


def test_tables_without_entries_serve_again(memory):
    space = AddressSpace(memory)
    space.map(0x1_0000_0000, 0x1_0000_0000, 1)
    before = memory.free_bytes
    for i in range(40):
        va = 0x2_0000_0000 + i * (1 << 30) - 4096  # two leaf tables, and two above them
        space.map(va, 0x1_0000_0000, 2)
        assert walk(memory, space.root_pa, va + 4096) == 0x1_0000_1401
        space.unmap(va, 2)
        assert walk(memory, space.root_pa, va) is None
    assert memory.free_bytes == before
    assert walk(memory, space.root_pa, 0x1_0000_0000) == 0x1_0000_0401


def test_a_table_with_an_entry_stays(memory):
    space = AddressSpace(memory)
    space.map(0x1_0000_0000, 0x1_0000_0000, 512)
    space.unmap(0x1_0000_0000, 511)
    assert walk(memory, space.root_pa, 0x1_0000_0000 + 511 * 4096) == 0x1_0000_0401 + 511 * 4096
    space.unmap(0x1_0000_0000 + 511 * 4096, 1)
    assert walk(memory, space.root_pa, 0x1_0000_0000 + 511 * 4096) is None


def test_destroy_gives_all_memory_back(memory):
    before = memory.free_bytes
    space = AddressSpace(memory)
    for i in range(40):
        space.map(0x1_0000_0000 + i * (1 << 30), 0x1_0000_0000, 1)
    space.destroy()
    assert memory.free_bytes == before
