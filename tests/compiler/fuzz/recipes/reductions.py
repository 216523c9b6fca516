"""Recipes of reductions and normalisations."""

from __future__ import annotations

import numpy as np

from tests.compiler.fuzz.draw import FLOATS, MAX_INTEGER, TYPES, Reject, within
from tests.compiler.fuzz.model import is_float
from tests.compiler.fuzz.recipes.table import ENGINE, F32, I32, I64, recipe
from tests.compiler.fuzz.recipes.windows import image


@recipe(
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
)
def reduction(g, op):
    of_floats = op in (
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
    )  # of integers each implementation rounds in another place
    x = g.operand(
        g.dtypes(op, among=FLOATS if of_floats else TYPES),
        lambda a: a.ndim >= 1 and not (op in ("ReduceMean", "ReduceLogSum") and 0 in a.shape),
        g.shape(g.whole(1, 5)),
        low=0.1 if op == "ReduceLogSum" else None,
        high=9 if op == "ReduceLogSum" else None,
    )
    if not is_float(g.known(x).dtype) and not within(
        g.known(x), -9, 9
    ):  # beyond 32 bits onnxruntime saturates some, and wraps some
        raise Reject
    attrs = {"keepdims": g.whole(0, 1)}
    axes = g.axes(g.known(x).ndim) if g.chance(0.85) else None
    if op == "ReduceProd" and not is_float(g.known(x).dtype):
        products = np.abs(g.known(x).astype(np.float64)).prod(axis=None if axes is None else tuple(axes))
        if products.max(initial=0) > MAX_INTEGER:
            raise Reject
    extra = [] if axes is None else g.integers(op, "axes", axes, attrs)
    if axes is None and "noop_with_empty_axes" in g.schema(op).attributes and g.chance(0.3):
        attrs["noop_with_empty_axes"] = 1
    g.add(op, [x, *extra], attrs)


@recipe("ArgMax", "ArgMin")
def arg_max(g, op):
    x = g.operand(g.dtypes(op), lambda a: a.ndim >= 1, g.shape(g.whole(1, 4)))
    attrs = {"keepdims": g.whole(0, 1), "axis": g.axis(g.known(x).ndim)}
    if g.opset >= 12 and g.chance(0.3):
        attrs["select_last_index"] = 1
    if g.opset < 11:
        attrs["axis"] %= g.known(x).ndim
    g.add(op, [x], attrs)


@recipe("Softmax", "LogSoftmax", "Hardmax", "LpNormalization")
def along_axis(g, op):
    x = g.operand(g.dtypes(op, among=ENGINE), lambda a: a.ndim >= 1 and 0 not in a.shape, g.shape(g.whole(1, 4)))
    attrs = {"axis": g.axis(g.known(x).ndim)} if g.chance(0.8) else {}
    if op == "LpNormalization":
        attrs["p"] = g.whole(1, 2)
    g.add(op, [x], attrs)


@recipe("LayerNormalization")
def layer_norm(g, op):
    x = g.operand(g.dtypes(op, among=ENGINE), lambda a: a.ndim >= 1 and 0 not in a.shape, g.shape(g.whole(1, 4)))
    axis = g.axis(g.known(x).ndim)
    shape = g.known(x).shape[axis:]
    extra = [g.like(x, shape)] + ([g.like(x, shape)] if g.chance(0.5) else [])
    g.add(op, [x, *extra], {"axis": axis, "epsilon": g.choice((1e-5, 1e-2))})


@recipe("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def skip_layer_norm(g, op):
    x = g.operand([F32], lambda a: a.ndim == 3 and 0 not in a.shape, g.shape(3))
    ends = [g.like(x, g.known(x).shape[-1:]) for _ in range(g.whole(1, 2 if "Simplified" in op else 3))]
    g.add(op, [x, g.like(x, g.known(x).shape), *ends], {"epsilon": g.choice((1e-5, 1e-2))}, domain="com.microsoft")


@recipe("EmbedLayerNormalization")
def embed_layer_norm(g, op):
    batch, count, width = g.whole(1, 2), g.whole(1, 5), g.choice((4, 8, 16))
    words, places, kinds = (g.new(g.array(F32, (rows, width), -1, 1), True) for rows in (9, 5, 2))
    ends = [g.new(g.array(F32, (width,)), True) for _ in range(2)]
    ids, segments = (g.new(g.array(I32, (batch, count), 0, most)) for most in (8, 1))
    g.add(op, [ids, segments, words, places, kinds, *ends], {"epsilon": 1e-2}, 2, domain="com.microsoft")


@recipe("InstanceNormalization")
def instance_norm(g, op):
    x = image(g, g.dtypes(op, among=ENGINE))
    if g.known(x)[0, 0].size == 1:  # of one element onnxruntime's result is a difference of large numbers
        raise Reject
    shape = (g.known(x).shape[1],)
    g.add(op, [x, g.like(x, shape), g.like(x, shape)], {"epsilon": g.choice((1e-5, 1e-2))})


@recipe("CumSum")
def cumulative(g, op):
    x = g.operand(g.dtypes(op), lambda a: a.ndim >= 1, g.shape(g.whole(1, 4)))
    attrs = {name: 1 for name in ("exclusive", "reverse") if g.chance(0.4)}
    g.add(op, [x, g.constant(g.axis(g.known(x).ndim), g.choice((I32, I64)))], attrs)


@recipe("MeanVarianceNormalization")
def mean_variance(g, op):
    x = image(g, g.dtypes(op, among=(F32,)), (4,))
    if g.known(x).size == g.known(x).shape[1]:  # of one element a difference of large numbers
        raise Reject
    g.add(op, [x], {})


@recipe("GroupNormalization")
def group_norm(g, op):
    x = image(g, g.dtypes(op, among=(F32,)))
    channels = g.known(x).shape[1]
    groups = g.choice([d for d in range(1, channels + 1) if channels % d == 0])
    if g.known(x)[0].size == groups:
        raise Reject
    shape = (groups if g.opset < 21 else channels,)
    g.add(op, [x, g.like(x, shape), g.like(x, shape)], {"num_groups": groups, "epsilon": g.choice((1e-5, 1e-2))})


@recipe("RMSNormalization")
def rms_norm(g, op):
    x = g.operand(g.dtypes(op, among=(F32,)), lambda a: a.ndim >= 1 and 0 not in a.shape, g.shape(g.whole(1, 4)))
    axis = g.axis(g.known(x).ndim)
    g.add(op, [x, g.like(x, g.known(x).shape[axis:])], {"axis": axis, "epsilon": g.choice((1e-5, 1e-2))})


@recipe("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(g, op):
    x = g.operand(g.dtypes(op, among=(F32,)), lambda a: a.ndim >= 2 and 0 not in a.shape, g.shape(g.whole(2, 4), 5))
    batch, classes, *rest = g.known(x).shape
    labels = g.new(g.array(g.choice((I32, I64)), (batch, *rest), 0, classes - 1))
    weight = [g.new(g.array(F32, (classes,), 0.2, 2), True)] if g.chance(0.4) else []
    g.add(op, [x, labels, *weight], {"reduction": g.choice(("mean", "sum", "none"))})
