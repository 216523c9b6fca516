"""The device's memory on the host: where its extents are."""

import resource
import subprocess
import sys

import pytest
from npu_device import dram as dram_module
from npu_device.dram import EXTENT_BYTES, Dram
from npu_device.host_addresses import GUARD_BYTES, RANGE_BYTES, HostAddresses


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Addresses of this test's own."""
    monkeypatch.setattr(dram_module, "HOST_ADDRESSES", HostAddresses())


def address_of(dram, heap):
    return dram.locate(dram.alloc(4096, heap))[0].array.ctypes.data


def test_addresses_of_a_heap_that_is_gone_come_again_and_no_others_do():
    dram = Dram(1 << 30, poison=False)
    first, second = address_of(dram, 1), address_of(dram, 2)
    assert second == first + EXTENT_BYTES + GUARD_BYTES
    dram.free(dram._extents[0].pa)
    dram.close_heap(1)
    assert address_of(dram, 3) == first
    assert address_of(dram, 4) == second + EXTENT_BYTES + GUARD_BYTES


def test_the_same_addresses_come_again_in_every_process():
    program = """
from npu_device.dram import Dram
dram, addresses = Dram(1 << 40, poison=False), []
for heap in range(40):
    pa = dram.alloc([1 << 12, 1 << 28, 3 << 26, 1 << 20][heap * 7 % 4], heap)
    addresses.append(dram.locate(pa)[0].array.ctypes.data)
    if heap % 3:
        dram.free(pa)
        dram.close_heap(heap)
print([addresses.index(address) for address in addresses])
"""
    command = [sys.executable, "-c", program]
    runs = {subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(3)}
    assert len(runs) == 1


def test_a_view_outlives_its_heap_and_its_addresses_are_not_given_away():
    dram = Dram(1 << 30, poison=True)
    pa = dram.alloc(4096, 1)
    view, first = dram.view(pa, 4096), dram.locate(pa)[0].array.ctypes.data
    dram.free(pa)
    dram.close_heap(1)
    second = address_of(dram, 2)
    assert second != first
    assert set(view) == {0xFF}
    del view
    assert address_of(dram, 3) == first


def test_addresses_that_mean_nothing_stay_reserved():
    def mode_at(address):
        with open("/proc/self/maps") as lines:
            for line in lines:
                span, mode = line.split()[:2]
                low, high = (int(text, 16) for text in span.split("-"))
                if low <= address < high:
                    return mode
        return None

    dram = Dram(1 << 30, poison=False)
    address = address_of(dram, 1)
    assert mode_at(address) == "rw-s"
    assert mode_at(address + EXTENT_BYTES) == "---p"
    dram.free(dram._extents[0].pa)
    dram.close_heap(1)
    assert mode_at(address) == "---p"


def test_where_a_limit_forbids_more_addresses_it_is_an_error_and_nothing_is_lost():
    dram = Dram(1 << 40, poison=False)
    low, high = resource.getrlimit(resource.RLIMIT_AS)
    first = address_of(dram, 1)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, high))
    try:
        with pytest.raises(OSError, match="2147549184 bytes of addresses"):
            dram.alloc(2 << 30, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (low, high))
    assert dram.used_bytes == 4096
    dram.free(dram.alloc(2 << 30, 2))
    assert address_of(dram, 1) == first


def test_free_pieces_are_joined_within_a_range():
    addresses = HostAddresses()
    size, others = RANGE_BYTES // 4 - GUARD_BYTES, []
    with open("/dev/zero", "r+b") as zero:
        arrays = [addresses.map(zero.fileno(), size) for _ in range(8)]
        bases = [array.ctypes.data for array in arrays]
        for number in (2, 0, 1, 3, 5, 6, 4, 7):
            arrays[number] = None
        whole = RANGE_BYTES - GUARD_BYTES
        others = [addresses.map(zero.fileno(), whole) for _ in range(2)]
        assert [array.ctypes.data for array in others] == [bases[0], bases[4]]
        assert addresses.map(zero.fileno(), size).ctypes.data not in bases
