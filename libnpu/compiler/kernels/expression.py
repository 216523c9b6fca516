"""From an expression of `ir.EXPR_OPS` to vector instructions: types, common subexpressions, order, registers.

A value is fp32 or s32 in a register. Operands of different kinds meet in fp32. Equal subexpressions are computed once. Of two
operands the one that needs more registers is computed first (Sethi-Ullman numbers); a register is free after its last use.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from npu_model import dtypes
from npu_model.shave_math import SPECIAL

from libnpu.compiler.ir import EXPR_OPS, Expr
from libnpu.compiler.kernels.builder import is_float
from libnpu.errors import Unsupported

_ARITY = {name: arity for arity, names in EXPR_OPS.items() for name in names}
_TO_FLOAT = {
    "sqrt": "vsqrt",
    "rsqrt": "vrsqrt",
    "reciprocal": "vrcp",
    "exp": "vexp",
    "log": "vlog",
    "sigmoid": "vsigm",
    "tanh": "vtanh",
    "erf": "verf",
    "sin": "vsin",
    "cos": "vcos",
}
_ROUNDING = {"floor": "vfloor", "ceil": "vceil", "round": "vround"}
_SAME_TYPE = {"neg": "vneg", "abs": "vabs", "sign": "vsign"}
_BINARY = {"add": "vadd", "sub": "vsub", "mul": "vmul", "div": "vdiv", "max": "vmax", "min": "vmin"}
_COMPARE = {"eq": "veq", "ne": "vne", "lt": "vlt", "le": "vle", "gt": "vgt", "ge": "vge"}
_BITS = {"bit_and": "vand", "bit_or": "vor", "bit_xor": "vxor", "shl": "vshl", "shr": "vshr"}
_EXACT = frozenset(
    {"vmax", "vmin", *_ROUNDING.values(), *_SAME_TYPE.values()}
)  # their results are of their operands' type
_LOGIC = {"and": "vand", "or": "vor", "xor": "vxor"}


@dataclass(frozen=True, slots=True)
class Value:
    """Result of step `step`; `is_float` fp32, else s32; `is_bool` known to be 0 or 1."""

    step: int
    is_float: bool
    is_bool: bool = False


@dataclass(frozen=True, slots=True)
class Const:
    """A number that has no register yet."""

    number: float | int
    is_float: bool


Term = Value | Const


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction: `sources` are steps; `scalar` is a constant operand."""

    mnemonic: str  # with type; "load" loads operand `operand`
    sources: tuple[int, ...] = ()
    scalar: str | None = None  # as assembly text
    scalar_float: bool = False
    operand: int = -1


def normalise(expr: Expr) -> Expr:
    """Return `expr` with float constants as the hexadecimal text of their fp32 bits, so that -0.0, 0 and NaN are three keys."""
    if isinstance(expr, tuple) and len(expr) == 2 and expr[0] == "const" and not isinstance(expr[1], str):
        number = expr[1].item() if hasattr(expr[1], "item") else expr[1]
        return ("const", float_text(number) if isinstance(number, float) else int(number))
    if isinstance(expr, tuple) and expr and expr[0] != "in":
        return (expr[0], *(normalise(child) if isinstance(child, tuple) else child for child in expr[1:]))
    return expr


class Lowering:
    """Steps of one normalised expression over inputs of the given dtypes; `result` is its value, to be stored as `out_dtype`."""

    def __init__(self, expr: Expr, in_dtypes: tuple[int, ...], out_dtype: int) -> None:
        self.expr = expr
        self.in_dtypes = in_dtypes
        self.steps: list[Step] = []
        self._known: dict[Step, int] = {}
        self._terms: dict[Expr, Term] = {}
        self._needs: dict[Expr, int] = {}
        self.result = self._vector(self._term(expr))
        self._narrow(self.result.step if out_dtype == dtypes.F16 else -1)

    def _error(self, reason: str) -> Unsupported:
        return Unsupported(f"{reason} in expression {self.expr!r}")

    # -- order

    def _need(self, expr: Expr) -> int:
        """Return the registers that `expr` needs, counted on the tree."""
        need = self._needs.get(expr)
        if need is None:
            if expr[0] == "in":
                need = 1
            elif expr[0] == "const":
                need = 0
            else:
                children = sorted((self._need(child) for child in expr[1:]), reverse=True)
                need = max([1, *(child + index for index, child in enumerate(children))])
            self._needs[expr] = need
        return need

    def _term(self, expr: Expr) -> Term:
        term = self._terms.get(expr)
        if term is None:
            term = self._terms[expr] = self._make(expr)
        return term

    def _make(self, expr: Expr) -> Term:
        if not isinstance(expr, tuple) or not expr:
            raise self._error(f"{expr!r} is no expression")
        name = expr[0]
        if name == "in":
            if not 0 <= expr[1] < len(self.in_dtypes):
                raise self._error(f"input {expr[1]} of {len(self.in_dtypes)}")
            dtype = self.in_dtypes[expr[1]]
            return self._add(Step("load", operand=expr[1]), is_float(dtype), is_bool=dtype == dtypes.BOOL)
        if name == "const":
            if isinstance(expr[1], str):
                return Const(struct.unpack("<f", struct.pack("<I", int(expr[1], 16)))[0], True)
            return Const(expr[1], False)
        if _ARITY.get(name) != len(expr) - 1:
            raise self._error(f"operator {name!r} with {len(expr) - 1} operands")
        if name == "add" and (line := self._line(expr)) is not None:
            return line
        terms: dict[int, Term] = {}
        for index in sorted(range(1, len(expr)), key=lambda i: -self._need(expr[i])):
            terms[index] = self._term(expr[index])
        operands = [terms[index] for index in range(1, len(expr))]
        if len(operands) == 1:
            return self._unary(name, operands[0])
        if len(operands) == 2:
            return self._binary(name, operands[0], operands[1])
        return self._ternary(name, operands[0], operands[1], operands[2])

    # -- types

    def _narrow(self, rounded: int) -> None:
        """Let steps of fp16 operands compute in fp16 where that changes no bit, which is cheaper.

        These are steps that select or round to whole numbers, and step `rounded`, which is stored as fp16, if it is a special function.
        """
        halves: set[int] = set()
        for index, step in enumerate(self.steps):
            name, _, type_ = step.mnemonic.partition(".")
            if step.mnemonic == "load" and self.in_dtypes[step.operand] == dtypes.F16:
                halves.add(index)
            elif (
                type_.startswith("f32")
                and (name in _EXACT or (index == rounded and name in SPECIAL))
                and halves.issuperset(step.sources)
                and (step.scalar is None or _is_half(step.scalar))
            ):
                halves.add(index)
                self.steps[index] = replace(step, mnemonic=step.mnemonic.replace("f32", "f16"))

    # -- steps

    def _add(self, step: Step, is_float: bool, is_bool: bool = False) -> Value:
        index = self._known.get(step)
        if index is None:
            index = self._known[step] = len(self.steps)
            self.steps.append(step)
        return Value(index, is_float, is_bool)

    def _vector(self, term: Term) -> Value:
        """Return `term` in a register."""
        if isinstance(term, Value):
            return term
        kind = "f32" if term.is_float else "i32"
        return self._add(Step(f"vsplat.{kind}.s", scalar=_text(term), scalar_float=term.is_float), term.is_float)

    def _float(self, term: Term) -> Term:
        if isinstance(term, Const):
            return Const(float(term.number), True)
        return term if term.is_float else self._add(Step("vcvt.f32", (term.step,)), True)

    def _float_vector(self, term: Term) -> Value:
        return self._vector(self._float(term))

    def _apply(self, mnemonic: str, kind: str, x: Term, y: Term, result_float: bool, is_bool: bool = False) -> Value:
        """Add an instruction of two operands of `kind`, a constant as its scalar operand."""
        if isinstance(x, Const) and isinstance(y, Const):
            x = self._vector(x)
        floats = kind == "f32"
        if isinstance(y, Const):
            assert isinstance(x, Value)
            step = Step(f"{mnemonic}.{kind}.s", (x.step,), _text(y), floats)
        elif isinstance(x, Const):
            step = Step(f"{mnemonic}.{kind}.s.rev", (y.step,), _text(x), floats)
        else:
            step = Step(f"{mnemonic}.{kind}", (x.step, y.step))
        return self._add(step, result_float, is_bool)

    def _unify(self, x: Term, y: Term) -> tuple[Term, Term, str]:
        """Return both operands in one kind: s32 when both are integers (a whole constant is either)."""
        floats = [_must_be_float(x), _must_be_float(y)]
        if isinstance(x, Const) and isinstance(y, Const):
            floats = [x.is_float, y.is_float]
        if any(floats):
            return self._float(x), self._float(y), "f32"
        return _to_int(x), _to_int(y), "i32"

    def _two(self, mnemonic: str, x: Term, y: Term) -> Value:
        x, y, kind = self._unify(x, y)
        return self._apply(mnemonic, kind, x, y, kind == "f32")

    def _compare(self, mnemonic: str, x: Term, y: Term) -> Value:
        x, y, kind = self._unify(x, y)
        return self._apply(mnemonic, kind, x, y, False, is_bool=True)

    def _bool(self, term: Term) -> Value:
        value = self._vector(term)
        return value if value.is_bool else self._compare("vne", value, Const(0, False))

    def _one(self, mnemonic: str, value: Value) -> Value:
        kind = "f32" if value.is_float else "i32"
        return self._add(Step(f"{mnemonic}.{kind}", (value.step,)), value.is_float)

    # -- operators

    def _unary(self, name: str, x: Term) -> Value:
        if name in _TO_FLOAT:
            return self._one(_TO_FLOAT[name], self._float_vector(x))
        value = self._vector(x)
        if name in _SAME_TYPE:
            return self._one(_SAME_TYPE[name], value)
        if name in _ROUNDING:
            return self._one(_ROUNDING[name], value) if value.is_float else value
        match name:
            case "not":
                return self._compare("veq", value, Const(0, False))
            case "bit_not":
                return self._one("vnot", value)
            case "relu":
                return self._two("vmax", value, Const(0, False))
            case "is_nan":
                return self._compare("vne", value, value)
            case "cast_f32":
                return self._float_vector(value)
            case "cast_i32":
                return self._add(Step("vcvt.i32", (value.step,)), False) if value.is_float else value
            case "bits_i32" | "bits_f32":  # a register has no type
                return Value(value.step, name == "bits_f32")
            case "cast_bool":
                return self._bool(value)
            case "hard_swish":
                value = self._float_vector(value)
                line = self._fused(self._two("vmin", value, Const(3.0, True)), Const(1 / 6, True), Const(0.5, True))
                return self._two("vmul", value, self._two("vmax", line, Const(0.0, True)))  # in range for any x
        raise self._error(f"operator {name!r}")

    def _fused(self, x: Term, y: Term, z: Term) -> Value:
        """Add x * y + z of floats, rounded once."""
        sources = tuple(self._float_vector(term).step for term in (x, y, z))
        return self._add(Step("vfma.f32", sources), True)

    def _line(self, expr: Expr) -> Value | None:
        """Return a product with a constant, plus a constant, as one instruction; None for another expression, or integers."""
        for product, constant in (expr[1:], expr[:0:-1]):
            if product[0] == "mul" and constant[0] == "const" and any(child[0] == "const" for child in product[1:]):
                x, y, z = (self._term(child) for child in (*product[1:], constant))
                if any(isinstance(term, Value) and term.is_float for term in (x, y)):
                    return self._fused(x, y, z)
        return None

    def _binary(self, name: str, x: Term, y: Term) -> Value:
        if name in _BINARY:
            return self._two(_BINARY[name], x, y)
        if name in _COMPARE:
            return self._compare(_COMPARE[name], x, y)
        if name in _BITS:
            if _must_be_float(x) or _must_be_float(y):
                raise self._error(f"{name} of floats")
            return self._apply(_BITS[name], "i32", x, y, False)
        if name in _LOGIC:
            return self._apply(_LOGIC[name], "i32", self._bool(x), self._bool(y), False, is_bool=True)
        match name:
            case "mod" | "fmod":
                return self._remainder(x, y, is_floored=name == "mod")
            case "pow":
                return self._power(x, y)
            case "leaky_relu" | "prelu":
                if isinstance(y, Const) and 0 <= y.number <= 1:
                    return self._two("vmax", x, self._two("vmul", x, y))
                value = self._vector(x)
                negative = self._compare("vlt", value, Const(0, False))
                return self._select(negative, self._two("vmul", value, y), value)
        raise self._error(f"operator {name!r}")

    def _remainder(self, x: Term, y: Term, is_floored: bool) -> Value:
        """The engine's remainder of floats has the dividend's sign (fmod), that of integers the divisor's (mod, floored)."""
        x, y, kind = self._unify(x, y)
        if kind == "i32":
            return (
                self._two("vmod", x, y)
                if is_floored
                else self._two("vsub", x, self._two("vmul", self._two("vdiv", x, y), y))
            )
        rest = self._two("vmod", x, y)
        if not is_floored:
            return rest
        zero = Const(0.0, True)
        turned = self._two("vadd", rest, y)
        unlike = self._compare("vne", self._compare("vlt", rest, zero), self._compare("vlt", self._vector(y), zero))
        moved = self._select(unlike, turned, rest)
        return self._select(self._compare("veq", rest, zero), rest, moved)

    def _power(self, x: Term, y: Term) -> Value:
        """Integers give an integer, by products that wrap; a fractional exponent of an integer goes through fp32, truncated."""
        base = self._vector(x)
        if isinstance(y, Const) and y.number == 2:
            return self._two("vmul", base, base)
        if not base.is_float and not _must_be_float(y):
            return self._integer_power(base, _to_int(y))
        result = self._apply("vpow", "f32", self._float(base), self._float(y), True)
        return result if base.is_float else self._add(Step("vcvt.i32", (result.step,)), False)

    def _integer_power(self, base: Value, y: Term) -> Value:
        """Square and multiply. Powers from 32 on wrap; a negative exponent leaves 1 and -1, and 0 of the rest."""
        if isinstance(y, Const) and y.number > 0:
            return self._known_power(base, int(y.number))
        two, exponent = Const(2, False), self._vector(y)
        negative = self._compare("vlt", exponent, Const(0, False))
        odd = self._two("vmod", exponent, two)
        rest = self._select(negative, odd, exponent)
        result: Term = Const(1, False)
        square = base
        for bit in range(31):
            factor = self._select(self._bool(self._two("vmod", rest, two)), square, Const(1, False))
            result = factor if isinstance(result, Const) else self._two("vmul", result, factor)
            if bit < 30:
                rest = self._two("vdiv", rest, two)
                square = self._two("vmul", square, square)
        unit = self._compare("veq", self._one("vabs", base), Const(1, False))
        vanishes = self._apply(
            "vand", "i32", negative, self._compare("veq", unit, Const(0, False)), False, is_bool=True
        )
        return self._select(vanishes, Const(0, False), result)

    def _known_power(self, base: Value, exponent: int) -> Value:
        result: Value | None = None
        square = base
        while True:
            if exponent % 2:
                result = square if result is None else self._two("vmul", result, square)
            exponent //= 2
            if not exponent:
                assert result is not None
                return result
            square = self._two("vmul", square, square)

    def _select(self, condition: Value, x: Term, y: Term) -> Value:
        x, y, kind = self._unify(x, y)
        sources = (condition.step, self._vector(x).step, self._vector(y).step)
        return self._add(Step("vsel", sources), kind == "f32", _both_bool(x, y))

    def _ternary(self, name: str, x: Term, y: Term, z: Term) -> Value:
        match name:
            case "where":
                return self._select(self._bool(x), y, z)
            case "clip":
                return self._two("vmin", self._two("vmax", x, y), z)
            case "hard_sigmoid":
                if isinstance(y, Const) and isinstance(z, Const):
                    line = self._fused(x, y, z)
                else:
                    line = self._two("vadd", self._two("vmul", self._float(x), self._float(y)), self._float(z))
                return self._two("vmax", self._two("vmin", line, Const(1.0, True)), Const(0.0, True))
        raise self._error(f"operator {name!r}")


def _text(const: Const) -> str:
    return float_text(const.number) if const.is_float else str(int(const.number))


def _is_half(text: str) -> bool:
    """Say whether a constant, as assembly text of fp32, is the same in fp16."""
    number = np.array(int(text, 16), np.uint32).view(np.float32)
    with np.errstate(over="ignore"):
        return bool(number.astype(np.float16) == number)


def _both_bool(x: Term, y: Term) -> bool:
    return isinstance(x, Value) and isinstance(y, Value) and x.is_bool and y.is_bool


def _must_be_float(term: Term) -> bool:
    if isinstance(term, Value):
        return term.is_float
    return term.is_float and not (math.isfinite(term.number) and term.number == int(term.number))


def _to_int(term: Term) -> Term:
    if isinstance(term, Value):
        return term
    return Const(max(-(1 << 31), min((1 << 31) - 1, int(term.number))), False)


def float_text(number: float | int) -> str:
    """Return the fp32 nearest to `number` as assembly text."""
    try:
        bits = struct.unpack("<I", struct.pack("<f", float(number)))[0]
    except OverflowError:
        bits = 0x7F800000 if number > 0 else 0xFF800000
    return f"{bits:#x}"


def last_uses(steps: list[Step], result: int) -> list[int]:
    """Return for each step the last step that reads it; the result is read after the end."""
    last: list[Any] = list(range(len(steps)))
    for index, step in enumerate(steps):
        for source in step.sources:
            last[source] = index
    last[result] = len(steps)
    return last
