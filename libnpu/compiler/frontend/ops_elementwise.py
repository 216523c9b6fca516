"""Handlers of the operators that work element by element: each becomes one Elementwise node."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx

from libnpu.compiler.frontend import unsigned
from libnpu.compiler.frontend.call import is_float, shape_product
from libnpu.compiler.frontend.ops_trigonometry import log_of_one_plus
from libnpu.compiler.frontend.source import ModelError
from libnpu.compiler.frontend.unsigned import is_unsigned_word
from libnpu.compiler.ir import Expr

if TYPE_CHECKING:
    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Value

X: Expr = ("in", 0)
Y: Expr = ("in", 1)
BOOL = np.dtype(np.bool_)

UNARY = {
    "Neg": "neg",
    "Abs": "abs",
    "Sqrt": "sqrt",
    "Reciprocal": "reciprocal",
    "Exp": "exp",
    "Log": "log",
    "Tanh": "tanh",
    "Erf": "erf",
    "Sin": "sin",
    "Cos": "cos",
    "Floor": "floor",
    "Ceil": "ceil",
    "Round": "round",
    "Sign": "sign",
    "Sigmoid": "sigmoid",
    "Relu": "relu",
    "HardSwish": "hard_swish",
}
BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div"}
VARIADIC = {"Sum": "add", "Mean": "add", "Max": "max", "Min": "min"}
COMPARISON = {"Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge"}
LOGIC = {"And": "and", "Or": "or", "Xor": "xor"}


def unary(call: Call) -> Value:
    x = call.input(0)
    if is_unsigned_word(x.dtype):  # Abs and Sign alone take such
        return x if call.op == "Abs" else call.build.elementwise(("ne", X, ("const", 0)), [x])
    if call.op == "Erf" and not is_float(x):
        return call.build.elementwise(("cast_i32", ("erf", ("cast_f32", X))), [x])
    result = call.build.elementwise((UNARY[call.op], X), [x])
    if call.op == "Relu" and (sums := call.build.sums.get(x)) is not None:
        call.build.sums[result] = sums.clipped(0.0, math.inf)
    return result


def binary(call: Call) -> Value:
    inputs = [call.input(0), call.input(1)]
    unsigned_quotient = call.op == "Div" and is_unsigned_word(inputs[0].dtype)
    return call.build.elementwise(unsigned.quotient(X, Y) if unsigned_quotient else (BINARY[call.op], X, Y), inputs)


def variadic(call: Call) -> Value:
    values = [call.input(index) for index in range(len(call.inputs))]
    result = values[0]
    expr: Expr = (VARIADIC[call.op], X, Y)
    if call.op in ("Max", "Min") and is_unsigned_word(result.dtype):
        expr = unsigned.ordered((VARIADIC[call.op], unsigned.ordered(X), unsigned.ordered(Y)))
    for value in values[1:]:
        result = call.build.elementwise(expr, [result, value])
    if call.op == "Mean" and len(values) > 1:
        result = call.build.elementwise(("mul", X, ("const", 1 / len(values))), [result])
    return result


def comparison(call: Call) -> Value:
    inputs = [call.input(0), call.input(1)]
    by_order = call.op != "Equal" and is_unsigned_word(inputs[0].dtype)
    operands = [unsigned.ordered(X), unsigned.ordered(Y)] if by_order else [X, Y]
    return call.build.elementwise((COMPARISON[call.op], *operands), inputs, BOOL)


def logic(call: Call) -> Value:
    return call.build.elementwise((LOGIC[call.op], X, Y), [call.input(0), call.input(1)], BOOL)


def logical_not(call: Call) -> Value:
    return call.build.elementwise(("not", X), [call.input(0)], BOOL)


def is_nan(call: Call) -> Value:
    return call.build.elementwise(("is_nan", X), [call.input(0)], BOOL)


def is_inf(call: Call) -> Value:
    """IsInf; attributes may leave one of the two out."""
    positive, negative = (bool(call.attrs.get(name, 1)) for name in ("detect_positive", "detect_negative"))
    x = call.input(0)
    if not (positive or negative):
        return call.build.const(np.zeros(x.shape, BOOL))
    inside: Expr = ("abs", X) if positive and negative else X if positive else ("neg", X)
    return call.build.elementwise(("eq", inside, ("const", math.inf)), [x], BOOL)


def where(call: Call) -> Value:
    inputs = [call.input(index) for index in range(3)]
    return call.build.elementwise(("where", X, Y, ("in", 2)), inputs, inputs[1].dtype)


def power(call: Call) -> Value:
    """Pow; whole and half exponents that occur in models become products and roots."""
    base, exponent = call.input(0), call.input(1)
    known = exponent.const.reshape(-1)[0].item() if exponent.const is not None and exponent.const.size == 1 else None
    if len(exponent.shape) <= len(base.shape):
        square: Expr = ("mul", X, X)
        products: dict[float, Expr] = {1.0: X, 2.0: square, 3.0: ("mul", square, X)}
        roots: dict[float, Expr] = {0.5: ("sqrt", X), -0.5: ("rsqrt", X), -1.0: ("reciprocal", X)}
        spelled = products | (roots if is_float(base) else {})
        if known in spelled:
            return call.build.elementwise(spelled[known], [base])
    if is_float(base) == is_float(exponent):
        expr: Expr = ("pow", X, Y)
    elif is_float(base):
        expr = ("pow", X, cast_expr(Y, exponent.dtype, base.dtype))
    elif known is not None and known == int(known):
        expr = ("pow", X, ("cast_i32", Y))
    else:
        expr = cast_expr(("pow", cast_expr(X, base.dtype, exponent.dtype), Y), exponent.dtype, base.dtype)
    return call.build.elementwise(expr, [base, exponent], base.dtype)


def cast(call: Call) -> Value:
    source = call.input(0)
    if call.op == "CastLike":
        target = call.input(1).dtype
    elif call.attrs["to"] == onnx.TensorProto.STRING:
        raise call.unsupported("strings")
    else:
        target = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(call.attrs["to"]))
    return call.build.elementwise(cast_expr(X, source.dtype, target), [source], target)


def bit_cast(call: Call) -> Value:
    """BitCast between types of one width, up to the 32 bits that the engine has."""
    x = call.input(0)
    target = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(call.attrs["to"]))
    floats = [dtype.kind not in "iub" for dtype in (x.dtype, target)]
    if x.dtype.itemsize != target.itemsize:
        raise ModelError(f"node {call.name}: BitCast of {x.dtype} to {target}")
    if floats == [False, False]:
        return call.build.elementwise(("cast_bool", X) if target == BOOL else X, [x], target)
    if floats == [True, True] or x.dtype.itemsize != 4:
        raise call.unsupported(f"types {x.dtype} and {target}: the vector engine has the bits of float32 only")
    return call.build.elementwise(("bits_i32" if floats[0] else "bits_f32", X), [x], target)


def cast_expr(expr: Expr, source: np.dtype[np.generic], target: np.dtype[np.generic]) -> Expr:
    """Return `expr` of type `source` as ONNX's Cast makes it `target`; the node's output does the narrowing."""
    floating = [dtype.kind == "f" or dtype.name == "bfloat16" for dtype in (source, target)]
    if target == BOOL:
        return expr if source == BOOL else ("cast_bool", expr)
    if floating[0] and not floating[1]:
        return unsigned.from_float(expr) if is_unsigned_word(target) else ("cast_i32", expr)
    if floating[1] and is_unsigned_word(source):
        return unsigned.to_float(expr)
    return ("cast_f32", expr) if floating[1] and not floating[0] else expr


def clip(call: Call) -> Value:
    """Clip: bounds are attributes before opset 11, inputs from then on; either may be left out."""
    x = call.input(0)
    lowest: float | int = -math.inf if is_float(x) else int(np.iinfo(np.int32).min)
    highest: float | int = math.inf if is_float(x) else int(np.iinfo(np.int32).max)
    order = unsigned.ordered if is_unsigned_word(x.dtype) else _as_is
    if is_unsigned_word(x.dtype):
        lowest, highest = 0, -1  # as bits
    if call.opset < 11:
        low, high = call.attrs.get("min"), call.attrs.get("max")
        bounds: list[Expr] = [("const", lowest if low is None else low), ("const", highest if high is None else high)]
        return call.build.elementwise(("clip", X, *bounds), [x])
    inputs = [x]
    bounds = []
    for index, limit in ((1, lowest), (2, highest)):
        value = call.optional(index)
        if value is None:
            bounds.append(("const", limit))
            continue
        if shape_product(value.shape) != 1:
            raise ModelError(f"node {call.name}: Clip to {value.name} {value.shape}, one number expected")
        bounds.append(("in", len(inputs)))
        inputs.append(call.build.reshape(value, ()))
    result = call.build.elementwise(order(("clip", order(X), *map(order, bounds))), inputs)
    sums, known = call.build.sums.get(x), [value.const for value in inputs[1:]]
    if sums is not None and all(array is not None and not np.any(np.isnan(array)) for array in known):
        numbers = [
            expr[1] if expr[0] == "const" else float(np.asarray(known[expr[1] - 1]).reshape(-1)[0]) for expr in bounds
        ]
        call.build.sums[result] = sums.clipped(*numbers)
    return result


def _as_is(expr: Expr) -> Expr:
    return expr


def leaky_relu(call: Call) -> Value:
    return call.build.elementwise(("leaky_relu", X, ("const", float(call.attrs.get("alpha", 0.01)))), [call.input(0)])


def prelu(call: Call) -> Value:
    x, slope = call.input(0), call.input(1)
    if is_unsigned_word(x.dtype):
        return x
    expr: Expr = ("prelu", X, Y) if is_float(x) else ("where", ("lt", X, ("const", 0)), ("mul", X, Y), X)
    return call.build.elementwise(expr, [x, slope])


def hard_sigmoid(call: Call) -> Value:
    alpha, beta = float(call.attrs.get("alpha", 0.2)), float(call.attrs.get("beta", 0.5))
    return call.build.elementwise(("hard_sigmoid", X, ("const", alpha), ("const", beta)), [call.input(0)])


def activation(call: Call) -> Value:
    """Activations that the vector engine has no instruction for, spelled in those it has."""
    one: Expr = ("const", 1.0)
    positive: Expr = ("gt", X, ("const", 0.0))
    alpha = float(call.attrs.get("alpha", {"Selu": 1.6732632423543772, "Swish": 1.0}.get(call.op, 1.0)))

    def exp_minus_one(x: Expr) -> Expr:
        return ("sub", ("exp", x), one)

    # log(1 + e^x) without overflow: max(x, 0) + log(1 + e^-|x|), whose tail needs the logarithm near 1
    softplus: Expr = ("add", ("relu", X), log_of_one_plus(("exp", ("neg", ("abs", X)))))
    match call.op:
        case "Elu":
            expr: Expr = ("where", positive, X, ("mul", ("const", alpha), exp_minus_one(X)))
        case "Selu":
            gamma = float(call.attrs.get("gamma", 1.0507009873554805))
            expr = ("mul", ("const", gamma), ("where", positive, X, ("mul", ("const", alpha), exp_minus_one(X))))
        case "Celu":
            scaled: Expr = ("mul", X, ("const", 1.0 / alpha))
            expr = ("where", positive, X, ("mul", ("const", alpha), exp_minus_one(scaled)))
        case "Softplus":
            expr = softplus
        case "Softsign":
            expr = ("div", X, ("add", one, ("abs", X)))
        case "ThresholdedRelu":
            expr = ("where", ("gt", X, ("const", alpha)), X, ("const", 0.0))
        case "Mish":
            expr = ("mul", X, ("tanh", softplus))
        case "Swish":
            expr = ("mul", X, ("sigmoid", ("mul", ("const", alpha), X)))
        case "Gelu":
            expr = gelu(call.attrs.get("approximate", b"none"))
        case _:
            raise AssertionError(call.op)
    return call.build.elementwise(expr, [call.input(0)])


def gelu(approximate: bytes) -> Expr:
    """Return Gelu of input 0, approximated by tanh or not."""
    one: Expr = ("const", 1.0)
    if approximate == b"tanh":
        cubic: Expr = ("mul", ("const", 0.044715), ("mul", X, ("mul", X, X)))
        gate: Expr = ("tanh", ("mul", ("const", math.sqrt(2 / math.pi)), ("add", X, cubic)))
    else:
        gate = ("erf", ("mul", X, ("const", math.sqrt(0.5))))
    return ("mul", X, ("mul", ("const", 0.5), ("add", one, gate)))


def batch_norm(call: Call) -> list[Value]:
    """BatchNormalization: scale and shift per channel; in training by the batch's own moments, with running ones as outputs."""
    x, build = call.input(0), call.build
    for index in range(1, 5):
        call.expect(index, x.shape[1:2] or (1,))
    epsilon = float(call.attrs.get("epsilon", 1e-5))
    shape = (x.shape[1] if len(x.shape) > 1 else 1, *[1] * (len(x.shape) - 2))
    scale, bias, mean, variance = (call.input(index) for index in range(1, 5))
    if not call.attrs.get("training_mode", 0):
        if call.output_count > 1:
            raise call.unsupported("training outputs")
        return [_scaled(call, x, [scale, bias, mean, variance], shape, epsilon)]
    axes = [axis for axis in range(len(x.shape)) if axis != 1]
    momentum = float(call.attrs.get("momentum", 0.9))
    own_mean = build.reduce(x, "mean", axes, True)
    centred = build.elementwise(("sub", X, Y), [x, own_mean])
    own_variance = build.reduce(build.elementwise(("mul", X, X), [centred]), "mean", axes, True)
    moments = [build.reshape(value, shape) for value in (own_mean, own_variance)]
    result = _scaled(call, x, [scale, bias, *moments], shape, epsilon)
    moved: Expr = ("add", ("mul", X, ("const", momentum)), ("mul", Y, ("const", 1 - momentum)))
    running = [
        build.elementwise(moved, [old, build.reshape(new, old.shape)])
        for old, new in zip((mean, variance), moments, strict=True)
    ]
    return [result, *running[: call.output_count - 1]]


def _scaled(call: Call, x: Value, parameters: list[Value], shape: tuple[int, ...], epsilon: float) -> Value:
    """Return, for parameters to be of `shape`, (x - mean) / sqrt(variance + epsilon) · scale + bias, the constant factor and shift of constants in float64."""
    build = call.build
    if all(value.const is not None for value in parameters):
        scale, bias, mean, variance = (
            value.const.astype(np.float64) for value in parameters if value.const is not None
        )
        with np.errstate(all="ignore"):  # a variance below 0 gives NaN
            factor = scale / np.sqrt(variance + epsilon)
        scaling = build.const(factor.astype(x.dtype).reshape(shape), f"{call.name}.scale")
        shift = build.const((bias - mean * factor).astype(x.dtype).reshape(shape), f"{call.name}.shift")
        return build.elementwise(("add", X, Y), [build.elementwise(("mul", X, Y), [x, scaling]), shift])
    scale_value, bias_value, mean_value, variance_value = (build.reshape(value, shape) for value in parameters)
    gain: Expr = ("mul", Y, ("rsqrt", ("add", X, ("const", epsilon))))
    gained = build.elementwise(gain, [variance_value, scale_value])
    centred = build.elementwise(("sub", X, Y), [x, mean_value])
    return build.elementwise(("add", ("mul", X, Y), ("in", 2)), [centred, gained, bias_value])
