"""Expressions of Elementwise nodes: nested tuples, their types, substitution, and local rewriting.

Every expression has a kind: "f" (float32) or "i" (int32; truth values are 0 and 1). ("const", v) is "f" when v is a
float. Operands of one operator have one kind; `cast_f32`, `cast_i32` and `cast_bool` change it; comparisons give "i".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.compiler.ir import EXPR_OPS, Expr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ARITY = {name: arity for arity, names in EXPR_OPS.items() for name in names}
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_INTEGER = frozenset({"not", "and", "or", "xor", "bit_not", "bit_and", "bit_or", "bit_xor", "shl", "shr"})
_ANY_KIND = frozenset(
    {"neg", "abs", "sign", "relu", "add", "sub", "mul", "div", "max", "min", "pow", "mod", "fmod", "clip"}
)
_CASTS = {"cast_f32": "f", "cast_i32": "i", "cast_bool": "i", "bits_i32": "i", "bits_f32": "f"}


class IllTyped(ValueError):
    """An expression mixes kinds or has a wrong number of operands."""


def kind_of(expr: Expr, input_kinds: Sequence[str]) -> str:
    """Return "f" or "i"; raises IllTyped, naming the operator."""
    head = expr[0]
    if head == "in":
        return input_kinds[expr[1]]
    if head == "const":
        return "f" if isinstance(expr[1], float) else "i"
    if head not in ARITY or ARITY[head] != len(expr) - 1:
        raise IllTyped(f"{head} with {len(expr) - 1} operands")
    kinds = [kind_of(operand, input_kinds) for operand in expr[1:]]
    if head in _CASTS:
        return _CASTS[head]
    if head == "where":
        kinds = kinds[1:]
    if len(set(kinds)) != 1:
        raise IllTyped(f"{head} of {', '.join(kinds)}")
    if head in _COMPARISONS or head == "is_nan":
        return "i"
    if head in _INTEGER and kinds[0] != "i":
        raise IllTyped(f"{head} of floats")
    if head not in _INTEGER and head not in _ANY_KIND and head != "where" and kinds[0] != "f":
        raise IllTyped(f"{head} of integers")
    return kinds[0]


def leaves(expr: Expr) -> Iterator[int]:
    """Yield the input index of every ("in", i), from left to right, repeated as often as it stands there."""
    if expr[0] == "in":
        yield expr[1]
    elif expr[0] != "const":
        for operand in expr[1:]:
            yield from leaves(operand)


def operator_count(expr: Expr) -> int:
    """Return the number of operators; inputs and constants are none."""
    return 0 if expr[0] in ("in", "const") else 1 + sum(operator_count(operand) for operand in expr[1:])


def substitute(expr: Expr, leaf: Callable[[int], Expr]) -> Expr:
    """Return `expr` with each ("in", i) replaced by `leaf(i)`."""
    if expr[0] == "in":
        return leaf(expr[1])
    if expr[0] == "const":
        return expr
    return (expr[0], *(substitute(operand, leaf) for operand in expr[1:]))


_POWER = 0.75  # up to which the reciprocal of a power is finite in float32 where the power is not 0


def rewrite(expr: Expr) -> Expr:
    """Return an equal, cheaper expression: named activations, neutral elements, reciprocals of roots and powers."""
    if expr[0] in ("in", "const"):
        return expr
    expr = (expr[0], *(rewrite(operand) for operand in expr[1:]))
    return _hard_swish(expr) or _neutral(expr) or _named(expr) or expr


def _constant(expr: Expr) -> float | int | None:
    return expr[1] if expr[0] == "const" else None


def _split_constant(expr: Expr, op: str) -> tuple[Expr, float] | None:
    """Match op(x, c) or op(c, x) of a commutative operator; return (x, c)."""
    if expr[0] != op:
        return None
    for operand, constant in ((expr[1], expr[2]), (expr[2], expr[1])):
        value = _constant(constant)
        if value is not None:
            return operand, value
    return None


def _hard_gate(expr: Expr) -> tuple[Expr, float] | None:
    """Match clip(x + 3, 0, 6) in its spellings; return (x, factor) with expr = factor * clip(x + 3, 0, 6)."""
    if expr[0] == "clip" and _constant(expr[2]) == 0 and _constant(expr[3]) == 6:
        shifted = _split_constant(expr[1], "add")
        return (shifted[0], 1.0) if shifted and shifted[1] == 3 else None
    if expr[0] == "hard_sigmoid" and _constant(expr[3]) == 0.5:
        alpha = _constant(expr[2])
        return (expr[1], 1 / 6) if alpha is not None and abs(alpha * 6 - 1) < 1e-6 else None
    return _scaled(expr, _hard_gate)


def _scaled(expr: Expr, match: Callable[[Expr], tuple[Expr, float] | None]) -> tuple[Expr, float] | None:
    scaled = _split_constant(expr, "mul")
    if scaled and (inner := match(scaled[0])):
        return inner[0], inner[1] * scaled[1]
    if expr[0] == "div" and (value := _constant(expr[2])) and (inner := match(expr[1])):
        return inner[0], inner[1] / value
    return None


def _gated(expr: Expr) -> tuple[Expr, float] | None:
    """Match x * factor * clip(x + 3, 0, 6) in its spellings; return (x, factor)."""
    if expr[0] == "mul":
        for x, gate in ((expr[1], expr[2]), (expr[2], expr[1])):
            if (matched := _hard_gate(gate)) and matched[0] == x:
                return matched
    return _scaled(expr, _gated)


def _hard_swish(expr: Expr) -> Expr | None:
    if expr[0] not in ("mul", "div"):
        return None
    matched = _gated(expr)
    return ("hard_swish", matched[0]) if matched and abs(matched[1] * 6 - 1) < 1e-6 else None


def _neutral(expr: Expr) -> Expr | None:
    operand: Expr
    if expr[0] == "where" and (condition := _constant(expr[1])) is not None:
        operand = expr[2] if condition else expr[3]
        return operand
    # x + 0 is not here: it turns -0 into 0. Integer division by a constant has no neutral spelling but 1.
    if (product := _split_constant(expr, "mul")) and product[1] == 1:
        return product[0]
    if (expr[0] == "div" and _constant(expr[2]) == 1) or (expr[0] == "sub" and _constant(expr[2]) == 0):
        operand = expr[1]
        return operand
    if (largest := _split_constant(expr, "max")) and largest[1] == float("-inf"):
        return largest[0]
    if (smallest := _split_constant(expr, "min")) and smallest[1] == float("inf"):
        return smallest[0]
    return None


def _named(expr: Expr) -> Expr | None:
    if expr[0] == "reciprocal" and expr[1][0] == "sqrt":
        return ("rsqrt", expr[1][1])
    if expr[0] == "sqrt" and expr[1][0] == "reciprocal":
        return ("rsqrt", expr[1][1])
    if expr[0] == "div" and expr[2][0] == "sqrt":
        return ("mul", expr[1], ("rsqrt", expr[2][1]))
    if (
        expr[0] == "div"
        and expr[2][0] == "pow"
        and isinstance(power := _constant(expr[2][2]), float)
        and 0 < power <= _POWER
    ):
        return ("mul", expr[1], ("pow", expr[2][1], ("const", -power)))
    if expr[0] == "clip" and _constant(expr[3]) == float("inf") and _constant(expr[2]) == 0:
        return ("relu", expr[1])
    if (largest := _split_constant(expr, "max")) and largest[1] == 0:
        return ("relu", largest[0])
    return None
