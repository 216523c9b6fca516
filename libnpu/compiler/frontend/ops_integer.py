"""Handlers of bitwise operators, shifts and remainders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.compiler.frontend import unsigned

if TYPE_CHECKING:
    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Expr, Value

X: Expr = ("in", 0)
Y: Expr = ("in", 1)
BITWISE = {"BitwiseAnd": "bit_and", "BitwiseOr": "bit_or", "BitwiseXor": "bit_xor"}
_WORD_BITS = 32


def bitwise(call: Call) -> Value:
    return call.build.elementwise((BITWISE[call.op], X, Y), [call.input(0), call.input(1)])


def bitwise_not(call: Call) -> Value:
    return call.build.elementwise(("bit_not", X), [call.input(0)])


def bit_shift(call: Call) -> Value:
    """BitShift; a count below zero or of all bits and more leaves the sign alone."""
    x, count = call.input(0), call.input(1)
    left = call.attrs["direction"] == b"LEFT"
    if left:
        shifted: Expr = ("shl", X, Y)
    elif unsigned.is_unsigned_word(x.dtype):
        shifted = unsigned.shifted_right(X, Y)
    else:
        shifted = ("shr", X, Y)
    within: Expr = ("eq", ("bit_and", Y, ("const", -min(8 * x.dtype.itemsize, _WORD_BITS))), ("const", 0))
    sign: Expr = ("const", 0) if left or x.dtype.kind == "u" else ("shr", X, ("const", _WORD_BITS - 1))
    return call.build.elementwise(("where", within, shifted, sign), [x, count])


def mod(call: Call) -> Value:
    """Mod: the sign of the divisor, or with fmod 1 of the dividend."""
    x, y = call.input(0), call.input(1)
    if unsigned.is_unsigned_word(x.dtype):
        expr = unsigned.remainder(X, Y)
    else:
        expr = ("fmod" if call.attrs.get("fmod", 0) else "mod", X, Y)
    return call.build.elementwise(expr, [x, y])
