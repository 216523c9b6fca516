"""Several host threads on one clock: whose turn it is, who is waited for, and what is said when that is not known."""

from __future__ import annotations

import os
import random
import threading
import time

import numpy as np
import pytest
from npu_abi import C

import libnpu
from libnpu.runtime import host_participants, host_turns
from libnpu.runtime.host_threads import HOST
from libnpu.runtime.host_turns import GRACE_S

MIB = 1 << 20


@pytest.fixture
def unit():
    """A traced device whose calls cost next to nothing."""
    with libnpu.open("unit", trace=True) as opened:
        yield opened


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_calls_of_a_team_go_by_position_and_then_by_rank(unit, order, run_team):
    seen, start = [], unit.now_ps

    def steps(rank, step_ns):
        for _ in range(3):
            seen.append((unit.now_ps - start, rank))
            unit.host_delay(step_ns)

    run_team(unit, *(lambda r=rank: steps(r, 100 * (r + 1)) for rank in range(3)), order=order)
    assert unit.now_ps - start == 900_000  # of the slowest
    assert unit.reproducible
    calls = [entry for entry in seen if entry[0]]
    assert sorted(calls) == [(100_000, 0), (200_000, 0), (200_000, 1), (300_000, 2), (400_000, 1), (600_000, 2)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_thread_works_while_another_is_blocked_and_the_device_waits_for_it(order, run_team):
    with libnpu.open("npu-37xx", trace=True) as device:
        one, two = device.create_stream(), device.create_stream()
        big, small = device.alloc(8 * MIB), device.alloc(4096)
        jobs = {}

        def blocked():
            jobs[0] = one.fill(big, 1)
            one.synchronize()
            return device.now_ps

        def working():
            device.host_delay(50_000)
            jobs[1] = two.fill(small, 2)
            device.host_delay(1)
            return device.now_ps

        start = device.now_ps
        woken, done = run_team(device, blocked, working, order=order)
        assert jobs[1].enqueue_ps == start + 50_000_000
        assert jobs[0].start_ps < jobs[1].enqueue_ps < jobs[0].end_ps  # the first one was blocked all the time
        two.synchronize()
        assert jobs[1].enqueue_ps < jobs[1].start_ps < jobs[1].enqueue_ps + 10**7
        assert done < woken
        assert device.reproducible


def test_a_blocked_thread_wakes_when_it_would_have_woken_alone(empty_bytes, run_team):
    def wait(device):
        stream, memory = device.create_stream(), device.alloc(MIB)
        stream.fill(memory, 1)
        stream.synchronize()
        return device.now_ps

    with libnpu.open("npu-37xx") as device:
        alone = wait(device)
    with libnpu.open("npu-37xx") as device:
        together, _ = run_team(device, lambda: wait(device), lambda: None)
    assert together == alone


def test_a_team_gives_the_same_trace_whatever_order_its_threads_start_in(blob_bytes, run_team):
    def program(order):
        with libnpu.open("npu-37xx", trace=True) as device:
            module = device.load(blob_bytes())

            def work(seed):
                stream = device.create_stream()
                x, y = device.alloc(1024), device.alloc(1024)
                for step in range(4):
                    x.write(np.full(1024, seed + step, np.uint8))
                    stream.launch(module, {"x": x}, {"y": y})
                    device.host_delay(300 * seed)
                    stream.synchronize()
                    assert (y.read() == seed + step).all()
                return device.now_ps

            ends = run_team(device, *(lambda s=seed: work(s) for seed in (1, 2, 3)), order=order)
            assert device.reproducible
            return ends, device.now_ps, device.trace().tobytes()

    first = program((0, 1, 2))
    assert max(first[0]) == first[1]
    assert program((2, 0, 1)) == first
    assert program((1, 2, 0)) == first


def test_a_thread_may_wait_for_what_another_enqueues_later(unit, run_team):
    one, two, notify = unit.create_stream(), unit.create_stream(), unit.create_notify()

    def waiting():
        notify.wait(one)
        one.synchronize()
        return unit.now_ps

    def recording():
        unit.host_delay(5000)
        position = unit.now_ps
        notify.record(two)
        return position

    woken, recorded = run_team(unit, waiting, recording)
    assert woken > recorded


def test_two_threads_may_wait_for_the_same_job(unit, run_team):
    stream, memory = unit.create_stream(), unit.alloc(MIB)
    stream.fill(memory, 3)
    job = stream.fill(memory, 4)
    results = run_team(unit, lambda: job.wait() or unit.now_ps, lambda: stream.synchronize() or unit.now_ps)
    assert job.done
    assert min(results) > job.end_ps
    assert (memory.read() == 4).all()


def test_a_timeout_passes_at_its_time_while_others_go_on(unit, run_team):
    one, notify = unit.create_stream(), unit.create_notify()
    notify.wait(one)

    def impatient():
        begin = unit.now_ps
        with pytest.raises(libnpu.NpuError) as caught:
            one.synchronize(timeout_ns=2000)
        return caught.value.result, unit.now_ps - begin

    def busy():
        for _ in range(5):
            unit.host_delay(1000)

    (result, duration_ps), _ = run_team(unit, impatient, busy)
    assert result == C.NPU_TIMEOUT
    assert 2_000_000 <= duration_ps < 2_100_000
    notify.record(unit.create_stream())
    one.synchronize()


def test_when_all_are_blocked_and_nothing_is_left_to_happen_each_is_told_what_it_waits_for(unit, run_team):
    streams, notifies = [unit.create_stream() for _ in range(2)], [unit.create_notify() for _ in range(2)]

    def wait(rank):
        notifies[rank].wait(streams[rank])
        streams[rank].synchronize()

    for error in run_team(unit, lambda: wait(0), lambda: wait(1)):
        assert error.result == C.NPU_ERROR_BARRIER_DEADLOCK
        assert "waits for a notify" in error.message
        assert "enqueued at" in error.message
    other = unit.create_stream()
    for rank in range(2):
        notifies[rank].record(other)
        streams[rank].synchronize()


def test_a_silent_thread_is_set_aside_and_the_run_is_marked(unit):
    go_on, ready = threading.Event(), threading.Event()

    def helper():
        unit.host_delay(1)
        ready.set()
        go_on.wait()
        unit.host_delay(1)

    thread = threading.Thread(target=helper)
    thread.start()
    ready.wait()
    assert "was silent for 50 ms" in unit.disorder  # the main thread, which waited here
    unit.host_delay(1000)
    assert not unit.reproducible
    go_on.set()
    thread.join()


@pytest.mark.usefixtures("nobody_else")
def test_threads_one_after_the_other_are_reproducible_when_the_first_says_that_it_is_silent(unit):
    for _ in range(3):
        thread = threading.Thread(target=lambda: unit.host_delay(100))
        before = unit.now_ps
        with unit.suspend_host_thread():
            thread.start()
            thread.join()
        assert unit.now_ps == before + 100_000
    assert unit.reproducible
    assert HOST.solo == 0 or HOST.solo == threading.get_ident()
    unit.host_delay(1)
    assert HOST.solo == threading.get_ident()


def test_threads_side_by_side_without_a_team_are_not_reproducible(unit):
    barrier = threading.Barrier(2)

    def work():
        unit.host_delay(1)
        barrier.wait()
        unit.host_delay(1)

    threads = [threading.Thread(target=work) for _ in range(2)]
    with unit.suspend_host_thread():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not unit.reproducible


def test_what_a_team_refuses(unit):
    def refused(call, *arguments):
        with pytest.raises(libnpu.NpuError) as caught:
            call(*arguments)
        return caught.value.result

    for count in (0, -1, 1025):
        assert refused(unit.team, count) == C.NPU_ERROR_INVALID_VALUE
    with unit.team(2) as team:
        assert refused(unit.team, 1) == C.NPU_ERROR_BAD_STATE
        assert refused(team.enter, 0) == C.NPU_ERROR_BAD_STATE  # the owner
        assert refused(team.leave) == C.NPU_ERROR_BAD_STATE
        assert refused(unit.host_delay, 1) == C.NPU_ERROR_NOT_PERMITTED
        results = []

        def member():
            results.append(refused(team.enter, 2))
            results.append(refused(team.enter, -1))
            team.enter(1)
            results.append(refused(team.enter, 0))
            results.append(refused(unit.team, 1))
            results.append(refused(team.end))
            team.leave()
            results.append(refused(team.enter, 1))

        thread = threading.Thread(target=member)
        thread.start()
        thread.join()
    invalid, state = C.NPU_ERROR_INVALID_VALUE, C.NPU_ERROR_BAD_STATE
    assert results == [invalid, invalid, state, state, state, invalid]
    unit.host_delay(1)
    assert unit.reproducible


def test_a_member_that_ends_without_leaving_has_left(unit):
    begin = unit.now_ps
    with unit.team(1) as team:

        def member():
            team.enter(0)
            unit.host_delay(700)

        thread = threading.Thread(target=member)
        thread.start()
        thread.join()
    assert unit.now_ps == begin + 700_000


def test_threads_of_two_devices_do_not_wait_for_each_other(run_team):
    with libnpu.open("unit") as one, libnpu.open("unit") as two:

        def work(device, times):
            stream, memory = device.create_stream(), device.alloc(4096)
            for _ in range(times):
                stream.fill(memory, 5)
                stream.synchronize()
            return device.now_ps

        ends = run_team(one, lambda: work(one, 3), lambda: work(two, 20))
        assert (one.now_ps, two.now_ps) == tuple(ends)
        assert one.reproducible
        assert two.reproducible


def test_a_recorded_order_is_forced_again(tmp_path, blob_bytes):
    def program(order):
        with libnpu.open("npu-37xx", trace=True) as device, order(device):
            module = device.load(blob_bytes())

            def work(seed):
                stream = device.create_stream()
                x, y = device.alloc(1024), device.alloc(1024)
                for step in range(3):
                    x.write(np.full(1024, seed + step, np.uint8))
                    stream.launch(module, {"x": x}, {"y": y})
                    stream.synchronize()

            threads = [threading.Thread(target=work, args=(n,), name=f"worker {n}") for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return device.now_ps, device.trace().tobytes()

    path = tmp_path / "order.txt"
    first = program(lambda device: device.record_order(path))
    text = path.read_text().splitlines()
    assert {"worker 0", "worker 1", "worker 2", "worker 3"} <= {
        line.split(" ", 2)[2] for line in text if line[0] == "+"
    }
    assert text[0].endswith("Device.primary")
    assert program(lambda device: device.replay_order(path)) == first


def test_a_program_that_departs_from_the_order_is_told_so(tmp_path):
    path = tmp_path / "order.txt"
    with libnpu.open("unit") as device, device.record_order(path):
        device.host_delay(5)
        device.memory_info()
        device.host_delay(6)
    with libnpu.open("unit") as device, device.replay_order(path):
        device.host_delay(5)
        with pytest.raises(libnpu.NpuError, match=r"departs.*call 2 there is Device.memory_info") as caught:
            device.host_delay(5)
        assert caught.value.result == C.NPU_ERROR_BAD_STATE
        device.host_delay(5)
    with libnpu.open("unit") as device, device.replay_order(path):
        device.host_delay(50)
        with pytest.raises(
            libnpu.NpuError, match=r"departs.*calls Device.memory_info at 51000 ps; call 2 there is.*at"
        ):
            device.memory_info()


@pytest.mark.usefixtures("nobody_else")
def test_a_file_that_is_no_order_is_refused(tmp_path, unit):
    path = tmp_path / "order.txt"
    path.write_text("what\n")
    os.mkfifo(tmp_path / "pipe")
    for bad in (path, tmp_path / "none", tmp_path / "pipe"):
        with pytest.raises(libnpu.NpuError) as caught, unit.replay_order(bad):
            pass
        assert caught.value.result == C.NPU_ERROR_FILE
    with pytest.raises(libnpu.NpuError) as caught, unit.record_order(tmp_path / "none" / "order.txt"):
        pass
    assert caught.value.result == C.NPU_ERROR_FILE
    unit.host_delay(1)
    assert HOST.solo == threading.get_ident()


def random_calls(device, rank, streams, buffers, count):
    """Make `count` random calls, and return the results of those that failed."""
    choose, events, failed = random.Random(rank), [], []
    for _ in range(count):
        stream, buffer, kind = choose.choice(streams), choose.choice(buffers), choose.randrange(11)
        try:
            if kind == 0:
                stream.synchronize(timeout_ns=choose.choice([None, 1000, 100_000]))
            elif kind < 4:
                stream.fill(buffer, choose.randrange(256))
            elif kind == 4:
                stream.query()
            elif kind == 5:
                events.append(device.create_event())
                events[-1].record(stream)
                choose.choice(streams).wait_event(events[-1])
            elif kind == 6:
                device.host_delay(choose.randrange(5000))
            elif kind == 7:
                buffer.read()
            elif kind == 8:
                stream.add_host_function(len, ())
            elif kind == 9 and events:
                events.pop().synchronize()
            elif kind == 10:
                device.synchronize()
        except libnpu.NpuError as error:
            failed.append(error.result)
    return failed


def test_random_calls_of_eight_threads_give_the_same_trace_in_any_start_order_and_in_a_replay(tmp_path, run_team):
    def program(order, record):
        with libnpu.open("npu-37xx", trace=True) as device, record(device):
            streams, buffers = [device.create_stream() for _ in range(3)], [device.alloc(4096) for _ in range(3)]
            calls = [lambda r=rank: random_calls(device, r, streams, buffers, 25) for rank in range(8)]
            failed = run_team(device, *calls, order=order)
            device.synchronize()
            return failed, device.now_ps, device.trace().tobytes(), device.disorder

    path = tmp_path / "order.txt"
    first = program(range(8), lambda device: device.record_order(path))
    assert {result for failed in first[0] for result in failed} <= {C.NPU_TIMEOUT}
    assert first[3] is None
    assert program((7, 3, 1, 0, 2, 6, 5, 4), lambda device: device.record_order(tmp_path / "again")) == first
    assert program((4, 5, 6, 7, 0, 1, 2, 3), lambda device: device.replay_order(path)) == first


def test_a_deadlock_is_told_with_what_waits_for_what(unit):
    first, second = unit.create_stream(), unit.create_stream()
    notify, event, memory = unit.create_notify(), unit.create_event(), unit.alloc(64)
    notify.wait(second)
    event.record(second)
    first.wait_event(event)
    first.fill(memory, 1)
    chain = rf"waits for 'event record'.* in stream {second.id}, where 'wait for a notify' is at the head, which waits for a notify"
    with pytest.raises(libnpu.NpuError, match=chain) as caught:
        first.synchronize()
    assert caught.value.result == C.NPU_ERROR_BARRIER_DEADLOCK
    notify.record(unit.create_stream())
    unit.synchronize()
    assert (memory.read() == 1).all()


@pytest.mark.parametrize("in_a_function", [False, True])
def test_a_member_or_a_function_of_a_team_may_compute_for_longer_than_others_wait_outside(
    unit, run_team, in_a_function
):
    stream = unit.create_stream()
    seen = []

    def compute():
        until = time.monotonic() + 3 * GRACE_S
        while time.monotonic() < until:
            pass
        seen.append("computed")

    def member():
        if in_a_function:
            stream.add_host_function(compute)
            stream.synchronize()
        else:
            compute()
            unit.host_delay(1)

    def other():
        unit.host_delay(100_000)
        seen.append("called")

    run_team(unit, member, other)
    assert seen == ["computed", "called"]
    assert unit.reproducible


def test_a_member_that_blocks_outside_of_the_api_is_set_aside_in_the_end(unit, run_team, monkeypatch):
    monkeypatch.setattr(host_turns, "TEAM_GRACE_S", 0.1)
    go_on = threading.Event()

    def other():
        unit.host_delay(1000)
        go_on.set()

    run_team(unit, go_on.wait, other)
    assert unit.disorder.endswith("was silent for 100 ms of wall time")


@pytest.mark.parametrize(("stat", "reproducible"), [("R", True), ("D", True), ("S", False)])
def test_a_thread_that_the_system_does_not_let_run_is_not_silent(unit, monkeypatch, tmp_path, stat, reproducible):
    stream = unit.create_stream()

    def starve():
        folder = tmp_path / str(threading.get_native_id())
        folder.mkdir()
        (folder / "stat").write_text(f"1 (a ) name) {stat} " + " ".join(["0"] * 10 + ["7", "8"] + ["0"] * 30))
        monkeypatch.setattr(host_participants, "TASKS", tmp_path)
        time.sleep(3 * GRACE_S)

    stream.add_host_function(starve)
    unit.host_delay(1000)
    stream.synchronize()
    assert unit.reproducible == reproducible


def test_how_long_a_thread_may_be_kept_from_running_has_an_end(unit, monkeypatch):
    monkeypatch.setattr(host_turns, "STARVED_S", 2 * GRACE_S)
    monkeypatch.setattr(host_participants.Participant, "usage", lambda _: ("R", 0.0))
    stream = unit.create_stream()
    stream.add_host_function(time.sleep, 4 * GRACE_S)
    unit.host_delay(1000)
    stream.synchronize()
    assert unit.disorder == "a host function was silent for 50 ms of wall time"
