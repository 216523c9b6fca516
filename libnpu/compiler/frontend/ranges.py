"""Ranges of integer expressions: which results a narrow type cannot hold, and the expression that wraps them.

The vector engine computes in 32 bits, where sums and products wrap, and saturates when it stores a narrower type. ONNX's
integers wrap in every type, so a result that may leave its type is brought back by a modulo first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from libnpu.compiler.ir import Expr, Value

    Range = tuple[int, int]

INT32: Range = (-(1 << 31), (1 << 31) - 1)
_TRUTH: Range = (0, 1)
_TRUTHS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not", "is_nan", "cast_bool"})


def wrapped(expr: Expr, inputs: Sequence[Value], dtype: np.dtype[Any]) -> Expr:
    """Return `expr` so that its result fits the integer type `dtype` of at most 16 bits, modulo 2 to the bits.

    Other types, and conversions from float, which saturate, are left alone.
    """
    if dtype.kind not in "iu" or dtype.itemsize > 2 or expr[0] == "cast_i32":
        return expr
    info = np.iinfo(dtype)
    low, high = range_of(expr, [range_of_type(value.dtype) for value in inputs])
    if info.min <= low and high <= info.max:
        return expr
    count: Expr = ("const", 1 << info.bits)
    if dtype.kind == "u":
        return ("mod", expr, count)
    offset: Expr = ("const", -int(info.min))
    return ("sub", ("mod", ("add", expr, offset), count), offset)


def range_of_type(dtype: np.dtype[Any]) -> Range:
    """Return the values that the engine sees of an integer type; all of 32 bits for other types."""
    if dtype == np.bool_:
        return _TRUTH
    if dtype.kind not in "iu":
        return INT32
    info = np.iinfo(dtype)
    if info.bits >= 32:  # unsigned words are their bits
        return INT32
    return int(info.min), int(info.max)


def range_of(expr: Expr, inputs: Sequence[Range]) -> Range:
    """Return bounds of an integer expression's results for inputs within their bounds; INT32 where nothing is known."""
    head = expr[0]
    if head == "in":
        return inputs[expr[1]]
    if head == "const":
        return (expr[1], expr[1]) if isinstance(expr[1], int) else INT32
    if head in _TRUTHS:
        return _TRUTH
    if head in ("cast_i32", "bits_i32", "pow", "shl"):
        return INT32
    parts = [range_of(operand, inputs) for operand in expr[1:]]
    low, high = _bounds(head, parts)
    return (low, high) if INT32[0] <= low and high <= INT32[1] else INT32


def _bounds(head: str, parts: list[Range]) -> Range:
    (low, high), *rest = parts
    largest = max(abs(low), abs(high))
    match head:
        case "add":
            return low + rest[0][0], high + rest[0][1]
        case "sub":
            return low - rest[0][1], high - rest[0][0]
        case "mul":
            products = [a * b for a in parts[0] for b in parts[1]]
            return min(products), max(products)
        case "neg":
            return -high, -low
        case "abs":
            return 0 if low <= 0 <= high else min(abs(low), abs(high)), largest
        case "sign":
            return -1, 1
        case "relu":
            return max(low, 0), max(high, 0)
        case "max":
            return max(low, rest[0][0]), max(high, rest[0][1])
        case "min":
            return min(low, rest[0][0]), min(high, rest[0][1])
        case "clip":
            (bottom, _), (_, top) = rest[0], rest[1]
            return min(max(low, bottom), top), min(max(high, rest[0][1]), top)
        case "where":
            return min(rest[0][0], rest[1][0]), max(rest[0][1], rest[1][1])
        case "div":
            return (0, high) if low >= 0 and rest[0][0] >= 0 else (-largest, largest)
        case "bit_and" | "bit_or" | "bit_xor" | "bit_not":  # as many bits as the widest; a sign only from a sign
            bits = max((bound if bound >= 0 else ~bound).bit_length() for part in parts for bound in part)
            signed = head == "bit_not" or any(part[0] < 0 for part in parts)
            return -(1 << bits) if signed else 0, (1 << bits) - 1
        case "shr":
            return min(low, 0), max(high, -1)
        case "fmod":
            return min(low, 0), max(high, 0)
        case "mod":
            return min(0, rest[0][0]), max(0, rest[0][1])
    return INT32
