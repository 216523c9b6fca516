"""The SHAVE opcodes as data: operand fields, types, flags; encoding and validity. The text form is in shave_text.

An instruction is `struct npu_shv_insn`. Each opcode says which fields it uses and as what; every other field must be zero.
docs/shave-isa.md says what each instruction computes; this module says what is legal.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from npu_abi import C, sizeof

from npu_model.shave_faults import ShaveFault, ShaveFaultCode

INSN_BYTES = sizeof("npu_shv_insn")
INT_REGISTERS = 32
FLOAT_REGISTERS = 16
VECTOR_REGISTERS = 16
VECTOR_CAPACITY = 16384  # elements of a vector register
TAGS = 16  # of the operations that a program started, for each kind of engine
ALL_TAGS = -1  # what a wait names to wait for all

FLAG_ROW = 1  # the vector is one row [1, C]; of a reduction: rows are reduced, the result is a row
FLAG_COL = 2  # the vector is one column [R, 1]; of a reduction: columns are reduced. ROW | COL: [1, 1]
FLAG_FLOAT = 4  # an integer memory type is converted from or to fp32
FLAG_SCALAR = 8  # operand b is a scalar register
FLAG_REVERSE = 16  # with SCALAR: the scalar is the first operand

F16, BF16, F32, F64 = C.NPU_DT_F16, C.NPU_DT_BF16, C.NPU_DT_F32, C.NPU_DT_F64
I8, U8, I16, U16 = C.NPU_DT_I8, C.NPU_DT_U8, C.NPU_DT_I16, C.NPU_DT_U16
I32, U32, I64, BOOL = C.NPU_DT_I32, C.NPU_DT_U32, C.NPU_DT_I64, C.NPU_DT_BOOL

TYPE_NAMES: dict[int, str] = {
    F16: "f16",
    BF16: "bf16",
    F32: "f32",
    F64: "f64",
    I8: "i8",
    U8: "u8",
    I16: "i16",
    U16: "u16",
    I32: "i32",
    U32: "u32",
    I64: "i64",
    BOOL: "bool",
}
TYPE_BYTES: dict[int, int] = {
    F16: 2,
    BF16: 2,
    F32: 4,
    F64: 8,
    I8: 1,
    U8: 1,
    I16: 2,
    U16: 2,
    I32: 4,
    U32: 4,
    I64: 8,
    BOOL: 1,
}
FLAG_NAMES: dict[int, str] = {FLAG_ROW: "row", FLAG_COL: "col", FLAG_FLOAT: "f", FLAG_SCALAR: "s", FLAG_REVERSE: "rev"}

_MEMORY = tuple(TYPE_NAMES)
_INT_MEMORY = (I8, U8, I16, U16, I32, U32, I64, BOOL)
_FLOAT_MEMORY = (F16, BF16, F32)  # of scalars; vectors have F64 too
_ARITH = (F32, F16, I32)
_SHAPE_FLAGS = (0, FLAG_ROW, FLAG_COL, FLAG_ROW | FLAG_COL)
_LOAD_FLAGS = tuple(s | f for f in (0, FLAG_FLOAT) for s in _SHAPE_FLAGS)
_SCALAR_FLAGS = (0, FLAG_SCALAR, FLAG_SCALAR | FLAG_REVERSE)
_REDUCE_FLAGS = (FLAG_ROW, FLAG_COL)


class Insn(NamedTuple):
    """One decoded instruction; the fields of struct npu_shv_insn."""

    op: int
    type: int
    d: int
    a: int
    b: int
    c: int
    flags: int
    imm: int
    imm2: int


@dataclass(frozen=True, slots=True)
class Opcode:
    """One opcode. `operands` are (field, kind) in text order.

    Kinds: r, f, v registers; s a scalar register by type (or a vector, without FLAG_SCALAR); imm a 32-bit integer; i64 imm and
    imm2 as one 64-bit integer; f32 imm as the bits of a float; target imm as a byte offset from this instruction.
    """

    code: int
    name: str
    operands: tuple[tuple[str, str], ...]
    types: tuple[int, ...] = ()
    flags: tuple[int, ...] = (0,)


def _operands(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [word.split(":") for word in text.split()]
    return tuple((field, kind) for field, kind in pairs)


def _table() -> dict[int, Opcode]:
    rows: list[tuple[int, str, str, tuple[int, ...], tuple[int, ...]]] = [
        # control
        (0x01, "halt", "", (), (0,)),
        (0x02, "nop", "", (), (0,)),
        (0x03, "trap", "imm:imm", (), (0,)),
        (0x04, "jmp", "imm:target", (), (0,)),
        (0x05, "beq", "a:r b:r imm:target", (), (0,)),
        (0x06, "bne", "a:r b:r imm:target", (), (0,)),
        (0x07, "blt", "a:r b:r imm:target", (), (0,)),
        (0x08, "bge", "a:r b:r imm:target", (), (0,)),
        # scalar integers
        (0x10, "li", "d:r imm:i64", (), (0,)),
        (0x11, "mov", "d:r a:r", (), (0,)),
        (0x12, "addi", "d:r a:r imm:imm", (), (0,)),
        (0x13, "muli", "d:r a:r imm:imm", (), (0,)),
        *[
            (0x14 + i, name, "d:r a:r b:r", (), (0,))
            for i, name in enumerate(
                ("add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shl", "shr")
            )
        ],
        (0x20, "ld", "d:r a:r imm:imm", _INT_MEMORY, (0,)),
        (0x21, "st", "d:r a:r imm:imm", _INT_MEMORY, (0,)),
        (0x22, "ldm", "d:r a:r imm:imm imm2:imm", (), (0,)),
        # scalar floats
        (0x28, "fli", "d:f imm:f32", (), (0,)),
        (0x29, "fmov", "d:f a:f", (), (0,)),
        *[
            (0x2A + i, name, "d:f a:f b:f", (), (0,))
            for i, name in enumerate(("fadd", "fsub", "fmul", "fdiv", "fmin", "fmax"))
        ],
        (0x30, "itof", "d:f a:r", (), (0,)),
        (0x31, "ftoi", "d:r a:f", (), (0,)),
        (0x32, "fld", "d:f a:r imm:imm", _FLOAT_MEMORY, (0,)),
        (0x33, "fst", "d:f a:r imm:imm", _FLOAT_MEMORY, (0,)),
        # vectors: length, memory
        (0x40, "setvl", "a:r b:r", (), (0,)),
        (0x41, "vld", "d:v a:r b:r c:r imm:imm", _MEMORY, _LOAD_FLAGS),
        (0x42, "vst", "d:v a:r b:r c:r imm:imm", _MEMORY, _LOAD_FLAGS),
        (0x43, "vgather", "d:v a:v b:r c:r imm:r imm2:r", _MEMORY, (0, FLAG_FLOAT)),
        (0x44, "vscatter", "d:v a:v b:r c:r imm:r imm2:r", _MEMORY, (0, FLAG_FLOAT)),
        (0x45, "vsplat", "d:v b:s", (F32, I32), (FLAG_SCALAR,)),
        (0x46, "viota", "d:v", (I32,), _SHAPE_FLAGS),
        (0x47, "vmov", "d:v a:v", (), (0,)),
        (0x48, "vbcast", "d:v a:v", (), (0,)),
        (0x49, "vtrans", "d:v a:v", (), (0,)),
        (0x4A, "vext", "d:x a:v b:r c:r", (F32, I32), (0,)),
        (0x4B, "vcvt", "d:v a:v", (F32, I32, F16, BF16), (0,)),
        # element by element, two operands
        *[
            (0x50 + i, name, "d:v a:v b:s", _ARITH, _SCALAR_FLAGS)
            for i, name in enumerate(("vadd", "vsub", "vmul", "vdiv", "vmin", "vmax", "vmod"))
        ],
        (0x57, "vpow", "d:v a:v b:s", (F32, F16), _SCALAR_FLAGS),
        *[
            (0x58 + i, name, "d:v a:v b:s", (I32,), _SCALAR_FLAGS)
            for i, name in enumerate(("vand", "vor", "vxor", "vshl", "vshr"))
        ],
        *[
            (0x60 + i, name, "d:v a:v b:s", (F32, I32), _SCALAR_FLAGS)
            for i, name in enumerate(("veq", "vne", "vlt", "vle", "vgt", "vge"))
        ],
        (0x66, "vfma", "d:v a:v b:v c:v", (F32, F16), (0,)),
        (0x67, "vsel", "d:v a:v b:v c:v", (), (0,)),
        (0x68, "vsigm", "d:v a:v", (F32, F16), (0,)),
        # one operand
        *[
            (0x70 + i, name, "d:v a:v", (F32, F16), (0,))
            for i, name in enumerate(
                (
                    "vsqrt",
                    "vrsqrt",
                    "vrcp",
                    "vexp",
                    "vlog",
                    "vtanh",
                    "verf",
                    "vsin",
                    "vcos",
                    "vfloor",
                    "vceil",
                    "vround",
                )
            )
        ],
        *[(0x7C + i, name, "d:v a:v", _ARITH, (0,)) for i, name in enumerate(("vneg", "vabs", "vsign"))],
        (0x7F, "vnot", "d:v a:v", (I32,), (0,)),
        # reductions
        *[
            (0x80 + i, name, "d:v a:v", _ARITH, _REDUCE_FLAGS)
            for i, name in enumerate(("vrsum", "vrmax", "vrmin", "vrprod"))
        ],
        (0x84, "vargmax", "d:v a:v", (F32, I32), _REDUCE_FLAGS),
        # other engines
        (0x90, "dmastart", "a:r imm:imm imm2:imm", (), (0,)),
        (0x91, "dmawait", "imm:imm", (), (0,)),
        (0x92, "dpustart", "a:r imm2:imm", (), (0,)),
        (0x93, "dpuwait", "imm:imm", (), (0,)),
        # other blocks of the launch
        (0x94, "bar", "", (), (0,)),
    ]
    return {code: Opcode(code, name, _operands(text), types, flags) for code, name, text, types, flags in rows}


OPCODES: dict[int, Opcode] = _table()
BY_NAME: dict[str, Opcode] = {opcode.name: opcode for opcode in OPCODES.values()}

_STRUCT = struct.Struct("<BBBBBBHii")
_LIMITS = {"r": INT_REGISTERS, "f": FLOAT_REGISTERS, "v": VECTOR_REGISTERS}


def register_kind(opcode: Opcode, kind: str, type_: int, flags: int) -> str:
    """Return r, f or v for an operand of kind s (vector, or scalar of the type) or x (scalar of the type)."""
    if kind == "x":
        return "r" if type_ == I32 else "f"
    if kind == "s":
        return "v" if not flags & FLAG_SCALAR else ("r" if type_ == I32 else "f")
    return kind


def check(insn: Insn) -> str | None:
    """Return why `insn` is illegal, or None."""
    opcode = OPCODES.get(insn.op)
    if opcode is None:
        return f"no opcode {insn.op:#04x}"
    if opcode.types:
        if insn.type not in opcode.types:
            return f"{opcode.name} has no type {TYPE_NAMES.get(insn.type, insn.type)}"
    elif insn.type:
        return f"{opcode.name} takes no type"
    if insn.flags not in opcode.flags:
        return f"{opcode.name} has no flags {insn.flags:#x}"
    used = set()
    for field, kind in opcode.operands:
        used.add(field)
        if kind == "i64":
            used.add("imm2")
        limit = _LIMITS.get(register_kind(opcode, kind, insn.type, insn.flags))
        if limit is not None and not 0 <= getattr(insn, field) < limit:
            return f"{opcode.name} has no register {getattr(insn, field)} as operand {field}"
    for field in ("d", "a", "b", "c", "imm", "imm2"):
        if field not in used and getattr(insn, field):
            return f"{opcode.name} takes no operand {field}"
    if insn.flags & FLAG_FLOAT and insn.type in (*_FLOAT_MEMORY, F64):
        return f"{opcode.name}.{TYPE_NAMES[insn.type]} is always fp32 in the register"
    if opcode.name == "ldm" and not (insn.imm2 >= 1 and insn.d + insn.imm2 <= INT_REGISTERS):
        return f"ldm of {insn.imm2} registers from r{insn.d}"
    if opcode.name in ("dmastart", "dpustart") and not 0 <= insn.imm2 < TAGS:
        return f"{opcode.name} has no tag {insn.imm2}"
    if opcode.name in ("dmawait", "dpuwait") and not ALL_TAGS <= insn.imm < TAGS:
        return f"{opcode.name} has no tag {insn.imm}"
    return None


def encode(insn: Insn) -> bytes:
    """Return the 16 bytes of `insn`. ValueError when it is illegal."""
    reason = check(insn)
    if reason is not None:
        raise ValueError(reason)
    return _STRUCT.pack(*insn)


def decode(text: bytes) -> list[Insn]:
    """Return the instructions of a program, legal or not (`check` tells). ShaveFault BAD_TEXT on a bad size."""
    if not text or len(text) % INSN_BYTES:
        raise ShaveFault(ShaveFaultCode.BAD_TEXT, 0, f"{len(text)} bytes")
    return [Insn(*fields) for fields in _STRUCT.iter_unpack(text)]
