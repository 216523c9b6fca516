"""Races between processes that share memory: logs of two checkers, a context each, against the oracle of one program; in `tests/daemon` are
real processes.
"""

import json

import pytest

import libnpu
from libnpu.checker.processes import ACTORS, _races, compare
from libnpu.runtime import observer
from tests.checker.test_oracle import BUFFERS, Numbering, home_of, races, random_program, run


class Both:
    """Two checkers, one of each process, that are told the number of the statement."""

    def __init__(self):
        self.__dict__["checkers"] = Numbering(), Numbering()

    def __setattr__(self, name, value):
        for checker in self.checkers:
            setattr(checker, name, value)

    def __getattr__(self, name):
        return getattr(self.checkers[0], name)

    def logs(self):
        return json.loads(json.dumps([checker.shared() for checker in self.checkers]))


def watch(statements, is_cuda):
    """Run a program whose second context another checker watches."""
    both = Both()
    observer.current = both.checkers[0]
    try:
        with libnpu.open("unit", semantics="cuda" if is_cuda else "ascend") as device:
            _, make = device.primary, device.create_context

            def create():
                observer.current = both.checkers[1]
                return make()

            device.create_context = create
            run(device, statements, both, is_split=True)
    finally:
        observer.current = None
    for checker in both.checkers:
        checker.finish()
    return both


def between(found, statements):
    """Return the pairs of the two contexts; a free is of the own mapping."""
    pairs = {pair: [statements[i] for i in pair] for pair in found}
    return {
        pair
        for pair, two in pairs.items()
        if len({home_of(each, True) for each in two}) == 2 and not {"free", "free_async"} & {each[0] for each in two}
    }


@pytest.mark.parametrize("is_cuda", [False, True], ids=["ascend", "cuda"])
def test_two_processes_against_the_oracle(is_cuda):
    count = 0
    for seed in range(8):
        statements = random_program(seed)
        both = watch(statements, is_cuda)
        logs, found = both.logs(), set()
        numbers = {
            (process, access["act"]["real_ns"]): access["act"]["order"] // 1000 - BUFFERS
            for process, log in enumerate(logs)
            for access in log["accesses"]
        }
        for finding in _races(logs):
            found.add(tuple(sorted(numbers[act.context // ACTORS, act.order] for act in finding.acts)))
        told = [[(i, max(i + 1, j + late)) for i, j in both.told] for late in (0, 1)]
        least, most = (
            races(statements, is_cuda, told[0], True, waits_work=True),
            races(statements, is_cuda, told[1], True),
        )
        assert between(least, statements) <= found <= between(most, statements), (seed, statements)
        count += len(found)
    assert count > 5


def test_memory_that_somebody_has_who_is_not_watched():
    logs = watch([("fill", stream, 0, 1, 2, 0, 1) for stream in (0, 2)], False).logs()
    found, unknown = compare(logs)
    assert ([record["rule"] for record in found], unknown) == (["XS-WAW"], [])
    assert found[0]["acts"][1]["stream"] == "stream 1 of context 2 of process 2"
    assert "record an interprocess event in stream 1 of process 1 behind 'fill with 0x00'" in found[0]["fix"]
    for log, whose in zip(logs, ("that was shared with a process", "of a process"), strict=True):
        found, unknown = compare([log])
        assert (found, len(unknown)) == ([], 1)
        assert unknown[0].startswith(
            f"not checked (OTHER-PROCESS): what is done elsewhere to memory {whose} that is not"
        )
    logs[0]["full_ns"] = logs[0]["begun_ns"] + 1
    found, unknown = compare(logs)
    assert (found, unknown[0].endswith("behind the first 1000 accesses, waits or records of process 1")) == ([], True)
