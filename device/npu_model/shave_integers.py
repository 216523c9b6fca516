"""Integer instructions of the SHAVE core that touch registers alone, and branches: their meaning as Python expressions.

A handler is made of each expression, and `shave_runs` puts those of neighbouring instructions into one function.
"""

from __future__ import annotations

from typing import Any

from npu_model.shave_faults import ShaveFaultCode
from npu_model.shave_machine import Handler, Machine

SIGN = 1 << 63
MASK = (1 << 64) - 1
BAD_TARGET = -2  # a branch target outside the program or between instructions

# What goes into the destination. `a` is a register; so is `b`, but of instructions that end in i.
RESULTS = {
    "li": "{b}",
    "mov": "{a}",
    "addi": "wrap64({a} + {b})",
    "muli": "wrap64({a} * {b})",
    "add": "wrap64({a} + {b})",
    "sub": "wrap64({a} - {b})",
    "mul": "wrap64({a} * {b})",
    "min": "min({a}, {b})",
    "max": "max({a}, {b})",
    "and": "{a} & {b}",
    "or": "{a} | {b}",
    "xor": "{a} ^ {b}",
    "shl": "wrap64({a} << ({b} & 63))",
    "shr": "{a} >> ({b} & 63)",
}
CONDITIONS = {"beq": "{a} == {b}", "bne": "{a} != {b}", "blt": "{a} < {b}", "bge": "{a} >= {b}"}  # signed


def wrap64(value: int) -> int:
    """Return `value` modulo 2^64 as a signed integer."""
    return value if -SIGN <= value < SIGN else ((value + SIGN) & MASK) - SIGN


def immediate(name: str) -> bool:
    """Say whether the second operand of an instruction of RESULTS is a number."""
    return name.endswith("i")


def taken(m: Machine, target: int) -> int:
    """Return the target of a branch that is taken. BAD_PC when there is no instruction."""
    if target == BAD_TARGET:
        raise m.fault(ShaveFaultCode.BAD_PC, "branch to an address that is no instruction")
    return target


def _made(body: str) -> Handler:
    """Return a handler of three operands, by the statement that it consists of."""
    namespace: dict[str, Any] = {"wrap64": wrap64, "taken": taken}
    exec(f"def handler(m, operands):\n r = m.r\n d, a, b = operands\n {body}", namespace)
    handler: Handler = namespace["handler"]
    return handler


HANDLERS: dict[str, Handler] = {
    **{
        name: _made("r[d] = " + result.format(a="r[a]", b="b" if immediate(name) else "r[b]"))
        for name, result in RESULTS.items()
    },
    **{
        name: _made(f"return taken(m, b) if {condition.format(a='r[d]', b='r[a]')} else None")
        for name, condition in CONDITIONS.items()
    },
}
