"""Random valid and invalid calls of every function (stress.c): no crash, no defect, nothing left behind, and the same twice."""

import subprocess
from pathlib import Path

import pytest

LEFT = ["memory 0", "descriptors 0"]


@pytest.fixture(scope="session")
def stress(flags, blobs, tmp_path_factory):
    """stress(seed, calls, threads, trace=None, semantics="ascend", **variables) -> lines that the program prints."""
    program = tmp_path_factory.mktemp("stress") / "stress"
    source = Path(__file__).with_name("stress.c")
    # -no-pie: traces name code addresses, which must be the same twice.
    options = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused", "-pthread", "-no-pie"]
    subprocess.run(["gcc", *options, source, *flags, "-o", program], check=True)

    def stress(seed, calls, threads, trace=None, semantics="ascend", **variables):
        command = [program, str(seed), str(calls), str(threads), blobs, *([trace] if trace else [])]
        environment = {"NPU_SEMANTICS": semantics, "NPU_TRACE": "1" if trace else "0", **variables}
        environment["PYTHONFAULTHANDLER"] = "1"  # what the threads do, when it does not end
        options = {"capture_output": True, "text": True, "env": environment}
        limited = ["timeout", "-s", "ABRT", "150", *command]
        done = subprocess.run(limited, check=False, cwd=program.parent, **options)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return stress


def check_same_twice(stress, folder, seed, calls):
    """Run it twice; results and all parts of the trace must be the same, and nothing may be left."""
    first, second = (stress(seed, calls, 1, folder / f"trace{i}") for i in range(2))
    assert first == second
    digest, *left = first
    assert digest.endswith(" 1")  # a tenth of the calls succeeds at least
    assert left == LEFT
    check_same_traces(folder)


def check_same_traces(folder):
    parts = [[(folder / f"trace{i}.{part}").read_bytes() for part in range(1, 9)] for i in range(2)]
    assert parts[0] == parts[1]


def turns(path):
    """Return a recorded order without the lines that say who is who."""
    return [line for line in path.read_text().splitlines() if line[0] != "+"]


def check_replay(stress, folder, seed, calls):
    """Record a run of eight threads and replay it: results, traces and every turn are the same, and nothing is left."""
    orders = [folder / f"order{i}" for i in range(2)]
    first = stress(seed, calls, 8, folder / "trace0", NPU_ORDER_RECORD=str(orders[0]))
    environment = {"NPU_ORDER_REPLAY": str(orders[0]), "NPU_ORDER_RECORD": str(orders[1])}
    second = stress(seed, calls, 8, folder / "trace1", **environment)
    assert first == second
    *digests, memory, descriptors = first
    assert len(digests) == 8
    assert [memory, descriptors] == LEFT
    assert len(turns(orders[0])) > calls
    assert turns(orders[0]) == turns(orders[1])
    check_same_traces(folder)


def test_random_calls_end_well_and_are_reproducible(stress, tmp_path):
    check_same_twice(stress, tmp_path, 1, 2400)


@pytest.mark.parametrize("semantics", ["cuda", "strict"])
def test_random_calls_under_other_semantics(stress, semantics):
    _, *left = stress(2, 2000, 1, semantics=semantics)
    assert left == LEFT


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 9))])
def test_the_recorded_order_of_eight_threads_replays_identically(stress, tmp_path, seed):
    check_replay(stress, tmp_path, seed, 400)


@pytest.mark.slow
def test_eighty_thousand_random_calls_are_reproducible(stress, tmp_path):
    check_same_twice(stress, tmp_path, 4, 80_000)


@pytest.mark.slow
@pytest.mark.timeout(400)  # its threads wait for each other in real time
def test_thirty_thousand_random_calls_of_eight_threads_replay_identically(stress, tmp_path):
    check_replay(stress, tmp_path, 5, 30_000)
