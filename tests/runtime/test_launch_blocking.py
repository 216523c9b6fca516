"""The synchronous mode: every call that enqueues returns when its operation has ended, with its error."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from npu_abi import C

import libnpu

MIB = 1 << 20
BYTES = 1024


@pytest.fixture
def device():
    with libnpu.open("npu-37xx", launch_blocking=True) as opened:
        yield opened


@pytest.fixture
def stream(device):
    return device.create_stream()


def result_of(call):
    with pytest.raises(libnpu.NpuError) as caught:
        call()
    return caught.value.result


def first(buffer):
    return int(buffer.read()[0])


def deadlocking(device, stream, blob_bytes):
    """Returns a call that enqueues a model which deadlocks."""
    bad, x, y = device.load(blob_bytes(deadlock=True)), device.alloc(BYTES), device.alloc(BYTES)
    return lambda: stream.launch(bad, {"x": x}, {"y": y})


def test_each_kind_of_operation_has_ended_when_its_call_returns(device, stream, blob_bytes):
    model, x, y = device.load(blob_bytes()), device.to_device(np.full(BYTES, 3, np.uint8)), device.alloc(BYTES)
    f, host, event, seen = device.alloc(MIB), device.alloc_host(MIB), device.create_event(), []
    assert stream.launch(model, {"x": x}, {"y": y}).done
    assert first(y) == 3
    assert stream.launch_addresses(model, [x.device_address, f.device_address]).done
    assert first(f) == 3
    assert stream.fill(f, 4).done
    assert stream.copy(host, f).done
    assert host.array[0] == 4
    assert stream.copy_2d(host, 2, f, 4, 2, 8).done
    numbers = device.to_device(np.array([-1, 2], np.float32))
    assert device.kernel("relu").launch(stream, numbers, numbers, 2, grid=1).done
    assert numbers.read(np.float32).tolist() == [0.0, 2.0]
    event.record(stream)
    assert event.job.done
    assert event.job.start_ps <= event.timestamp_ps <= event.job.end_ps
    assert stream.add_host_function(seen.append, 5).done
    assert seen == [5]
    free, _ = device.memory_info()
    f.free_async(stream)
    assert device.memory_info()[0] == free + MIB
    assert stream.jobs == type(stream.jobs)()


def test_a_command_list_and_a_graph_have_ended_when_the_call_returns(device, stream):
    memory, result, other = device.alloc(MIB), device.alloc_host(MIB), device.create_stream()
    begin, joined, seen = device.create_event(), device.create_event(), []
    with device.create_command_list() as commands:
        commands.append_fill(memory, 5)
        commands.append_copy(result, memory)
        commands.close()
        assert commands.submit(stream).done
    assert first(result) == 5
    with stream.capture() as capture:
        begin.record(stream)
        other.wait_event(begin)
        stream.fill(memory, 6)
        other.fill(result, 7)
        other.add_host_function(lambda: seen.append(int(result.array[0])))
        joined.record(other)
        stream.wait_event(joined)
    assert (first(memory), first(result)) == (5, 5)
    with capture.graph.instantiate() as graph:
        assert graph.launch(stream).done
        assert (first(memory), first(result), seen) == (6, 7, [7])
        assert graph.launch(stream).done


def test_the_call_raises_the_error_of_its_operation_and_nobody_raises_it_again(device, stream, blob_bytes):
    launch, memory = deadlocking(device, stream, blob_bytes), device.alloc(64)
    assert result_of(launch) == C.NPU_ERROR_BARRIER_DEADLOCK
    stream.synchronize()
    device.synchronize()
    assert stream.fill(memory, 1).done
    assert result_of(lambda: stream.add_host_function(lambda: 1 / 0)) == C.NPU_ERROR_HOST_FUNCTION
    stream.synchronize()


def test_a_graph_that_fails_leaves_its_launch_with_the_error_and_can_be_launched_again(device, stream, blob_bytes):
    launch = deadlocking(device, stream, blob_bytes)
    with stream.capture() as capture:
        launch()
    graph = capture.graph.instantiate()
    for _ in range(3):
        assert result_of(lambda: graph.launch(stream)) == C.NPU_ERROR_BARRIER_DEADLOCK
    stream.synchronize()


def test_an_event_is_recorded_and_memory_freed_also_when_the_operation_ends_with_an_error(device, stream, blob_bytes):
    stream.set_failure_mode(libnpu.FailureMode.STOP)
    event, memory, token = device.create_event(), device.alloc(64), device.create_notify()
    assert result_of(deadlocking(device, stream, blob_bytes)) == C.NPU_ERROR_BARRIER_DEADLOCK
    assert result_of(lambda: event.record(stream)) == C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR
    assert event.job.done
    assert result_of(lambda: memory.free_async(stream)) == C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR
    assert result_of(lambda: memory.read()) == C.NPU_ERROR_STALE_HANDLE
    assert result_of(lambda: token.record(stream)) == C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR


def test_what_only_a_later_call_can_end_is_not_waited_for(device, stream):
    token, memory, event, other = (
        device.create_notify(),
        device.alloc(64),
        device.create_event(),
        device.create_stream(),
    )
    memory.write(np.zeros(64, np.uint8))
    token.wait(stream)
    assert not stream.fill(memory, 1).done  # behind the wait
    event.record(stream)
    other.wait_event(event)
    assert not other.fill(memory, 2).done  # and what waits for it
    assert first(memory) == 0
    token.record(device.create_stream())  # from here on everything can end
    assert other.fill(memory, 3).done
    assert first(memory) == 3
    assert stream.query()


def test_waits_that_can_never_end_are_told_at_once(device, stream):
    one, two, other = device.create_notify(), device.create_notify(), device.create_stream()
    one.wait(stream)
    two.record(stream)  # behind a wait that has no record yet
    two.wait(other)
    assert result_of(lambda: one.record(other)) == C.NPU_ERROR_BARRIER_DEADLOCK  # each waits for the other
    stream.abort()
    other.abort()


@pytest.mark.parametrize("semantics", ["cuda", "strict"])
@pytest.mark.parametrize("schedule", ["eager", "lazy", "newest-first", "seed:3"])
def test_it_holds_under_all_rules_and_schedules(semantics, schedule):
    with libnpu.open("npu-37xx", semantics=semantics, launch_blocking=True) as device:
        device.set_schedule(schedule)
        memory, pinned, token = device.alloc(64), device.alloc_host(64), device.create_notify()
        token.wait(device.default_stream)
        token.record(device.create_stream(blocking=False))
        assert device.default_stream.fill(memory, 9).done
        assert device.create_stream().copy(pinned, memory).done
        assert pinned.array[63] == 9


def test_threads_go_on_while_one_is_in_a_call_that_enqueues(device):
    memories, team, done = [device.alloc(MIB) for _ in range(2)], device.team(2), {}

    def fill(rank):
        team.enter(rank)
        stream = device.create_stream()
        done[rank] = [stream.fill(memories[rank], value).done for value in range(3)]
        team.leave()

    with team:
        threads = [threading.Thread(target=fill, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [first(memory) for memory in memories] == [2, 2]
    assert done == {0: [True] * 3, 1: [True] * 3}
    assert device.reproducible


def test_the_host_is_blocked_for_as_long_as_the_device_works(device, stream):
    memory = device.alloc(16 * MIB)
    _, blocked = device.host_times()
    jobs = [stream.fill(memory, value) for value in range(4)]
    _, after = device.host_times()
    interrupts_ps = 4 * round(device.profile.host.interrupt_ns * 1000)
    assert after - blocked == pytest.approx(sum(job.latency_ps for job in jobs) + interrupts_ps, rel=0.02)


def test_it_costs_what_a_wait_behind_every_call_costs(device):
    def time(opened, wait):
        stream, memory = opened.create_stream(), opened.alloc(16 * MIB)
        start_ps = opened.now_ps
        for value in range(8):
            job = stream.fill(memory, value)
            if wait:
                job.wait()
        return opened.now_ps - start_ps

    with libnpu.open("npu-37xx", launch_blocking=False) as plain:
        assert time(device, wait=False) == pytest.approx(time(plain, wait=True), rel=0.05)


def test_the_environment_chooses_unless_the_program_does(monkeypatch):
    monkeypatch.setenv("NPU_LAUNCH_BLOCKING", "1")
    with libnpu.open("unit") as one, libnpu.open("unit", launch_blocking=False) as two:
        assert (one.launch_blocking, two.launch_blocking) == (True, False)
    monkeypatch.setenv("NPU_LAUNCH_BLOCKING", "0")
    with libnpu.open("unit") as one, libnpu.open("unit", launch_blocking=True) as two:
        assert (one.launch_blocking, two.launch_blocking) == (False, True)
    monkeypatch.setenv("NPU_LAUNCH_BLOCKING", "yes")
    with pytest.raises(libnpu.NpuError, match="NPU_LAUNCH_BLOCKING is 'yes'; 0 and 1 are allowed") as caught:
        libnpu.open("unit")
    assert caught.value.result == C.NPU_ERROR_INVALID_VALUE
