"""Device virtual addresses: first fit, guard pages, quarantine, merging."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st
from npu_driver.error import KernelError
from npu_driver.va import UserAddresses, VaRange

BASE, END = 0x80000000, 0x80000000 + 16 * 4096


def test_first_area_is_at_the_base():
    assert VaRange(BASE, END).alloc(1) == 0x80000000


def test_areas_are_a_guard_page_apart():
    addresses = VaRange(BASE, END)
    addresses.alloc(2)
    assert addresses.alloc(1) == 0x80000000 + 3 * 4096


def test_a_freed_hole_is_used_again_when_64_areas_were_freed_behind_it():
    addresses = VaRange(BASE, BASE + 1024 * 4096)
    first = addresses.alloc(1)
    addresses.free(first)
    for _ in range(64):
        area = addresses.alloc(1)
        assert area != first
        addresses.free(area)
    assert addresses.alloc(1) == first


def test_what_nobody_has_seen_is_used_again_at_once():
    addresses = VaRange(BASE, END)
    first = addresses.alloc(1)
    addresses.cancel(first)
    assert addresses.alloc(1) == first


def test_quarantine_withholds_at_most_a_fourth_of_the_range():
    addresses = VaRange(BASE, END)
    for pages in (1, 1, 3):  # with guard pages 2, 2 and 4 of 16 pages
        addresses.free(addresses.alloc(pages))
    assert [addresses.alloc(1) for _ in range(2)] == [BASE, BASE + 2 * 4096]
    assert addresses.alloc(1) == BASE + 8 * 4096


def test_an_area_that_is_larger_than_the_fourth_is_not_withheld():
    addresses = VaRange(BASE, END)
    addresses.free(addresses.alloc(4))
    assert addresses.alloc(4) == BASE


def full_but_for_two():
    """A range in which nothing is left but two neighbours in quarantine: it, the one freed first, the other."""
    addresses = VaRange(BASE, END)
    old, new = addresses.alloc(1), addresses.alloc(1)
    addresses.alloc(11)
    addresses.free(old)
    addresses.free(new)
    return addresses, old, new


def test_quarantine_ends_for_the_oldest_before_an_allocation_fails():
    addresses, old, new = full_but_for_two()
    assert addresses.alloc(1) == old
    assert addresses.alloc(1) == new
    with pytest.raises(KernelError):
        addresses.alloc(1)


def test_neighbours_in_quarantine_make_one_hole():
    addresses, _, _ = full_but_for_two()
    assert addresses.alloc(3) == BASE


def test_the_same_calls_give_the_same_addresses():
    def run():
        addresses, live, found = VaRange(BASE, BASE + 4096 * 4096), [], []
        for i in range(500):
            live.append(addresses.alloc(i * 7 % 5 + 1))
            found.append(live[-1])
            if i % 3:
                addresses.free(live.pop(i * 5 % len(live)))
        return found

    assert run() == run()


def test_addresses_of_the_user_are_its_own_again_at_once():
    addresses = UserAddresses()
    for _ in range(3):
        assert addresses.alloc_at(0x7F00_0000_0000, 2) == 0x7F00_0000_0000
        addresses.free(0x7F00_0000_0000)


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
