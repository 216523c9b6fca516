"""The SHAVE instruction set: encoding, legality, and the text form."""

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from npu_model import shave_isa as isa
from npu_model.shave_opcodes import register_kind


@st.composite
def instructions(draw):
    opcode = draw(st.sampled_from(sorted(isa.OPCODES.values(), key=lambda o: o.code)))
    fields = dict.fromkeys(isa.Insn._fields, 0)
    fields["op"] = opcode.code
    fields["type"] = draw(st.sampled_from(opcode.types)) if opcode.types else 0
    fields["flags"] = draw(st.sampled_from(opcode.flags))
    int32 = st.integers(-(2**31), 2**31 - 1)
    for field, kind in opcode.operands:
        kind = register_kind(opcode, kind, fields["type"], fields["flags"])
        if kind == "i64":
            fields["imm"], fields["imm2"] = draw(int32), draw(int32)
        elif kind == "target":
            fields[field] = draw(st.one_of(int32, st.integers(-4, 4).map(lambda n: 16 * n)))
        elif kind in ("imm", "f32"):
            fields[field] = draw(int32)
        else:
            fields[field] = draw(st.integers(0, 31 if kind == "r" else 15))
    if opcode.name == "ldm":
        fields["imm2"] = draw(st.integers(1, 32 - fields["d"]))
    if opcode.name in ("dmastart", "dpustart"):
        fields["imm2"] = draw(st.integers(0, 15))
    if opcode.name in ("dmawait", "dpuwait"):
        fields["imm"] = draw(st.integers(-1, 15))
    if fields["flags"] & isa.FLAG_FLOAT and fields["type"] in (0, 1, 2):
        fields["flags"] &= ~isa.FLAG_FLOAT
    return isa.Insn(**fields)


@given(st.lists(instructions(), min_size=1, max_size=12))
def test_text_of_a_program_assembles_to_the_same_bytes(program):
    code = b"".join(map(isa.encode, program))
    assert isa.assemble(isa.disassemble(code)) == code


@given(st.lists(instructions(), min_size=1, max_size=4))
def test_decode_returns_what_was_encoded(program):
    assert isa.decode(b"".join(map(isa.encode, program))) == program


def test_an_instruction_is_the_sixteen_bytes_of_the_header():
    code = isa.assemble("vld.f16.row v1, r2, r3, r4, -64")
    assert code == struct.pack("<BBBBBBHii", 0x41, 0, 1, 2, 3, 4, isa.FLAG_ROW, -64, 0)


def test_li_holds_64_bits():
    code = isa.assemble("li r7, -4294967295")
    assert code == struct.pack("<BBBBBBHii", 0x10, 0, 7, 0, 0, 0, 0, 1, -1)


def test_a_branch_holds_the_distance_from_itself_in_bytes():
    code = isa.assemble("top:\n nop\n bne r1, r2, top\n jmp end\n nop\nend:\n halt")
    assert [insn.imm for insn in isa.decode(code)] == [0, -16, 32, 0, 0]


def test_comments_and_blank_lines_are_no_instructions():
    assert isa.assemble("# a\n\n halt ; b\n") == isa.assemble("halt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("halt\nfoo r1", "line 2: no instruction 'foo'"),
        ("add r1, r2", "line 1: add takes 3 operands, not 2"),
        ("add r1, r2, r32", "line 1: add has no register 32 as operand b"),
        ("add r1, r2, f3", "line 1: add: 'f3' is no r register"),
        ("vadd v0, v1, v2", "line 1: vadd needs a type"),
        ("vadd.i8 v0, v1, v2", "line 1: vadd has no type i8"),
        ("vadd.f32.row v0, v1, v2", "line 1: vadd has no flags 0x1"),
        ("vadd.f32.x v0, v1, v2", "line 1: vadd has no flag 'x'"),
        ("jmp nowhere", "line 1: no label 'nowhere'"),
        ("a:\na:\nhalt", "line 2: label a is defined twice"),
        ("1x:", "line 1: '1x' is no label"),
        ("addi r1, r1, 2147483648", "line 1: 2147483648 does not fit in 32 bits"),
        ("ldm r30, r1, 0, 3", "line 1: ldm of 3 registers from r30"),
        ("dmastart r1, 0, 16", "line 1: dmastart has no tag 16"),
        ("dpuwait -2", "line 1: dpuwait has no tag -2"),
        ("fli f0, 1e40", "line 1: float too large to pack with f format"),
    ],
)
def test_an_assembly_error_names_the_line(text, message):
    with pytest.raises(isa.AssemblyError) as error:
        isa.assemble(text)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("insn", "reason"),
    [
        (isa.Insn(0, 0, 0, 0, 0, 0, 0, 0, 0), "no opcode 0x00"),
        (isa.Insn(0xFF, 255, 255, 255, 255, 255, 65535, -1, -1), "no opcode 0xff"),
        (isa.Insn(0x01, 1, 0, 0, 0, 0, 0, 0, 0), "halt takes no type"),
        (isa.Insn(0x01, 0, 0, 0, 0, 0, 0, 5, 0), "halt takes no operand imm"),
        (isa.Insn(0x41, 2, 0, 0, 0, 0, isa.FLAG_FLOAT, 0, 0), "vld.f32 is always fp32 in the register"),
        (isa.Insn(0x43, 2, 0, 0, 0, 0, 0, -1, 0), "vgather has no register -1 as operand imm"),
    ],
)
def test_an_illegal_instruction_has_a_reason(insn, reason):
    assert isa.check(insn) == reason
    with pytest.raises(ValueError, match=reason):
        isa.encode(insn)


@pytest.mark.parametrize("text", [b"", b"\x01" * 15, b"\x01" * 17])
def test_a_program_that_is_no_multiple_of_sixteen_bytes_is_bad_text(text):
    with pytest.raises(isa.ShaveFault) as fault:
        isa.decode(text)
    assert fault.value.code == isa.ShaveFaultCode.BAD_TEXT


def test_disassembling_an_illegal_instruction_names_its_pc():
    with pytest.raises(isa.ShaveFault) as fault:
        isa.disassemble(isa.assemble("halt") + bytes(16))
    assert (fault.value.code, fault.value.pc) == (isa.ShaveFaultCode.ILLEGAL_INSTRUCTION, 16)


def test_the_manual_names_every_instruction():
    manual = (Path(__file__).parents[2] / "docs" / "shave-isa.md").read_text()
    words = set(re.findall(r"[a-z][a-z0-9]+", manual))
    assert sorted(name for name in isa.BY_NAME if name not in words) == []
