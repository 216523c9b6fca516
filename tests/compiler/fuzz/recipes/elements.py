"""Recipes of what works element by element."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.compiler.fuzz.draw import BOOL, FLOATS, TYPES, Draw
from tests.compiler.fuzz.model import is_float
from tests.compiler.fuzz.recipes.table import ENGINE, F32, I32, I64, recipe

NEAR = {"Asin": (-0.9, 0.9), "Acos": (-0.9, 0.9), "Atanh": (-0.9, 0.9), "Acosh": (1.2, 9), "Log": (0.1, 9), "Sqrt": (0.05, 9),
        "Exp": (-9, 4), "Sinh": (-4, 4), "Cosh": (-4, 4), "Tan": (-1.2, 1.2), "Reciprocal": (0.2, 9)}  # fmt: skip
ATTRIBUTES = {"Elu": ["alpha"], "Selu": ["alpha", "gamma"], "Celu": ["alpha"], "ThresholdedRelu": ["alpha"], "Swish": ["alpha"],
              "LeakyRelu": ["alpha"], "HardSigmoid": ["alpha", "beta"]}  # fmt: skip

UNARY = """Neg Abs Sqrt Reciprocal Exp Log Tanh Erf Sin Cos Floor Ceil Round Sign Sigmoid Relu HardSwish Elu Selu Celu Softplus Softsign ThresholdedRelu
        Mish Swish Gelu Not IsNaN BitwiseNot Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh LeakyRelu HardSigmoid Identity"""


@recipe(*UNARY.split())
def unary(g: Draw, op):
    low, high = NEAR.get(op, (None, None))
    attrs = {name: g.number(0.1, 1.5) for name in ATTRIBUTES.get(op, ()) if g.chance(0.6)}
    if op == "Gelu" and g.chance(0.5):
        attrs["approximate"] = "tanh"
    g.add(op, [g.operand(g.dtypes(op), low=low, high=high)], attrs)


@recipe("Gelu of Microsoft", "BiasGelu", "FastGelu", "QuickGelu")
def fused_gelu(g, name):
    op, _, _ = name.partition(" ")
    low, high = (-2, 4) if op == "QuickGelu" else (None, None)  # below it onnxruntime's sigmoid has few digits
    x = g.operand([F32], lambda a: a.ndim >= 1 and 0 not in a.shape, g.shape(g.whole(1, 4)), low, high)
    with_bias = op == "BiasGelu" or (op == "FastGelu" and g.chance(0.5))
    attrs = {"alpha": g.number(0.5, 2)} if op == "QuickGelu" else {}
    g.add(op, [x, *([g.like(x, g.known(x).shape[-1:])] if with_bias else [])], attrs, domain="com.microsoft")


@recipe("CDist", "Trilu of Microsoft")
def of_matrices(g, name):
    x = g.operand([F32], lambda a: a.ndim == 2 and 0 not in a.shape, g.shape(2))
    op, _, _ = name.partition(" ")
    others, attrs = (
        ([g.like(x, (g.whole(1, 4), g.known(x).shape[1]))], {"metric": "sqeuclidean"}) if op == "CDist" else ([], {})
    )
    g.add(op, [x, *others], attrs, domain="com.microsoft")


@recipe("IsInf")
def is_inf(g, op):
    g.add(op, [g.operand(g.dtypes(op))], {name: g.whole(0, 1) for name in ("detect_negative", "detect_positive")})


@recipe(
    "Add",
    "Sub",
    "Mul",
    "Equal",
    "Less",
    "LessOrEqual",
    "Greater",
    "GreaterOrEqual",
    "And",
    "Or",
    "Xor",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
)
def binary(g, op):
    a = g.operand(g.dtypes(op))
    g.add(op, g.turned([a, g.partner(a)]), {})


@recipe("Div", "Mod")
def divided(g, op):
    a = g.operand(g.dtypes(op))
    dtype = g.known(a).dtype
    b = (
        g.partner(a, low=0.25 if is_float(dtype) else 1)
        if g.chance(0.7)
        else g.partner(a, high=-0.25 if is_float(dtype) else -1)
    )
    attrs = {"fmod": 1} if op == "Mod" and (is_float(dtype) or g.chance(0.3)) else {}
    g.add(op, [a, b], attrs)


@recipe("BitShift")
def shift(g, op):
    a = g.operand(g.dtypes(op))
    g.add(
        op, [a, g.partner(a, low=0, high=8 * g.known(a).dtype.itemsize - 1)], {"direction": g.choice(("LEFT", "RIGHT"))}
    )


@recipe("Sum", "Mean", "Max", "Min")
def variadic(g, op):
    names = [g.operand(g.dtypes(op))]
    for _ in range(g.whole(0, 2)):
        names.append(g.partner(names[-1]))
    g.add(op, g.turned(names), {})


@recipe("Pow")
def power(g, op):
    base = g.operand(g.dtypes(op, among=(*FLOATS, I32, I64)), low=0.1, high=4)
    kinds = g.dtypes(op, 1, (*FLOATS, I32, I64)) if g.opset >= 12 else [g.known(base).dtype]
    exponent = (
        g.constant(g.choice((0.5, 2, 3, -1, 1, 0, 1.5)), g.choice(kinds))
        if g.chance(0.5)
        else g.partner(base, kinds, 0, 3)
    )
    g.add(op, [base, exponent], {})


@recipe("Where")
def where(g, op):
    a = g.operand(g.dtypes(op, 1))
    g.add(op, [g.partner(a, [BOOL]), *g.turned([a, g.partner(a)])], {})


@recipe("PRelu")
def prelu(g, op):
    x = g.operand(g.dtypes(op))
    g.add(op, [x, g.partner(x, one_way=True)], {})


@recipe("Cast", "CastLike")
def cast(g, op):
    target = g.choice(TYPES)
    low, high = (None, None) if target.kind not in "iu" else (float(np.iinfo(target).min), float(np.iinfo(target).max))
    x = g.operand(g.dtypes(op), low=low, high=high)
    if not is_float(g.known(x).dtype) and g.chance(0.5):
        x = g.operand([g.known(x).dtype])  # wraps
    if op == "CastLike":
        g.add(op, [x, g.operand([target])], {})
    else:
        g.add(op, [x], {"to": helper.np_dtype_to_tensor_dtype(target)})


@recipe("Clip")
def clip(g, op):
    x = g.operand(g.dtypes(op))
    dtype = g.known(x).dtype
    low, high = sorted((g.whole(-3, 5), g.whole(-3, 5)))
    if dtype.kind == "u":
        low, high = max(low, 0), max(high, 0)
    if g.has_input(op, "min"):
        ends = [g.new(np.asarray(end, dtype)) if g.chance(0.75) else "" for end in (low, high)]
        g.add(op, [x, *ends], {})
    else:
        g.add(op, [x], {"min": float(low), "max": float(high)})


@recipe("BatchNormalization")
def batch_norm(g, op):
    x = g.operand(g.dtypes(op, among=ENGINE), lambda a: a.ndim >= 2, g.shape(g.whole(2, 4)))
    shape = (g.known(x).shape[1],)
    dtype = g.known(x).dtype
    others = [g.new(g.array(dtype, shape, low, high), True) for low, high in ((-2, 2), (-1, 1), (-1, 1), (0.3, 2))]
    g.add(op, [x, *others], {"epsilon": g.choice((1e-5, 1e-3))})


@recipe("Shrink")
def shrink(g, op):
    g.add(op, [g.operand(g.dtypes(op, among=ENGINE))], {"lambd": g.number(0.1, 1), "bias": g.number(-0.5, 0.5)})
