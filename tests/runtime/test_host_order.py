"""The order of calls and functions comes from the clock: real delays of the threads change nothing in a trace."""

from __future__ import annotations

import random
import threading
import time

import pytest

import libnpu
from libnpu.runtime.host_threads import HOST

RUNS = 20


class LateLock:
    """The lock of all calls, which a thread may get late: as on a machine that has something else to do."""

    def __init__(self, lock, seed):
        self._lock = lock
        self._random = random.Random(seed)
        self.release, self._is_owned, self._release_save = lock.release, lock._is_owned, lock._release_save

    def delay(self):
        """Sleep, more often than not for no time."""
        if self._random.random() < 0.3:
            time.sleep(self._random.random() * 1e-3)

    def acquire(self, *arguments, **options):
        if not self._is_owned():
            self.delay()
        return self._lock.acquire(*arguments, **options)

    def _acquire_restore(self, state):
        self.delay()
        self._lock._acquire_restore(state)

    def __enter__(self):
        self.acquire()
        return self

    def __exit__(self, *_):
        self.release()


@pytest.fixture
def run_late(monkeypatch):
    """Runs a program `RUNS` times on a new traced device, with other delays each time; returns the different outcomes:
    what it returned, where the host is, the trace and what is said about the order.
    """

    def run(program, schedule="timed"):
        outcomes = set()
        lock = HOST.lock
        for seed in range(RUNS):
            late = LateLock(lock, seed)
            monkeypatch.setattr(HOST, "lock", late)
            with libnpu.open(trace=True) as device:
                device.set_schedule(schedule)
                result = program(device, late.delay)
                outcomes.add((repr(result), device.now_ps, bytes(device.trace()), device.disorder))
            monkeypatch.setattr(HOST, "lock", lock)
        return outcomes

    return run


@pytest.mark.parametrize("schedule", ["timed", "eager", "newest-first", "seed:4"])
def test_one_thread_and_its_functions(run_late, schedule):
    def program(device, late):
        stream, memory, times = device.create_stream(), device.alloc(4), []
        for value in range(6):
            stream.add_host_function(late)
            if value % 3:
                stream.synchronize()
            stream.fill(memory, value)
            times.append(device.now_ps)
        stream.synchronize()
        return times

    (outcome,) = run_late(program, schedule)
    assert outcome[-1] is None


def test_functions_go_on_behind_a_team_s_last_thread_only_with_the_owner(run_late):
    def program(device, late):
        memory = device.alloc(1000)

        def member(team, rank, stream):
            team.enter(rank)
            for _ in range(6):
                stream.fill(memory, rank)
                stream.add_host_function(int)
                device.host_delay(500 * (rank + 1))
            team.leave()

        streams = [device.create_stream() for _ in range(2)]
        with device.team(2) as team:
            threads = [threading.Thread(target=member, args=(team, *pair)) for pair in enumerate(streams)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            time.sleep(0.005)  # long enough for the functions to end without the owner
        end_ps = device.now_ps
        device.synchronize()
        return end_ps

    (outcome,) = run_late(program)
    assert outcome[-1] is None


def test_functions_that_become_runnable_together_and_functions_of_streams_that_are_aborted(run_late):
    def program(device, late):
        seen, memory = [], device.alloc(1000)
        streams, start = [device.create_stream() for _ in range(4)], device.create_notify()
        start.wait(streams[0])
        event = device.create_event()
        event.record(streams[0])
        for number, stream in enumerate(streams):
            stream.wait_event(event)
            for _ in range(2):
                stream.add_host_function(lambda number: (late(), seen.append((number, device.now_ps))), number)
                stream.fill(memory, number)
        start.record()
        device.host_delay(9000)
        streams[3].abort()
        for stream in reversed(streams[:3]):
            stream.synchronize()
        return seen

    (outcome,) = run_late(program)
    assert outcome[-1] is None


@pytest.mark.parametrize("schedule", ["timed", "eager"])
def test_random_calls_of_eight_threads(run_late, schedule):
    def program(device, late):
        shared, memory = device.create_stream(), device.alloc(3000)
        streams = [device.create_stream() for _ in range(8)]
        events = [device.create_event() for _ in range(8)]
        logs = [[] for _ in range(8)]

        def act(choose, rank):
            stream, event = streams[rank], events[choose.randrange(8)]
            choice = choose.randrange(10)
            if choice == 0:
                device.alloc(100).free()
            elif choice == 1:
                stream.fill(memory, rank)
            elif choice == 2:
                events[rank].record(stream)
            elif choice == 3:
                stream.wait_event(event)
            elif choice == 4:
                stream.synchronize()
            elif choice == 5:
                shared.fill(memory, rank)
            elif choice == 6:
                device.host_delay(choose.randrange(3000))
            elif choice == 7:
                stream.add_host_function(late)
            elif choice == 8:
                shared.add_host_function(lambda: logs[rank].append(device.now_ps))
            else:
                event.synchronize()

        def member(team, rank):
            choose = random.Random(rank)
            team.enter(rank)
            for _ in range(6):
                act(choose, rank)
                logs[rank].append(device.now_ps)
            team.leave()

        with device.team(8) as team:
            threads = [threading.Thread(target=member, args=(team, rank)) for rank in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        device.synchronize()
        return [sorted(log) for log in logs]

    (outcome,) = run_late(program, schedule)
    assert outcome[-1] is None


def test_what_a_device_did_while_its_thread_waited_for_another_one_is_no_order(run_late):
    def program(first, late):
        with libnpu.open() as second:
            memories = first.alloc(4096), second.alloc(4096)
            for device, memory in zip((first, second), memories, strict=True):
                for value in range(3):
                    device.default_stream.fill(memory, value)
                    device.default_stream.add_host_function(late)
            first.synchronize()
            second.synchronize()
            return second.now_ps, second.disorder

    outcomes = run_late(program)
    assert len({now_ps for _, now_ps, *_ in outcomes}) == 1
    assert len({result for result, *_ in outcomes if result.endswith("None)")}) <= 1


def test_who_ends_its_silence_while_the_device_goes_on_is_not_reproducible(run_late):
    def program(device, late):
        stream, memory = device.create_stream(), device.alloc(1 << 20)
        for value in range(4):
            stream.fill(memory, value)
            stream.add_host_function(late)
        with device.suspend_host_thread():
            late()
        device.synchronize()

    outcomes = run_late(program)
    assert len({outcome for outcome in outcomes if outcome[-1] is None}) <= 1
    assert all(disorder is None or "ended its silence" in disorder for *_, disorder in outcomes)
