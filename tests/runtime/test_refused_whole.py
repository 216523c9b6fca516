"""Calls that enqueue several jobs and are refused: nothing of them is left, and what was enqueued before is not touched."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from npu_abi import C

import libnpu
from libnpu.runtime.commands import CommandPool

RING = 62  # jobs of a queue for which room is surely there
CELLS = 16384  # fences of a context


@pytest.fixture
def stuck(device):
    """Makes a stream wait until `release()`, which returns at once."""
    tokens, releasing = [], device.create_stream()

    def hold(stream):
        tokens.append(device.create_notify())
        tokens[-1].wait(stream)
        return lambda token=tokens[-1]: token.record(releasing)

    return hold


def slow_producer(device, one, two, target):
    """An executable graph: `two` fills what `one`, behind a host function, copies to `target`. Four jobs in `one`."""
    large, middle = device.alloc(2_000_000), device.alloc(64)
    device.primary.fill(middle, 0xAA)
    begin, made = device.create_event(), device.create_event()
    with one.capture() as capture:
        begin.record(one)
        two.wait_event(begin)
        for _ in range(4):
            two.fill(large, 5)
        two.copy(middle, large[:64])
        made.record(two)
        one.add_host_function(int)
        one.wait_event(made)
        one.copy(target, middle)
    return capture.graph.instantiate()


def in_use(device):
    context = device.primary
    return [len(stream.jobs) for stream in context.streams], context.fences.in_use, device.memory_info()[0]


def fill_up(enqueue):
    """Enqueue until it is refused; returns how often it was not."""
    count = 0
    while True:
        try:
            enqueue()
        except libnpu.NpuError as error:
            assert error.result == C.NPU_ERROR_OUT_OF_RESOURCES, error
            return count
        count += 1


def test_a_refused_launch_does_not_touch_the_launches_before(device, stuck, refused):
    one, two, result = device.create_stream(), device.create_stream(), device.alloc_host(64)
    executable = slow_producer(device, one, two, result)
    release = stuck(one)
    assert fill_up(lambda: executable.launch(one)) == (RING - 1) // 4
    before = in_use(device)
    refused(C.NPU_ERROR_OUT_OF_RESOURCES, executable.launch, one)
    assert in_use(device) == before
    release()
    device.synchronize()
    assert result.array.tolist() == [5] * 64
    executable.launch(one).wait()


def test_a_launch_that_runs_keeps_its_order_when_the_next_is_refused(device, stuck, refused):
    one, two, result = device.create_stream(), device.create_stream(), device.alloc_host(64)
    executable, filler = slow_producer(device, one, two, result), device.alloc(4)
    release = stuck(one)
    executable.launch(one)
    assert fill_up(lambda: one.fill(filler, 1)) == RING + 1 - 5
    refused(C.NPU_ERROR_OUT_OF_RESOURCES, executable.launch, one)
    release()
    one.synchronize()
    assert result.array.tolist() == [5] * 64


def test_host_functions_in_both_branches_end_after_a_refused_launch(device, stuck):
    one, two, memory = device.create_stream(), device.create_stream(), device.alloc(4096)
    begin, joined, calls = device.create_event(), device.create_event(), []
    with one.capture() as capture:
        begin.record(one)
        two.wait_event(begin)
        two.add_host_function(calls.append, 2)
        two.fill(memory, 9)
        joined.record(two)
        one.wait_event(joined)
        one.add_host_function(calls.append, 1)
        one.fill(memory, 2)
    executable = capture.graph.instantiate()
    other = device.create_stream()
    release = stuck(other)
    launches = fill_up(lambda: executable.launch(other))
    release()
    device.synchronize()
    assert calls == [2, 1] * launches
    executable.launch(other).wait()
    assert calls == [2, 1] * (launches + 1)


def test_an_aborted_launch_does_not_release_the_launch_before(device, stuck, refused):
    one, two, result = device.create_stream(), device.create_stream(), device.alloc_host(64)
    executable = slow_producer(device, one, two, result)
    other = device.create_stream()
    release = stuck(one)
    executable.launch(one)
    executable.launch(other)  # waits for the first
    other.abort()
    refused(C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR, other.synchronize)
    release()
    one.synchronize()
    assert result.array.tolist() == [5] * 64


def test_a_launch_without_fences_is_refused_and_gives_back_what_it_had(device, refused):
    one, two, event = device.create_stream(), device.create_stream(), device.create_event()
    with one.capture() as capture:
        for _ in range(20):
            event.record(one)
            two.wait_event(event)
            event.record(two)
            one.wait_event(event)
    executable, fences = capture.graph.instantiate(), device.primary.fences
    taken = [fences.alloc() for _ in range(CELLS - fences.in_use - 39)]
    before = in_use(device)
    refused(C.NPU_ERROR_OUT_OF_RESOURCES, executable.launch, one)
    assert in_use(device) == before
    fences.release(taken[0])
    executable.launch(one).wait()
    assert in_use(device)[1] == before[1] - 1


@pytest.mark.parametrize("taken", range(8))  # three to measure the parts, five for the jobs
def test_a_launch_without_memory_for_its_command_buffers_is_refused_whole(device, refused, monkeypatch, taken):
    one, two, result = device.create_stream(), device.create_stream(), device.alloc_host(64)
    executable = slow_producer(device, one, two, result)
    take, left = CommandPool.take, [taken]

    def take_some(pool, size=4096):
        if not left[0]:
            raise libnpu.NpuError(C.NPU_ERROR_OUT_OF_DEVICE_MEMORY, "no memory for a command buffer")
        left[0] -= 1
        return take(pool, size)

    before = in_use(device)[:2]
    with monkeypatch.context() as patch:
        patch.setattr(CommandPool, "take", take_some)
        refused(C.NPU_ERROR_OUT_OF_DEVICE_MEMORY, executable.launch, one)
    assert in_use(device)[:2] == before
    executable.launch(one).wait()
    assert result.array.tolist() == [5] * 64


def test_a_launch_of_more_jobs_than_a_queue_takes_runs(device):
    stream, calls = device.create_stream(), []
    with stream.capture() as capture:
        for number in range(50):
            stream.add_host_function(calls.append, number)
    capture.graph.instantiate().launch(stream).wait()
    assert calls == list(range(50))


def test_a_refused_host_function_leaves_no_marker(device, stuck, refused):
    stream, memory, calls = device.create_stream(), device.alloc(4), []
    release = stuck(stream)
    for _ in range(RING - 2):
        stream.fill(memory, 1)
    before = in_use(device)
    refused(C.NPU_ERROR_OUT_OF_RESOURCES, stream.add_host_function, calls.append, 1)
    assert in_use(device) == before
    release()
    stream.synchronize()
    stream.add_host_function(calls.append, 2).wait()
    assert calls == [2]


def test_a_host_function_waits_for_room_that_another_thread_makes(device, stuck, run_team):
    stream, memory, calls = device.create_stream(), device.alloc(4), []
    release = stuck(stream)
    for _ in range(RING - 2):
        stream.fill(memory, 1)

    def add():
        stream.add_host_function(calls.append, threading.current_thread() is not None)
        stream.synchronize()

    def let_go():
        device.host_delay(50_000)
        release()

    assert run_team(device, add, let_go) == [None, None]
    assert calls == [True]


@pytest.mark.parametrize("schedule", ["lazy", "newest-first"])
def test_a_schedule_that_holds_jobs_back_takes_any_number_and_the_wait_says_what_is_wrong(
    device, stuck, schedule, refused
):
    device.set_schedule(schedule)
    stream, memory = device.create_stream(), device.alloc_host(4)
    release = stuck(stream)
    for _ in range(300):
        job = stream.fill(memory, 7)
    refused(C.NPU_ERROR_BARRIER_DEADLOCK, stream.synchronize)
    assert not job.done
    release()
    stream.synchronize()
    assert np.array_equal(memory.array, [7] * 4)
