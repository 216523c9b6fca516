"""The watchdog: what a program may do at most, counted by its work and not by its time."""

import numpy as np
import pytest
from npu_model import shave_machine
from npu_model.footprint import any_overlap, box
from npu_model.profile import load_profile
from npu_model.shave_decode import translate
from npu_model.shave_isa import ShaveFault, assemble
from npu_model.shave_machine import Machine

BASE = 0x80000000
SHAVE = load_profile("npu-40xx").shave


class Memory:
    def __init__(self):
        self.data = np.zeros(1 << 16, np.uint8)

    def check(self, addr, nbytes, write):
        self.view(addr, nbytes, write)

    def view(self, addr, nbytes, write):
        return self.data[addr - BASE : addr - BASE + nbytes]


def insns_until_the_watchdog(body, monkeypatch, compute=True):
    """Return how many instructions a loop around `body` may execute with 2^20 units of work."""
    monkeypatch.setattr(shave_machine, "MAX_WORK", 1 << 20)
    setup = "li r2, 16\nli r3, 64\nsetvl r2, r3\nviota.i32 v0\nvcvt.f32 v1, v0\nli r4, 4\nli r5, 256\nli r6, 1024\nmov r7, r1\n"
    machine = Machine(BASE, Memory(), SHAVE, compute)
    with pytest.raises(ShaveFault, match="WATCHDOG"):
        machine.run(translate(assemble(setup + f"top:\n{body}\njmp top")))
    return machine.insns


@pytest.mark.parametrize("compute", [True, False])
@pytest.mark.parametrize(
    ("body", "low", "high"),
    [
        ("nop", 8000, 8192),  # 2^20 / 2^7
        ("st.i32 r2, r1, 0", 450, 500),  # 2^20 / (2^12 + 2 * 2^7), two instructions each
        ("st.i8 r2, r7, 0\naddi r7, r7, 2", 230, 300),  # a new place each time: 2^13 more
        ("vadd.f32 v2, v1, v1", 360, 400),  # 2^12 + 1024
        ("vexp.f32 v2, v1", 105, 115),  # 2^12 + 16 * 1024
        ("vld.f32 v2, r1, r5, r4, 0", 220, 260),  # 2^12 + 4096
        ("vld.u8 v2, r1, r2, r4, 0", 70, 170),  # 2^12 + 8 * 1024, and one place
        ("vgather.f32 v2, v0, r1, r6, r4, r0", 125, 140),  # 2 * 2^12 + 8 * 1024, and the place of the table
    ],
)
def test_a_loop_ends_after_its_share_of_work(body, low, high, compute, monkeypatch):
    assert low <= insns_until_the_watchdog(body, monkeypatch, compute) <= high


def test_a_program_without_a_branch_is_watched_too(monkeypatch):
    monkeypatch.setattr(shave_machine, "MAX_WORK", 1 << 20)
    machine = Machine(BASE, Memory(), SHAVE, True)
    with pytest.raises(ShaveFault, match="WATCHDOG"):
        machine.run(translate(assemble("viota.i32 v0\n" * 1000 + "halt")))
    assert machine.insns <= 256  # 2^20 / 2^12


def test_the_limit_in_cycles_is_the_profile_s():
    machine = Machine(BASE, Memory(), SHAVE, False)
    machine.max_cycles = 5000
    with pytest.raises(ShaveFault, match=r"WATCHDOG at pc 0x10: 50\d\d cycles"):
        machine.run(translate(assemble("top:\nnop\njmp top")))


def test_many_places_are_compared_as_few_are():
    even = [box(100 * i, 50) for i in range(300)]
    odd = [box(100 * i + 50, 50) for i in range(300)]
    assert not any_overlap(even, odd) and not any_overlap(odd, even)
    assert any_overlap(even, [*odd, box(29949, 1)]) and any_overlap([*odd, box(149, 2)], even)
    combs = [box(10000 * i, 10, ((4, 100),)) for i in range(300)]
    assert not any_overlap(combs, [box(10000 * i + 20, 10, ((4, 100),)) for i in range(300)])
    assert any_overlap(combs, [box(10000 * i + 20, 10, ((4, 100),)) for i in range(299)] + [box(2990305, 10)])
