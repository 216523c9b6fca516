"""Handles and pointers: what was never valid, what is gone, what is another's; no key is ever followed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from npu_abi import C

from libnpu.capi.handles import HandleTable, Kind
from libnpu.capi.memory import DEVICE_MASK, FIRST_NUMBER, LAST_NUMBER, is_device_pointer, pointer_of
from libnpu.capi.refusal import Refusal

HERE, THERE = "a context", "another context"  # the tables only ask whether it is the same one


def refusal(call, *arguments):
    with pytest.raises(Refusal) as caught:
        call(*arguments)
    return caught.value.result


def test_handle_leads_to_its_object_and_only_under_its_kind():
    table = HandleTable()
    handle = table.insert(Kind.STREAM, "s", HERE)
    assert table.get(Kind.STREAM, handle) == "s"
    assert refusal(table.get, Kind.BLOB, handle) == C.NPU_ERROR_INVALID_HANDLE


def test_removed_handle_is_stale_even_when_its_slot_is_used_again():
    table = HandleTable()
    old = table.insert(Kind.STREAM, "old", HERE)
    table.remove(Kind.STREAM, old)
    assert refusal(table.get, Kind.STREAM, old) == C.NPU_ERROR_STALE_HANDLE
    new = table.insert(Kind.STREAM, "new", HERE)
    assert new & 0xFFFFFF == old & 0xFFFFFF
    assert refusal(table.get, Kind.STREAM, old) == C.NPU_ERROR_STALE_HANDLE
    assert table.get(Kind.STREAM, new) == "new"


def test_clear_makes_every_handle_stale():
    table = HandleTable()
    handles = [table.insert(Kind.BLOB, str(i), HERE) for i in range(3)]
    table.clear()
    assert len(table) == 0
    assert [refusal(table.get, Kind.BLOB, h) for h in handles] == [C.NPU_ERROR_STALE_HANDLE] * 3


@given(st.integers(0, 2**64 - 1))
def test_made_up_handle_is_refused(value):
    table = HandleTable()
    handle = table.insert(Kind.STREAM, "s", HERE)
    if value != handle:
        assert refusal(table.get, Kind.STREAM, value) in (C.NPU_ERROR_INVALID_HANDLE, C.NPU_ERROR_STALE_HANDLE)


def test_object_has_its_handle_until_it_goes():
    table = HandleTable()
    stream = object()
    assert table.find(Kind.STREAM, stream) == 0
    handle = table.insert(Kind.STREAM, stream, HERE)
    assert (table.find(Kind.STREAM, stream), table.find(Kind.EVENT, stream)) == (handle, 0)
    table.remove(Kind.STREAM, handle)
    assert table.find(Kind.STREAM, stream) == 0


def test_end_of_a_context_makes_its_handles_stale_and_no_others():
    table = HandleTable()
    here, there = (table.insert(Kind.EVENT, name, name) for name in (HERE, THERE))
    table.remove_context(HERE)
    assert refusal(table.get, Kind.EVENT, here) == C.NPU_ERROR_STALE_HANDLE
    assert table.get(Kind.EVENT, there) == THERE


def test_no_pointer_is_a_host_address():
    """User space ends at bit 47 (x86-64) or 48 (AArch64); Python's integers of pointers stay positive in C."""
    assert pointer_of(FIRST_NUMBER, 0) == 1 << 48
    assert pointer_of(LAST_NUMBER, DEVICE_MASK) == (1 << 63) - 1
    assert not is_device_pointer((1 << 48) - 1)
    assert is_device_pointer(1 << 48)
