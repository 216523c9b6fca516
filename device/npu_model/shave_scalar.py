"""Scalar instructions of the SHAVE core: control flow, 64-bit integers, fp32, loads and stores. One function per instruction."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from npu_abi import C

from npu_model import shave_integers
from npu_model import shave_math as sm
from npu_model.shave_faults import ShaveFaultCode, ShaveUnsupported
from npu_model.shave_integers import SIGN, taken, wrap64
from npu_model.shave_machine import ACCESS_WORK, BAR_WORK, HALT, SUSPEND, Bar, Handler, Machine, Start, Wait, in_cmx
from npu_model.shave_memory import ADDRESS_LIMIT, STORAGE, load, store
from npu_model.shave_opcodes import ALL_TAGS, BOOL, INSN_BYTES, TYPE_BYTES

DMA, DPU = int(C.NPU_ENGINE_DMA), int(C.NPU_ENGINE_DPU)
_UNSIGNED = {size: struct.Struct("<" + code) for size, code in ((1, "B"), (2, "H"), (4, "I"), (8, "Q"))}
_INTEGERS = {
    type_: struct.Struct(_UNSIGNED[of.itemsize].format.lower()) if of.kind == "i" else _UNSIGNED[of.itemsize]
    for type_, of in STORAGE.items()
}  # float types: their bits


def halt(m: Machine, arg: Any) -> int | None:
    """End the program."""
    return HALT


def nop(m: Machine, arg: Any) -> int | None:
    """Do nothing."""
    return None


def trap(m: Machine, arg: Any) -> int | None:
    """Fault on purpose."""
    raise m.fault(ShaveFaultCode.TRAP, str(arg))


def illegal(m: Machine, arg: Any) -> int | None:
    """Fault: `arg` says what is wrong with the instruction."""
    raise m.fault(ShaveFaultCode.ILLEGAL_INSTRUCTION, arg)


def _start(engine: int) -> Handler:
    def handler(m: Machine, arg: tuple[int, int, int]) -> int | None:
        a, port, tag = arg
        m.starts += 1
        m.open_tags.add((engine, tag))
        m.suspension = Start(engine, m.r[a], port, tag, m.pc * INSN_BYTES)
        return SUSPEND

    return handler


def _wait(engine: int) -> Handler:
    def handler(m: Machine, tag: int) -> int | None:
        done = {open_ for open_ in m.open_tags if open_[0] == engine and tag in (ALL_TAGS, open_[1])}
        if not done:
            return None
        m.open_tags -= done
        m.suspension = Wait(engine, tag, m.pc * INSN_BYTES)
        return SUSPEND

    return handler


def bar(m: Machine, arg: Any) -> int | None:
    """Wait for the other blocks of the launch."""
    m.work += BAR_WORK
    m.suspension = Bar(m.pc * INSN_BYTES)
    return SUSPEND


def jmp(m: Machine, arg: int) -> int | None:
    """Go to the target."""
    return taken(m, arg)


def _quotient(m: Machine, a: int, b: int) -> int:
    """Return a / b towards zero."""
    if b == 0:
        raise m.fault(ShaveFaultCode.DIVIDE_BY_ZERO)
    quotient = abs(a) // abs(b)
    return wrap64(quotient if (a < 0) == (b < 0) else -quotient)


def div(m: Machine, arg: tuple[int, int, int]) -> int | None:
    """Divide towards zero."""
    d, a, b = arg
    m.r[d] = _quotient(m, m.r[a], m.r[b])
    return None


def rem(m: Machine, arg: tuple[int, int, int]) -> int | None:
    """Remainder with the sign of the dividend."""
    d, a, b = arg
    m.r[d] = wrap64(m.r[a] - _quotient(m, m.r[a], m.r[b]) * m.r[b])
    return None


def _float(function: Callable[[Any, Any], Any]) -> Handler:
    def handler(m: Machine, arg: tuple[int, int, int]) -> int | None:
        d, a, b = arg
        m.f[d] = function(m.f[a], m.f[b])
        return None

    return handler


def _address(m: Machine, register: int, offset: int, size: int, write: bool) -> int:
    """Return a checked address and log the access, which costs scalar_cycles only."""
    address = m.r[register] + offset
    if address < 0 or address + size > ADDRESS_LIMIT:
        raise m.fault(ShaveFaultCode.ADDRESS, f"{address:#x} + {size}")
    (m.writes if write else m.reads).add_run(m.pc, address, size)
    m.work += size + ACCESS_WORK
    if not m.compute and not write and in_cmx(address):
        raise ShaveUnsupported(
            m.pc * INSN_BYTES, "a scalar load of CMX data cannot be followed without computing values"
        )
    return address


def ld(m: Machine, arg: tuple[int, int, int, int, Callable[..., tuple[int]], bool]) -> int | None:
    """Load an integer, sign- or zero-extended by its type."""
    d, a, offset, size, unpack, truth = arg
    m.count_accesses(1, size, False)
    (value,) = unpack(m.memory.view(_address(m, a, offset, size, False), size, False))
    m.r[d] = int(value != 0) if truth else value
    return None


def ldm(m: Machine, arg: tuple[int, int, int, int]) -> int | None:
    """Load consecutive 64-bit words into consecutive registers; costs one scalar instruction per word."""
    d, a, offset, count = arg
    address = _address(m, a, offset, 8 * count, False)
    words = struct.unpack(f"<{count}q", m.memory.view(address, 8 * count, False).tobytes())
    m.r[d : d + count] = words
    m.r[0] = 0
    m.cycles += m.scalar_cycles * (count - 1)
    return None


def st(m: Machine, arg: tuple[int, int, int, int, Callable[..., None], bool]) -> int | None:
    """Store the low bytes of an integer (bool: 0 or 1)."""
    d, a, offset, size, pack, truth = arg
    m.count_accesses(1, size, True)
    address = _address(m, a, offset, size, True)
    if m.compute:
        value = int(m.r[d] != 0) if truth else m.r[d] & ((1 << 8 * size) - 1)
        pack(m.memory.view(address, size, True), 0, value)
    else:
        m.memory.check(address, size, True)
    return None


def transfer_operands(name: str, type_: int) -> tuple[int, Callable[..., Any], bool]:
    """Return what `ld` and `st` need to know of a type: its bytes, the function that reads or writes them, and whether it is bool."""
    size = TYPE_BYTES[type_]
    return size, _INTEGERS[type_].unpack_from if name == "ld" else _UNSIGNED[size].pack_into, type_ == BOOL


def fld(m: Machine, arg: tuple[int, int, int, int]) -> int | None:
    """Load a float as fp32."""
    d, a, offset, type_ = arg
    size = TYPE_BYTES[type_]
    m.count_accesses(1, size, False)
    raw = m.memory.view(_address(m, a, offset, size, False), size, False).tobytes()
    m.f[d] = load(np.frombuffer(raw, STORAGE[type_]), type_, False)[0]
    return None


def fst(m: Machine, arg: tuple[int, int, int, int]) -> int | None:
    """Store an fp32 as a float type, nearest even."""
    d, a, offset, type_ = arg
    size = TYPE_BYTES[type_]
    m.count_accesses(1, size, True)
    address = _address(m, a, offset, size, True)
    if m.compute:
        out = np.empty(1, STORAGE[type_])
        m.overflows += store(np.array([m.f[d]], np.float32), out, type_)
        m.memory.view(address, size, True)[:] = out.view(np.uint8)
    else:
        m.memory.check(address, size, True)
    return None


def fli(m: Machine, arg: tuple[int, Any]) -> int | None:
    """Load an fp32 immediate."""
    d, value = arg
    m.f[d] = value
    return None


def fmov(m: Machine, arg: tuple[int, int]) -> int | None:
    """Copy an fp32 register."""
    m.f[arg[0]] = m.f[arg[1]]
    return None


def itof(m: Machine, arg: tuple[int, int]) -> int | None:
    """Convert a 64-bit integer to fp32, nearest even."""
    m.f[arg[0]] = np.int64(m.r[arg[1]]).astype(np.float32)
    return None


def ftoi(m: Machine, arg: tuple[int, int]) -> int | None:
    """Convert fp32 to a 64-bit integer: towards zero, NaN is 0, saturating."""
    value = float(m.f[arg[1]])
    if value != value:
        result = 0
    elif value in (float("inf"), float("-inf")):
        result = SIGN - 1 if value > 0 else -SIGN
    else:
        result = max(-SIGN, min(SIGN - 1, int(value)))
    m.r[arg[0]] = result
    return None


HANDLERS: dict[str, Handler] = {
    **shave_integers.HANDLERS,
    "halt": halt,
    "nop": nop,
    "trap": trap,
    "jmp": jmp,
    "div": div,
    "rem": rem,
    "ld": ld,
    "st": st,
    "ldm": ldm,
    "fli": fli,
    "fmov": fmov,
    "fadd": _float(lambda a, b: a + b),
    "fsub": _float(lambda a, b: a - b),
    "fmul": _float(lambda a, b: a * b),
    "fdiv": _float(sm.divide_f32),
    "fmin": _float(sm.minimum),
    "fmax": _float(sm.maximum),
    "itof": itof,
    "ftoi": ftoi,
    "fld": fld,
    "fst": fst,
    "dmastart": _start(DMA),
    "dmawait": _wait(DMA),
    "dpustart": _start(DPU),
    "dpuwait": _wait(DPU),
    "bar": bar,
}

# A run of scalar instructions (`shave_runs`) does not go beyond these: they end or suspend the program, or always fault.
ENDS = frozenset(
    [illegal, *(HANDLERS[name] for name in ("halt", "trap", "dmastart", "dmawait", "dpustart", "dpuwait", "bar"))]
)
