"""Calls that look at something, and then wait in a full queue, while another thread changes what they looked at."""

import threading

import pytest
from npu_abi import C

import libnpu


@pytest.fixture
def full(device):
    """(stream, go_on): a queue with as many jobs as it takes, which stands still until `go_on(stream)` is called."""
    stream, gate, memory = device.create_stream(), device.create_notify(), device.alloc(64)
    gate.wait(stream)
    for _ in range(62):
        stream.fill(memory, 1)
    return stream, gate.record


def side_by_side(device, waits, changes):
    """Call both in a team, `changes` 5 us later; return what they raised."""
    raised = [None, None]

    def member(rank, function):
        team.enter(rank)
        try:
            if rank:
                device.host_delay(5_000)
            function()
        except libnpu.NpuError as error:
            raised[rank] = error.result
        finally:
            team.leave()

    with device.team(2) as team:
        threads = [threading.Thread(target=member, args=pair) for pair in enumerate((waits, changes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return raised


def test_each_record_of_a_notify_lets_one_wait_pass(device, full):
    stream, go_on = full
    other, one, two = (device.create_stream() for _ in range(3))
    token = device.create_notify()
    token.wait(one)
    token.wait(two)

    def change():
        token.record(other)
        go_on(other)

    assert side_by_side(device, lambda: token.record(stream), change) == [None, None]
    for waiting in (one, two, stream):
        waiting.synchronize()


def test_one_token_lets_one_of_two_waits_pass(device, full):
    stream, go_on = full
    other, token = device.create_stream(), device.create_notify()
    token.record(other)

    def change():
        token.wait(other)
        go_on(device.create_stream())

    assert side_by_side(device, lambda: token.wait(stream), change) == [None, None]
    other.synchronize()
    with pytest.raises(libnpu.NpuError) as caught:
        stream.synchronize()
    assert caught.value.result == C.NPU_ERROR_BARRIER_DEADLOCK
    token.record(other)
    stream.synchronize()


def test_a_buffer_is_freed_once(device, full):
    stream, go_on = full
    other, memory = device.create_stream(), device.alloc(64)

    def change():
        memory.free_async(other)
        go_on(other)

    assert side_by_side(device, lambda: memory.free_async(stream), change) == [C.NPU_ERROR_STALE_HANDLE, None]


def test_a_stream_is_closed_once_and_not_captured_meanwhile(device):
    stream, memory = device.create_stream(), device.alloc(1 << 22)
    stream.fill(memory, 1)
    assert side_by_side(device, stream.close, stream.close) == [None, None]
    stream = device.create_stream()
    stream.fill(memory, 1)
    assert side_by_side(device, stream.close, stream.capture) == [None, C.NPU_ERROR_BAD_STATE]


def test_two_threads_launch_one_executable_graph(device, full):
    stream, go_on = full
    capturing, other, memory, result = (
        device.create_stream(),
        device.create_stream(),
        device.alloc(64),
        device.alloc(64),
    )
    with capturing.capture() as capture:
        capturing.fill(memory, 1)
        capturing.copy(result, memory)
    executable = capture.graph.instantiate()

    def change():
        executable.launch(other)
        go_on(other)

    assert side_by_side(device, lambda: executable.launch(stream), change) == [None, None]
    for launched in (stream, other):
        launched.synchronize()
    assert (result.read() == 1).all()


def test_an_executable_graph_that_another_thread_destroys_is_not_launched(device, full):
    stream, go_on = full
    capturing, other, memory = device.create_stream(), device.create_stream(), device.alloc(64)
    memory.write(bytes(64))
    with capturing.capture() as capture:
        capturing.fill(memory, 1)
    executable = capture.graph.instantiate()

    def change():
        executable.destroy()
        go_on(other)

    raised = side_by_side(device, lambda: executable.launch(stream), change)
    assert raised == [C.NPU_ERROR_STALE_HANDLE, None]
    stream.synchronize()
    assert not memory.read().any()


def test_what_waits_in_a_full_queue_is_captured_when_its_stream_is_by_then(device, full):
    stream, go_on = full
    other, called, captured = device.create_stream(), [], []

    def change():
        captured.append(stream.capture())
        go_on(other)

    assert side_by_side(device, lambda: stream.add_host_function(called.append, 1), change) == [None, None]
    graph = stream.end_capture()
    stream.synchronize()
    assert called == []
    graph.instantiate().launch(stream)
    stream.synchronize()
    assert called == [1]


def test_host_functions_of_two_threads_run_once_each(device, full):
    stream, go_on = full
    other, called = device.create_stream(), []

    def change():
        go_on(other)
        stream.add_host_function(called.append, "changes")

    assert side_by_side(device, lambda: stream.add_host_function(called.append, "waits"), change) == [None, None]
    stream.synchronize()
    assert sorted(called) == ["changes", "waits"]


def test_a_host_function_is_not_enqueued_in_a_stream_that_another_thread_closes(device, full):
    stream, go_on = full
    other, called = device.create_stream(), []

    def change():
        go_on(other)
        stream.close()

    waits, closes = side_by_side(device, lambda: stream.add_host_function(called.append, 1), change)
    assert closes is None
    assert (waits, called) in [(None, [1]), (C.NPU_ERROR_STALE_HANDLE, [])]
