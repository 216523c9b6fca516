"""Handlers of what onnxruntime's optimiser makes of several operators in the domain com.microsoft: each is spelled as these again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler.frontend import ops_elementwise as element
from libnpu.compiler.frontend import ops_matrix as matrix
from libnpu.compiler.frontend import ops_movement as movement
from libnpu.compiler.frontend import ops_reduce as reduction
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Expr, Value

X: Expr = ("in", 0)
Y: Expr = ("in", 1)
QUICK_ALPHA = 1.702  # of QuickGelu, by default
EPSILON = 1e-5  # of SimplifiedLayerNormalization, by default, as of LayerNormalization
LEAST_EPSILON = 1e-12  # of what is added or looked up before it is normalised, by default
# Activations that a product can end with -> its handler and the names of its parameters.
_ACTIVATIONS: dict[str, tuple[Callable[[Call], Value], tuple[str, ...]]] = {
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh", "HardSwish"), (element.unary, ())),
    **dict.fromkeys(("Elu", "Celu", "ThresholdedRelu"), (element.activation, ("alpha",))),
    **dict.fromkeys(("Softplus", "Softsign", "Mish"), (element.activation, ())),
    "Selu": (element.activation, ("alpha", "gamma")),
    "Swish": (element.activation, ("alpha",)),
    "LeakyRelu": (element.leaky_relu, ("alpha",)),
    "HardSigmoid": (element.hard_sigmoid, ("alpha", "beta")),
    "Clip": (element.clip, ("min", "max")),
}


def gelu(call: Call) -> Value:
    """Gelu by erf, BiasGelu, and FastGelu by tanh: of an input, to which a second is added."""
    x, bias = call.input(0), call.optional(1)
    if bias is not None:
        x = call.build.elementwise(("add", X, Y), [x, bias])
    return call.build.elementwise(element.gelu(b"tanh" if call.op == "FastGelu" else b"none"), [x])


def quick_gelu(call: Call) -> Value:
    """QuickGelu: Swish with an alpha of its own by default."""
    alpha = call.attrs.get("alpha", QUICK_ALPHA)
    return element.activation(replace(call, op="Swish", attrs={"alpha": alpha}))


def activated(call: Call, value: Value, parameters: dict[str, Any]) -> Value:
    """Return what the activation that a node names makes of `value`. Raises Unimplemented."""
    name = call.attrs.get("activation", b"").decode()
    if not name:
        return value
    if name not in _ACTIVATIONS:
        raise call.unimplemented(f"activation {name}")
    handler, _ = _ACTIVATIONS[name]  # Clip's bounds are attributes, as in the first operator sets
    return handler(replace(call, op=name, opset=min(call.opset, 10), inputs=[value], attrs=parameters))


def fused_conv(call: Call) -> Value:
    """FusedConv: a convolution, plus another value, and an activation with its parameters in a list."""
    result = matrix.conv(replace(call, op="Conv"))
    addend = call.optional(3)
    if addend is not None:
        result = call.build.elementwise(("add", X, Y), [result, addend])
    _, names = _ACTIVATIONS.get(call.attrs.get("activation", b"").decode(), (None, ()))
    return activated(call, result, dict(zip(names, call.attrs.get("activation_params", []), strict=False)))


def fused_gemm(call: Call) -> Value:
    """FusedGemm: Gemm and an activation with its parameters by name."""
    given = {name: call.attrs.get(f"activation_{name}") for name in ("alpha", "beta", "gamma")}
    return activated(
        call,
        matrix.gemm(replace(call, op="Gemm")),
        {name: value for name, value in given.items() if value is not None},
    )


def fused_matmul(call: Call) -> Value:
    """FusedMatMul: alpha · A' · B'. `transBatch` moves the first axis behind the axes of the batch, `trans` swaps the last two."""
    build, operands = call.build, []
    for index, name in enumerate("AB"):
        value = call.input(index)
        order = list(range(len(value.shape)))
        if len(order) > 1 and call.attrs.get(f"transBatch{name}", 0):
            order = [*order[1:-1], order[0], order[-1]]
        if len(order) > 1 and call.attrs.get(f"trans{name}", 0):
            order = [*order[:-2], order[-1], order[-2]]
        operands.append(build.transpose(value, order) if order != sorted(order) else value)
    alpha = float(call.attrs.get("alpha", 1.0))
    return matrix.matmul(replace(call, op="MatMul", inputs=list(operands)), alpha)


def skip_layer_norm(call: Call) -> list[Value]:
    """SkipLayerNormalization and SkipSimplifiedLayerNormalization: of a sum, which is the fourth output."""
    x, skip, build = call.input(0), call.input(1), call.build
    simplified = call.op == "SkipSimplifiedLayerNormalization"
    scale, bias = call.input(2), call.optional(3 if simplified else 4)
    shift = None if simplified else call.optional(3)
    call.expect_broadcast(1, x.shape)
    total = build.elementwise(("add", X, Y), [x, skip])
    if bias is not None:
        total = build.elementwise(("add", X, Y), [total, bias])
    result, *moments = _normalised(call, total, scale, shift, centred=not simplified)
    return [result, *moments, total]


def simplified_layer_norm(call: Call) -> list[Value]:
    """SimplifiedLayerNormalization: x over the root of the mean of its squares."""
    x = call.input(0)
    axis = call.axis(int(call.attrs.get("axis", -1)), len(x.shape))
    epsilon = float(call.attrs.get("epsilon", EPSILON))
    result, _, inverse = reduction.normalised(call.build, x, axis, call.input(1), None, epsilon, centred=False)
    return [result, inverse]


def _normalised(call: Call, x: Value, scale: Value, shift: Value | None, centred: bool = True) -> list[Value]:
    epsilon = float(call.attrs.get("epsilon", LEAST_EPSILON))
    return reduction.normalised(call.build, x, len(x.shape) - 1, scale, shift, epsilon, centred)


def embed_layer_norm(call: Call) -> list[Value]:
    """EmbedLayerNormalization: rows of words, positions and segments, their sum normalised; how many words the mask has; the sum."""
    ids, segments, mask, positions = call.input(0), call.optional(1), call.optional(7), call.optional(8)
    return _embedded(call, ids, segments, [call.optional(index) for index in range(2, 7)], mask, positions)


def quantised_embed_layer_norm(call: Call) -> list[Value]:
    """QEmbedLayerNormalization: as EmbedLayerNormalization, of tables of 8 bits with a scale and a zero point each."""
    build = call.build
    tables: list[Value | None] = []
    for index in range(2, 7):
        table = call.optional(index)
        if table is None:
            tables.append(None)
            continue
        scale, zero = (build.reshape(call.input(index + ahead), ()) for ahead in (6, 11))
        real: Expr = ("mul", ("cast_f32", ("sub", X, ("in", 2))), Y)
        tables.append(build.elementwise(real, [table, scale, zero], scale.dtype))
    return _embedded(call, call.input(0), call.optional(1), tables, call.optional(7), None)


def _embedded(
    call: Call,
    ids: Value,
    segments: Value | None,
    tables: list[Value | None],
    mask: Value | None,
    positions: Value | None,
) -> list[Value]:
    build, (words, places, kinds, scale, shift) = call.build, tables
    if words is None or places is None or scale is None or shift is None:
        raise ModelError(f"node {call.name}: {call.op} lacks a table")
    if positions is None:
        positions = build.const(np.arange(ids.shape[1], dtype=np.int32), f"{call.name}.positions")
    lookups = [(words, ids), (places, positions)]
    if kinds is not None and segments is not None:
        lookups.append((kinds, segments))
    total, *rows = (
        movement.gather(replace(call, op="Gather", inputs=[table, index], attrs={})) for table, index in lookups
    )
    for row in rows:
        total = build.elementwise(("add", X, Y), [total, row])
    result = _normalised(call, total, scale, shift)[0]
    if mask is None:
        return [result, build.const(np.zeros(ids.shape[0], np.int32), f"{call.name}.lengths"), total]
    counted = build.elementwise(("eq", X, ("const", 1)), [mask], np.dtype(np.int32))
    return [result, build.reduce(counted, "sum", [1], False), total]


def pad(call: Call) -> Value:
    """Pad, whose pads and value are inputs."""
    return movement.pad(replace(call, opset=11))


def expand_dims(call: Call) -> Value:
    """ExpandDims: one axis more, whose place is a constant."""
    x, place = call.input(0), call.array(1, "the axis")
    assert place is not None
    axis = call.axis(int(place.reshape(-1)[0]), len(x.shape) + 1)
    return call.build.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


def distances(call: Call) -> Value:
    """CDist: Euclidean distances, or their squares, between the rows of two matrices."""
    a, b, build = call.input(0), call.input(1), call.build
    metric = call.attrs.get("metric", b"sqeuclidean").decode()
    if metric not in ("euclidean", "sqeuclidean"):
        raise call.unimplemented(f"metric {metric}")
    rows, columns = build.reshape(a, (a.shape[0], 1, a.shape[1])), build.reshape(b, (1, *b.shape))
    apart: Expr = ("sub", X, Y)
    total = build.reduce(build.elementwise(("mul", apart, apart), [rows, columns]), "sum", [2], False)
    return build.elementwise(("sqrt", X), [total]) if metric == "euclidean" else total


def max_pool_channels_last(call: Call) -> Value:
    """NhwcMaxPool: MaxPool of an image whose channels are its last axis."""
    return channels_last(call, lambda given: matrix.max_pool(replace(given, op="MaxPool"))[0])


def channels_last(call: Call, handler: Callable[[Call], Value]) -> Value:
    """Return what a handler makes of the first operand with the channels behind the batch, with the channels last again."""
    x, build = call.input(0), call.build
    rank = len(x.shape)
    first = build.transpose(x, [0, rank - 1, *range(1, rank - 1)])
    result = handler(replace(call, inputs=[first, *call.inputs[1:]]))
    return build.transpose(result, [0, *range(2, rank), 1])


FUSED: dict[str, Callable[[Call], Value | list[Value]]] = {
    **dict.fromkeys(("Gelu", "BiasGelu", "FastGelu"), gelu),
    "QuickGelu": quick_gelu,
    "FusedConv": fused_conv,
    "FusedGemm": fused_gemm,
    **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), fused_matmul),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), skip_layer_norm),
    "EmbedLayerNormalization": embed_layer_norm,
    "QEmbedLayerNormalization": quantised_embed_layer_norm,
    "NhwcMaxPool": max_pool_channels_last,
}
