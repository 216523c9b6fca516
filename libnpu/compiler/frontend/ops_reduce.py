"""Handlers of reductions, softmax, normalisation over axes, and arg-max."""

from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler.frontend.call import is_float, shape_product
from libnpu.compiler.frontend.infer import infer_shape
from libnpu.compiler.frontend.unsigned import is_unsigned_word, ordered, ordered_value

if TYPE_CHECKING:
    from libnpu.compiler.frontend.builder import Builder
    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Expr, Value

X: Expr = ("in", 0)
Y: Expr = ("in", 1)
MAX_RANK = 8  # chosen: of what is reduced over computed axes
MAX_INTEGER_COUNT = 46340  # the sum of so many remainders by it stays within 32 bits
KINDS = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod"}


def reduce(call: Call) -> Value:
    """Reduce*; axes are an attribute up to opset 17 (ReduceSum: 12), an input from then on."""
    x = call.input(0)
    since = 13 if call.op == "ReduceSum" else 18
    if call.opset >= since and call.is_computed(1) and 0 not in call.input(1).shape:
        return _by_computed_axes(call, x)
    given = call.optional(1)
    axes = [] if given is not None and 0 in given.shape else call.ints(1, "axes", since)
    if not axes:
        if call.attrs.get("noop_with_empty_axes", 0):
            return _after(call, x, _before(call, x))
        axes = list(range(len(x.shape)))
    return _over(call, x, sorted(call.axes(axes, len(x.shape))))


def _over(call: Call, x: Value, axes: list[int]) -> Value:
    """Return the result over sorted axes."""
    keepdims = bool(call.attrs.get("keepdims", 1))
    if call.op == "ReduceLogSumExp" and axes:
        return _log_sum_exp(call, x, axes, keepdims)
    before = _before(call, x)
    if not axes:  # a scalar
        return _after(call, x, before)
    if call.op == "ReduceMean" and not is_float(x):
        return _integer_mean(call, x, axes, keepdims)
    if call.op in ("ReduceMax", "ReduceMin") and is_unsigned_word(x.dtype):
        extreme = call.build.reduce(ordered_value(call.build, x), KINDS[call.op], axes, keepdims)
        return call.build.elementwise(ordered(X), [extreme], x.dtype)
    return _after(call, x, call.build.reduce(before, KINDS.get(call.op, "sum"), axes, keepdims))


def _by_computed_axes(call: Call, x: Value) -> Value:
    """Return the one, of the results over all axes that give the declared shape, that the operand means."""
    build, axes, rank = call.build, call.input(1), len(x.shape)
    keepdims, declared = bool(call.attrs.get("keepdims", 1)), call.shape()
    choices = [
        list(choice)
        for choice in combinations(range(rank), shape_product(axes.shape))
        if infer_shape("Reduce", [x.shape], {"axes": list(choice), "keepdims": keepdims}) == declared
    ]
    if not choices or rank > MAX_RANK:
        raise call.unsupported(f"computed axes {axes.name} {axes.shape} of {x.name} {x.shape}, declared {declared}")
    from_start: Expr = ("where", ("lt", X, ("const", 0)), ("add", X, ("const", rank)), X)
    inside: Expr = ("and", ("ge", X, ("const", -rank)), ("lt", X, ("const", rank)))
    bits = build.elementwise(("where", inside, ("shl", ("const", 1), from_start), ("const", 1 << rank)), [axes])
    meant = build.reduce(bits, "sum", list(range(len(axes.shape))), False)
    marks = [sum(1 << axis for axis in choice) for choice in choices]
    known: Expr = ("eq", X, ("const", marks[0]))
    for mark in marks[1:]:
        known = ("or", known, ("eq", X, ("const", mark)))
    call.require(known, [meant])
    result = _over(call, x, choices[0])
    for choice, mark in zip(choices[1:], marks[1:], strict=True):
        chosen: Expr = ("where", ("eq", X, ("const", mark)), Y, ("in", 2))
        result = build.elementwise(chosen, [meant, _over(call, x, choice), result], result.dtype)
    return result


def softmax(call: Call) -> Value:
    """Softmax and LogSoftmax; before opset 13 over all axes from `axis` on together (default 1, then -1)."""
    x = call.input(0)
    rank = len(x.shape)
    log = call.op == "LogSoftmax"
    if call.opset >= 13:
        axis = call.axis(int(call.attrs.get("axis", -1)), rank)
        return call.build.emit("Softmax", [x], {"axis": axis, "log": log})
    axis = call.axis(int(call.attrs.get("axis", 1)), rank)
    wide = [index for index in range(axis, rank) if x.shape[index] > 1]
    if len(wide) <= 1:
        return call.build.emit("Softmax", [x], {"axis": wide[0] if wide else axis, "log": log})
    rows = int(np.prod(x.shape[:axis], dtype=np.int64))
    flat = call.build.reshape(x, (rows, int(np.prod(x.shape[axis:], dtype=np.int64))))
    return call.build.reshape(call.build.emit("Softmax", [flat], {"axis": 1, "log": log}), x.shape)


def layer_norm(call: Call) -> list[Value]:
    """LayerNormalization, with mean and inverse deviation in float32."""
    x, scale, bias = call.input(0), call.input(1), call.optional(2)
    axis = call.axis(int(call.attrs.get("axis", -1)), len(x.shape))
    call.expect_broadcast(1, x.shape)
    call.expect_broadcast(2, x.shape)
    return normalised(call.build, x, axis, scale, bias, _epsilon(call))[: call.output_count]


def normalised(
    build: Builder, x: Value, axis: int, scale: Value, bias: Value | None, epsilon: float, centred: bool = True
) -> list[Value]:
    """Return `x` normalised over the axes from `axis` on, times scale plus bias, and in float32 the mean and the inverse deviation.

    If not `centred`, the mean is not taken off, and the deviation is the root of the mean square.
    """
    normal, *moments = _normalise(build, x, list(range(axis, len(x.shape))), epsilon, centred)
    result = build.elementwise(("mul", X, Y), [normal, scale])
    if bias is not None:
        result = build.elementwise(("add", X, Y), [result, bias])
    return [result, *(build.elementwise(X, [moment], np.dtype(np.float32)) for moment in moments)]


def lp_norm(call: Call) -> Value:
    """LpNormalization; a zero norm leaves zeros."""
    x, build = call.input(0), call.build
    axis = call.axis(int(call.attrs.get("axis", -1)), len(x.shape))
    square = int(call.attrs.get("p", 2)) == 2
    total = build.reduce(build.elementwise(("mul", X, X) if square else ("abs", X), [x]), "sum", [axis], True)
    norm: Expr = ("sqrt", Y) if square else Y
    return build.elementwise(("where", ("eq", Y, ("const", 0.0)), ("const", 0.0), ("div", X, norm)), [x, total])


def mean_variance_norm(call: Call) -> Value:
    """MeanVarianceNormalization: by the operator's formula. The body in its schema takes a difference of squares instead, which cancels."""
    x, build = call.input(0), call.build
    axes = [call.axis(axis, len(x.shape)) for axis in call.attrs.get("axes", (0, 2, 3))]
    moved, variance, _ = _moments(build, x, axes)
    return build.elementwise(("div", X, ("add", ("sqrt", Y), ("const", 1e-9))), [moved, variance])


def instance_norm(call: Call) -> Value:
    x, scale, bias = call.input(0), call.input(1), call.input(2)
    call.expect(1, x.shape[1:2])
    call.expect(2, x.shape[1:2])
    normal, _, _ = _normalise(call.build, x, list(range(2, len(x.shape))), _epsilon(call))
    shape = (x.shape[1], *[1] * (len(x.shape) - 2))
    scaled = call.build.elementwise(("mul", X, Y), [normal, call.build.reshape(scale, shape)])
    return call.build.elementwise(("add", X, Y), [scaled, call.build.reshape(bias, shape)])


def _epsilon(call: Call) -> float:
    return float(call.attrs.get("epsilon", 1e-5))


def _normalise(
    build: Builder, x: Value, axes: list[int], epsilon: float, centred: bool = True
) -> tuple[Value, Value, Value]:
    """Return (x - mean) / sqrt(variance + epsilon), the mean and the inverse root."""
    moved, variance, mean = _moments(build, x, axes, centred)
    inverse = build.elementwise(("rsqrt", ("add", X, ("const", epsilon))), [variance])
    return build.elementwise(("mul", X, Y), [moved, inverse]), mean, inverse


def _moments(build: Builder, x: Value, axes: list[int], centred: bool = True) -> tuple[Value, Value, Value]:
    """Return x - mean, the variance and the mean; if not `centred`, x, the mean square and the mean.

    The centred values are squared, so nothing cancels.
    """
    mean = build.reduce(x, "mean", axes, True)
    moved = build.elementwise(("sub", X, Y), [x, mean]) if centred else x
    return moved, build.reduce(build.elementwise(("mul", X, X), [moved]), "mean", axes, True), mean


def _before(call: Call, x: Value) -> Value:
    spelled: dict[str, Expr] = {
        "ReduceL1": ("abs", X),
        "ReduceL2": ("mul", X, X),
        "ReduceSumSquare": ("mul", X, X),
    }
    return call.build.elementwise(spelled[call.op], [x]) if call.op in spelled else x


def _after(call: Call, x: Value, total: Value) -> Value:
    """Return the result for the sum `total`; roots and logarithms of integers are truncated."""
    spelled: dict[str, str] = {"ReduceL2": "sqrt", "ReduceLogSum": "log"}
    function = spelled.get(call.op)
    if function is None:
        return total
    if is_float(x):
        return call.build.elementwise((function, X), [total])
    rough: Expr = ("cast_i32", (function, ("cast_f32", X)))
    if function == "sqrt":  # a large sum may have rounded up to a square
        rough = ("sub", rough, ("gt", ("mul", rough, rough), X))
    return call.build.elementwise(rough, [total])


def _integer_mean(call: Call, x: Value, axes: list[int], keepdims: bool) -> Value:
    """Return the truncated mean of integers whose sum may leave 32 bits: sums of quotients and of remainders by the count."""
    build = call.build
    count = shape_product(tuple(x.shape[axis] for axis in axes))
    if not 0 < count <= MAX_INTEGER_COUNT:
        raise call.unimplemented(f"the mean of {count} integers, at most {MAX_INTEGER_COUNT}")
    n: Expr = ("const", count)
    rest: Expr = ("mod", X, n)
    remainders = build.reduce(build.elementwise(rest, [x]), "sum", axes, keepdims)
    quotients = build.reduce(build.elementwise(_floor_quotient(X, n), [x]), "sum", axes, keepdims)
    # floor(mean) = quotients + remainders / n, and one more where a negative mean has a fraction
    whole: Expr = ("add", X, ("div", Y, n))
    fraction: Expr = ("gt", ("mod", Y, n), ("const", 0))
    return build.elementwise(("add", whole, ("and", ("lt", whole, ("const", 0)), fraction)), [quotients, remainders])


def _floor_quotient(x: Expr, n: Expr) -> Expr:
    """Return x / n rounded down, for n > 0: the engine's quotient goes towards zero."""
    return ("sub", ("div", x, n), ("and", ("lt", x, ("const", 0)), ("gt", ("mod", x, n), ("const", 0))))


def _log_sum_exp(call: Call, x: Value, axes: list[int], keepdims: bool) -> Value:
    """log(sum(exp(x - m))) + m with the largest x as m, or 0 where that is infinite; of integers in float, truncated."""
    build = call.build
    source, single = x, np.dtype(np.float32)
    if not is_float(x):
        x = build.elementwise(("cast_f32", X), [x], single)
    largest = build.reduce(x, "max", axes, True)
    shift = build.elementwise(("where", ("lt", ("abs", X), ("const", math.inf)), X, ("const", 0.0)), [largest])
    powers = build.elementwise(("exp", ("sub", X, Y)), [x, shift])
    result: Expr = ("add", ("log", X), Y)
    expr = result if is_float(source) else ("cast_i32", result)
    total = build.elementwise(expr, [build.reduce(powers, "sum", axes, True), shift], source.dtype)
    return total if keepdims else build.reshape(total, [d for i, d in enumerate(x.shape) if i not in axes])
