"""The SHAVE instruction set, in one import: opcodes, encoding, text form, faults. docs/shave-isa.md is the manual."""

from __future__ import annotations

from npu_model.shave_faults import ShaveFault, ShaveFaultCode, ShaveUnsupported
from npu_model.shave_opcodes import (
    BY_NAME,
    FLAG_COL,
    FLAG_FLOAT,
    FLAG_REVERSE,
    FLAG_ROW,
    FLAG_SCALAR,
    FLOAT_REGISTERS,
    INSN_BYTES,
    INT_REGISTERS,
    OPCODES,
    TYPE_BYTES,
    TYPE_NAMES,
    VECTOR_CAPACITY,
    VECTOR_REGISTERS,
    Insn,
    Opcode,
    check,
    decode,
    encode,
)
from npu_model.shave_text import AssemblyError, assemble, disassemble, format_insn

__all__ = [
    "BY_NAME",
    "FLAG_COL",
    "FLAG_FLOAT",
    "FLAG_REVERSE",
    "FLAG_ROW",
    "FLAG_SCALAR",
    "FLOAT_REGISTERS",
    "INSN_BYTES",
    "INT_REGISTERS",
    "OPCODES",
    "TYPE_BYTES",
    "TYPE_NAMES",
    "VECTOR_CAPACITY",
    "VECTOR_REGISTERS",
    "AssemblyError",
    "Insn",
    "Opcode",
    "ShaveFault",
    "ShaveFaultCode",
    "ShaveUnsupported",
    "assemble",
    "check",
    "decode",
    "disassemble",
    "encode",
    "format_insn",
]
