"""Handles and allocations: what was never valid, what is gone, what is another's; no key is ever followed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from npu_abi import C

from libnpu.capi.allocations import REMEMBERED, Allocation, Allocations, pointer_of
from libnpu.capi.handles import HandleTable, Kind
from libnpu.capi.refusal import Refusal


def refusal(call, *arguments):
    with pytest.raises(Refusal) as caught:
        call(*arguments)
    return caught.value.result


def test_handle_leads_to_its_object_and_only_under_its_kind():
    table = HandleTable()
    handle = table.insert(Kind.STREAM, "s")
    assert table.get(Kind.STREAM, handle) == "s"
    assert refusal(table.get, Kind.BLOB, handle) == C.NPU_ERROR_INVALID_HANDLE


def test_removed_handle_is_stale_even_when_its_slot_is_used_again():
    table = HandleTable()
    old = table.insert(Kind.STREAM, "old")
    table.remove(Kind.STREAM, old)
    assert refusal(table.get, Kind.STREAM, old) == C.NPU_ERROR_STALE_HANDLE
    new = table.insert(Kind.STREAM, "new")
    assert new & 0xFFFFFF == old & 0xFFFFFF
    assert refusal(table.get, Kind.STREAM, old) == C.NPU_ERROR_STALE_HANDLE
    assert table.get(Kind.STREAM, new) == "new"


def test_clear_makes_every_handle_stale():
    table = HandleTable()
    handles = [table.insert(Kind.BLOB, i) for i in range(3)]
    table.clear()
    assert len(table) == 0
    assert [refusal(table.get, Kind.BLOB, h) for h in handles] == [C.NPU_ERROR_STALE_HANDLE] * 3


@given(st.integers(0, 2**64 - 1))
def test_made_up_handle_is_refused(value):
    table = HandleTable()
    handle = table.insert(Kind.STREAM, "s")
    if value != handle:
        assert refusal(table.get, Kind.STREAM, value) in (C.NPU_ERROR_INVALID_HANDLE, C.NPU_ERROR_STALE_HANDLE)


def memory(*pairs):
    table = Allocations()
    for pointer, size in pairs:
        table.add(Allocation(pointer, size, None))
    return table


def test_range_inside_an_allocation_has_an_offset():
    table = memory((0x1000, 100), (0x3000, 50))
    found, offset = table.range(0, 0x3010, 34)
    assert (found.pointer, offset) == (0x3000, 16)


@pytest.mark.parametrize(
    ("address", "size"), [(0x1000, 101), (0x1064, 0), (0xFFF, 1), (0x2000, 1), (0, 1), (2**64 - 1, 1), (0x1001, 2**64)]
)
def test_range_that_leaves_its_allocation_is_out_of_range(address, size):
    assert refusal(memory((0x1000, 100)).range, 0, address, size) == C.NPU_ERROR_OUT_OF_RANGE


def test_freed_memory_is_stale_until_it_is_allocated_again():
    table = memory((0x1000, 100))
    table.take(0, 0x1000)
    assert refusal(table.take, 0, 0x1000) == C.NPU_ERROR_STALE_HANDLE
    assert refusal(table.range, 0, 0x1010, 4) == C.NPU_ERROR_STALE_HANDLE
    table.add(Allocation(0x1000, 10, None))
    assert table.range(0, 0x1000, 10)[1] == 0
    assert refusal(table.range, 0, 0x1010, 4) == C.NPU_ERROR_OUT_OF_RANGE


def test_interior_and_unknown_addresses_cannot_be_freed():
    table = memory((0x1000, 100))
    assert refusal(table.take, 0, 0x1001) == C.NPU_ERROR_INVALID_VALUE
    assert refusal(table.take, 0, 0x9000) == C.NPU_ERROR_INVALID_VALUE
    assert len(table) == 1


def test_memory_of_another_device_is_the_wrong_context_also_when_freed():
    table = memory((pointer_of(0, 0x1000), 100), (pointer_of(1, 0x1000), 50))
    assert table.range(1, pointer_of(1, 0x1000), 50)[0].device == 1
    for _ in range(2):
        assert refusal(table.range, 1, pointer_of(0, 0x1000), 4) == C.NPU_ERROR_WRONG_CONTEXT
        assert refusal(table.take, 1, pointer_of(0, 0x1000)) == C.NPU_ERROR_WRONG_CONTEXT
        if len(table) == 2:
            table.take(0, pointer_of(0, 0x1000))


def test_new_allocation_replaces_every_freed_one_that_it_overlaps():
    table = memory((0x1000, 100), (0x2000, 100), (0x3000, 100), (0x4000, 100))
    for pointer in (0x1000, 0x2000, 0x3000):
        table.take(0, pointer)
    table.add(Allocation(0x1010, 0x1FF1, None))  # to 0x3001
    assert len(table) == 2
    assert table.find(0, 0x3000).pointer == 0x1010
    assert refusal(table.find, 0, 0x1000) == C.NPU_ERROR_OUT_OF_RANGE
    assert refusal(table.find, 0, 0x3001) == C.NPU_ERROR_OUT_OF_RANGE
    assert table.find(0, 0x4000).pointer == 0x4000


def test_only_so_many_freed_allocations_are_remembered():
    table = Allocations()
    for i in range(REMEMBERED + 1):
        table.add(Allocation(i * 64, 64, None))
        table.take(0, i * 64)
    assert refusal(table.find, 0, 0) == C.NPU_ERROR_OUT_OF_RANGE
    assert refusal(table.find, 0, 64) == C.NPU_ERROR_STALE_HANDLE
