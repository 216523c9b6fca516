"""Memory and events that several contexts have by handles: races between them, and the order that such events give."""

import pytest

import libnpu


class Both:
    """Two contexts of a device, with memory of the first and an event that both have, and a stream each."""

    def __init__(self, device):
        self.device, self.memory = device, device.alloc(256)
        self.other = device.create_context()
        self.view = self.other.open_ipc_memory(self.memory.ipc_handle())
        self.event = device.create_event(timing=False, interprocess=True)
        self.event_there = self.other.open_ipc_event(self.event.ipc_handle())
        self.here, self.there = device.create_stream(), self.other.create_stream()
        self.result = self.other.alloc(256)


def read_by_a_stream_of_the_other(both, fixed):
    both.here.fill(both.memory, 1)
    both.event.record(both.here)
    if fixed:
        both.there.wait_event(both.event_there)
    both.there.copy(both.result, both.view)


def read_by_the_host_there(both, fixed):
    both.here.fill(both.memory, 1)
    both.event.record(both.here)
    if fixed:
        both.event_there.synchronize()
    both.view.read()


def overwritten_there(both, fixed):
    both.memory.write(bytes(256))
    both.here.copy(both.device.alloc(256), both.memory)
    both.event.record(both.here)
    if fixed:
        while not both.event_there.query():
            pass
    both.there.fill(both.view, 2)


def written_back(both, fixed):
    both.there.fill(both.view, 1)
    both.event_there.record(both.there)
    if fixed:
        both.here.wait_event(both.event)
    both.here.fill(both.memory, 2)


def through_a_record_that_is_over(both, fixed):
    if not fixed:
        both.event.record(both.here)
    both.here.fill(both.memory, 1)
    if fixed:
        both.event.record(both.here)
    both.device.host_delay(1e6)
    both.there.wait_event(both.event_there)  # without a command
    both.there.copy(both.result, both.view)


def waited_for_in_a_stream_that_does_nothing(both, fixed):
    both.here.fill(both.memory, 1)
    both.event.record(both.here)
    both.device.host_delay(1e6)
    if fixed:
        both.there.wait_event(both.event_there)
    both.there.synchronize()
    both.view.read()


CASES = [
    (read_by_a_stream_of_the_other, "XS-RAW"),
    (read_by_the_host_there, "HD-RAW"),
    (overwritten_there, "XS-WAR"),
    (written_back, "XS-WAW"),
    (through_a_record_that_is_over, "XS-RAW"),
    (waited_for_in_a_stream_that_does_nothing, "HD-RAW"),
]


def found(program, fixed):
    """Return the rules of what is found, and the streams of their acts."""
    with libnpu.check() as checker, libnpu.open("unit") as device:
        both = Both(device)
        program(both, fixed)
        both.other.synchronize()
        device.synchronize()
    return [(record["rule"], [act["stream"] for act in record["acts"]], record["fix"]) for record in checker.records()]


@pytest.mark.parametrize(("program", "rule"), CASES)
def test_a_race_between_contexts(program, rule):
    ((is_rule, streams, fix),) = found(program, fixed=False)
    assert is_rule == rule
    assert streams[0] == ("stream 1" if program is not written_back else "stream 1 of context 2")
    assert (streams[1] is None) == rule.startswith("HD")
    assert ("record an interprocess event in stream 1" in fix) == rule.startswith("XS")
    assert found(program, fixed=True) == []


def test_waits_of_the_other_behind_a_reset_and_before_any_record():
    def program(both, fixed):
        if not fixed:
            both.there.wait_event(both.event_there)
        both.here.fill(both.memory, 1)
        both.event.record(both.here)
        if fixed:
            both.event_there.synchronize()
        both.event.reset()
        assert both.event_there.query()  # nothing is recorded
        if not fixed:
            both.event_there.synchronize()

    never, asked, waited = found(program, fixed=False)
    assert never[:2] == ("WAIT-UNRECORDED", [None])
    assert asked[:2] == waited[:2] == ("EVENT-EARLY-RESET", ["stream 1", None, None])
    assert found(program, fixed=True) == []


def test_disjoint_parts_are_no_race_and_memory_lives_as_long_as_anybody_has_it():
    def program(both, _):
        both.here.fill(both.memory[:64], 1)
        both.there.fill(both.view[64:], 2)
        both.here.synchronize()
        both.memory.free()

    assert found(program, fixed=False) == []


def test_two_contexts_that_open_the_same_memory():
    def program(both, fixed):
        third = both.device.create_context()
        view, event = third.open_ipc_memory(both.memory.ipc_handle()), third.open_ipc_event(both.event.ipc_handle())
        stream = third.create_stream()
        both.there.fill(both.view, 1)
        both.event_there.record(both.there)
        if fixed:
            stream.wait_event(event)
        stream.fill(view, 2)
        third.synchronize()

    ((rule, streams, _),) = found(program, fixed=False)
    assert (rule, streams) == ("XS-WAW", ["stream 1 of context 2", "stream 1 of context 3"])
    assert found(program, fixed=True) == []


def test_memory_is_given_back_where_work_of_its_own_context_uses_it():
    def program(both, fixed):
        both.there.fill(both.view, 1)
        if fixed:
            both.there.synchronize()
        both.view.close()

    ((rule, streams, _),) = found(program, fixed=False)
    assert (rule, streams) == ("FREE-IN-USE", ["stream 1 of context 2", None])
    assert found(program, fixed=True) == []
