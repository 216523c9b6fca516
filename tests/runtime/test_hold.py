"""The schedule `hold`: any order of a program's operations, named in one line of text."""

import itertools
import threading

import numpy as np
import pytest

import libnpu
from libnpu.errors import NpuError
from libnpu.runtime import host_waits
from libnpu.runtime.hold import missing, take_missing


@pytest.fixture
def make():
    opened = []

    def make(schedule):
        opened.append(libnpu.open("unit"))
        opened[-1].set_schedule(schedule)
        return opened[-1]

    yield make
    for device in opened:
        device.close()


def three_writers(device):
    """Three streams write their number to one byte each of a log, one behind what is there: the order in which they ran."""
    streams, log, place = [device.create_stream() for _ in range(3)], device.alloc(8), device.alloc(8)
    for memory in (log, place):
        memory.write(bytes(8))
    for number, stream in enumerate(streams, 1):
        stream.copy(place[1:8], log[0:7])
        stream.fill(place[0:1], number)
        stream.copy(log, place)
    device.synchronize()
    return [int(byte) for byte in log.read()[::-1] if byte]


@pytest.mark.parametrize(
    ("holds", "order"),
    [
        ("", [1, 2, 3]),
        ("1.1@2.3", [2, 1, 3]),
        ("1.1@3.3", [2, 3, 1]),
        ("1.1@3.3,2.1@3.3", [3, 1, 2]),
        ("2.1@3.3", [1, 3, 2]),
        ("1.1@2.3,2.1@3.3", [3, 2, 1]),
        ("1.1@-3.1", [2, 1, 3]),
    ],
)
def test_every_order_of_three_streams_has_a_text(make, holds, order):
    assert three_writers(make(f"hold:{holds}")) == order


def test_what_is_named_is_held_until_the_program_waits_or_asks_for_it(make):
    device = make("hold:1.2")
    stream, memory = device.create_stream(), device.alloc(64)
    first, second = stream.fill(memory, 1), stream.fill(memory, 2)
    first.wait()
    assert int(memory.read()[0]) == 1
    assert not second.submitted
    while not stream.query():
        pass
    assert int(memory.read()[0]) == 2


def test_what_comes_behind_lets_go_what_it_comes_behind(make):
    device = make("hold:1.1@2.1")
    one, two, event = device.create_stream(), device.create_stream(), device.create_event()
    memory = device.alloc(64)
    one.fill(memory, 1)
    event.record(one)
    two.wait_event(event)
    assert int(memory.read()[0]) == 255
    two.fill(memory[0:32], 2)
    assert memory.read()[[0, 63]].tolist() == [2, 1]


def test_waits_for_events_do_not_count_for_they_are_operations_or_not_by_what_has_ended(make):
    def run(schedule, wait):
        device = make(schedule)
        one, two, event = device.create_stream(), device.create_stream(), device.create_event()
        memory, copy = device.to_device(np.zeros(64, np.uint8)), device.to_device(np.zeros(64, np.uint8))
        one.fill(memory, 1)
        event.record(one)
        if wait:
            event.synchronize()
        two.wait_event(event)
        two.copy(copy, memory)
        one.fill(memory, 2)
        device.synchronize()
        return int(copy.read()[0])

    assert [run(name, wait) for name, wait in itertools.product(("hold:", "hold:2.1"), (False, True))] == [1, 1, 2, 2]


def test_a_context_behind_the_first_stands_before_the_stream(make):
    device = make("hold:2.1.1")
    memories = []
    for context in (device.primary, device.create_context()):
        memory = context.alloc(64)
        memory.write(bytes(64))
        context.create_stream().fill(memory, 1)
        memories.append(memory)
    assert [int(memory.read()[0]) for memory in memories] == [1, 0]
    device.synchronize()
    assert int(memories[1].read()[0]) == 1


def test_a_graph_is_launched_node_by_node(make):
    device = make("hold:1.2@2.1")
    stream, other, memory, copy = device.create_stream(), device.create_stream(), device.alloc(64), device.alloc(64)
    with stream.capture() as capture:
        stream.fill(memory, 1)
        stream.fill(memory, 2)
    capture.graph.instantiate().launch(stream)
    other.copy(copy, memory)
    device.synchronize()
    assert (int(copy.read()[0]), int(memory.read()[0])) == (1, 2)


@pytest.mark.parametrize("holds", ["", "1.1", "1.2", "1.3", "1.4"])
def test_host_functions_and_notifies_end_under_every_text(make, holds):
    device = make(f"hold:{holds}")
    one, two, token = device.create_stream(), device.create_stream(), device.create_notify()
    memory, seen = device.alloc_host(64), []
    token.wait(two)
    two.copy(memory[0:32], memory[32:64])
    one.fill(memory[32:64], 5)
    one.add_host_function(lambda: seen.append(int(memory.array[32])))
    token.record(one)
    two.synchronize()
    assert (seen, int(memory.array[0])) == ([5], 5)


@pytest.mark.parametrize(("holds", "found"), [("", [3, 2]), ("1.1", [1, 3]), ("1.1@-2.1", [1, 3])])
def test_a_host_function_has_returned_when_its_call_goes_on_unless_it_is_held(make, holds, found):
    device = make(f"hold:{holds}")
    stream, other = device.create_stream(), device.create_stream()
    values = [1]
    stream.add_host_function(values.__setitem__, 0, 3)
    first, values[0] = values[0], 2 if values[0] == 3 else 1
    other.fill(device.alloc(4), 1)
    if holds != "1.1":
        assert values == found[1:]
    device.synchronize()
    assert [first, *values] == found


@pytest.mark.parametrize("schedule", ["hold:", "hold:1.1", "lazy", "newest-first"])
def test_the_program_and_a_host_function_may_wait_for_each_other_without_a_call(make, schedule, monkeypatch):
    monkeypatch.setattr(host_waits, "HELD_GRACE_S", 0.05)
    monkeypatch.setattr(host_waits, "FUNCTION_GRACE_S", 0.05)
    device = make(schedule)
    begun, may_end, stream = threading.Event(), threading.Event(), device.create_stream()

    def function():
        begun.set()
        may_end.wait()

    stream.add_host_function(function)
    begun.wait()
    assert not stream.query()
    may_end.set()
    stream.synchronize()


@pytest.mark.parametrize(
    "text", ["1", "1.2.3.4", "1.0", "a.1", "1.1,1.1", "1.1@1.1", "1.1@", "1.1,", "1.1@2.1@3.1", "1.1@-", "-1.1"]
)
def test_a_text_that_is_none_is_refused(make, text):
    device = make("timed")
    with pytest.raises(NpuError, match="NPU_ERROR_INVALID_VALUE: schedule 'hold:"):
        device.set_schedule(f"hold:{text}")


def test_the_name_of_a_schedule_is_what_chooses_it(make, monkeypatch):
    assert make("hold:01.3@-2.1,3.1.5").schedule.name == "hold:1.3@-2.1,3.1.5"
    monkeypatch.setenv("NPU_SCHEDULE", "hold:1.1")
    with libnpu.open("unit") as device:
        assert (device.schedule.name, device.times_meaningful) == ("hold:1.1", False)


def test_names_that_nothing_ever_had_are_said_with_those_that_there_are(make):
    text = "1.2@4.1,2.3,9.9"
    three_writers(make(f"hold:{text}"))
    expected = (
        f"schedule 'hold:{text}': there never was an operation 4.1 or 9.9; there is 1.1 to 1.3, 2.1 to 2.3, 3.1 to 3.3"
    )
    assert (take_missing(text), take_missing(text)) == (expected, "")
    assert missing("1.2@4.1", {"1": 2, "4": 1}) == missing("", {}) == ""
    assert missing("2.1.1", {}).endswith("there never was an operation 2.1.1; none was enqueued")
    assert missing("9.1", {str(i): 1 for i in range(1, 9)} | {"2.1": 3}).endswith(" 7.1, and more")
