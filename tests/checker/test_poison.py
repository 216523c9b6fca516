"""Poison of destinations is seen by nobody whose work was enqueued before, and is no store of the program's."""

import pytest

SCHEDULES = ["timed", "lazy", "newest-first", "seed:1"]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("how", ["copy", "part", "fill", "kernel", "graph"])
def test_what_is_written_behind_a_copy_that_reads_it_is_no_store_of_the_host(found, how, schedule):
    """The host is not told that the first copy has ended, which it may have."""

    def program(device):
        default, one, two = device.default_stream, device.create_stream(), device.create_stream()
        memory, other = device.to_device(bytes([7]) * 64), device.to_device(bytes(64))
        pinned, more = device.alloc_host(64), device.alloc_host(64)
        relu = device.kernel("relu")
        with one.capture() as capture:
            one.copy(pinned, memory)
        graph = capture.graph.instantiate()
        pinned.array[:] = 1
        device.set_schedule(schedule)
        two.fill(other, 5)
        one.copy(memory, pinned)
        two.synchronize()
        default.fill(more, 3)
        write = {
            "copy": lambda: one.copy(pinned, memory),
            "part": lambda: one.copy(pinned[:32], memory[:32]),
            "fill": lambda: one.fill(pinned, 3),
            "kernel": lambda: relu.launch(one, memory, pinned, 16),
            "graph": lambda: graph.launch(one),
        }
        write[how]()
        device.synchronize()
        assert memory.read().tolist() == [1] * 64

    assert found(program, semantics="cuda") == []


def test_a_host_function_that_was_enqueued_before_does_not_see_it(found):
    seen = []

    def program(device):
        one, slow, calls = device.create_stream(), device.create_stream(), device.create_stream()
        copied, filled, called = device.create_event(), device.create_event(), device.create_event()
        pinned, first, second = device.alloc_host(64), device.to_device(bytes([7])), device.to_device(bytes([8]))
        slow.fill(device.alloc(1 << 20), 1)
        filled.record(slow)
        one.copy(pinned[:1], first)
        copied.record(one)
        calls.wait_event(copied)
        calls.wait_event(filled)
        calls.add_host_function(lambda: seen.append(int(pinned.array[0])))
        called.record(calls)
        one.synchronize()
        assert not slow.query()
        one.wait_event(called)
        one.copy(pinned[:1], second)
        device.synchronize()
        seen.append(int(pinned.array[0]))

    assert (found(program), seen) == ([], [7, 8])
