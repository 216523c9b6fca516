"""Assembly text of SHAVE programs: one instruction per line, `mnemonic[.type][.flag]... operand, operand`.

Labels are `name:` alone on a line, comments start with `#` or `;`. A branch target is a label or `pc+BYTES`. Floats are
written as decimal, `inf`, `-inf`, or `0x` and the 32 bits (NaN). `assemble(disassemble(x)) == x` for every legal program.
"""

from __future__ import annotations

import re
import struct

from npu_model.shave_faults import ShaveFault, ShaveFaultCode
from npu_model.shave_opcodes import (
    BY_NAME,
    FLAG_NAMES,
    INSN_BYTES,
    OPCODES,
    TYPE_NAMES,
    Insn,
    Opcode,
    check,
    decode,
    encode,
    register_kind,
)

_TYPES = {name: number for number, name in TYPE_NAMES.items()}
_FLAGS = {name: bit for bit, name in FLAG_NAMES.items()}
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FLAG_BITS = tuple(FLAG_NAMES)
_MASK32 = 0xFFFFFFFF


class AssemblyError(ValueError):
    """Text that is no program; the message begins with the line number."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line


def assemble(text: str) -> bytes:
    """Return the program of an assembly text. AssemblyError names the line."""
    labels: dict[str, int] = {}
    statements: list[tuple[int, str]] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.split(r"[#;]", raw, maxsplit=1)[0].strip()
        if line.endswith(":"):
            label = line[:-1].strip()
            if not _LABEL.match(label):
                raise AssemblyError(number, f"{label!r} is no label")
            if label in labels:
                raise AssemblyError(number, f"label {label} is defined twice")
            labels[label] = len(statements)
        elif line:
            statements.append((number, line))
    code = bytearray()
    for index, (number, line) in enumerate(statements):
        try:
            code += encode(_parse(line, index, labels))
        except (ValueError, OverflowError, struct.error) as error:
            raise AssemblyError(number, str(error)) from None
    return bytes(code)


def disassemble(text: bytes) -> str:
    """Return the assembly text of a program; ShaveFault at the first instruction that is not legal."""
    insns = decode(text)
    targets: dict[int, str] = {}
    for index, insn in enumerate(insns):
        reason = check(insn)
        if reason is not None:
            raise ShaveFault(ShaveFaultCode.ILLEGAL_INSTRUCTION, index * INSN_BYTES, reason)
        if any(kind == "target" for _, kind in OPCODES[insn.op].operands):
            target = index * INSN_BYTES + insn.imm
            if target % INSN_BYTES == 0 and 0 <= target // INSN_BYTES < len(insns):
                targets[target // INSN_BYTES] = ""
    labels = {index: f"L{number}" for number, index in enumerate(sorted(targets))}
    lines = []
    for index, insn in enumerate(insns):
        if index in labels:
            lines.append(f"{labels[index]}:")
        lines.append("    " + format_insn(insn, index, labels))
    return "\n".join(lines) + "\n"


def format_insn(insn: Insn, index: int = 0, labels: dict[int, str] | None = None) -> str:
    """Return one legal instruction as text; `labels` maps instruction numbers to names for branch targets."""
    opcode = OPCODES[insn.op]
    name = opcode.name
    if opcode.types:
        name += f".{TYPE_NAMES[insn.type]}"
    for bit in _FLAG_BITS:
        if insn.flags & bit:
            name += f".{FLAG_NAMES[bit]}"
    words = [_format_operand(opcode, insn, field, kind, index, labels or {}) for field, kind in opcode.operands]
    return f"{name} {', '.join(words)}" if words else name


def _format_operand(opcode: Opcode, insn: Insn, field: str, kind: str, index: int, labels: dict[int, str]) -> str:
    value = int(getattr(insn, field))
    if kind in ("imm", "imm2"):
        return str(value)
    if kind == "i64":
        return str((insn.imm2 << 32) | (insn.imm & _MASK32))
    if kind == "f32":
        return _format_float(value)
    if kind == "target":
        target = index * INSN_BYTES + value
        name = labels.get(target // INSN_BYTES) if target % INSN_BYTES == 0 else None
        return name if name is not None else f"pc{value:+d}"
    return f"{register_kind(opcode, kind, insn.type, insn.flags)}{value}"


def _format_float(bits: int) -> str:
    value = struct.unpack("<f", struct.pack("<i", bits))[0]
    if value != value:
        return f"{bits & _MASK32:#x}"
    return repr(value)


def _parse(line: str, index: int, labels: dict[str, int]) -> Insn:
    head, _, tail = line.partition(" ")
    name, *suffixes = head.split(".")
    opcode = BY_NAME.get(name)
    if opcode is None:
        raise ValueError(f"no instruction {name!r}")
    fields = {"op": opcode.code, "type": 0, "d": 0, "a": 0, "b": 0, "c": 0, "flags": 0, "imm": 0, "imm2": 0}
    if opcode.types:
        if not suffixes or suffixes[0] not in _TYPES:
            raise ValueError(f"{name} needs a type")
        fields["type"] = _TYPES[suffixes.pop(0)]
    for suffix in suffixes:
        if suffix not in _FLAGS:
            raise ValueError(f"{name} has no flag {suffix!r}")
        fields["flags"] |= _FLAGS[suffix]
    words = [word.strip() for word in tail.split(",")] if tail.strip() else []
    if len(words) != len(opcode.operands):
        raise ValueError(f"{name} takes {len(opcode.operands)} operands, not {len(words)}")
    for word, (field, kind) in zip(words, opcode.operands, strict=True):
        if kind == "imm":
            fields[field] = _parse_int(word, 32)
        elif kind == "i64":
            value = _parse_int(word, 64)
            fields["imm"] = ((value & _MASK32) ^ 0x80000000) - 0x80000000
            fields["imm2"] = value >> 32
        elif kind == "f32":
            fields[field] = _parse_float(word)
        elif kind == "target":
            fields[field] = _parse_target(word, index, labels)
        else:
            prefix = register_kind(opcode, kind, fields["type"], fields["flags"])
            if not re.match(prefix + r"(0|[1-9][0-9]{0,2})\Z", word):
                raise ValueError(f"{name}: {word!r} is no {prefix} register")
            fields[field] = int(word[1:])
    return Insn(**fields)


def _parse_int(word: str, bits: int) -> int:
    value = int(word, 0)
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise ValueError(f"{word} does not fit in {bits} bits")
    return value


def _parse_float(word: str) -> int:
    if word.lower().startswith("0x"):
        raw = struct.pack("<I", int(word, 16))
    else:
        raw = struct.pack("<f", float(word))
    return int(struct.unpack("<i", raw)[0])


def _parse_target(word: str, index: int, labels: dict[str, int]) -> int:
    if word.startswith("pc"):
        return _parse_int(word[2:], 32)
    if word not in labels:
        raise ValueError(f"no label {word!r}")
    return (labels[word] - index) * INSN_BYTES
