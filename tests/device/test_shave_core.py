"""The SHAVE core: faults, watchdog, cycles by closed form, traffic, timing mode, and robustness against any program."""

import contextlib

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_device import shave_core
from npu_model import shave_isa as isa
from npu_model.footprint import Box
from npu_model.profile import load_profile

SHAVE = load_profile("npu-40xx").shave
UNIT = load_profile("unit").shave
CMX = 0x2E000000
LOW = 0x80000000


class MemoryFault(Exception):
    pass


class Memory:
    """64 KiB of CMX and 64 KiB below 4 GiB."""

    def __init__(self):
        self.parts = {CMX: np.zeros(65536, np.uint8), LOW: np.zeros(65536, np.uint8)}

    def check(self, addr, nbytes, write):
        self.view(addr, nbytes, write)

    def view(self, addr, nbytes, write):
        for base, part in self.parts.items():
            if base <= addr and addr + nbytes <= base + len(part):
                return part[addr - base : addr - base + nbytes]
        raise MemoryFault


def run(text, compute=True, shave=SHAVE, args=CMX):
    code = text if isinstance(text, bytes) else isa.assemble(text)
    return shave_core.run(code, args, Memory(), shave, compute)


VL = "li r2, {0}\nli r3, {1}\nsetvl r2, r3\nli r4, 4\nmul r5, r3, r4\n"


@pytest.mark.parametrize(
    ("text", "code", "pc"),
    [
        ("nop\ntrap 7", "TRAP", 16),
        ("nop", "BAD_PC", 16),
        ("jmp pc+8", "BAD_PC", 0),
        ("jmp pc-16", "BAD_PC", 0),
        ("nop\njmp pc+160", "BAD_PC", 16),
        ("li r2, 0\nli r3, 4\nsetvl r2, r3", "VECTOR_LENGTH", 32),
        ("li r2, 129\nli r3, 128\nsetvl r2, r3", "VECTOR_LENGTH", 32),
        ("li r2, -1\nsetvl r2, r2", "VECTOR_LENGTH", 16),
        ("vneg.f32 v0, v1", "UNDEFINED_REGISTER", 0),
        ("div r3, r1, r0", "DIVIDE_BY_ZERO", 0),
        ("rem r3, r1, r0", "DIVIDE_BY_ZERO", 0),
        ("viota.i32 v0\nvdiv.i32 v1, v0, v0", "DIVIDE_BY_ZERO", 16),
        ("viota.i32 v0\nli r2, 1\nvext.i32 r3, v0, r2, r0", "INDEX", 32),
        ("li r2, -5\nld.i32 r3, r2, 0", "ADDRESS", 16),
        ("li r2, 281474976710656\nld.i32 r3, r2, 0", "ADDRESS", 16),
        ("li r2, 2\nsetvl r2, r2\nviota.i32 v0\nvst.i32 v0, r1, r0, r2, 0", "ADDRESS", 48),
        (
            "li r2, 2\nli r3, 3\nsetvl r2, r2\nviota.i32 v0\nsetvl r3, r3\nviota.i32 v1\nvadd.i32 v0, v0, v1",
            "SHAPE",
            96,
        ),
    ],
)
def test_a_program_that_errs_faults_at_its_instruction(text, code, pc):
    with pytest.raises(isa.ShaveFault) as fault:
        run(text)
    assert (fault.value.code.name, fault.value.pc) == (code, pc)


def test_a_broadcast_beyond_the_capacity_faults():
    text = "li r2, 1\nli r3, 200\nsetvl r2, r3\nviota.i32.row v0\nsetvl r3, r2\nviota.i32.col v1\nvadd.i32 v2, v0, v1"
    with pytest.raises(isa.ShaveFault, match="VECTOR_LENGTH at pc 0x60: 200 x 200"):
        run(text)


def test_an_illegal_instruction_faults_only_when_it_is_reached():
    halt = isa.assemble("halt")
    assert run(halt + b"\xff" * 16).insns == 1
    with pytest.raises(isa.ShaveFault) as fault:
        run(isa.assemble("nop") + bytes(16))
    assert (fault.value.code, fault.value.pc) == (isa.ShaveFaultCode.ILLEGAL_INSTRUCTION, 16)


def test_a_fault_of_the_memory_passes_through():
    with pytest.raises(MemoryFault):
        run("li r2, 4096\nld.i32 r3, r2, 0\nhalt")


@pytest.mark.parametrize("shave", [SHAVE, UNIT])
@pytest.mark.parametrize("compute", [True, False])
def test_an_endless_loop_ends_at_the_watchdog(shave, compute, monkeypatch):
    monkeypatch.setattr("npu_model.shave_machine.MAX_WORK", 10000 * 128)
    with pytest.raises(isa.ShaveFault, match="WATCHDOG at pc 0x0"):
        run("top:\njmp top", compute, shave)


@pytest.mark.parametrize("start", ["dmastart r1, 0, 0", "dpustart r1, 0"])
def test_operations_that_a_program_starts_need_a_device(start):
    with pytest.raises(isa.ShaveUnsupported, match="NEEDS_ENGINES at pc 0x10"):
        run(f"nop\n{start}\nhalt")


def test_a_bar_needs_a_cooperative_launch():
    with pytest.raises(isa.ShaveFault, match="NOT_COOPERATIVE at pc 0x10"):
        run("nop\nbar\nhalt")


@pytest.mark.parametrize("wait", ["dmawait -1", "dmawait 3", "dpuwait -1", "dpuwait 0"])
def test_a_wait_without_a_start_goes_on_at_once(wait):
    assert run(f"{wait}\nhalt").cycles == SHAVE.startup_cycles + 2 * SHAVE.scalar_cycles


ROUND = msgspec.structs.replace(
    SHAVE,
    lanes={"f32": 16, "f16": 32, "i32": 16},
    special_cycles={"f32": 4, "f16": 1, "i32": 5},
    load_bytes_per_cycle=64,
    store_bytes_per_cycle=32,
    strided_elements_per_cycle=1,
    latency_cycles=6,
    scalar_cycles=1,
)


def cycles(body, rows=16, cols=100, shave=ROUND):
    """Return the cycles of the instructions in `body` beyond the set-up; 1600 elements fill 100 groups of 16."""
    setup = VL.format(rows, cols) + "li r6, 400\n"
    return run(setup + body + "\nhalt", shave=shave).cycles - run(setup + "halt", shave=shave).cycles


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("add r7, r2, r3", 1),
        ("ld.i32 r7, r1, 0", 1),
        ("ldm r7, r1, 0, 5", 5),
    ],
)
def test_scalar_instructions_are_issued_one_after_another(body, expected):
    assert cycles(body) == expected


@pytest.mark.parametrize(
    ("body", "busy"),
    [
        ("vadd.i32 v1, v0, v0", 100),
        ("vadd.f32 v1, v0, v0", 100),
        ("vadd.f16 v1, v0, v0", 50),
        ("vexp.f32 v1, v0", 400),
        ("vdiv.f32 v1, v0, v0", 400),
        ("vsigm.f16 v1, v0", 50),
        ("li r8, 7\nvdiv.i32.s v1, v0, r8", 500),
        ("vrsum.f32.col v1, v0", 100),
    ],
)
def test_arithmetic_keeps_the_vector_unit_busy(body, busy):
    base = cycles("viota.i32 v0")
    assert base == 100 + 6 - 1  # the halt is issued meanwhile
    assert cycles("viota.i32 v0\n" + body) == base + busy


@pytest.mark.parametrize(
    ("body", "busy"),
    [
        ("vld.f32 v1, r1, r5, r4, 0", 100),  # dense: 6400 bytes
        ("vld.f16 v1, r1, r6, r2, 0", 1600),  # columns 16 bytes apart: element by element
        ("vld.u8 v1, r1, r6, r0, 0", 16),  # one element a row, broadcast along it
        ("vld.f32 v1, r1, r0, r4, 0", 7),  # one row of 400 bytes, broadcast
        ("vld.f32 v1, r1, r6, r4, 512", 100),  # rows that follow each other
        ("vld.f32.row v1, r1, r5, r4, 0", 7),
        ("fli f1, 1.0\nvsplat.f32.s v1, f1\nvst.f32 v1, r1, r5, r4, 0", 1 + 6 + 200),
        ("vsplat.i32.s v1, r0\nvgather.f32 v2, v1, r1, r2, r6, r4", 6 + 16 * 7),
    ],
)
def test_loads_and_stores_keep_the_memory_unit_busy(body, busy):
    assert cycles(body) == busy + 6 - 1


LOAD, STORE = (
    "vld.f32 v{0}, r1, r5, r4, 0\n",
    "vst.f32 v{0}, r1, r5, r4, 8192\n",
)  # 100 and 200 cycles of the memory unit


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # the memory unit sets the pace: nothing else is seen but the last results' way
        (LOAD.format(0) + "vadd.f32 v1, v0, v0\n" + STORE.format(1), 300 + 6),
        # the vector unit does: its first operand and its last result come on top
        (LOAD.format(0) + "vexp.f32 v1, v0\n" + STORE.format(1), 6 + 400 + 6 + 6),
        (LOAD.format(0) + "vexp.f32 v1, v0\nvadd.f32 v2, v1, v0\n" + STORE.format(2), 6 + 500 + 6 + 6),
        # a slow producer: what follows on the other unit ends with it
        ("viota.i32 v0\nvexp.f32 v1, v0\n" + STORE.format(1), 500 + 6 + 6),
        # nothing goes on with a reduction before it has ended
        (LOAD.format(0) + "vrmax.f32.col v1, v0\nvsub.f32 v2, v0, v1", 6 + 100 + 6 + 100 + 6),
        # of two tiles the second begins when the first is stored
        (2 * (LOAD.format(0) + STORE.format(0)), 2 * (300 + 6)),
        # scalar instructions go on meanwhile
        (LOAD.format(0) + 50 * "add r7, r2, r3\n", 100 + 6),
        (LOAD.format(0) + 200 * "add r7, r2, r3\n", 200 + 1),
        # but a scalar of a vector is waited for
        (LOAD.format(0) + "vext.f32 f1, v0, r0, r0\n" + 10 * "add r7, r2, r3\n", 100 + 6 + 6 + 10 + 1),
    ],
)
def test_units_work_side_by_side(body, expected):
    assert cycles(body) == expected - 1


MEMORY = {
    "vld.f32 v{d}, r1, r5, r4, 0": 100,
    "vst.f32 v{a}, r1, r5, r4, 8192": 200,
    "vld.f32.row v{d}, r1, r5, r4, 0": 7,
}
ARITHMETIC = {  # lanes, and cycles of a group
    "vadd.f32 v{d}, v{a}, v{b}": (16, 1),
    "vexp.f16 v{d}, v{a}": (32, 1),
    "vexp.f32 v{d}, v{a}": (16, 4),
    "viota.i32 v{d}": (16, 1),
}
REGISTER = st.integers(0, 3)


@given(st.lists(st.tuples(st.sampled_from([*MEMORY, *ARITHMETIC]), REGISTER, REGISTER, REGISTER), max_size=12))
@settings(max_examples=25, deadline=None)
def test_a_program_takes_no_less_than_its_busiest_unit_and_no_more_than_one_instruction_after_another(steps):
    first = [("viota.i32 v{d}", register, 0, 0) for register in range(4)]
    steps = [*first, *((text, d, a, b) for text, d, a, b in steps)]
    body = "\n".join(text.format(d=d, a=a, b=b) for text, d, a, b in steps)
    rows = dict.fromkeys(range(4), 16)  # of each register
    busy = {"memory": 0, "vector": 0}
    for text, d, a, b in steps:
        if text in MEMORY:
            busy["memory"] += MEMORY[text]
            rows[d] = 1 if ".row" in text else (16 if "vld" in text else rows[d])
            continue
        shape = 16 if "viota" in text else max(rows[a], rows[b] if "vadd" in text else 1)
        lanes, group_cycles = ARITHMETIC[text]
        busy["vector"] += -(-100 * shape // lanes) * group_cycles
        rows[d] = shape
    found = cycles(body) + 1
    assert max(busy.values()) <= found <= sum(busy.values()) + len(steps) * ROUND.latency_cycles


def test_without_values_the_cycles_are_the_same():
    body = VL.format(16, 100) + LOAD.format(0) + "vexp.f32 v1, v0\nvrsum.f32.col v2, v1\nvdiv.f32 v3, v1, v2\n"
    body += STORE.format(3) + LOAD.format(4) + "halt"
    assert run(body, compute=False).cycles == run(body).cycles


def test_on_the_unit_device_only_lanes_count():
    assert cycles("viota.i32 v0\nvadd.f32 v1, v0, v0", 2, 1000, UNIT) == 4
    assert cycles("add r7, r2, r3", 2, 1000, UNIT) == 0
    assert cycles("vld.f32 v1, r1, r5, r4, 0\nvadd.f32 v1, v1, v1\nvst.f32 v1, r1, r0, r4, 0", 1, 1024, UNIT) == 1
    assert cycles("vld.f32 v1, r1, r6, r6, 0\nvld.f32 v1, r1, r6, r4, 0", 4, 16, UNIT) == 0


def test_an_empty_program_costs_the_start_up_and_a_halt():
    assert run("halt").cycles == SHAVE.startup_cycles + SHAVE.scalar_cycles


def test_traffic_is_exact_boxes_and_runs_of_one_instruction_merge():
    text = VL.format(4, 8) + "li r7, 64\nli r9, 2\n"
    text += "top:\nvld.f32 v0, r1, r5, r4, 0\naddi r1, r1, 128\naddi r9, r9, -1\nbne r9, r0, top\n"
    text += "vst.f32 v0, r1, r7, r4, 0\nvst.f16.col v0, r1, r7, r0, 8192\nhalt"
    text = text.replace("vst.f16.col v0", "vrsum.f32.col v1, v0\nvst.f16.col v1")
    result = run(text)
    assert result.reads == [Box(CMX, 256, ())]
    assert result.writes == [Box(CMX + 256, 32, ((4, 64),)), Box(CMX + 256 + 8192, 2, ((4, 64),))]
    assert (result.read_bytes, result.write_bytes) == (256, 136)


def test_without_values_cycles_and_traffic_are_the_same():
    text = VL.format(5, 7) + "li r7, 100\n"
    text += "vld.f32 v0, r1, r5, r4, 0\nvexp.f32 v1, v0\nvrsum.f32.col v2, v1\nvdiv.f32 v1, v1, v2\n"
    text += "vst.f16 v1, r1, r7, r4, 1024\nviota.i32.col v3\nvgather.f16 v4, v3, r1, r7, r7, r4\nhalt"
    assert run(text, compute=False) == run(text, compute=True)


@pytest.mark.parametrize(
    "text", ["ld.i32 r2, r1, 0\nhalt", "fld.f32 f2, r1, 0\nhalt", "viota.i32 v0\nvext.i32 r2, v0, r0, r0\nhalt"]
)
def test_without_values_a_scalar_that_depends_on_cmx_data_is_unsupported(text):
    with pytest.raises(isa.ShaveUnsupported):
        run(text, compute=False)


def test_without_values_arguments_are_read_and_nothing_is_written():
    memory = Memory()
    memory.parts[LOW][:8] = 5
    code = isa.assemble(
        "ld.u8 r2, r1, 0\nsetvl r2, r2\nviota.i32 v0\nli r3, 771751936\nvst.i32 v0, r3, r2, r2, 0\nhalt"
    )
    shave_core.run(code, LOW, memory, SHAVE, False)
    assert not memory.parts[CMX].any()


def test_a_program_cache_translates_a_program_once():
    cache = shave_core.ProgramCache(capacity=1)
    first = cache.rows(isa.assemble("halt"))
    assert cache.rows(isa.assemble("halt")) is first
    cache.rows(isa.assemble("nop\nhalt"))
    assert cache.rows(isa.assemble("halt")) is not first


def test_values_are_computed_without_warnings_and_registers_are_snapshots():
    memory = Memory()
    text = "vld.f32 v0, r1, r0, r0, 0\nfli f1, 1.0\nvadd.f32.s v1, v0, f1\nvst.f32 v1, r1, r0, r0, 0\nvst.f32 v0, r1, r0, r0, 4\nhalt"
    shave_core.run(isa.assemble(text), CMX, memory, SHAVE, True)
    assert memory.parts[CMX][:8].view(np.float32).tolist() == [1.0, 0.0]


@settings(max_examples=80)
@given(st.lists(st.tuples(st.sampled_from(sorted(isa.OPCODES)), st.binary(min_size=15, max_size=15)), max_size=30))
def test_any_bytes_end_in_a_result_or_a_named_fault(program):
    text = isa.assemble(VL.format(3, 5) + "viota.i32 v0\nviota.i32.col v1\nvcvt.f32 v2, v0\nvcvt.f32 v3, v1")
    for op, rest in program:
        code = isa.OPCODES[op]
        fields = {"op": op, "type": 0, "d": 0, "a": 0, "b": 0, "c": 0, "flags": 0, "imm": 0, "imm2": 0}
        fields["type"] = code.types[rest[0] % len(code.types)] if code.types else 0
        fields["flags"] = code.flags[rest[1] % len(code.flags)]
        for index, (field, kind) in enumerate(code.operands):
            value = int.from_bytes(rest[2 + 2 * index : 4 + 2 * index], "little", signed=True)
            is_number = kind in ("imm", "i64", "f32", "target")
            fields[field] = (value & 0x1F0 if kind == "target" else value) if is_number else value % 6
        insn = isa.Insn(**fields)
        text += isa.encode(insn) if isa.check(insn) is None else rest + b"\x00"
    for compute in (True, False):
        with contextlib.suppress(isa.ShaveFault, MemoryFault):
            run(text + isa.assemble("halt"), compute)
