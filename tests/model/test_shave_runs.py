"""Runs of scalar instructions in one function: the same registers, counters and faults, wherever a program enters or leaves them."""

import numpy as np
import pytest
from npu_model.profile import load_profile
from npu_model.shave_decode import FUSED_USES, ProgramCache, translate
from npu_model.shave_isa import ShaveFault, assemble
from npu_model.shave_machine import Machine
from npu_model.shave_runs import fuse

SHAVE = load_profile("npu-40xx").shave
BASE = 0x80000000


class Memory:
    def __init__(self):
        self.data = np.arange(64, dtype=np.uint8)

    def check(self, addr, nbytes, write):
        pass

    def view(self, addr, nbytes, write):
        return self.data[addr - BASE : addr - BASE + nbytes]


def fused(text):
    return fuse(translate(assemble(text)))


def run(text):
    machine = Machine(BASE, Memory(), SHAVE, compute=True)
    machine.run(fused(text))
    return machine


def test_a_program_without_branches_is_one_function_and_its_halt():
    rows = fused("li r2, 3\naddi r3, r2, 4\nst.u8 r3, r1, 9\nhalt")
    assert [scalars for _, _, scalars in rows] == [3, 1, 1, 1]
    machine = run("li r2, 3\naddi r3, r2, 4\nst.u8 r3, r1, 9\nhalt")
    assert machine.r[3] == 7
    assert machine.memory.data[9] == 7
    assert machine.insns == 4
    assert machine.cycles == SHAVE.startup_cycles + 4 * SHAVE.scalar_cycles


def test_a_loop_runs_its_body_as_often_as_before():
    machine = run("li r2, 0\nli r3, 5\ntop:\naddi r2, r2, 1\nmuli r4, r2, 3\nblt r2, r3, top\nmov r5, r4\nhalt")
    assert machine.r[2:6] == [5, 5, 15, 15]
    assert machine.insns == 2 + 5 * 3 + 2


def test_a_branch_into_the_middle_of_a_run_skips_what_stands_before():
    machine = run("li r2, 1\njmp middle\naddi r2, r2, 10\naddi r2, r2, 10\nmiddle:\naddi r2, r2, 100\nli r3, 1\nhalt")
    assert machine.r[2] == 101
    assert machine.insns == 5


def test_a_write_to_r0_goes_nowhere():
    assert run("li r0, 7\nli r2, 1\nadd r3, r0, r2\nhalt").r[3] == 1


def test_integers_wrap_at_64_bits():
    machine = run(
        "li r2, 9223372036854775807\naddi r3, r2, 1\nmul r4, r2, r2\nshl r5, r2, r2\nli r6, -8\nshr r7, r6, r2\nhalt"
    )
    assert machine.r[3:6] == [-(1 << 63), 1, -(1 << 63)]
    assert machine.r[7] == -1


@pytest.mark.parametrize(
    ("text", "code", "pc"),
    [
        ("li r2, 1\nli r3, 1\ndiv r4, r2, r0\nhalt", "DIVIDE_BY_ZERO", 32),
        ("li r2, -1\nnop\nnop\nld.u8 r4, r2, 0\nhalt", "ADDRESS", 48),
        ("li r2, 1\nli r3, 1\ntrap 5", "TRAP", 32),
        ("li r2, 1\nli r3, 1", "BAD_PC", 32),
        ("li r2, 1\ntop:\nnop\nnop\njmp top", "WATCHDOG", 48),
    ],
)
def test_a_fault_names_its_instruction(text, code, pc):
    with pytest.raises(ShaveFault, match=code) as fault:
        run(text)
    assert fault.value.pc == pc


def test_a_cache_fuses_a_program_that_is_used_often():
    cache, text = ProgramCache(), assemble("li r2, 1\nli r3, 2\nhalt")
    for _ in range(FUSED_USES):
        assert [scalars for _, _, scalars in cache.rows(text)] == [1, 1, 1]
    often = cache.rows(text)
    assert [scalars for _, _, scalars in often] == [2, 1, 1]
    assert cache.rows(text) is often
