"""Products of 8-bit integers, through the front end, the reference and the device: every bit as onnxruntime's."""

import numpy as np
import pytest
from npu_abi import C
from onnx import helper

import libnpu
from libnpu.compiler import CompileOptions
from libnpu.compiler.frontend import load
from libnpu.compiler.frontend.ops_quantised import EXACT, _parts
from libnpu.compiler.pipeline import compile_graph
from libnpu.compiler.reference import run_reference

U8, I8, F32 = np.dtype(np.uint8), np.dtype(np.int8), np.dtype(np.float32)


@pytest.fixture(scope="module")
def device():
    with libnpu.open("npu-37xx") as opened:
        yield opened


@pytest.fixture
def random():
    return np.random.default_rng(8)


@pytest.fixture
def exact(make_model, oracle, device):
    """Return exact(op, order, feeds, constants, **attrs) -> operators, after both policies gave every bit."""

    def compare(op, order, feeds, constants, outputs=("y",), precisions=("fp32", "fp16"), **attrs):
        model = make_model([(op, list(order), list(outputs), attrs)], feeds, outputs, constants)
        expected = oracle(model, feeds)
        for output in model.graph.output:  # onnx knows none of foreign operators
            array = expected[output.name]
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            output.CopyFrom(helper.make_tensor_value_info(output.name, kind, array.shape))
        for precision in precisions:
            graph = load(model, precision=precision)
            blob = device.load(compile_graph(graph, CompileOptions()).blob)
            for found in (run_reference(graph, feeds), blob.run(feeds)):
                for name, want in expected.items():
                    assert found[name].dtype == want.dtype
                    np.testing.assert_array_equal(found[name], want)
            blob.unload()
        return [each.op for each in graph.nodes]

    return compare


def whole(random, dtype, *shape):
    info = np.iinfo(dtype)
    return random.integers(info.min, info.max + 1, shape).astype(dtype)


def scalar(value):
    return np.array(value, F32)


@pytest.mark.parametrize("a", [U8, I8])
@pytest.mark.parametrize("b", [U8, I8])
def test_product_with_constant_zero_points_is_the_engines_alone(exact, random, a, b):
    constants = {"b": whole(random, b, 40, 20), "za": whole(random, a), "zb": whole(random, b)}
    assert exact("MatMulInteger", ("a", "b", "za", "zb"), {"a": whole(random, a, 9, 40)}, constants) == [
        "MatMulInteger"
    ]


def test_sums_beyond_24_bits_are_parts(exact, random):
    """600 products of up to 255 · 255 need 26 bits; no engine hands on more than 24."""
    feeds = {"a": whole(random, U8, 2, 9, 600) | 192, "b": whole(random, U8, 2, 600, 12) | 192}
    assert exact("MatMulInteger", ("a", "b"), feeds, {}).count("MatMulInteger") == 3


def test_computed_zero_points_are_expanded(exact, random):
    feeds = {"a": whole(random, U8, 9, 30), "b": whole(random, U8, 30, 12)}
    feeds |= {"za": whole(random, U8), "zb": whole(random, U8)}
    exact("MatMulInteger", ("a", "b", "za", "zb"), feeds, {})


def test_zero_points_by_row_and_column(exact, random):
    constants = {"b": whole(random, I8, 30, 12), "zb": whole(random, I8, 12)}
    feeds = {"a": whole(random, U8, 9, 30), "za": whole(random, U8)}
    exact("MatMulInteger", ("a", "b", "za", "zb"), feeds, constants)


@pytest.mark.parametrize("computed", [False, True], ids=["constant", "computed"])
@pytest.mark.parametrize(("channels", "group"), [(30, 1), (32, 32)])
def test_convolution_pads_with_the_zero_point(exact, random, computed, channels, group):
    constants = {"w": whole(random, U8, 32, channels // group, 3, 3), "zw": whole(random, U8)}
    feeds = {"x": whole(random, U8, 1, channels, 9, 9)}
    (feeds if computed else constants)["zx"] = whole(random, U8)
    order = ("x", "w", "zx", "zw")
    operators = exact("ConvInteger", order, feeds, constants, pads=[1, 1, 1, 1], strides=[2, 2], group=group)
    assert operators.count("ConvInteger") == 1


def test_convolution_of_many_channels_is_cut_along_them(exact, random):
    constants = {"w": whole(random, I8, 8, 300, 3, 3)}
    assert exact("ConvInteger", ("x", "w"), {"x": whole(random, U8, 1, 300, 5, 5)}, constants).count("ConvInteger") > 1


@pytest.mark.parametrize("columns", [False, True], ids=["tensor", "column"])
def test_qlinear_matmul(exact, random, columns):
    constants = {"b": whole(random, I8, 60, 12), "sa": scalar(0.021), "sy": scalar(0.9)}
    constants["sb"] = random.uniform(0.001, 0.01, 12).astype(F32) if columns else scalar(0.013)
    constants["zb"] = np.zeros(12, I8) if columns else whole(random, I8)
    constants |= {"za": whole(random, U8), "zy": whole(random, U8)}
    order = ("a", "sa", "za", "b", "sb", "zb", "sy", "zy")
    assert exact("QLinearMatMul", order, {"a": whole(random, U8, 9, 60)}, constants) == ["MatMulInteger"]


@pytest.mark.parametrize("group", [1, 4])
def test_qlinear_conv_with_scales_by_channel_and_bias(exact, random, group):
    constants = {"w": whole(random, I8, 24, 16 // group, 3, 3), "zw": np.zeros(24, I8)}
    constants |= {"sx": scalar(0.021), "sw": random.uniform(0.001, 0.01, 24).astype(F32), "sy": scalar(0.3)}
    constants |= {"zx": whole(random, U8), "zy": whole(random, U8)}
    constants["b"] = random.integers(-9000, 9000, 24).astype(np.int32)
    order, feeds = ("x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"), {"x": whole(random, U8, 1, 16, 9, 9)}
    operators = exact("QLinearConv", order, feeds, constants, pads=[1, 1, 1, 1], group=group)
    assert operators == ["ConvInteger"]


def test_dynamic_quantisation_of_float32(exact, random):
    feeds = {"x": random.standard_normal((20, 30)).astype(F32)}
    exact("DynamicQuantizeLinear", ("x",), feeds, {}, ("y", "scale", "zero"), ("fp32",))


MICROSOFT = {"domain": "com.microsoft"}


def test_product_as_floats_with_bias(exact, random):
    constants = {"b": whole(random, I8, 64, 20), "sa": scalar(0.02), "sb": random.uniform(0.001, 0.01, 20).astype(F32)}
    constants |= {"za": whole(random, U8), "zb": np.zeros(20, I8), "bias": random.standard_normal(20).astype(F32)}
    order, feeds = ("a", "b", "sa", "sb", "za", "zb", "bias"), {"a": whole(random, U8, 9, 64)}
    assert exact("MatMulIntegerToFloat", order, feeds, constants, **MICROSOFT) == ["MatMulInteger", "Elementwise"]


def test_product_of_what_is_quantised_as_it_comes(exact, random):
    constants = {"b": whole(random, I8, 64, 20), "sb": scalar(0.01), "zb": whole(random, I8)}
    feeds = {"a": random.standard_normal((9, 64)).astype(F32)}
    exact("DynamicQuantizeMatMul", ("a", "b", "sb", "zb"), feeds, constants, precisions=("fp32",), **MICROSOFT)


def test_qgemm(exact, random):
    constants = {"b": whole(random, I8, 20, 64), "sb": random.uniform(0.001, 0.01, 20).astype(F32)}
    constants |= {"zb": np.zeros(20, I8), "sa": scalar(0.02), "za": whole(random, U8), "sy": scalar(0.1)}
    constants |= {"zy": whole(random, U8), "c": random.integers(-999, 999, 20).astype(np.int32)}
    order = ("a", "sa", "za", "b", "sb", "zb", "c", "sy", "zy")
    exact("QGemm", order, {"a": whole(random, U8, 9, 64)}, constants, transB=1, **MICROSOFT)


@pytest.mark.parametrize("op", ["QLinearSigmoid", "QLinearLeakyRelu"])
def test_functions_between_two_types(exact, random, op):
    constants = {"sx": scalar(0.021), "zx": whole(random, U8), "sy": scalar(0.004), "zy": whole(random, U8)}
    feeds = {"x": whole(random, U8, 1, 40, 20)}
    assert exact(op, ("x", "sx", "zx", "sy", "zy"), feeds, constants, **MICROSOFT) == ["Elementwise"]


def test_products_element_by_element(exact, random):
    constants = {"sa": scalar(0.021), "za": whole(random, U8), "sb": scalar(0.013), "zb": whole(random, U8)}
    constants |= {"sy": scalar(0.04), "zy": whole(random, U8)}
    feeds = {"a": whole(random, U8, 1, 40, 20), "b": whole(random, U8, 1, 40, 20)}
    exact("QLinearMul", ("a", "sa", "za", "b", "sb", "zb", "sy", "zy"), feeds, constants, **MICROSOFT)


def test_sums_element_by_element_are_what_the_standard_operators_give(make_model, oracle, device, random):
    """To the bit; onnxruntime's kernel for the three of them adds by fused operations, and ends a step apart at ties."""
    constants = {"sa": scalar(0.021), "za": whole(random, U8), "sb": scalar(0.013), "zb": whole(random, U8)}
    constants |= {"sy": scalar(0.04), "zy": whole(random, U8)}
    feeds = {"a": whole(random, U8, 1, 40, 20), "b": whole(random, U8, 1, 40, 20)}
    steps = [("DequantizeLinear", ["a", "sa", "za"], ["af"], {}), ("DequantizeLinear", ["b", "sb", "zb"], ["bf"], {})]
    steps += [("Add", ["af", "bf"], ["yf"], {}), ("QuantizeLinear", ["yf", "sy", "zy"], ["y"], {})]
    split = make_model([*steps, ("Identity", ["af"], ["seen"], {})], feeds, ["y", "yf"], constants)  # nothing to fuse
    want = oracle(split, feeds)["y"]
    order = ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"]
    model = make_model([("QLinearAdd", order, ["y"], MICROSOFT)], feeds, ["y"], constants)
    fused = oracle(model, feeds)["y"].astype(int) - want
    assert 0 < np.count_nonzero(fused) <= want.size // 50
    assert np.abs(fused).max() == 1
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(U8), want.shape))
    for precision in ("fp32", "fp16"):
        with device.load(compile_graph(load(model, precision=precision), CompileOptions()).blob) as blob:
            np.testing.assert_array_equal(blob.run(feeds)["y"], want)


def quantised_pairs(op, random, shape, weights, scales, rectified="", **attrs):
    """Return nodes, feeds and constants of x -> Q -> DQ -> op with DQ of weights and bias -> Q -> y."""
    columns = weights.shape[0 if op == "Conv" or attrs.get("transB") else -1]
    by = {"axis": 0 if op == "Conv" or attrs.get("transB") else 1} if scales.size > 1 else {}
    constants = {"sx": scalar(0.021), "zx": np.array(120, U8), "w": weights, "sw": scales, "sy": scalar(0.07)}
    constants |= {"zw": np.zeros(scales.shape, weights.dtype), "zy": np.array(0 if rectified == "relu" else 111, U8)}
    constants |= {"b": random.integers(-3000, 3000, columns).astype(np.int32)}
    constants |= {"sb": np.asarray(scalar(0.021) * scales, F32)}
    inputs = ["xf", "wf"] if op == "MatMul" else ["xf", "wf", "bf"]
    nodes = [("QuantizeLinear", ["x", "sx", "zx"], ["xq"], {}), ("DequantizeLinear", ["xq", "sx", "zx"], ["xf"], {})]
    nodes += [("DequantizeLinear", ["w", "sw", "zw"], ["wf"], by)]
    nodes += [("DequantizeLinear", ["b", "sb"], ["bf"], {"axis": 0})]
    nodes += [(op, inputs, ["p"], attrs), *([("Clip", ["p", "low", "high"], ["r"], {})] if rectified == "clip" else [])]
    nodes += [("Relu", ["p"], ["r"], {})] if rectified == "relu" else []
    constants |= {"low": scalar(-1.0), "high": scalar(1.5)} if rectified == "clip" else {}
    nodes += [("QuantizeLinear", ["r" if rectified else "p", "sy", "zy"], ["yq"], {})]
    nodes += [("DequantizeLinear", ["yq", "sy", "zy"], ["y"], {})]
    return nodes, {"x": random.normal(0, 1, shape).astype(F32)}, constants


@pytest.mark.parametrize("each", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize(
    ("op", "shape", "weights", "attrs"),
    [
        ("Conv", (1, 8, 12, 12), (16, 8, 3, 3), {"pads": [1] * 4}),
        ("Conv", (1, 8, 12), (8, 1, 3), {"group": 8, "auto_pad": "SAME_UPPER"}),
        ("MatMul", (2, 9, 40), (40, 12), {}),
        ("Gemm", (9, 40), (12, 40), {"transB": 1}),
    ],
)
@pytest.mark.parametrize("rectified", ["", "relu", "clip"])
def test_products_between_pairs_are_those_of_integers(
    op, shape, weights, attrs, each, rectified, make_model, oracle, device, random
):
    columns = weights[0] if op != "MatMul" else weights[1]
    scales = random.uniform(0.002, 0.01, columns).astype(F32) if each else scalar(0.005)
    nodes, feeds, constants = quantised_pairs(
        op, random, shape, whole(random, I8, *weights), scales, rectified, **attrs
    )
    model = make_model(nodes, feeds, ["y"], constants)
    want = oracle(model, feeds)["y"]
    for precision in ("fp32", "fp16"):
        graph = load(model, precision=precision)
        assert sum(node.op in ("ConvInteger", "MatMulInteger") for node in graph.nodes) == 1
        assert not any(node.op in ("Conv", "MatMul") for node in graph.nodes)
        if len(shape) != 3 or op != "Conv":  # of one axis the sums get another shape
            assert not any(value.dtype == np.int32 for node in graph.nodes for value in node.outputs)
        with device.load(compile_graph(graph, CompileOptions()).blob) as blob:
            np.testing.assert_array_equal(np.rint(blob.run(feeds)["y"] / 0.07), np.rint(want / 0.07))


def packed(blob):
    """Whether the engine reads weights two to a byte, by product."""
    invariants = blob.tasks[".npu.tasks.dpu_invariant"]
    return [bool(each["flags"] & C.NPU_DPU_FLAG_WEIGHTS_4BIT) for each in invariants]


@pytest.mark.parametrize(
    ("shape", "weights", "attrs", "small"),
    [
        ((2, 8, 9, 9), (16, 8, 3, 3), {"pads": [1] * 4, "strides": [2, 1]}, True),
        ((1, 6, 9), (8, 6, 5), {}, True),
        ((1, 3, 9, 9), (8, 3, 3, 3), {}, False),  # 27 weights do not fill bytes
        ((1, 8, 9, 9), (8, 1, 3, 2), {"group": 8}, False),
        ((1, 8, 9, 9), (8, 4, 3, 2), {"group": 2}, False),
        ((1, 2, 5, 6, 7), (4, 2, 2, 3, 1), {}, False),  # a product of taps, whose weights are on the left
    ],
)
@pytest.mark.parametrize(("kind", "ends"), [(I8, (-8, 7)), (U8, (0, 15))])
def test_weights_of_4_bits_are_two_to_a_byte(
    make_model, oracle, device, random, shape, weights, attrs, small, kind, ends
):
    w = random.integers(ends[0], ends[1], weights, endpoint=True).astype(kind)
    w.flat[:2] = ends
    feeds = {"x": whole(random, U8, *shape)}
    model = make_model(
        [("ConvInteger", ["x", "w", "zx", "zw"], ["y"], attrs)],
        feeds,
        ["y"],
        {"w": w, "zx": np.array(131, U8), "zw": np.array(3, kind)},
    )
    compiled = compile_graph(load(model), CompileOptions())
    assert packed(compiled.image) == [small] * len(packed(compiled.image))
    with device.load(compiled.blob) as blob:
        np.testing.assert_array_equal(blob.run(feeds)["y"], oracle(model, feeds)["y"])
    w.flat[0] = ends[1] + 1
    model = make_model([("ConvInteger", ["x", "w"], ["y"], attrs)], feeds, ["y"], {"w": w})
    assert not any(packed(compile_graph(load(model), CompileOptions()).image))


@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize("each", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("depth", [64, 63])
def test_products_with_dequantised_weights_of_4_bits_are_those_of_integers(
    make_model, oracle, device, random, kind, each, depth
):
    zero = 0 if kind == "int4" else 8
    scales = random.uniform(0.002, 0.01, 24).astype(F32) if each else scalar(0.005)
    w = (random.integers(-8, 8, (depth, 24)) + zero).astype(kind)
    nodes, feeds, constants = quantised_pairs("MatMul", random, (3, depth), w, scales)
    constants["zw"] = np.full(scales.shape, zero).astype(kind)
    model = make_model(nodes, feeds, ["y"], constants, opset=21)
    graph = load(model)
    assert [node.inputs[1].dtype.name for node in graph.nodes if node.op == "MatMulInteger"] == [
        kind if depth == 64 else kind.replace("4", "8")
    ]
    compiled = compile_graph(graph, CompileOptions())
    assert packed(compiled.image) == [depth == 64]
    assert len(compiled.image.weights) == 24 * (32 if depth == 64 else 63) + 24 * 16
    with device.load(compiled.blob) as blob:
        np.testing.assert_array_equal(np.rint(blob.run(feeds)["y"] / 0.07), np.rint(oracle(model, feeds)["y"] / 0.07))


@pytest.mark.parametrize("op", ["MatMulInteger", "MatMul"])
@pytest.mark.parametrize(("left", "right"), [((3, 4), (1, 4, 6)), ((2, 3, 4), (1, 1, 4, 6)), ((4,), (1, 4, 6))])
def test_constant_weights_may_have_more_axes_than_what_they_are_multiplied_with(
    make_model, oracle, device, random, op, left, right
):
    kind = I8 if op == "MatMulInteger" else F32
    feeds = {"x": random.integers(-9, 9, left).astype(kind)}
    model = make_model([(op, ["x", "w"], ["y"], {})], feeds, ["y"], {"w": random.integers(-8, 8, right).astype(kind)})
    with device.load(compile_graph(load(model, precision="fp32"), CompileOptions(precision="fp32")).blob) as blob:
        np.testing.assert_array_equal(blob.run(feeds)["y"], oracle(model, feeds)["y"])


def test_weights_of_4_bits_that_two_products_share_are_in_memory_once(make_model, oracle, device, random):
    w = random.integers(-8, 8, (32, 24)).astype(I8)
    feeds = {"a": whole(random, U8, 5, 32), "b": whole(random, I8, 7, 32)}
    nodes = [("MatMulInteger", ["a", "w"], ["y"], {}), ("MatMulInteger", ["b", "w"], ["z"], {})]
    model = make_model(nodes, feeds, ["y", "z"], {"w": w})
    graph = load(model)
    first, second = (node.inputs[1] for node in graph.nodes)
    assert first is second
    with device.load(compile_graph(graph, CompileOptions()).blob) as blob:
        for name, found in blob.run(feeds).items():
            np.testing.assert_array_equal(found, oracle(model, feeds)[name])


def test_a_product_with_a_bias_of_another_scale_is_right_as_floats(make_model, oracle, device, random):
    nodes, feeds, constants = quantised_pairs(
        "Conv", random, (1, 8, 5, 5), whole(random, I8, 16, 8, 1, 1), scalar(0.005)
    )
    model = make_model(nodes, feeds, ["p"], constants | {"sb": scalar(0.003)})
    want = oracle(model, feeds)["p"]
    graph = load(model, precision="fp32")
    assert [node.op for node in graph.nodes].count("ConvInteger") == 1
    with device.load(compile_graph(graph, CompileOptions()).blob) as blob:
        np.testing.assert_allclose(blob.run(feeds)["p"], want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_parts_hold_what_float32_holds():
    bounds = np.array([[EXACT // 2, 1], [EXACT // 2, 1], [1, 1], [1, EXACT]], np.int64)
    assert _parts(bounds) == [(0, 2), (2, 3), (3, 4)]


@pytest.mark.parametrize(("computed", "group"), [((), 1), (("zx",), 2), (("w", "zw"), 2)])
def test_convolutions_that_the_engine_does_not_do_are_products_of_taps(exact, random, computed, group):
    constants = {"w": whole(random, U8, 6, 4 // group, 2, 3, 2), "zx": whole(random, I8), "zw": whole(random, U8)}
    feeds = {"x": whole(random, I8, 1, 4, 3, 5, 4)} | {name: constants.pop(name) for name in computed}
    attrs = {"pads": [1, 1, 0, 0, 1, 1], "strides": [1, 2, 1], "group": group}
    operators = exact("ConvInteger", ("x", "w", "zx", "zw"), feeds, constants, precisions=("fp32",), **attrs)
    assert "MatMulInteger" in operators


def test_qlinear_conv_in_three_dimensions(exact, random):
    constants = {"w": whole(random, I8, 6, 4, 2, 3, 2), "sx": scalar(0.021), "sw": scalar(0.004), "sy": scalar(0.3)}
    constants |= {"zx": whole(random, U8), "zw": np.zeros((), I8), "zy": whole(random, U8)}
    order, feeds = ("x", "sx", "zx", "w", "sw", "zw", "sy", "zy"), {"x": whole(random, U8, 1, 4, 3, 5, 4)}
    exact("QLinearConv", order, feeds, constants, precisions=("fp32",), pads=[1, 0, 1, 1, 1, 0])


@pytest.mark.parametrize(("other", "engine"), [(0.05, "DPU"), (0.031, "SHAVE")])
@pytest.mark.parametrize("scale", [0.05, 0.07])
def test_sums_of_bytes_of_one_scale_are_the_engine_s_where_every_pair_gives_the_same(
    other, engine, scale, make_model, device, random
):
    nodes = [("DequantizeLinear", [n, f"s{n}", "z"], [f"{n}f"], {}) for n in "ab"]
    nodes += [
        ("Add", ["af", "bf"], ["p"], {}),
        ("Relu", ["p"], ["r"], {}),
        ("QuantizeLinear", ["r", "s", "z"], ["y"], {}),
    ]
    constants = {"sa": scalar(0.05), "sb": scalar(other), "s": scalar(scale), "z": np.array(117, U8)}
    feeds = {n: grid.astype(U8)[None] for n, grid in zip("ab", np.mgrid[0:256, 0:256], strict=True)}  # all pairs
    a, b = ((feeds[n].astype(F32) - 117) * constants[f"s{n}"] for n in "ab")
    want = np.clip(np.rint(np.maximum(a + b, 0) / constants["s"]) + 117, 0, 255).astype(U8)
    model = make_model(nodes, feeds, ["y"], constants)
    compiled = compile_graph(load(model), CompileOptions(dump=("engines",)))
    assert [line.split()[0] for line in compiled.report["dumps"]["engines"].splitlines()] == [f"[{engine}]"]
    assert compiled.report["makespan_over_bound"] >= 1
    with device.load(compiled.blob) as blob:
        np.testing.assert_array_equal(blob.run(feeds)["y"], want)


@pytest.mark.parametrize("attrs", [{"dilations": [300]}, {"strides": [300]}])
def test_steps_that_the_engine_does_not_take_are_products_of_taps(exact, random, attrs):
    constants = {"w": whole(random, I8, 5, 4, 3), "zx": whole(random, U8)}
    operators = exact("ConvInteger", ("x", "w", "zx"), {"x": whole(random, U8, 1, 4, 1200)}, constants, **attrs)
    assert "ConvInteger" not in operators and "MatMulInteger" in operators
