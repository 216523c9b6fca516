"""Short programs of several threads, whose steps come in any order (`interleaver.py`): what a team does depends on the clock
alone, everybody is woken at once when there is something to do for it, and nobody waits for ever.
"""

from __future__ import annotations

import random

import pytest
from npu_abi import C

import libnpu
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


def random_program(seed):
    """Return a program of three threads with five random calls each."""

    def program(every, device):
        choose = random.Random(seed)
        plans = [[(choose.choice(ACTS), choose.randrange(3000)) for _ in range(5)] for _ in range(3)]
        streams, called = [device.create_stream() for _ in range(3)], [[] for _ in range(3)]
        notify, event, memory = device.create_notify(), device.create_event(), device.alloc(64)

        def member(rank):
            stream, seen = streams[rank], []
            calls = {
                "fill": lambda _: stream.fill(memory, rank),
                "delay": device.host_delay,
                "wait": lambda _: notify.wait(stream),
                "notify": lambda _: notify.record(stream),
                "sync": lambda _: stream.synchronize(),
                "timeout": lambda ns: stream.synchronize(timeout_ns=ns),
                "function": lambda ns: stream.add_host_function(called[rank].append, ns),
                "record": lambda _: event.record(stream),
                "after": lambda _: stream.wait_event(event),
            }
            for act, ns in plans[rank]:
                seen.append((result_of(calls[act], ns), device.now_ps))
            return seen

        ends = run_team(every, device, *(lambda r=rank: member(r) for rank in range(3)))
        for stream in streams:
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
