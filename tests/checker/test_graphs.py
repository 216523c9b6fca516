"""Graphs and command lists under the checker: what their nodes do, in what order."""

import pytest


def captured_source_overwritten(device, fixed=False):
    stream, memory, pinned = device.create_stream(), device.alloc(4096), device.alloc_host(4096)
    with stream.capture() as capture:
        stream.copy(memory, pinned)
    executable = capture.graph.instantiate()
    for number in range(3):
        pinned.array[:] = number
        executable.launch(stream)
        if fixed:
            stream.synchronize()


def branches_of_a_graph(device, fixed=False):
    one, two, x, y = device.create_stream(), device.create_stream(), device.alloc(4096), device.alloc(4096)
    fork, join = device.create_event(), device.create_event()
    with one.capture() as capture:
        one.fill(x, 1)
        fork.record(one)
        two.wait_event(fork)
        two.copy(y, x)
        join.record(two)
        if fixed:
            one.wait_event(join)
        one.fill(x, 2)
        one.wait_event(join)
    executable = capture.graph.instantiate()
    executable.launch(one)


def a_list_submitted_too_early(device, fixed=False):
    stream, other, memory = device.create_stream(), device.create_stream(), device.to_device(bytes(4096))
    result = device.alloc(2048)
    commands = device.primary.create_command_list()
    commands.append_fill(memory[:2048], 1)
    commands.append_copy(result, memory[:2048])
    commands.close()
    job = commands.submit(stream)
    other.fill(memory[2048:], 2)
    if fixed:
        stream.synchronize_to(job)
    other.copy(result, memory[2048:])


@pytest.mark.parametrize(
    ("program", "rule", "lines"),
    [
        (captured_source_overwritten, "CAPTURED-BUFFER-CHANGED", [7, 6]),
        (branches_of_a_graph, "XS-WAR", [14, 14]),
        (a_list_submitted_too_early, "XS-WAW", [7, 11]),
    ],
)
def test_the_wrong_program_is_reported_at_its_lines_and_the_right_one_is_not(found, program, rule, lines):
    assert found(program) == [(rule, lines)]
    assert found(program, True) == []


def test_nodes_are_named_with_where_they_were_captured(records_of):
    (record,) = records_of(branches_of_a_graph)
    assert [(act["what"], act["captured"]) for act in record["acts"]] == [
        ("copy device to device", 7), ("fill with 0x02", 11)
    ]  # fmt: skip


def test_memory_that_is_changed_between_launches_is_what_the_next_one_reads(found):
    def program(device):
        stream, memory, pinned = device.create_stream(), device.alloc(4096), device.alloc_host(4096)
        with stream.capture() as capture:
            stream.copy(memory, pinned)
        executable = capture.graph.instantiate()
        pinned.array[:] = 1
        executable.launch(stream)
        stream.synchronize()
        pinned.array[:] = 2
        executable.launch(device.default_stream)
        device.synchronize()
        assert memory.read()[0] == 2

    assert found(program) == []


def test_an_update_and_events_of_the_graph(found):
    def program(device, waits=True):
        stream, other, event = device.create_stream(), device.create_stream(), device.create_event()
        x, y, result = device.alloc(4096), device.alloc(4096), device.alloc(4096)

        def graph(memory):
            with stream.capture() as capture:
                stream.fill(memory, 1)
                event.record(stream)
                stream.add_host_function(int)
                stream.fill(memory, 2)
            return capture.graph

        executable = graph(x).instantiate()
        executable.launch(stream)
        stream.synchronize()
        executable.update(graph(y))
        executable.launch(stream)
        other.copy(result, x)
        other.wait_event(event)
        if waits:
            stream.synchronize()
        other.copy(result, y)

    assert found(program) == []
    assert found(program, False) == [("XS-RAW", [16, 21])]
