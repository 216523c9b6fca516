"""Device virtual addresses: first fit, guard pages, merging."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st
from npu_driver.error import KernelError
from npu_driver.va import VaRange

BASE, END = 0x80000000, 0x80000000 + 16 * 4096


def test_first_area_is_at_the_base():
    assert VaRange(BASE, END).alloc(1) == 0x80000000


def test_areas_are_a_guard_page_apart():
    addresses = VaRange(BASE, END)
    addresses.alloc(2)
    assert addresses.alloc(1) == 0x80000000 + 3 * 4096


def test_a_freed_hole_is_used_again():
    addresses = VaRange(BASE, END)
    first = addresses.alloc(1)
    addresses.alloc(1)
    addresses.free(first)
    assert addresses.alloc(1) == first


def test_exhausted_range_is_enospc():
    addresses = VaRange(BASE, END)
    addresses.alloc(15)
    with pytest.raises(KernelError) as caught:
        addresses.alloc(1)
    assert caught.value.code == errno.ENOSPC


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5), st.integers(0, 99)), max_size=60))
def test_areas_never_overlap_and_everything_comes_back(steps):
    addresses = VaRange(BASE, END)
    live = {}
    for is_alloc, pages, pick in steps:
        if is_alloc:
            try:
                va = addresses.alloc(pages)
            except KernelError:
                continue
            assert va % 4096 == 0
            assert va >= BASE and va + (pages + 1) * 4096 <= END
            assert all(va + (pages + 1) * 4096 <= other or other + (n + 1) * 4096 <= va for other, n in live.items())
            live[va] = pages
        elif live:
            va = sorted(live)[pick % len(live)]
            addresses.free(va)
            del live[va]
    for va in live:
        addresses.free(va)
    everything = (END - BASE) // 4096 - 1  # the last page guards
    assert addresses.alloc(everything) == BASE
