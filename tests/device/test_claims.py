"""Whether two tasks that run at a time make each other's bytes undefined."""

import pytest
from npu_device.claims import Claim, conflict
from npu_model.footprint import box

LEFT, RIGHT, BOTH = box(0x2E000000, 8, [(16, 64)]), box(0x2E000008, 8, [(16, 64)]), box(0x2E000000, 1024)


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (([], [LEFT]), ([], [LEFT]), (True, True)),
        (([], [LEFT]), ([], [RIGHT]), (False, False)),  # channels of the same pixels
        (([BOTH], [LEFT]), ([LEFT], [RIGHT]), (True, True)),  # each reads what the other one writes
        (([LEFT], []), ([], [BOTH]), (True, False)),
        (([], [BOTH]), ([RIGHT], []), (False, True)),
        (([BOTH], []), ([BOTH], []), (False, False)),
    ],
)
def test_a_task_is_undefined_when_another_one_writes_what_it_reads_or_writes(first, second, found):
    one, other = Claim(first), Claim(second)
    for _ in range(2):
        assert conflict(one, other) == found
        assert conflict(other, one) == found[::-1]


def test_what_is_moved_in_the_window_is_another_claim():
    one, other = Claim(([], [LEFT])), Claim(([LEFT], []))
    assert conflict(one, other) == (False, True)
    assert conflict(one.shifted(4096), other) == (False, False)
