"""Under `seed:N` an order between two streams that nothing makes sure of is another one under some of the first seeds."""

import numpy as np
import pytest

import libnpu

COUNT = 4096
SEVENS = np.frombuffer(bytes([7] * 4), np.float32)[0]


def outcome(seed, first, second, event):
    """What `second` on one stream reads that `first` writes on another."""
    with libnpu.open() as device:
        device.set_schedule(f"seed:{seed}")
        one, two, relu = device.create_stream(), device.create_stream(), device.kernel("relu")
        ones = device.to_device(np.full(COUNT, 1, np.float32))
        middle, last = (device.to_device(np.zeros(COUNT, np.float32)) for _ in range(2))
        if first == "fill":
            one.fill(middle, 7)
        elif first == "copy":
            one.copy(middle, ones)
        else:
            relu.launch(one, ones, middle, COUNT)
        if event:
            done = device.create_event()
            done.record(one)
            two.wait_event(done)
        if second == "copy":
            two.copy(last, middle)
        else:
            relu.launch(two, middle, last, COUNT)
        one.synchronize()
        two.synchronize()
        return last.read(np.float32)


@pytest.mark.parametrize(("first", "second"), [("fill", "copy"), ("copy", "kernel"), ("kernel", "copy")])
def test_a_missing_event_shows_under_one_of_eight_seeds_and_with_it_all_are_right(first, second):
    expected = np.full(COUNT, SEVENS if first == "fill" else 1, np.float32)
    assert all(np.array_equal(outcome(seed, first, second, True), expected) for seed in range(8))
    assert not all(np.array_equal(outcome(seed, first, second, False), expected) for seed in range(8))
