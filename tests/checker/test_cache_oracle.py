"""Random programs on memory that the device does not snoop: what is silent has the values of coherent memory under each eviction."""

import random

import numpy as np
import pytest
from npu_abi import C

import libnpu

LINE, LINES = 64, 4
EVICTIONS = ("lazy", "evict", "seed:1", "seed:2")
KINDS = ("store", "store", "look", "in", "in", "out", "out", "flush", "flush", "invalidate", "invalidate")


def generate(chance, length, grain):
    """Return statements (kind, first byte, end byte)."""
    statements = []
    for _ in range(length):
        start = chance.randrange(LINES * LINE // grain)
        end = chance.randrange(start, LINES * LINE // grain) + 1
        statements.append((chance.choice(KINDS), start * grain, end * grain))
    return statements


def maintained(statements):
    """Return the same with all the maintenance that whole lines need."""
    for kind, start, end in statements:
        if kind in ("in", "out"):
            yield "flush", start, end
        if kind not in ("flush", "invalidate"):
            yield kind, start, end
        if kind == "out":
            yield "invalidate", start, end


def run(device, statements, flags):
    """Do what the statements say, one after the other, and return all values that somebody has seen."""
    stream, memory, pinned = (
        device.create_stream(),
        device.to_device(bytes(LINES * LINE)),
        device.alloc_host(LINES * LINE, flags),
    )
    pinned.array[:] = 0
    pinned.flush()
    seen = []
    for number, (kind, start, end) in enumerate(statements, 1):
        match kind:
            case "store":
                pinned.array[start:end] = number
            case "look":
                seen.append(pinned.array[start:end].copy())
            case "in":
                stream.copy(memory[start:end], pinned[start:end])
                stream.synchronize()
                seen.append(memory[start:end].read())
            case "out":
                stream.fill(memory[start:end], number)
                stream.copy(pinned[start:end], memory[start:end])
                stream.synchronize()
            case "flush":
                pinned.flush(start, end - start)
            case "invalidate":
                pinned.invalidate(start, end - start)
    return np.concatenate([*seen, np.zeros(1, np.uint8)])


def check(statements):
    """Return the rules that are found, and whether the values are those of coherent memory under each eviction."""
    with libnpu.open("unit") as device:
        wanted = run(device, statements, int(C.NPU_HOST_CACHED))
    found, right = set(), True
    for eviction in EVICTIONS:
        with libnpu.check() as checker, libnpu.open("unit", module_params=f"evict={eviction}") as device:
            right &= np.array_equal(run(device, statements, int(C.NPU_HOST_NON_COHERENT)), wanted)
        found |= {record["rule"] for record in checker.records()}
    return found, right


def compare(seeds):
    """Return how many programs were wrong."""
    wrong = 0
    for seed in seeds:
        statements = generate(random.Random(seed), 12, LINE // 2)
        found, right = check(statements)
        assert found or right, (seed, statements)
        wrong += not right
    return wrong


def test_programs_that_the_checker_has_nothing_against_are_right():
    assert 10 < compare(range(25)) <= 25


@pytest.mark.long
@pytest.mark.parametrize("first", range(25, 400, 125))
def test_many_programs_that_the_checker_has_nothing_against_are_right(first):
    compare(range(first, first + 125))


def test_programs_with_all_maintenance_of_whole_lines_are_silent():
    for seed in range(25):
        assert check(list(maintained(generate(random.Random(seed), 12, LINE)))) == (set(), True), seed
