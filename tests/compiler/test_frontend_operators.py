"""Each operator, through the front end and the NumPy reference, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

UNARY = [
    "Neg",
    "Abs",
    "Sqrt",
    "Reciprocal",
    "Exp",
    "Log",
    "Tanh",
    "Erf",
    "Sin",
    "Cos",
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    "Sigmoid",
    "Relu",
    "HardSwish",
]
UNARY += [
    "Elu",
    "Selu",
    "Celu",
    "Softplus",
    "Softsign",
    "ThresholdedRelu",
    "Mish",
    "HardSigmoid",
    "LeakyRelu",
    "Identity",
]


def f32(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("op", UNARY)
def test_unary(op, check, rng):
    x = np.abs(f32(rng, 2, 3, 4)) + 0.1 if op in ("Sqrt", "Log", "Reciprocal") else f32(rng, 2, 3, 4)
    # Halves would round to the other side in float16.
    x = np.float32(np.round(x * 64) / 64 + 1 / 128) if op in ("Floor", "Ceil", "Round", "Sign") else x
    check([(op, ["x"], ["y"], {})], {"x": x}, opset=18)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate, check, rng):
    check([("Gelu", ["x"], ["y"], {"approximate": approximate})], {"x": f32(rng, 2, 5)}, opset=20)


@pytest.mark.parametrize("opset", [7, 13, 17])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_binary_broadcasts(op, opset, check, rng):
    feeds = {"a": f32(rng, 2, 3, 4), "b": np.abs(f32(rng, 3, 1)) + 0.5}
    check([(op, ["a", "b"], ["y"], {})], feeds, opset=opset)


def test_integer_division_goes_towards_zero(check):
    feeds = {"a": np.array([7, -7, 7, -7], np.int32), "b": np.array([2, 2, -2, -2], np.int32)}
    check([("Div", ["a", "b"], ["y"], {})], feeds)


def test_integer_modulo_has_the_sign_of_the_divisor(check):
    feeds = {"a": np.array([7, -7, 7, -7], np.int64), "b": np.array([3, 3, -3, -3], np.int64)}
    check([("Mod", ["a", "b"], ["y"], {})], feeds)


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min"])
def test_variadic(op, check, rng):
    check([(op, ["a", "b", "c"], ["y"], {})], {name: f32(rng, 3, 4) for name in "abc"}, opset=13)


@pytest.mark.parametrize("op", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
def test_comparison_gives_bool(op, check):
    feeds = {"a": np.array([1, 2, 3], np.float32), "b": np.array([3, 2, 1], np.float32)}
    check([(op, ["a", "b"], ["y"], {})], feeds)


def test_logic_and_where(check, rng):
    a = f32(rng, 6)
    nodes = [
        ("Less", ["a", "zero"], ["neg"], {}),
        ("Greater", ["a", "one"], ["big"], {}),
        ("Or", ["neg", "big"], ["either"], {}),
        ("Not", ["either"], ["inside"], {}),
        ("Xor", ["inside", "neg"], ["mixed"], {}),
        ("Where", ["mixed", "a", "zero"], ["y"], {}),
    ]
    check(nodes, {"a": a}, constants={"zero": np.float32(0), "one": np.float32(1)})


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -0.5, -1.0, 1.7])
def test_power_of_a_constant(exponent, check, rng):
    x = np.abs(f32(rng, 3, 4)) + 0.2
    check([("Pow", ["x", "e"], ["y"], {})], {"x": x}, constants={"e": np.float32(exponent)}, half_tolerance=1e-2)


@pytest.mark.parametrize("target", [np.int32, np.int64, np.uint8, np.bool_, np.float16])
def test_cast_from_float(target, check):
    x = np.array([0, 1.5, 2.25, 100.75], np.float32)
    check([("Cast", ["x"], ["y"], {"to": onnx.helper.np_dtype_to_tensor_dtype(np.dtype(target))})], {"x": x})


@pytest.mark.parametrize("source", [np.int32, np.int64, np.uint8, np.int8, np.bool_])
def test_cast_to_float(source, check):
    x = np.array([0, 1, 0, 100]).astype(source)
    check([("Cast", ["x"], ["y"], {"to": onnx.TensorProto.FLOAT})], {"x": x})


def test_clip_with_attributes_and_with_inputs(check, rng):
    x = f32(rng, 4, 5)
    check([("Clip", ["x"], ["y"], {"min": -0.5, "max": 0.5})], {"x": x}, opset=9)
    check([("Clip", ["x", "", "high"], ["y"], {})], {"x": x}, constants={"high": np.float32(0.25)}, opset=13)
    check([("Clip", ["x", "low"], ["y"], {})], {"x": x}, constants={"low": np.float32(0)}, opset=13)


def test_prelu(check, rng):
    check([("PRelu", ["x", "s"], ["y"], {})], {"x": f32(rng, 2, 3, 4)}, constants={"s": f32(rng, 3, 1)})


@pytest.mark.parametrize("opset", [7, 9, 14])
def test_batch_norm_alone(opset, check, rng):
    constants = {"scale": f32(rng, 3), "bias": f32(rng, 3), "mean": f32(rng, 3), "var": np.abs(f32(rng, 3)) + 0.5}
    nodes = [("BatchNormalization", ["x", *constants], ["y"], {"epsilon": 1e-3})]
    check(nodes, {"x": f32(rng, 2, 3, 4, 5)}, constants=constants, opset=opset)


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reduction_axes_by_opset(op, keepdims, check, rng):
    x = f32(rng, 2, 3, 4)
    attrs = {"keepdims": keepdims}
    before, after = (11, 13) if op == "ReduceSum" else (13, 18)
    check([(op, ["x"], ["y"], attrs | {"axes": [-1, 0]})], {"x": x}, opset=before)
    check([(op, ["x", "axes"], ["y"], attrs)], {"x": x}, constants={"axes": np.array([1])}, opset=after)
    check([(op, ["x"], ["y"], attrs)], {"x": x}, opset=after)


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"])
def test_composed_reduction(op, check, rng):
    x = np.abs(f32(rng, 2, 3, 4)) + 0.1
    check([(op, ["x"], ["y"], {"axes": [1], "keepdims": 0})], {"x": x}, opset=13)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_before_opset_13_runs_over_all_trailing_axes(op, check, rng):
    x = f32(rng, 2, 3, 4)
    graph = check([(op, ["x"], ["y"], {"axis": 1})], {"x": x}, opset=11)
    assert [node.op for node in graph.nodes] == ["Reshape", "Softmax", "Reshape"]
    check([(op, ["x"], ["y"], {"axis": 1})], {"x": x}, opset=13)
    check([(op, ["x"], ["y"], {})], {"x": x}, opset=13)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_arg_max_keeps_int64_outside(op, check):
    x = np.array([[3, 9, 1], [5, 2, 4]], np.float32)
    check([(op, ["x"], ["y"], {"axis": 1, "keepdims": 0})], {"x": x})


def test_layer_norm(check, rng):
    constants = {"scale": f32(rng, 8), "bias": f32(rng, 8)}
    check([("LayerNormalization", ["x", "scale", "bias"], ["y"], {})], {"x": f32(rng, 2, 5, 8)}, constants=constants)


def test_instance_norm(check, rng):
    constants = {"scale": f32(rng, 3), "bias": f32(rng, 3)}
    nodes = [("InstanceNormalization", ["x", "scale", "bias"], ["y"], {})]
    check(nodes, {"x": f32(rng, 2, 3, 5, 4)}, constants=constants)


def test_mean_variance_norm_of_two_values_beside_each_other(check, rng):
    check([("MeanVarianceNormalization", ["x"], ["y"], {})], {"x": f32(rng, 2, 3, 4, 4)}, opset=13)
    x = np.float32([1, 1 + 2**-12]).reshape(2, 1, 1, 1)  # whose squares differ by less than float32 tells apart
    expected = {"y": np.float32([-1, 1]).reshape(x.shape)}
    check([("MeanVarianceNormalization", ["x"], ["y"], {"axes": [0]})], {"x": x}, opset=13, expected=expected)


def test_operator_with_a_schema_body_only(check, rng):
    check([("Shrink", ["x"], ["y"], {"lambd": 0.5, "bias": 0.25})], {"x": f32(rng, 3, 4)}, opset=18, expected=None)


@pytest.mark.parametrize("opset", [7, 13])
def test_squeeze_unsqueeze_flatten(opset, check, rng):
    x = f32(rng, 2, 1, 3, 4)
    if opset < 13:
        nodes = [("Squeeze", ["x"], ["s"], {"axes": [1]}), ("Unsqueeze", ["s"], ["u"], {"axes": [0, 3]})]
    else:
        nodes = [("Squeeze", ["x", "one"], ["s"], {}), ("Unsqueeze", ["s", "ends"], ["u"], {})]
    nodes += [("Flatten", ["u"], ["f"], {"axis": 2}), ("Relu", ["f"], ["y"], {})]
    constants = {"one": np.array([1]), "ends": np.array([0, 3])} if opset >= 13 else {}
    check(nodes, {"x": x}, constants=constants, opset=opset)


def test_reshape_copies_zeros_and_infers_minus_one(check, rng):
    check([("Reshape", ["x", "s"], ["y"], {})], {"x": f32(rng, 2, 3, 4)}, constants={"s": np.array([0, -1, 2])})


def test_slices(check, rng):
    x = f32(rng, 5, 6, 7)
    check([("Slice", ["x"], ["y"], {"starts": [1, -3], "ends": [9, -1], "axes": [0, 2]})], {"x": x}, opset=9)
    constants = {"s": np.array([0, 1]), "e": np.array([2**31 - 1, -1]), "a": np.array([1, -1]), "t": np.array([2, 3])}
    check([("Slice", ["x", "s", "e", "a", "t"], ["y"], {})], {"x": x}, constants=constants, opset=13)


def test_splits(check, rng):
    x = f32(rng, 2, 7)
    check([("Split", ["x"], ["a", "b"], {"split": [3, 4], "axis": 1})], {"x": x}, ("a", "b"), opset=11)
    sizes = {"s": np.array([2, 5])}
    check([("Split", ["x", "s"], ["a", "b"], {"axis": 1})], {"x": x}, ("a", "b"), sizes, opset=13)
    check([("Split", ["x"], ["a", "b"], {"axis": 1, "num_outputs": 2})], {"x": x}, ("a", "b"), opset=18)


def test_concat_transpose_expand_tile(check, rng):
    nodes = [
        ("Concat", ["a", "b"], ["c"], {"axis": -1}),
        ("Transpose", ["c"], ["t"], {}),
        ("Expand", ["t", "shape"], ["e"], {}),
        ("Tile", ["e", "repeats"], ["y"], {}),
    ]
    constants = {"shape": np.array([2, 1, 3]), "repeats": np.array([1, 2, 3])}
    check(nodes, {"a": f32(rng, 3, 2), "b": f32(rng, 3, 4)}, constants=constants)


def test_pads(check, rng):
    x = f32(rng, 2, 3)
    check([("Pad", ["x"], ["y"], {"pads": [0, 1, 2, 0], "value": 1.5})], {"x": x}, opset=7)
    constants = {"p": np.array([1, -1, 0, 2]), "v": np.float32(-2)}
    check([("Pad", ["x", "p", "v"], ["y"], {})], {"x": x}, constants=constants, opset=13)
    constants = {"p": np.array([2, 1]), "v": np.float32(0), "a": np.array([1])}
    check([("Pad", ["x", "p", "v", "a"], ["y"], {})], {"x": x}, constants=constants, opset=18)


def test_gather_with_constant_and_computed_indices(check, rng):
    x = f32(rng, 5, 4)
    check([("Gather", ["x", "i"], ["y"], {"axis": 1})], {"x": x}, constants={"i": np.array([[0, -1], [2, 1]])})
    check([("Gather", ["x", "i"], ["y"], {})], {"x": x}, constants={"i": np.array(-2)})
    check([("Gather", ["t", "i"], ["y"], {})], {"i": np.array([4, -5, 0])}, constants={"t": x})


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_and_back(mode, check, rng):
    nodes = [
        ("DepthToSpace", ["x"], ["d"], {"blocksize": 2, "mode": mode}),
        ("SpaceToDepth", ["d"], ["y"], {"blocksize": 2}),
    ]
    check(nodes, {"x": f32(rng, 1, 8, 3, 2)}, opset=13)


def test_output_that_is_an_input_or_a_constant_is_copied(check, rng):
    nodes = [("Identity", ["x"], ["y"], {}), ("Identity", ["c"], ["z"], {}), ("Dropout", ["x"], ["w"], {})]
    check(nodes, {"x": f32(rng, 2, 3)}, ("y", "z", "w"), {"c": f32(rng, 4)}, opset=13)


def test_newest_operator_set(check, make_model, rng):
    from onnx.reference import ReferenceEvaluator

    newest = onnx.defs.onnx_opset_version()
    nodes = [("Relu", ["x"], ["r"], {}), ("ReduceMean", ["r", "a"], ["m"], {}), ("Sub", ["r", "m"], ["y"], {})]
    feeds, constants = {"x": f32(rng, 3, 4)}, {"a": np.array([1])}
    model = make_model(nodes, feeds, ["y"], constants, newest)
    expected = dict(zip(["y"], ReferenceEvaluator(model).run(None, feeds), strict=True))
    check(nodes, feeds, constants=constants, opset=newest, expected=expected)


@pytest.mark.parametrize("shape", [(3, 1), (1, 1), (1, 3), (3,), (1,), ()])
def test_gemm_broadcasts_a_constant_addend_by_its_shape(shape, check, rng):
    addend = np.arange(1, 1 + np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    constants = {"w": f32(rng, 4, 3), "c": addend}
    check([("Gemm", ["x", "w", "c"], ["y"], {"beta": 2.0})], {"x": f32(rng, 3, 4)}, constants=constants)


@pytest.mark.parametrize("op", ["L1", "L2", "SumSquare", "LogSum", "LogSumExp", "Mean", "Prod", "Max"])
def test_reduction_of_a_scalar(op, check):
    x = np.array(3 if "Log" in op else -3, np.float32)
    check([(f"Reduce{op}", ["x"], ["y"], {})], {"x": x}, opset=18)


@pytest.mark.parametrize(
    "row", [[np.inf, 1], [-np.inf, -np.inf], [-np.inf, 1], [-np.inf, np.inf], [1000, 1], [np.nan, 1]]
)
def test_log_sum_exp_of_infinities(row, check):
    check([("ReduceLogSumExp", ["x"], ["y"], {})], {"x": np.array(row, np.float32)}, opset=18)


@pytest.mark.parametrize(
    ("op", "x"), [("Softplus", -20.0), ("Softplus", -80.0), ("Mish", -15.0), ("HardSwish", 3.4e38)]
)
def test_tails_of_activations(op, x, make_model, oracle, run_on_device):
    feeds = {"x": np.array([x], np.float32)}
    model = make_model([(op, ["x"], ["y"], {})], feeds, ["y"], opset=18)
    np.testing.assert_allclose(run_on_device(model, feeds)["y"], oracle(model, feeds)["y"], rtol=1e-5)


def test_batch_norm_of_constants_at_an_old_operator_set(check):
    constants = {"c": np.arange(4, dtype=np.float32).reshape(1, 2, 2), "s": np.float32([1, 2]), "v": np.float32([3, 4])}
    nodes = [("BatchNormalization", ["c", "s", "s", "s", "v"], ["t"], {}), ("Add", ["x", "t"], ["y"], {})]
    check(nodes, {"x": np.ones((1, 2, 2), np.float32)}, constants=constants, opset=7)


def test_space_to_depth_with_channels_outside(check):
    if onnx.defs.get_schema("SpaceToDepth").since_version < 28:
        pytest.skip("this onnx has no mode of SpaceToDepth")
    x = np.arange(16, dtype=np.float32).reshape(1, 2, 2, 4)
    rows = [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]  # both pixels of each channel
    expected = {"y": np.float32(rows).reshape(1, 8, 1, 2)}
    check([("SpaceToDepth", ["x"], ["y"], {"blocksize": 2, "mode": "CRD"})], {"x": x}, opset=28, expected=expected)


def test_clip_to_a_bound_of_rank_one_keeps_a_scalar(check):
    check([("Clip", ["x", "low"], ["y"], {})], {"x": np.array(5, np.float32)}, constants={"low": np.float32([7])})


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub"])
def test_two_scalars_on_the_device(op, make_model, run_on_device):
    feeds = {"x": np.array(2, np.float32), "z": np.array(3, np.float32)}
    got = run_on_device(make_model([(op, ["x", "z"], ["y"], {})], feeds, ["y"]), feeds)["y"]
    assert (got.shape, got.tolist()) == ((), {"Add": 5, "Mul": 6, "Sub": -1}[op])
