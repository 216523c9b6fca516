"""What is right: the values of each node by onnxruntime, else by onnx's reference, and how far the device may be from them.

The bound of a value is computed from the graph. A node's operands may be off by their own bounds; how much that moves its result is seen by
moving them, in float64, to both ends and to random corners, three times as far. To this come what onnxruntime itself is off by in this
node, which is measured against float64, and the roundings of the device, of its operands and its result. Where operands are exact and one
IEEE operation gives the result, the bound is nothing: data movement, integers, and under "fp32" sums, products and quotients, quantised values too.
"""

from __future__ import annotations

import functools
import warnings
import zlib
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.compiler.fuzz.model import BFLOAT16, Node, is_float


def names(text):
    return frozenset(text.split())


UNITS = {
    "float64": 2.0**-24,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}  # half a step; inside, float64 is float32
TINY = {"float64": 2.0**-126, "float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}
REACH = 3.0  # chosen: corners are few, the worst one is seldom among them
CORNERS = 8
MORE_CORNERS = 24  # of operators that choose: either of two may be larger
# One IEEE operation, or none: under "fp32" every bit of the result follows from the operands.
EXACT = names("""
    Add Sub Mul Div Neg Abs Relu Max Min Floor Ceil Round Sign Sqrt Clip Where Equal Less LessOrEqual Greater GreaterOrEqual IsNaN IsInf Cast CastLike
    LeakyRelu PRelu ThresholdedRelu QuantizeLinear DequantizeLinear MaxPool GlobalMaxPool ReduceMax ReduceMin ArgMax ArgMin TopK Hardmax
    Mod BitCast ConstantOfShape Range Pad DynamicQuantizeLinear
""")
# One function or sum, which the device rounds once.
ONCE = names(
    """Exp Log Tanh Erf Sin Cos Sigmoid Sum MatMul Conv ReduceSum ReduceMean ReduceProd AveragePool GlobalAveragePool"""
)
# No number is made, unless with a reduction.
MOVES = names("""
    Identity Dropout Reshape Flatten Squeeze Unsqueeze Transpose Slice Split Concat Expand Tile Gather Compress Trilu EyeLike OneHot GatherElements GatherND
    ReverseSequence DepthToSpace SpaceToDepth Scatter ScatterElements ScatterND MaxUnpool TensorScatter
""")
# Integers to integers, whose scales stay float32 in both policies: every bit.
WHOLE = names("""
    QLinearAdd QLinearMul QLinearConv QLinearMatMul QLinearLeakyRelu QGemm QLinearConcat QLinearWhere QLinearGlobalAveragePool
""")
# Through numbers near one, whose rounding stays.
FROM_ONE = names("""
    AffineGrid Elu Selu Celu Gelu RNN GRU LSTM HannWindow HammingWindow BlackmanWindow LogSoftmax ReduceLogSumExp SoftmaxCrossEntropyLoss
    BiasGelu FastGelu SkipLayerNormalization SkipSimplifiedLayerNormalization EmbedLayerNormalization
""")
# Through differences from a mean, whose rounding is large beside them; a function of the operands says nothing of it.
CENTRED = names("""
    InstanceNormalization LayerNormalization GroupNormalization BatchNormalization MeanVarianceNormalization SkipLayerNormalization EmbedLayerNormalization
""")
CENTRED_UNITS = 1 << 12  # of a mean of numbers of about one over the root of an epsilon of 1e-7
# onnxruntime's were seen 11.4 half steps off float64 in five steps of a GRU, where the device was 0.6 off.
RECURRENT, RECURRENT_UNITS = names("RNN GRU LSTM"), 16
# Places between elements, which onnxruntime has in float32.
BETWEEN = frozenset({"Resize", "Upsample", "GridSample"})
# The reference is wrong in these for some opsets or attributes; what onnxruntime lacks of them is not drawn.
MISTAKEN = names("""
    BatchNormalization ConvTranspose Elu GRU GlobalMaxPool Hardmax InstanceNormalization LRN LSTM LogSoftmax LpNormalization MaxPool Mish QLinearConv QLinearMatMul RNN
    ReduceLogSumExp ReduceMean ReduceProd ReduceSumSquare Sigmoid Softmax Unsqueeze OneHot
""")
# Places and counts: a difference of one says nothing about the next use, so that a value in doubt is not compared.
PLACES = frozenset({"ArgMax", "ArgMin", "TopK", "Hardmax", "MaxPool"})


class Refused(Exception):
    """Neither onnxruntime nor the reference computes a node."""


class Lacking(Exception):
    """onnxruntime is not asked for this, as for what it has no kernel of: the reference may compute it."""


def evaluate(node, operands, opset):
    """Return the arrays of a node's outputs. Raises Refused."""
    if node.op in ("QLinearAdd", "QLinearMul"):
        return _as_standard(node, operands, opset)
    try:
        return by_onnxruntime(node, operands, opset)
    except Exception as error:
        is_lacking = isinstance(error, Lacking) or "NOT_IMPLEMENTED" in str(error)
        if node.domain or node.op in MISTAKEN or not is_lacking:
            raise Refused(str(error)) from None
    try:
        return by_reference(node, operands, opset)
    except Exception as error:
        raise Refused(str(error)) from None


def by_onnxruntime(node, operands, opset):
    """Return the outputs by onnxruntime with its optimisations off, so that it computes what the model says; bfloat16 as float32, rounded once.

    Raises Lacking, and what onnxruntime raises.
    """
    floats = [array.dtype for array in operands if array is not None and is_float(array.dtype)]
    narrow = BFLOAT16 in floats
    wide = [a.astype(np.float32) if a is not None and a.dtype == BFLOAT16 else a for a in operands]
    if (narrow and (len(set(floats)) > 1 or node.op in ("Cast", "CastLike", "EyeLike"))) or node.attrs.get(
        "to"
    ) == onnx.TensorProto.BFLOAT16:
        raise Lacking("casts of bfloat16, and two types of floats")
    results = _session(node, wide, opset)
    return [a.astype(BFLOAT16) if narrow and a.dtype == np.float32 else a for a in results]


def _as_standard(node, operands, opset):
    """Return QLinearAdd and QLinearMul by the operators that the standard defines: onnxruntime's own kernel ends a step apart at ties."""
    a, b = (evaluate(Node("DequantizeLinear", ("x", "s", "z"), ("y",), {}), operands[i : i + 3], 13)[0] for i in (0, 3))
    y = evaluate(Node(node.op.removeprefix("QLinear"), ("a", "b"), ("y",), {}), [a, b], 13)
    return evaluate(Node("QuantizeLinear", ("x", "s", "z"), ("y",), {}), [*y, *operands[6:]], 13)


def _session(node, operands, opset):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = _model(node, operands, opset)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = {name: array for name, array in zip(node.inputs, operands, strict=True) if name}
    wanted = [name for name in node.outputs if name]
    return [np.asarray(array) for array in session.run(wanted, {i.name: feeds[i.name] for i in session.get_inputs()})]


def _model(node, operands, opset):
    inputs = {
        name: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(node.inputs, operands, strict=True)
        if name
    }
    outputs = [onnx.ValueInfoProto(name=name) for name in node.outputs if name]
    proto = helper.make_node(node.op, node.inputs, node.outputs, domain=node.domain, **node.attrs)
    graph = helper.make_graph([proto], "node", list(inputs.values()), outputs)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def by_reference(node, operands, opset):
    """Return the outputs by onnx's reference."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        evaluator = _reference(node, operands, opset)
        feeds = {name: array for name, array in zip(node.inputs, operands, strict=True) if name}
        return [np.asarray(array) for array in evaluator.run(None, feeds)]


def _reference(node, operands, opset):
    return ReferenceEvaluator(onnx.load_from_string(_model(node, operands, opset)))


def bounds(model, precision):
    """Return value -> array of how far the device may be from `model.values`; inf where it may be anything."""
    inside = "float16" if precision == "fp16" else "float32"
    found = {}
    for name, array in (model.feeds | model.constants).items():
        unit, tiny = _inside(array.dtype, inside)
        exact = (
            not is_float(array.dtype)
            or (precision == "fp32" and array.dtype.name != "float64")
            or array.dtype == np.float16
        )
        found[name] = np.zeros(array.shape) if exact else unit * np.maximum(np.abs(array.astype(np.float64)), tiny)
    for node in model.nodes:
        rng = np.random.default_rng(zlib.crc32(" ".join(node.outputs).encode()))
        operands = [model.values[name] if name else None for name in node.inputs]
        errors = [found[name] if name else None for name in node.inputs]
        results = [model.values[name] for name in node.outputs]
        after = _after(node, operands, errors, results, model.opset, inside, rng)
        found.update(zip(node.outputs, after, strict=True))
    return found


def _inside(dtype, inside):
    """Return half a step and the least normal number of what the device holds a type as; those of the type itself if they are larger."""
    if not is_float(dtype):
        return 0.0, 0.0
    return max(UNITS[dtype.name], UNITS[inside]), max(TINY[dtype.name], TINY[inside])


def _after(node, operands, errors, results, opset, inside, rng):
    """Return the bounds of a node's results."""
    if any(error is not None and np.isinf(error).any() for error in errors):
        return [np.full(array.shape, np.inf) for array in results]
    if node.op in WHOLE and not is_float(results[0].dtype):
        errors = [None if e is None or is_float(a.dtype) else e for a, e in zip(operands, errors, strict=True)]
    floats = node.op in BETWEEN or any(a is not None and is_float(a.dtype) for a in (*operands, *results))
    doubtful = any(error is not None and error.any() for error in errors)
    exact = (
        _is_move(node) or not floats or (inside == "float32" and node.op in EXACT and not _is_narrow(operands, results))
    )
    if exact and not doubtful:
        return [np.zeros(array.shape) for array in results]
    moved = [
        None if error is None else _moved_by(array, error, 0.0 if exact else _slack(node), inside)
        for array, error in zip(operands, errors, strict=True)
    ]
    wide = [None if a is None else a.astype(np.float64) if is_float(a.dtype) else a for a in operands]
    # A value that is two operands is rounded in two places.
    apart = replace(node, inputs=tuple(name and f"{name}.{index}" for index, name in enumerate(node.inputs)))
    base, compute, is_wide = _wide_results(apart, wide, results, opset)
    if compute is None:
        return [np.full(array.shape, np.inf) for array in results]
    spread = [np.zeros(array.shape) for array in results]
    with np.errstate(all="ignore"):
        for corner in range(MORE_CORNERS if node.op in PLACES else CORNERS):
            try:
                there = compute(
                    [_at_corner(a, m, corner, index, rng) for index, (a, m) in enumerate(zip(wide, moved, strict=True))]
                )
            except Exception:
                return [np.full(array.shape, np.inf) for array in results]
            for have, now, before in zip(spread, there, base, strict=True):
                if now.shape != before.shape:
                    return [np.full(array.shape, np.inf) for array in results]
                difference = np.abs(now.astype(np.float64) - before.astype(np.float64))
                np.maximum(have, np.where(np.isnan(difference), np.inf, difference), out=have)
    for have, array, before in zip(spread, results, base, strict=True):
        if node.op == "Mod":
            have *= REACH  # a step, as high as the divisor, which is off as well
        if not is_float(array.dtype):
            # onnxruntime takes shares times the whole part of 1 / scale, a step off at most, and rounds.
            if node.op == "QLinearSoftmax":
                have += 2.0
            if node.op in BETWEEN or node.op == "DynamicQuantizeLinear":
                # Cut to an integer, which it may be but for a rounding; the scale follows from the elements that are moved with one.
                np.maximum(have, 1.0, out=have)
            if node.op in PLACES or array.dtype.name not in ("int8", "uint8", "int16", "uint16"):
                have[have > 0] = np.inf
            continue
        unit, tiny = _inside(array.dtype, inside)
        own = np.abs(array.astype(np.float64) - before.astype(np.float64))  # onnxruntime's
        if node.op in CENTRED and is_wide and inside == "float32" and array is results[0]:
            own += REACH * _roundings(apart, wide, moved, opset, compute, rng)
        if not is_wide and not exact:
            roundings = RECURRENT_UNITS if node.op in RECURRENT else _slack(node)
            own += roundings * UNITS[array.dtype.name] * np.abs(array.astype(np.float64)).max(initial=0)
        have += own
        if not _is_move(node):
            least = 1.0 if node.op in FROM_ONE else tiny
            have += _slack(node) * unit * np.maximum(np.abs(array.astype(np.float64)), least)
        if node.op in MOVES and not _is_move(
            node
        ):  # sums in any order, of which the parts may be larger than the whole
            parts = max(np.abs(a.astype(np.float64)).max(initial=0) for a in (operands[0], operands[-1]))
            have += 4 * unit * parts
        if node.op in BETWEEN:
            pixels = np.abs(operands[0].astype(np.float64)).max(initial=0)
            have += 4 * UNITS["float32"] * max(*operands[0].shape, *array.shape) * pixels
    return spread


def _roundings(node, wide, moved, opset, compute, rng):
    """Return how far onnxruntime in float32 is from float64 near these operands, at most."""
    found = 0.0
    for _ in range(CORNERS):
        there = [
            a + rng.uniform(-1, 1, a.shape) * m if a is not None and is_float(a.dtype) else a
            for a, m in zip(wide, moved, strict=True)
        ]
        single = [a.astype(np.float32) if a is not None and a.dtype == np.float64 else a for a in there]
        try:
            have = evaluate(node, single, opset)[0].astype(np.float64)
        except Refused:
            return found
        exact = compute([a.astype(np.float64) if a is not None and is_float(a.dtype) else a for a in single])[0]
        found = np.maximum(found, np.abs(have - exact))
    return found


def _is_narrow(operands, results):
    """Whether a result has fewer bits than the vector engine computes in, and the next node may see them, or it may not."""
    return any(a is not None and a.dtype.name in ("bfloat16", "float64") for a in (*operands, *results))


def _is_move(node):
    """Whether no number is made: scatters may reduce."""
    return node.op in MOVES and "reduction" not in node.attrs


def _slack(node):
    """Return the roundings of the device in one node, in half steps of what it holds values as."""
    if node.op == "LRN":
        return 8.0  # a square, a sum, a factor, another sum, a power and a quotient
    return 1.0 if node.op in EXACT or node.op in ONCE or node.op in MOVES else 4.0


def _moved_by(array, error, slack, inside):
    if not is_float(array.dtype):
        return np.rint(error)
    unit, tiny = _inside(array.dtype, inside)
    return REACH * (error + slack * unit * np.maximum(np.abs(array.astype(np.float64)), tiny))


def _at_corner(array, moved, corner, index, rng):
    if moved is None or not moved.any():
        return array
    if corner < 2:
        signs = np.full(array.shape, 1.0 - 2 * corner)
    elif corner < 4:
        signs = np.full(array.shape, 1.0 - 2 * ((index + corner) % 2))
    else:
        signs = rng.choice([-1.0, 1.0], array.shape)
    if array.dtype == np.bool_:
        return array ^ (moved > 0)
    if array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        return np.clip(
            array.astype(np.int64) + (signs * moved).astype(np.int64), limits.min, min(limits.max, 2**62)
        ).astype(array.dtype)
    return array + signs * moved


def _wide_results(node, wide, results, opset):
    """Return the results in float64, the function that gives them, and whether it is so: the reference, or where it disagrees or lacks the operator onnxruntime in float32; else none."""
    try:
        evaluator = functools.partial(by_reference, node, opset=opset)
        base = evaluator(operands=wide)
        units = CENTRED_UNITS if node.op in CENTRED else 64
        if len(base) == len(results) and all(_agree(*pair, units) for pair in zip(base, results, strict=True)):
            return base, lambda operands: evaluator(operands=operands), True
    except Exception:
        pass

    def narrow(operands):
        return evaluate(node, [None if o is None else o.astype(t) for o, t in zip(operands, types, strict=True)], opset)

    types = [None if a is None else np.float32 if a.dtype == np.float64 else a.dtype for a in wide]
    try:
        base = narrow(wide)
        if all(map(_agree, base, results)):
            return base, narrow, False
    except Refused:
        pass
    return results, None, False


def _agree(wide, result, units=64):
    """Whether float64 and the type itself give the same but for rounding, of `units` half steps of the largest value."""
    if wide.shape != result.shape:
        return False
    if not is_float(result.dtype):
        return np.array_equal(wide, result)
    largest = float(np.abs(result.astype(np.float64)).max(initial=0.0))
    limit = units * UNITS[result.dtype.name] * max(largest, TINY[result.dtype.name])
    return bool((np.abs(wide.astype(np.float64) - result.astype(np.float64)) <= limit).all())
