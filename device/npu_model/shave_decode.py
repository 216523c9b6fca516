"""From the bytes of a program to the rows that `Machine.run` executes: fields resolved once, one handler per instruction.

`ProgramCache` keeps translated programs by their content; a device or a compiler owns one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from npu_model import shave_math as sm
from npu_model import shave_scalar, shave_tiles, shave_vector
from npu_model.profile import Shave
from npu_model.shave_faults import ShaveFault, ShaveFaultCode, ShaveUnsupported
from npu_model.shave_integers import BAD_TARGET
from npu_model.shave_machine import Bar, Machine, Row, ShaveResult
from npu_model.shave_math import F32, S32
from npu_model.shave_memory import Memory
from npu_model.shave_opcodes import (
    BF16,
    F16,
    FLAG_REVERSE,
    FLAG_ROW,
    FLAG_SCALAR,
    I32,
    INSN_BYTES,
    INT_REGISTERS,
    OPCODES,
    Insn,
    check,
    decode,
)
from npu_model.shave_opcodes import F32 as TYPE_F32
from npu_model.shave_runs import fuse

CACHE_PROGRAMS = 256
FUSED_USES = 16  # of a program, after which its runs are fused (chosen: tests run most of theirs fewer times)


def translate(text: bytes) -> list[Row]:
    """Return the executable rows of a program. ShaveFault BAD_TEXT on a bad size; illegal instructions fault when reached."""
    insns = decode(text)
    return [_row(insn, index, len(insns)) for index, insn in enumerate(insns)]


class ProgramCache:
    """Translated programs by content, least recently used dropped."""

    def __init__(self, capacity: int = CACHE_PROGRAMS) -> None:
        self._capacity = capacity
        self._programs: OrderedDict[bytes, list[Row]] = OrderedDict()
        self._uses: dict[bytes, int] = {}  # of programs whose runs are not fused yet

    def rows(self, text: bytes) -> list[Row]:
        """Return the rows of `text`."""
        rows = self._programs.get(text)
        if rows is None:
            rows = self._programs[text] = translate(text)
            self._uses[text] = 1
            if len(self._programs) > self._capacity:
                dropped, _ = self._programs.popitem(last=False)
                self._uses.pop(dropped, None)
            return rows
        self._programs.move_to_end(text)
        uses = self._uses.get(text)
        if uses == FUSED_USES:
            rows = self._programs[text] = fuse(rows)
            del self._uses[text]
        elif uses is not None:
            self._uses[text] = uses + 1
        return rows

    def run(self, text: bytes, args_va: int, memory: Memory, shave: Shave, compute: bool) -> ShaveResult:
        """Run `text` to its halt with r1 = `args_va`; without `compute` only scalars run. ShaveFault ends it early.

        ShaveUnsupported when the program starts an operation of another engine: there is none here.
        """
        machine = Machine(args_va, memory, shave, compute)
        run_closed(machine, self.rows(text))
        return machine.result()


def run_closed(machine: Machine, rows: list[Row]) -> None:
    """Run to the halt where there are no other engines; ShaveUnsupported, code NEEDS_ENGINES, at the first that is started.

    There are no other blocks either: a `bar` is a fault.
    """
    if not machine.run(rows):
        assert machine.suspension is not None
        if isinstance(machine.suspension, Bar):
            raise ShaveFault(ShaveFaultCode.NOT_COOPERATIVE, machine.suspension.pc)
        detail = "the program starts operations of other engines: what it costs and touches is known only to the device"
        raise ShaveUnsupported(machine.suspension.pc, detail, ShaveFaultCode.NEEDS_ENGINES)


def _row(insn: Insn, index: int, count: int) -> Row:
    reason = check(insn)
    if reason is not None:
        return shave_scalar.illegal, reason, 1
    name = OPCODES[insn.op].name
    if name in shave_scalar.HANDLERS:
        return shave_scalar.HANDLERS[name], _scalar_argument(name, insn, index, count), 1
    handler = shave_tiles.HANDLERS.get(name) or shave_vector.HANDLERS.get(name)
    if handler is not None:
        return handler, _vector_argument(name, insn), int(name == "setvl")
    if name == "vcvt":
        return shave_vector.unary, _conversion(insn), 0
    if name in shave_vector.REDUCE_F32:
        return shave_vector.reduction, _reduction(name, insn), 0
    if name in sm.UNARY_F32 or name in sm.UNARY_I32:
        return shave_vector.unary, _unary(name, insn), 0
    return shave_vector.binary, _binary(name, insn), 0


def _scalar_argument(name: str, insn: Insn, index: int, count: int) -> Any:
    to_int = name not in ("fli", "fmov", "itof", "fld", "fst", "st") and not name.startswith(("fa", "fs", "fm", "fd"))
    d = INT_REGISTERS if to_int and insn.d == 0 else insn.d  # writes to r0 go nowhere
    match name:
        case "halt" | "nop" | "bar":
            return None
        case "trap":
            return insn.imm
        case "jmp":
            return _target(insn, index, count)
        case "beq" | "bne" | "blt" | "bge":
            return insn.a, insn.b, _target(insn, index, count)
        case "li":
            return d, 0, (insn.imm2 << 32) | (insn.imm & 0xFFFFFFFF)
        case "fli":
            return d, np.array(insn.imm, np.int32).view(np.float32)[()]
        case "mov":
            return d, insn.a, 0
        case "fmov" | "itof" | "ftoi":
            return d, insn.a
        case "addi" | "muli":
            return d, insn.a, insn.imm
        case "ld" | "st":
            return d, insn.a, insn.imm, *shave_scalar.transfer_operands(name, insn.type)
        case "fld" | "fst":
            return d, insn.a, insn.imm, insn.type
        case "ldm":
            return insn.d, insn.a, insn.imm, insn.imm2
        case "dmastart" | "dpustart":
            return insn.a, insn.imm, insn.imm2
        case "dmawait" | "dpuwait":
            return insn.imm
        case _:
            return d, insn.a, insn.b


def _target(insn: Insn, index: int, count: int) -> int:
    target = index * INSN_BYTES + insn.imm
    if target % INSN_BYTES or not 0 <= target // INSN_BYTES < count:
        return BAD_TARGET
    return target // INSN_BYTES


def _vector_argument(name: str, insn: Insn) -> Any:
    match name:
        case "setvl":
            return insn.a, insn.b
        case "vld" | "vst":
            return insn.d, insn.a, insn.b, insn.c, insn.imm, insn.type, insn.flags
        case "vgather" | "vscatter":
            return insn.d, insn.a, insn.b, insn.c, insn.imm, insn.imm2, insn.type, insn.flags
        case "vsplat":
            return insn.d, insn.b, insn.type
        case "viota":
            return insn.d, insn.flags
        case "vext":
            d = INT_REGISTERS if insn.type == I32 and insn.d == 0 else insn.d
            return d, insn.a, insn.b, insn.c, insn.type
        case "vsel":
            return insn.d, insn.a, insn.b, insn.c
        case "vfma":
            return insn.d, insn.a, insn.b, insn.c, insn.type
        case _:
            return insn.d, insn.a


def _to_f32(x: Any) -> Any:
    return x.astype(F32)


def _same(x: Any) -> Any:
    return x


def _conversion(insn: Insn) -> Any:
    function, source = {
        TYPE_F32: (_to_f32, S32),
        I32: (sm.truncate, F32),
        F16: (_same, F32),  # and rounded as every result of type f16
        BF16: (sm.round_bf16, F32),
    }[insn.type]
    return insn.d, insn.a, function, source, TYPE_F32, False, insn.type == F16


def _reduction(name: str, insn: Insn) -> Any:
    axis = 0 if insn.flags & FLAG_ROW else 1
    integer = insn.type == I32
    function = (shave_vector.REDUCE_I32 if integer else shave_vector.REDUCE_F32)[name]
    return insn.d, insn.a, axis, function, S32 if integer else F32, insn.type, insn.type == F16


def _unary(name: str, insn: Insn) -> Any:
    integer = insn.type == I32
    function = (sm.UNARY_I32 if integer else sm.UNARY_F32)[name]
    return insn.d, insn.a, function, S32 if integer else F32, insn.type, name in sm.SPECIAL, insn.type == F16


def _binary(name: str, insn: Insn) -> Any:
    integer = insn.type == I32
    if name in sm.COMPARE:
        function, round16 = shave_vector.compared(sm.COMPARE[name]), False
    else:
        function, round16 = (sm.BINARY_I32 if integer else sm.BINARY_F32)[name], insn.type == F16
    form = shave_vector.VECTOR
    if insn.flags & FLAG_SCALAR:
        form = shave_vector.INT_SCALAR if integer else shave_vector.FLOAT_SCALAR
    divides = integer and name in ("vdiv", "vmod")
    dtype = S32 if integer else F32
    reverse = bool(insn.flags & FLAG_REVERSE)
    return insn.d, insn.a, insn.b, form, reverse, function, dtype, insn.type, name in sm.SPECIAL, round16, divides
