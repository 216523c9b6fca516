"""Host functions: where they run in their stream and on the clock, what they may not do, and how they fail."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from npu_abi import C

import libnpu
from libnpu.runtime.host_threads import HOST

MIB = 1 << 20


@pytest.fixture
def unit():
    """A traced device whose calls cost next to nothing."""
    with libnpu.open("unit", trace=True) as opened:
        yield opened


def test_a_function_runs_between_what_is_before_and_behind_it_in_its_stream(unit):
    stream, memory, host, seen = unit.create_stream(), unit.alloc(MIB), unit.alloc_host(MIB), []
    stream.fill(memory, 1)
    stream.copy(host, memory)
    stream.add_host_function(lambda name: seen.append((name, bytes(host.view[:1]))), "first")
    stream.fill(memory, 2)
    stream.copy(host, memory)
    stream.add_host_function(lambda name: seen.append((name, bytes(host.view[:1]))), "second")
    assert seen == []
    stream.synchronize()
    assert seen == [("first", b"\1"), ("second", b"\2")]


def test_a_function_becomes_runnable_when_the_host_knows_of_the_work_s_end(blob_bytes):
    with libnpu.open("npu-37xx") as device:
        stream, memory, seen = device.create_stream(), device.alloc(MIB), []
        fill = stream.fill(memory, 1)
        stream.add_host_function(lambda: seen.append(device.now_ps))
        stream.synchronize()
        interrupt_ps = round(device.profile.host.interrupt_ns * 1000)
        assert fill.end_ps + interrupt_ps < seen[0] < fill.end_ps + interrupt_ps + 5_000_000  # the marker is a job too
        assert device.now_ps > seen[0] + interrupt_ps


def test_it_runs_at_its_time_while_the_host_works(unit):
    stream, memory, seen = unit.create_stream(), unit.alloc(MIB), []
    stream.fill(memory, 1)
    stream.add_host_function(lambda: seen.append(unit.now_ps))
    behind = stream.fill(memory, 2)
    unit.host_delay(10**6)
    assert len(seen) == 1
    stream.synchronize()
    assert seen[0] <= behind.start_ps < behind.end_ps < unit.now_ps
    assert behind.start_ps - seen[0] < 10**6  # not after the delay of 10^9 ps


def test_only_its_stream_waits(unit):
    stream, other, memory = unit.create_stream(), unit.create_stream(), unit.alloc(4096)
    go_on, seen = threading.Event(), []
    stream.add_host_function(lambda: (go_on.wait(), seen.append("function")))
    stream.fill(memory, 1)
    other.fill(memory, 2)
    other.synchronize()
    seen.append("other")
    assert not stream.query()
    go_on.set()
    stream.synchronize()
    assert seen == ["other", "function"]
    assert (memory.read() == 1).all()
    assert "a host function was silent" in unit.disorder


def test_the_stream_of_a_slow_function_waits_in_order_and_stays_reproducible(unit):
    stream, seen = unit.create_stream(), []
    pause = threading.Event()
    stream.fill(unit.alloc(MIB), 1)  # so that the host is blocked when the function begins
    stream.add_host_function(lambda: (pause.wait(0.2), seen.append("function")))
    stream.synchronize()
    seen.append("behind")
    assert seen == ["function", "behind"]
    assert unit.reproducible


def test_functions_of_several_streams_run_one_after_the_other_in_the_order_of_their_ends(unit):
    seen, running = [], []

    def function(number):
        running.append(number)
        seen.append((number, unit.now_ps, len(running)))
        running.remove(number)

    notifies, last = [unit.create_notify() for _ in range(3)], unit.create_stream()
    for number, notify in enumerate(notifies):
        stream = unit.create_stream()
        notify.wait(stream)
        stream.add_host_function(function, number)
    for number in (2, 0, 1):
        last.fill(unit.alloc(MIB), 1)
        notifies[number].record(last)
    unit.synchronize()
    assert [(number, together) for number, _, together in seen] == [(2, 1), (0, 1), (1, 1)]
    assert seen[0][1] < seen[1][1] < seen[2][1]


@pytest.mark.parametrize(
    "call",
    [
        lambda d, s: s.synchronize(),
        lambda d, s: s.query(),
        lambda d, s: d.alloc(4096),
        lambda d, s: d.create_stream(),
        lambda d, s: s.add_host_function(print),
        lambda d, s: d.team(1),
        lambda d, s: d.close(),
        lambda d, s: libnpu.open("unit"),
    ],
)
def test_a_function_may_not_call_the_api(unit, call):
    stream, results = unit.create_stream(), []

    def function():
        with pytest.raises(libnpu.NpuError) as caught:
            call(unit, stream)
        results.append(caught.value.result)

    stream.add_host_function(function)
    stream.synchronize()
    assert results == [C.NPU_ERROR_NOT_PERMITTED]


@pytest.mark.parametrize("ask", ["synchronize", "query", "wait"])
def test_an_exception_comes_from_the_next_wait_and_the_stream_goes_on(unit, ask):
    stream, memory = unit.create_stream(), unit.alloc(4096)

    def broken():
        raise ZeroDivisionError("no")

    job = stream.add_host_function(broken)
    stream.fill(memory, 9)
    with pytest.raises(libnpu.NpuError, match="host function broken: ZeroDivisionError: no, enqueued at") as caught:
        if ask == "wait":
            job.wait()
        else:
            while getattr(stream, ask)() is False:
                pass
    assert caught.value.result == C.NPU_ERROR_HOST_FUNCTION
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.operation == "host function broken"
    stream.synchronize()
    assert (memory.read() == 9).all()


def test_a_function_behind_a_failed_operation_runs(device, blob_bytes):
    stream, seen, module = device.create_stream(), [], device.load(blob_bytes(deadlock=True))
    stream.launch(module, {"x": device.alloc(1024)}, {"y": device.alloc(1024)})
    stream.add_host_function(seen.append, 1)
    with pytest.raises(libnpu.NpuError) as caught:
        stream.synchronize()
    assert caught.value.result == C.NPU_ERROR_BARRIER_DEADLOCK
    assert seen == [1]


def test_it_is_not_called_when_the_stream_was_aborted(unit):
    stream, notify, seen = unit.create_stream(), unit.create_notify(), []
    notify.wait(stream)
    stream.add_host_function(seen.append, 1)
    stream.abort()
    with pytest.raises(libnpu.NpuError) as caught:
        stream.synchronize()
    assert caught.value.result == C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR
    for _ in range(2):  # the marker's, and the one of the wait behind it
        with pytest.raises(libnpu.NpuError):
            stream.synchronize()
    stream.add_host_function(seen.append, 2)
    stream.synchronize()
    assert seen == [2]


def test_it_is_not_called_when_its_context_was_lost(device, blob_bytes):
    stream, other, seen = device.create_stream(), device.create_stream(), []
    notify = device.create_notify()
    notify.wait(other)
    other.add_host_function(seen.append, 1)
    module = device.load(blob_bytes(addend=1 << 40))
    stream.launch(module, {"x": device.alloc(1024)}, {"y": device.alloc(1024)})
    with pytest.raises(libnpu.NpuError) as caught:
        stream.synchronize()
    assert caught.value.result == C.NPU_ERROR_DEVICE_PAGE_FAULT
    device.reset()
    assert seen == []
    assert device.load(blob_bytes()).run({"x": np.arange(1024).astype(np.uint8)})["y"][5] == 5


def test_closing_with_functions_that_have_not_run_ends(unit):
    stream, notify, seen = unit.create_stream(), unit.create_notify(), []
    notify.wait(stream)
    stream.add_host_function(seen.append, 1)
    unit.close()
    assert seen == []


@pytest.mark.usefixtures("nobody_else")
def test_afterwards_a_single_thread_is_alone_again(unit):
    stream = unit.create_stream()
    stream.add_host_function(int)
    assert not HOST.solo
    stream.synchronize()
    stream.synchronize()
    assert HOST.solo == threading.get_ident()


@pytest.mark.usefixtures("nobody_else")
def test_what_cannot_be_called_is_refused(unit):
    stream = unit.create_stream()
    with pytest.raises(libnpu.NpuError) as caught:
        stream.add_host_function(5)
    assert caught.value.result == C.NPU_ERROR_INVALID_VALUE
    stream.synchronize()
    assert HOST.solo == threading.get_ident()


def test_a_function_whose_turn_came_while_another_one_ran_and_was_asked_about_meanwhile(device):
    first, second, third = (device.create_stream() for _ in range(3))
    go_on, calls = threading.Event(), []
    first.add_host_function(go_on.wait)
    device.host_delay(50_000)
    second.add_host_function(calls.append, 1)
    device.host_delay(50_000)
    assert not second.query()  # takes the end of what comes before the function: its command buffer is free
    notify, memory = device.create_notify(), device.alloc(64)
    notify.wait(third)
    for value in range(4):
        third.fill(memory, value)  # one of them has that command buffer, and cannot end
    go_on.set()
    second.synchronize()
    assert calls == [1]
    notify.record(first)
    third.synchronize()
