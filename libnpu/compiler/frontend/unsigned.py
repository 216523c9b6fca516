"""uint32 and uint64 in expressions: the engine's integers are s32, so these are their 32 bits, and order needs care.

Sums, products and bitwise operations of the bits are right as they are. A value of uint64 has 32 bits inside; the upper
ones are zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from libnpu.compiler.frontend.builder import Builder
    from libnpu.compiler.ir import Expr, Value

ZERO: Expr = ("const", 0)
ONE: Expr = ("const", 1)
_SIGN: Expr = ("const", -(1 << 31))
_TWO_31: Expr = ("const", 2.0**31)


def is_unsigned_word(dtype: np.dtype[Any]) -> bool:
    """True for the unsigned types that have all 32 bits of a register."""
    return dtype.kind == "u" and dtype.itemsize >= 4


def ordered(x: Expr) -> Expr:
    """Return the s32 that stands to others as the unsigned `x` does, and back: the sign turned over."""
    return ("bit_xor", x, _SIGN)


def ordered_value(build: Builder, x: Value) -> Value:
    """Return `x` as int32 in the same order when it is an unsigned word, else `x`."""
    return build.elementwise(ordered(("in", 0)), [x], np.dtype(np.int32)) if is_unsigned_word(x.dtype) else x


def halved(x: Expr) -> Expr:
    """Return x / 2, which has no sign."""
    return ("bit_and", ("shr", x, ONE), ("const", (1 << 31) - 1))


def quotient(x: Expr, y: Expr) -> Expr:
    """Return x / y: twice that of half of x, and one more when the rest still holds y. By zero faults."""
    twice: Expr = ("shl", ("div", halved(x), y), ONE)
    rest: Expr = ("sub", x, ("mul", twice, y))
    below: Expr = ("add", twice, ("ge", ordered(rest), ordered(y)))
    return ("where", ("lt", y, ZERO), ("ge", ordered(x), ordered(y)), below)


def remainder(x: Expr, y: Expr) -> Expr:
    return ("sub", x, ("mul", quotient(x, y), y))


def shifted_right(x: Expr, count: Expr) -> Expr:
    """Return x / 2^count for count 0 to 31."""
    return ("where", ("eq", count, ZERO), x, ("shr", halved(x), ("sub", count, ONE)))


def to_float(x: Expr) -> Expr:
    """Return `x` as float32, rounded once: the bit that halving drops stays as the last one, which only decides ties."""
    half: Expr = ("cast_f32", ("bit_or", halved(x), ("bit_and", x, ONE)))
    return ("where", ("lt", x, ZERO), ("mul", half, ("const", 2.0)), ("cast_f32", x))


def from_float(x: Expr) -> Expr:
    """Return a float32 towards zero, saturated; NaN gives zero."""
    above: Expr = ordered(("cast_i32", ("sub", x, _TWO_31)))
    return ("where", ("ge", x, _TWO_31), above, ("max", ("cast_i32", x), ZERO))
