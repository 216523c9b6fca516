"""Short programs of several threads, whose steps come in any order (`interleaver.py`): what a team does depends on the clock
alone, everybody is woken at once when there is something to do for it, and nobody waits for ever.
"""

from __future__ import annotations

import random
from contextlib import nullcontext

import pytest
from npu_abi import C

import libnpu
from libnpu.runtime.host_turns import REPLAY_GRACE_S
from tests.runtime.interleaver import interleaved

SCHEDULES = ["timed", "eager", "lazy", "newest-first", "seed:4"]
ACTS = [
    "fill",
    "delay",
    "delay",
    "delay",
    "wait",
    "wait",
    "notify",
    "sync",
    "sync",
    "timeout",
    "function",
    "record",
    "after",
]


def run_team(every, device, *functions):
    """Run one thread per function in a team; return what they returned, by rank."""
    results = [None] * len(functions)

    def member(rank):
        team.enter(rank)
        results[rank] = functions[rank]()
        team.leave()

    with device.team(len(functions)) as team:
        threads = [every.threading.Thread(target=member, args=(rank,)) for rank in range(len(functions))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


def run_freely(every, device, *functions):
    """As `run_team`, without a team."""
    results = [None] * len(functions)

    def thread(rank):
        results[rank] = functions[rank]()

    threads = [every.threading.Thread(target=thread, args=(rank,), name=f"{rank}") for rank in range(len(functions))]
    with device.suspend_host_thread():
        for started in threads:
            started.start()
        for started in threads:
            started.join()
    return results


def result_of(call, *arguments, **options):
    """Return the result of a call that may fail."""
    try:
        call(*arguments, **options)
    except libnpu.NpuError as error:
        return int(error.result)
    return 0


def outcomes_of(program, seeds, schedule):
    """Run `program` in the interleavings of `seeds`; return the different outcomes, with where the host is and the trace."""
    outcomes = set()
    for seed in seeds:
        with interleaved(seed) as every, libnpu.open("unit", trace=True) as device:
            device.set_schedule(schedule)
            result = program(every, device)
            outcomes.add((repr(result), device.now_ps, bytes(device.trace())))
            assert device.disorder is None
            assert every.now_s == 0
    return outcomes


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_deadlock_is_told_where_the_last_thread_has_come_to_whenever_it_left(schedule):
    def program(every, device):
        streams, notify, memory = [device.create_stream() for _ in range(4)], device.create_notify(), device.alloc(64)
        begin_ps = device.now_ps

        def waiting(rank):
            device.host_delay(1000 * rank)
            notify.wait(streams[rank])
            result = result_of(streams[rank].synchronize)
            told_ps = device.now_ps
            notify.record(streams[3])
            return result, told_ps - begin_ps

        def working(rank):
            device.host_delay(9_000_000)
            streams[rank].fill(
                memory, rank
            )  # under some schedules the device does not learn where the thread is by then
            return device.now_ps - begin_ps

        calls = (waiting, waiting, working, working)
        ends = run_team(every, device, *(lambda r=rank, call=call: call(r) for rank, call in enumerate(calls)))
        for (result, told_ps), last_ps in zip(ends[:2], (ends[3], ends[3]), strict=True):
            assert result == C.NPU_ERROR_BARRIER_DEADLOCK
            assert last_ps <= told_ps
        device.synchronize()
        return ends

    assert len(outcomes_of(program, range(12), schedule)) == 1


def test_who_ends_its_silence_while_others_are_in_calls_is_not_reproducible():
    reproducible = set()
    for seed in range(24):
        with interleaved(seed) as every, libnpu.open("unit") as device:
            streams, notify = [device.create_stream() for _ in range(3)], device.create_notify()

            def wait(rank, streams=streams, notify=notify, device=device):
                device.host_delay(1000 * rank)
                notify.wait(streams[rank])
                return result_of(streams[rank].synchronize), device.now_ps

            def be_silent(stream=streams[2], notify=notify, device=device, every=every):
                with device.suspend_host_thread():
                    every.pause()
                notify.record(stream)
                return device.now_ps

            ends = run_team(every, device, lambda: wait(0), lambda: wait(1), be_silent)
            if device.reproducible:
                reproducible.add(repr(ends))
    assert len(reproducible) <= 1


def random_program(seed, run=run_team):
    """Return a program of three threads with five random calls each, on one device or several."""

    def program(every, *devices):
        choose, choose_device = random.Random(seed), random.Random(seed)
        plans = [[(choose.choice(ACTS), choose.randrange(3000)) for _ in range(5)] for _ in range(3)]
        streams = [[device.create_stream() for _ in range(3)] for device in devices]
        called = [[[] for _ in range(3)] for _ in devices]
        notifies, events = [device.create_notify() for device in devices], [device.create_event() for device in devices]
        memories = [device.alloc(64) for device in devices]
        choices = [[choose_device.randrange(len(devices)) for _ in range(5)] for _ in range(3)]

        def calls_of(rank, number):
            device, stream, memory = devices[number], streams[number][rank], memories[number]
            notify, event = notifies[number], events[number]
            return {
                "fill": lambda _: stream.fill(memory, rank),
                "delay": device.host_delay,
                "wait": lambda _: notify.wait(stream),
                "notify": lambda _: notify.record(stream),
                "sync": lambda _: stream.synchronize(),
                "timeout": lambda ns: stream.synchronize(timeout_ns=ns),
                "function": lambda ns: stream.add_host_function(called[number][rank].append, ns),
                "record": lambda _: event.record(stream),
                "after": lambda _: stream.wait_event(event),
            }

        def member(rank):
            seen = []
            for (act, ns), number in zip(plans[rank], choices[rank], strict=True):
                seen.append((result_of(calls_of(rank, number)[act], ns), *(device.now_ps for device in devices)))
            return seen

        ends = run(every, devices[0], *(lambda r=rank: member(r) for rank in range(3)))
        for stream in (stream for of_device in streams for stream in of_device):
            stream.abort()
        return ends, called

    return program


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", [5, 214, 271])
def test_random_calls_of_a_team(seed, schedule):
    assert len(outcomes_of(random_program(seed), range(8), schedule)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_random_calls_of_many_teams(schedule):
    for seed in range(100, 200):
        assert len(outcomes_of(random_program(seed), range(10), schedule)) == 1, seed


def turns_of(path):
    """Return a recorded order without the lines that say who is who."""
    return [line for line in path.read_text().splitlines() if line[0] != "+"]


def check_replays(folder, program, seeds, schedule):
    """Record a program on two devices, and replay it in the interleavings of `seeds`: all is the same, and nobody sleeps."""

    def run(seed, replayed, recorded):
        with interleaved(seed) as every, libnpu.open("unit", trace=True) as one, libnpu.open("unit", trace=True) as two:
            with one.replay_order(replayed) if replayed else nullcontext(), one.record_order(recorded):
                for device in (one, two):
                    device.set_schedule(schedule)
                result = program(every, one, two)
                ends = [(device.now_ps, bytes(device.trace()), device.disorder) for device in (one, two)]
            assert every.now_s == 0 or not replayed
            return repr(result), ends, turns_of(recorded)

    path = folder / "order"
    first = run(1000, None, path)
    for seed in seeds:
        assert run(seed, path, folder / "again") == first


@pytest.mark.parametrize("schedule", ["timed", "lazy"])
@pytest.mark.parametrize("run", [run_team, run_freely])
def test_a_replay_on_two_devices_shows_every_thread_the_same_times(tmp_path, run, schedule):
    for seed in range(3):
        check_replays(tmp_path, random_program(seed, run), range(3), schedule)


def test_a_function_that_never_comes_is_not_waited_for_because_another_device_s_waits(tmp_path):
    def program(order):
        with interleaved(0) as every, libnpu.open("unit") as one, libnpu.open("unit") as two, order(one):
            notify, waiting = one.create_notify(), one.create_stream()
            notify.wait(waiting)
            waiting.add_host_function(len, ())  # its thread waits to the end
            results = [result_of(device.memory_info) for device in (two, one)]
            notify.record()
            one.synchronize()
            return results, every.now_s

    path = tmp_path / "order"
    assert program(lambda device: device.record_order(path)) == ([0, 0], 0)
    call = next(line for line in path.read_text().splitlines() if line.endswith("memory_info"))
    _, machine, *times, _ = call.split(" ")
    never = " ".join(["-1", machine, *times, "(runs a host function)"])
    path.write_text(path.read_text().replace(call, f"{never}\n{call}", 1))
    results, slept_s = program(lambda device: device.replay_order(path))
    assert results == [C.NPU_ERROR_BAD_STATE, 0]
    assert REPLAY_GRACE_S < slept_s < REPLAY_GRACE_S + 1


@pytest.mark.parametrize("turn", ["(runs a host function)", "(goes on)"])
def test_a_function_that_departs_from_the_order_has_failed(tmp_path, turn):
    def program(order):
        with interleaved(0), libnpu.open("unit") as device, order(device):
            called = []
            device.default_stream.add_host_function(called.append, 1)
            device.default_stream.add_host_function(called.append, 2)
            errors = []
            for _ in range(2):
                try:
                    device.synchronize()
                except libnpu.NpuError as error:
                    errors.append(error)
            return called, errors

    path = tmp_path / "order"
    assert program(lambda device: device.record_order(path)) == ([1, 2], [])
    text = path.read_text()
    wrong = next(line for line in text.splitlines() if line.startswith("-1 ") and line.endswith(turn))
    path.write_text(text.replace(wrong, wrong.replace(turn, "Stream.fill"), 1))
    called, (error,) = program(lambda device: device.replay_order(path))
    assert called == [1, 2]
    assert error.result == C.NPU_ERROR_HOST_FUNCTION
    assert "departs from the order" in error.message


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["timed", "lazy"])
@pytest.mark.parametrize("run", [run_team, run_freely])
def test_many_replays_on_two_devices(tmp_path, run, schedule):
    for seed in range(100, 200):
        check_replays(tmp_path, random_program(seed, run), range(5), schedule)
