"""Recipes of quantised operators."""

from __future__ import annotations

import numpy as np

from tests.compiler.fuzz.draw import FLOATS
from tests.compiler.fuzz.recipes.matrices import matrices
from tests.compiler.fuzz.recipes.table import BOOL, BYTES, F32, I32, recipe
from tests.compiler.fuzz.recipes.windows import image, kernel_of, window


def scale(g, low=0.01, high=0.2, shape=(), dtype=F32):
    """Return a positive scale, at times a power of two, so that there are ties."""
    array = g.array(dtype, shape, low, high)
    array = (
        np.exp2(np.round(np.log2(array.astype(np.float64)))).astype(dtype)
        if g.chance(0.4)
        else np.maximum(array, np.asarray(low, dtype))
    )
    return g.new(array, True)


def zero(g, dtype, shape=(), computed=0.0):
    return g.new(g.array(dtype, shape), not g.chance(computed))


def along(g, x):
    """Return (attributes, shape) of scales by tensor or along an axis."""
    rank = g.known(x).ndim
    if g.opset < 13 or not rank or g.chance(0.6):
        return {}, ()
    axis = g.axis(rank)
    return {"axis": axis}, (g.known(x).shape[axis],)


@recipe("QuantizeLinear")
def quantize(g, op):
    x = g.operand(g.dtypes(op, among=(F32, F32, FLOATS[1]) if g.opset >= 19 else (F32,)))
    attrs, shape = along(g, x)
    target = g.choice(BYTES if g.opset < 21 else (*BYTES, *map(np.dtype, ("int16", "uint16"))))
    g.add(
        op,
        [
            x,
            scale(g, 0.01, 0.1, shape, g.known(x).dtype),
            *([zero(g, target, shape)] if shape or g.chance(0.8) else []),
        ],
        attrs,
    )


@recipe("DequantizeLinear")
def dequantize(g, op):
    x = g.operand(g.dtypes(op, among=(*BYTES, I32)))
    attrs, shape = along(g, x)
    dtype = g.known(x).dtype
    low, high = (1e-6, 1e-5) if dtype == I32 else (0.01, 0.1)
    g.add(
        op, [x, scale(g, low, high, shape), *([zero(g, dtype, shape)] if dtype != I32 and g.chance(0.8) else [])], attrs
    )


@recipe("MatMulInteger")
def matmul_integer(g, op):
    a, b = matrices(g, BYTES, other=BYTES)
    zeros = [zero(g, g.known(name).dtype, computed=0.3) for name in (a, b)[: g.whole(0, 2)]]
    g.add(op, [a, b, *zeros], {})


def integer_conv(g, op):
    x = image(g, BYTES, (3, 4, 4))
    channels, kernel = g.known(x).shape[1], kernel_of(g, x)
    group = g.choice([d for d in range(1, channels + 1) if channels % d == 0])
    outs = group * g.choice((1, 2, 3))
    w = g.new(g.array(g.choice(BYTES), (outs, channels // group, *kernel)), True)
    return x, w, outs, window(g, op, x, kernel) | {"group": group}


@recipe("ConvInteger")
def conv_integer(g, op):
    x, w, _, attrs = integer_conv(g, op)
    g.add(op, [x, w, *[zero(g, g.known(name).dtype) for name in (x, w)[: g.whole(0, 2)]]], attrs)


@recipe("QLinearConv")
def qlinear_conv(g, op):
    x, w, outs, attrs = integer_conv(g, op)
    dtype, kind = g.known(x).dtype, g.known(w).dtype
    each = (outs,) if g.chance(0.4) else ()
    w_zero = g.constant(np.zeros(each, kind)) if each else zero(g, kind)
    bias = [g.new(g.array(I32, (outs,), -2000, 2000), True)] if g.chance(0.5) else []
    g.add(
        op,
        [x, scale(g), zero(g, dtype), w, scale(g, shape=each), w_zero, scale(g, 0.1, 2), zero(g, dtype), *bias],
        attrs,
    )


@recipe("QLinearMatMul")
def qlinear_matmul(g, op):
    a, b = matrices(g, BYTES, other=BYTES)
    dtype = g.known(a).dtype
    g.add(
        op, [a, scale(g), zero(g, dtype), b, scale(g), zero(g, g.known(b).dtype), scale(g, 0.1, 2), zero(g, dtype)], {}
    )


@recipe("MatMulIntegerToFloat", "DynamicQuantizeMatMul")
def matmul_to_float(g, op):
    if op == "MatMulIntegerToFloat":
        a, b = matrices(g, BYTES, other=BYTES)
        zeros = [zero(g, g.known(name).dtype) if g.chance(0.7) else "" for name in (a, b)]
        g.add(op, [a, b, scale(g), scale(g), *zeros], {}, domain="com.microsoft")
    else:
        a, b = matrices(g, [F32], constant=True, other=BYTES)
        g.add(op, [a, b, scale(g), zero(g, g.known(b).dtype)], {}, domain="com.microsoft")


@recipe("QGemm")
def qgemm(g, op):
    a = g.operand(BYTES, lambda x: x.ndim == 2 and 0 not in x.shape, g.shape(2))
    attrs = {name: g.whole(0, 1) for name in ("transA", "transB")}
    _, depth = g.known(a).shape[:: -1 if attrs["transA"] else 1]
    columns = g.choice((1, 3, 8, 17))
    b = g.new(g.array(g.choice(BYTES), (columns, depth) if attrs["transB"] else (depth, columns)), True)
    c = g.new(g.array(I32, (columns,), -2000, 2000), True) if g.chance(0.5) else ""
    dtype = g.known(a).dtype
    end = [scale(g, 0.1, 2), zero(g, dtype)] if g.chance(0.6) else []
    g.add(
        op,
        [a, scale(g), zero(g, dtype), b, scale(g), zero(g, g.known(b).dtype), c, *end],
        attrs,
        domain="com.microsoft",
    )


@recipe("QLinearAdd", "QLinearMul")
def qlinear_sum(g, op):
    a = g.operand(BYTES)
    b, dtype = g.partner(a), g.known(a).dtype
    g.add(
        op,
        [a, scale(g), zero(g, dtype), b, scale(g), zero(g, dtype), scale(g), zero(g, dtype)],
        {},
        domain="com.microsoft",
    )


@recipe("QLinearSigmoid", "QLinearLeakyRelu")
def qlinear_map(g, op):
    x = g.operand(BYTES)
    dtype = g.known(x).dtype
    attrs = {"alpha": g.number(0.01, 0.5)} if op == "QLinearLeakyRelu" else {}
    g.add(op, [x, scale(g), zero(g, dtype), scale(g, 0.004, 0.1), zero(g, dtype)], attrs, domain="com.microsoft")


@recipe("QLinearConcat", "QLinearWhere")
def qlinear_choice(g, op):
    x = g.operand(BYTES, lambda a: a.ndim >= 1, g.shape(g.whole(1, 4)))
    dtype = g.known(x).dtype

    def ends():
        return [scale(g), zero(g, dtype)]

    if op == "QLinearWhere":
        condition = g.partner(x, [BOOL], one_way=True)
        g.add(op, [condition, x, *ends(), g.partner(x), *ends(), *ends()], {}, domain="com.microsoft")
        return
    parts = [part for other in (x, g.like(x, g.known(x).shape)) for part in (other, *ends())]
    g.add(op, [*ends(), *parts], {"axis": g.axis(g.known(x).ndim)}, domain="com.microsoft")


@recipe("QLinearGlobalAveragePool", "QLinearAveragePool", "QLinearSoftmax", "QLinearConv of Microsoft")
def qlinear_window(g, name):
    op, _, _ = name.partition(" ")
    x = image(g, BYTES, (4,))
    dtype = g.known(x).dtype
    attrs = {"channels_last": g.whole(0, 1)} if op != "QLinearSoftmax" else {"axis": -1, "opset": 13}
    before = [x, scale(g), zero(g, dtype)]
    if op == "QLinearAveragePool":
        attrs["kernel_shape"] = (
            [g.whole(1, size) for size in g.known(x).shape[1:3] if size] if attrs["channels_last"] else kernel_of(g, x)
        )
    if op == "QLinearConv":
        channels, outs = g.known(x).shape[-1 if attrs["channels_last"] else 1], g.choice((1, 3, 8))
        w = g.new(g.array(BYTES[1], (outs, channels, 1, 1)), True)
        before += [w, scale(g), zero(g, BYTES[1])]
    g.add(
        op,
        [*before, scale(g, 0.1, 2) if op == "QLinearConv" else scale(g, 0.004, 0.1), zero(g, dtype)],
        attrs,
        domain="com.microsoft",
    )


@recipe("DynamicQuantizeLinear")
def dynamic_quantize(g, op):
    g.add(op, [g.operand(g.dtypes(op, among=(F32,)), lambda a: a.size > 0)], {}, 3)


@recipe("QuantizeLinear of Microsoft", "DequantizeLinear of Microsoft")
def of_microsoft(g, name):
    op, _, _ = name.partition(" ")
    x = g.operand([F32] if op == "QuantizeLinear" else BYTES)
    target = g.choice(BYTES) if op == "QuantizeLinear" else g.known(x).dtype
    g.add(op, [x, scale(g, 0.01, 0.1), zero(g, target)], {}, domain="com.microsoft")
