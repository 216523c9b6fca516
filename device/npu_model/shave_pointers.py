"""Which words of its argument block a SHAVE program takes for addresses alone: what it does is the same wherever they point.

Such a word is loaded into a register, and from there only added to, copied, and used as the address of a load or store. So another
address in its place moves the accesses that go through it, and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

from npu_model.shave_opcodes import I64, OPCODES, TYPE_BYTES, Insn, check, decode, register_kind

WORD = 8  # bytes
_BASE = {
    "vld": "a",
    "vst": "a",
    "vgather": "b",
    "vscatter": "b",
    "ld": "a",
    "st": "a",
    "fld": "a",
    "fst": "a",
    "ldm": "a",
}
_SCALAR_LOADS = ("ld", "fld", "ldm")
_KEPT = {"mov": ("a",), "addi": ("a",), "add": ("a", "b")}  # operands that live on, moved, in d
ARGUMENTS = 1  # the register that points to the argument block


def address_words(code: bytes, candidates: frozenset[int]) -> frozenset[int]:
    """Return the offsets of these words among `candidates`, multiples of 8; a sum of two candidates is no address.

    Independent of the order of instructions, so of the way that a run takes.
    """
    insns = list(decode(code))
    if any(_hides_arguments(insn) for insn in insns):
        return frozenset()
    holds: list[set[int]] = [set() for _ in range(256)]  # by register: words that it may hold an address from
    spoilt: set[int] = set()
    for insn in insns:
        for register, offset, whole in _loads(insn):
            word = offset - offset % WORD
            if whole and offset == word:
                holds[register] |= {word} & candidates
            else:
                spoilt |= {word, word + WORD}
    _spread(insns, holds)
    for insn in insns:
        name = OPCODES[insn.op].name
        kept = _KEPT.get(name, ())
        for field in _integers_read(insn):
            if field not in kept and field != _BASE.get(name):
                spoilt |= holds[getattr(insn, field)]
        if name == "add" and holds[insn.a] and holds[insn.b]:
            spoilt |= holds[insn.a] | holds[insn.b]
    return candidates - spoilt


def argument_bytes(code: bytes) -> int | None:
    """Return how many bytes of its argument block a program can load. None when it may load scalars from elsewhere, or uses the
    address of the block for anything else.
    """
    size = 0
    for insn in decode(code):
        if check(insn) is not None or _hides_arguments(insn):
            return None
        name = OPCODES[insn.op].name
        loads = name in _SCALAR_LOADS
        if loads != any(getattr(insn, field) == ARGUMENTS for field in _integers_read(insn)):
            return None
        if loads:
            if insn.imm < 0:
                return None
            size = max(size, insn.imm + (WORD * insn.imm2 if name == "ldm" else TYPE_BYTES[insn.type]))
    return size


def _spread(insns: list[Insn], holds: list[set[int]]) -> None:
    """Let registers hold what they may be made from, until nothing is new."""
    moves = [(insn.d, getattr(insn, f)) for insn in insns for f in _KEPT.get(OPCODES[insn.op].name, ())]
    changed = True
    while changed:
        changed = False
        for target, source in moves:
            if not holds[source] <= holds[target]:
                holds[target] |= holds[source]
                changed = True


def _loads(insn: Insn) -> Iterable[tuple[int, int, bool]]:
    """Yield (register, offset in the argument block, whether it is a word of integers) of what scalar loads take from there."""
    name = OPCODES[insn.op].name
    if insn.a != ARGUMENTS:
        return
    if name == "ldm":
        for number in range(insn.imm2):
            yield insn.d + number, insn.imm + WORD * number, True
    elif name in ("ld", "fld"):
        yield insn.d, insn.imm, name == "ld" and insn.type == I64


def _hides_arguments(insn: Insn) -> bool:
    """Tell whether an instruction writes the register of the argument block, or uses it for more than as an address."""
    opcode = OPCODES[insn.op]
    reads = any(getattr(insn, f) == ARGUMENTS and f != _BASE.get(opcode.name) for f in _integers_read(insn))
    if opcode.name == "ldm":
        return reads or insn.d <= ARGUMENTS < insn.d + insn.imm2
    writes = ("d", "r") in opcode.operands and opcode.name != "st"
    return reads or ((writes or opcode.name == "vext") and insn.d == ARGUMENTS)


def _integers_read(insn: Insn) -> list[str]:
    """Return the operands that are integer registers and read."""
    opcode = OPCODES[insn.op]
    return [
        field
        for field, kind in opcode.operands
        if (field != "d" or opcode.name == "st") and register_kind(opcode, kind, insn.type, insn.flags) == "r"
    ]
