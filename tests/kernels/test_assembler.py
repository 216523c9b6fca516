"""The macro assembler: what its programs compute, on a device, and what it refuses."""

import numpy as np
import pytest
from npu_abi import C

from libnpu.blob import KernelParam, KernelSource, kernel_library, read
from libnpu.kernels.assembler import BLOCK, GRID, Program, align, ceil_div, maximum, minimum
from tests.kernels.launcher import Launcher

OUT = KernelParam("out", C.NPU_ARG_BUFFER, C.NPU_ARG_OUT, C.NPU_DT_I64)
A, B = (KernelParam(name, C.NPU_ARG_INT, C.NPU_ARG_IN, C.NPU_DT_I64) for name in "ab")


def run(p, *args, words=8, grid=1):
    """Run program `p` of parameters out, a, b; return its JOB_DONE and the words at `out`."""
    npu = Launcher("unit", library=read(kernel_library("test", {"k": KernelSource(p.text(), (OUT, A, B))})))
    done, found = npu.run("k", np.full(words, -1), *args, grid=grid)
    return done, found[0].tolist()


def write(p, number, value):
    p.emit("st.i64", value, p["out"] + 8 * number, 0)


def test_expressions():
    p = Program(["out", "a", "b"])
    a, b = p["a"], p["b"]
    values = [
        a + b * 3,
        (a - b) * (a + b),
        100 - a // b,
        1000 // a % b,
        ceil_div(a, b),
        align(a),
        minimum(a, b),
        maximum(a, -5),
    ]
    for number, value in enumerate(values):
        write(p, number, value)
    assert run(p, 17, 5)[1] == [32, 264, 97, 3, 4, 64, 5, 17]  # 1000 // 17 is 58


def test_a_register_may_occur_in_its_own_value():
    p = Program(["out", "a", "b"])
    x = p.let(p["a"])
    p.set(x, (p["b"] + 1) * x + x)
    write(p, 0, x)
    p.set(x, (x - 2) * 3)
    write(p, 1, x)
    p.set(x, 7 - x)
    write(p, 2, x)
    assert run(p, 10, 4)[1][:3] == [60, 174, -167]


def test_loops_and_conditions():
    p = Program(["out", "a", "b"])
    total, turns = p.let(0), p.let(0)
    with p.loop(p["a"], p["b"], 3) as i:
        p.set(turns, turns + 1)
        with p.when(i, "!=", 5):
            p.set(total, total + i)
    with p.loop(4, 4):
        p.set(turns, 99)
    write(p, 0, total)
    write(p, 1, turns)
    for number, (comparison, right) in enumerate((("<", 3), (">=", 3), ("==", 2), ("<", 2), ("!=", 2)), 2):
        with p.when(p["a"], comparison, right):
            write(p, number, turns)
    assert run(p, 2, 12)[1] == [2 + 8 + 11, 4, 4, -1, 4, -1, -1, -1]


def test_kept_values_live_in_memory():
    p = Program(["out", "a", "b"])
    kept = p.keep(p["a"] * 2)
    write(p, 0, kept + 1)
    p.rekeep(kept, kept + p["b"])
    write(p, 1, kept)
    assert run(p, 10, 4)[1][:2] == [21, 24]


def test_blocks_know_their_number():
    p = Program(["out", "a", "b"])
    p.emit("st.i64", BLOCK * 10 + GRID, p["out"] + BLOCK * 8, 0)
    assert run(p, 0, 0, words=3, grid=3)[1] == [3, 13, 23]


def test_a_trap_says_where():
    p = Program(["out", "a", "b"])
    p.trap_when(p["a"], "<", 5, 1)
    write(p, 0, p["a"])
    assert run(p, 5, 0)[1][0] == 5
    done, words = run(p, 4, 0)
    assert done.job_status == C.NPU_JOB_SHAVE_FAULT and done.error_detail >> 32 == C.NPU_SHAVE_FAULT_TRAP
    assert words[0] == -1


def test_a_scope_gives_registers_back():
    p = Program(["out"])
    for _ in range(3):
        with p.scope():
            for number in range(26):
                p.let(number)
    with pytest.raises(AssertionError, match="no integer register left"):
        for number in range(27):
            p.let(number)


def test_the_meter_counts_each_part_of_a_program_by_its_instructions():
    # 2^7 for an instruction, 2^12 more for a vector's and for a scalar access, 2^13 for a place in memory.
    p = Program(["out", "a", "b"])
    address = p.let(p["out"])  # ld
    with p.loop(0, p["a"], part="turn"):  # li; ld and bge, once more than the turns
        p.load("v0", "f32", address, 0, 4)  # li, vld
        p.emit("vexp.f32", "v0", "v0")
        p.emit("vrsum.f32.col", "v1", "v0")
        p.emit("vadd.f32", "v1", "v1", "v1")  # addi and jmp end the turn
    access = 4096 + 8192 + 8
    assert p.meter.parts["once"].work(1) == 4 * 128 + 2 * access
    turn = p.meter.parts["turn"]
    fixed = 9 * 128 + access + 4 * 4096 + 8192
    assert turn.work(3, 3 * 1000) == 3 * (fixed + 1000 * (4 + 16 + 1) + 1) + 512 * 16  # one length may be less than 512
    assert turn.work(3, 3 * 10) == 3 * (fixed + 10 * (4 + 1) + 1 + 512 * 16)
