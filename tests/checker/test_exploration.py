"""`npu explore`: the results that it finds are those that all legal orders of a program have, and each has a schedule that shows it."""

import contextlib
import io
import json
import random
import subprocess
import sys

import numpy as np
import pytest

import libnpu
from libnpu.checker import recorder
from libnpu.checker.exploration import explore
from libnpu.checker.recorder import replays_of

KINDS = {"fill": 5, "copy": 4, "record": 2, "wait": 2, "look": 2, "store": 2, "synchronize": 1}
WITH_FUNCTIONS = KINDS | {"call": 3, "carry": 3}
OF_HOST = ("look", "store", "synchronize")
OPERATIONS = ("fill", "copy", "record", "call", "carry")
STREAMS, BUFFERS, PARTS = 3, 2, 2


def generate(seed, length, kinds=KINDS):
    """Return random statements: (kind, stream, event, target place, source place); buffer 0 is pinned."""
    chance = random.Random(seed)
    statements = []
    for kind in chance.choices([*kinds], [*kinds.values()], k=length):
        if statements and statements[-1][0] in OF_HOST and kind not in OPERATIONS:
            kind = "record"  # between acts of the host operations begin where one is enqueued
        places = chance.sample([(b, p) for b in range(BUFFERS) for p in range(PARTS)], 2)
        if kind in ("look", "store", "call", "carry"):
            places = [(0, places[0][1]), (0, 1 - places[0][1])]
        statements.append((kind, chance.randrange(STREAMS), chance.randrange(2), *places))
    return statements


def carry(array, target, source):
    """A host function that reads and writes."""
    array[target] = array[source]


def program_of(statements, semantics):
    """Return the program: it prints what the host saw, and what is in memory in the end. A notify goes from its stream to that of the
    event's number.
    """

    def program():
        with libnpu.open("unit", semantics=semantics) as device:
            streams = [device.default_stream if semantics == "cuda" else device.create_stream()]
            streams += [device.create_stream() for _ in range(STREAMS - 1)]
            notify = device.create_notify()
            events = [device.create_event() for _ in range(2)]
            memories = [device.alloc_host(PARTS), device.alloc(PARTS)]
            for memory in memories:
                memory.write(np.zeros(PARTS, np.uint8))
            for number, (kind, stream, event, target, source) in enumerate(statements, 1):
                one, other = (memories[buffer][part : part + 1] for buffer, part in (target, source))
                match kind:
                    case "fill":
                        streams[stream].fill(one, number)
                    case "copy":
                        streams[stream].copy(one, other)
                    case "record":
                        events[event].record(streams[stream])
                    case "wait":
                        streams[stream].wait_event(events[event])
                    case "notify":
                        notify.record(streams[stream])
                        notify.wait(streams[event])
                    case "call":
                        streams[stream].add_host_function(memories[0].array.__setitem__, target[1], number)
                    case "carry":
                        streams[stream].add_host_function(carry, memories[0].array, target[1], source[1])
                    case "look":
                        print(int(memories[0].array[target[1]]), end=" ")
                    case "store":
                        memories[0].array[target[1]] = number
                    case "synchronize":
                        streams[stream].synchronize()
            device.synchronize()
            print(*(int(byte) for memory in memories for byte in memory.read()))

    return program


def all_results(statements, semantics):
    """Return what the program prints in all legal orders, by trying each. Under `cuda` stream 0 is the legacy default stream. The wait of
    a notify is a node between two statements.
    """
    behind, last, events, host = {}, {}, {}, set()

    def enqueue(number, stream, *others):
        before = [
            node for other, node in last.items() if other == stream or (semantics == "cuda" and 0 in (stream, other))
        ]
        behind[number] = {*host, *others, *before}
        last[stream] = number

    for number, (kind, stream, event, *_) in enumerate(statements, 1):
        if kind in (*OPERATIONS, "wait", "notify"):
            enqueue(number, stream, *([events[event]] if kind == "wait" and event in events else []))
            if kind == "record":
                events[event] = number
            elif kind == "notify":
                enqueue(number + 0.5, event, number)
        else:
            behind[number] = set(host)
            if kind == "synchronize" and stream in last:
                behind[number].add(last[stream])
            host.add(number)
    results = set()
    seen = set()

    def go_on(done, memory, looks):
        if (done, memory, looks) in seen:
            return
        seen.add((done, memory, looks))
        if len(done) == len(behind):
            results.add("".join(f"{look} " for look in looks) + " ".join(map(str, memory)) + "\n")
        for number in behind:
            if number in done or not behind[number] <= done:
                continue
            kind, _, _, target, source = statements[int(number) - 1]
            after, places = list(memory), [buffer * PARTS + part for buffer, part in (target, source)]
            if kind in ("fill", "store", "call"):
                after[places[0]] = number
            elif kind in ("copy", "carry"):
                after[places[0]] = memory[places[1]]
            seen_now = (*looks, memory[places[0]]) if kind == "look" else looks
            go_on(done | {number}, tuple(after), seen_now)

    go_on(frozenset(), (0,) * (BUFFERS * PARTS), ())
    return results


def shown_by(program, schedule):
    """Return what a program prints under a schedule that nobody watches."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setenv("NPU_SCHEDULE", schedule)
        program()
    return out.getvalue()


def compare(seed, length, kinds=KINDS, semantics="ascend"):
    statements = generate(seed, length, kinds)
    found = explore(replay_in_process(statements, semantics), holds=length, seeds=2, runs=2000)
    assert found.is_complete
    printed = {result.run.printed for result in found.results}
    wanted = all_results(statements, semantics)
    assert printed == wanted, (seed, statements, wanted - printed, printed - wanted)
    if kinds is WITH_FUNCTIONS:
        program = program_of(statements, semantics)
        for result in found.results:
            assert shown_by(program, result.shortest) == result.run.printed, (seed, statements, result.shortest)
    return len(wanted)


def replay_in_process(statements, semantics="ascend"):
    replay = replays_of(program_of(statements, semantics))
    return lambda schedule: replay(schedule, ())


def test_the_search_finds_the_results_of_all_legal_orders_with_a_legacy_default_stream_and_notifies():
    assert [compare(seed, 6, KINDS | {"notify": 4}, "cuda") for seed in (0, 15, 24)] == [2, 2, 3]


def test_the_search_finds_the_results_of_all_legal_orders():
    assert [compare(seed, 8) for seed in (1, 3, 9, 11, 159)] == [6, 4, 14, 1, 6]


def test_what_the_host_does_may_come_before_a_host_function_that_has_begun():
    assert [compare(seed, 6, WITH_FUNCTIONS) for seed in range(4)] == [2, 3, 2, 2]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("semantics", ["ascend", "cuda"])
@pytest.mark.parametrize("first", range(0, 200, 25))
def test_the_search_finds_the_results_of_all_legal_orders_of_many_programs(first, semantics):
    for seed in range(first, first + 25):
        compare(seed, 8, semantics=semantics)
        compare(seed, 7, WITH_FUNCTIONS, semantics)
        compare(seed, 6, KINDS | {"notify": 4}, semantics)


RACE = """
import sys, libnpu
with libnpu.open("unit") as device:
    one, two = device.create_stream(), device.create_stream()
    memory = device.alloc(64)
    memory.write(bytes(64))
    one.fill(memory, 5)
    two.fill(memory, 6) if "fixed" not in sys.argv else one.fill(memory, 6)
    two.synchronize() if "fixed" not in sys.argv else one.synchronize()
    print(int(memory.read()[0]))
    device.synchronize()
"""


@pytest.mark.slow
def test_npu_explore(npu, tmp_path, monkeypatch):
    (tmp_path / "race.py").write_text(RACE)
    monkeypatch.chdir(tmp_path)
    status, out, err = npu("explore", "--seeds", "1", "--", sys.executable, "race.py")
    assert (status, err) == (1, "")
    assert out.replace(str(tmp_path / "race.py"), "race.py").splitlines() == [
        "npu explore: 2 results in 10 runs, with at most 2 operations held",
        "1. NPU_SCHEDULE=timed and 7 other schedules: it prints '6'",
        "2. NPU_SCHEDULE=hold:1.1@2.1 and 1 other schedule: it prints '5'",
        "     1.1 (fill with 0x05 in stream 1, at race.py:7) is held until 2.1 has ended (fill with 0x06 in stream 2, at race.py:8)",
    ]
    for schedule, printed in (("timed", "6"), ("hold:1.1@2.1", "5")):
        monkeypatch.setenv("NPU_SCHEDULE", schedule)
        done = subprocess.run([sys.executable, "race.py"], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == printed


@pytest.mark.slow
def test_npu_explore_as_json_and_what_is_no_exploration(npu, tmp_path, monkeypatch):
    (tmp_path / "race.py").write_text(RACE)
    monkeypatch.chdir(tmp_path)
    status, out, _ = npu("explore", "--json", "--runs", "5", "--", sys.executable, "race.py", "fixed")
    found = json.loads(out)
    assert (status, found["runs"], found["complete"]) == (0, 5, True)
    (result,) = found["results"]
    assert (result["printed"], result["status"], result["problem"], result["schedule"]) == ("6\n", 0, None, "timed")
    assert result["schedules"] == ["timed", "eager", "lazy", "newest-first", "hold:"]
    assert npu("explore", "--runs", "2", "--", sys.executable, "-c", "pass")[2] == (
        f"npu: error: {sys.executable} was not explored: it used no device, or did not end by itself\n"
    )
    assert npu("explore", "--runs", "0", "--", "x")[0] == npu("explore")[0] == 2


def test_results_are_distinct_by_what_comes_to_the_host_too():
    def program():
        with libnpu.open("unit") as device:
            one, two, memory = device.create_stream(), device.create_stream(), device.alloc(64)
            one.fill(memory, 5)
            two.fill(memory, 6)
            device.synchronize()
            memory.read()

    replay = replays_of(program)
    found = explore(lambda schedule: replay(schedule, ()), seeds=0)
    assert [(result.run.printed, result.shortest) for result in found.results] == [("", "timed"), ("", "newest-first")]


def test_a_search_that_was_cut_short_says_so(monkeypatch):
    found = explore(replay_in_process(generate(4, 7)), holds=7, seeds=0, runs=20)
    assert (found.runs, found.is_complete) == (20, False)
    monkeypatch.setattr(recorder, "MAX_PAIRS", 2)
    found = explore(replay_in_process(generate(4, 7)), holds=1, seeds=0)
    assert (found.runs < 100, found.is_complete) == (True, False)
