"""Convolution, pooling and matrix product through the front end, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest


def f32(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17])
@pytest.mark.parametrize(
    ("group", "attrs"),
    [
        (1, {}),
        (1, {"strides": [2, 1], "pads": [1, 0, 2, 1]}),
        (2, {"dilations": [2, 1]}),
        (4, {"pads": [1, 1, 1, 1]}),
    ],
)
def test_conv(opset, group, attrs, check, rng):
    constants = {"w": f32(rng, 8, 4 // group, 3, 2), "b": f32(rng, 8)}
    nodes = [("Conv", ["x", "w", "b"], ["y"], attrs | {"group": group})]
    graph = check(nodes, {"x": f32(rng, 2, 4, 7, 6)}, constants=constants, opset=opset)
    assert [node.op for node in graph.nodes] == ["Conv"]


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_conv_auto_pad(auto_pad, check, rng):
    nodes = [("Conv", ["x", "w"], ["y"], {"auto_pad": auto_pad, "strides": [2, 3]})]
    check(nodes, {"x": f32(rng, 1, 2, 9, 8)}, constants={"w": f32(rng, 3, 2, 4, 2)})


def test_conv_in_one_dimension_has_height_one(check, rng):
    nodes = [
        ("Conv", ["x", "w"], ["c"], {"strides": [2], "pads": [1, 2]}),
        ("Add", ["c", "b"], ["s"], {}),
        ("Relu", ["s"], ["y"], {}),
    ]
    constants = {"w": f32(rng, 5, 3, 4), "b": f32(rng, 1, 5, 1)}
    graph = check(nodes, {"x": f32(rng, 2, 3, 11)}, constants=constants)
    assert [node.op for node in graph.nodes] == ["Reshape", "Conv", "Reshape"]
    assert graph.nodes[1].attrs["act"] == ("relu",)


@pytest.mark.parametrize("opset", [7, 10, 12])
@pytest.mark.parametrize("ceil_mode", [0, 1])
def test_max_pool(opset, ceil_mode, check, rng):
    attrs = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 0, 1]}
    if opset >= 10:
        attrs |= {"ceil_mode": ceil_mode, "dilations": [1, 2]}
    check([("MaxPool", ["x"], ["y"], attrs)], {"x": f32(rng, 1, 3, 8, 9)}, opset=opset)


@pytest.mark.parametrize("include", [0, 1])
def test_average_pool_counts_padding_when_told(include, check, rng):
    attrs = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": include}
    check([("AveragePool", ["x"], ["y"], attrs)], {"x": f32(rng, 1, 3, 7, 7)}, opset=11)


def test_average_pool_in_ceil_mode_counts_what_is_inside(check, rng):
    attrs = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}
    check([("AveragePool", ["x"], ["y"], attrs)], {"x": f32(rng, 1, 2, 8, 8)}, opset=11)


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pool_is_one_window_or_a_reduction(op, check, rng):
    graph = check([(op, ["x"], ["y"], {})], {"x": f32(rng, 1, 3, 5, 4)})
    assert [node.op for node in graph.nodes] == [{"GlobalAveragePool": "AvgPool", "GlobalMaxPool": "MaxPool"}[op]]
    graph = check([(op, ["x"], ["y"], {})], {"x": f32(rng, 1, 3, 300)})
    assert [node.op for node in graph.nodes] == ["Reduce"]


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (3, 4, 2)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,))],
)
def test_matmul_ranks(a, b, check, rng):
    check([("MatMul", ["a", "b"], ["y"], {})], {"a": f32(rng, *a), "b": f32(rng, *b)})


def test_gemm_with_constant_weights_is_one_matmul(check, rng):
    nodes = [("Gemm", ["x", "w", "c"], ["y"], {"alpha": 0.5, "beta": 2.0, "transB": 1})]
    graph = check(nodes, {"x": f32(rng, 3, 4)}, constants={"w": f32(rng, 5, 4), "c": f32(rng, 5)})
    assert [node.op for node in graph.nodes] == ["MatMul"]


def test_gemm_with_computed_operands(check, rng):
    feeds = {"a": f32(rng, 4, 3), "b": f32(rng, 4, 5), "c": f32(rng, 3, 1)}
    check([("Gemm", ["a", "b", "c"], ["y"], {"transA": 1, "beta": 0.5})], feeds)


def test_batch_norm_bias_and_activation_join_the_conv(check, rng):
    constants = {"w": f32(rng, 6, 3, 3, 3), "cb": f32(rng, 6)}
    norm = {"scale": f32(rng, 6), "bias": f32(rng, 6), "mean": f32(rng, 6), "var": np.abs(f32(rng, 6)) + 0.5}
    nodes = [
        ("Conv", ["x", "w", "cb"], ["c"], {}),
        ("BatchNormalization", ["c", *norm], ["n"], {}),
        ("Mul", ["n", "m"], ["t"], {}),
        ("Sub", ["s", "t"], ["u"], {}),
        ("Clip", ["u"], ["y"], {"min": 0.0, "max": 6.0}),
    ]
    extra = {"m": f32(rng, 6, 1, 1), "s": f32(rng, 1, 6, 1, 1)}
    graph = check(nodes, {"x": f32(rng, 1, 3, 6, 6)}, constants=constants | norm | extra, opset=9)
    (node,) = graph.nodes
    assert node.attrs["act"] == ("clip", 0.0, 6.0)
    assert node.layers == ["Conv_0", "BatchNormalization_1", "Mul_2", "Sub_3", "Clip_4"]


def test_nothing_joins_a_conv_whose_result_has_two_readers(check, rng):
    nodes = [("Conv", ["x", "w"], ["c"], {}), ("Relu", ["c"], ["r"], {}), ("Mul", ["c", "r"], ["y"], {})]
    graph = check(nodes, {"x": f32(rng, 1, 3, 4, 4)}, constants={"w": f32(rng, 3, 3, 1, 1)})
    assert [node.op for node in graph.nodes] == ["Conv", "Elementwise"]


def test_conv_result_that_is_an_output_keeps_its_value(check, rng):
    nodes = [("Conv", ["x", "w"], ["c"], {}), ("Relu", ["c"], ["y"], {})]
    check(nodes, {"x": f32(rng, 1, 3, 4, 4)}, ("c", "y"), {"w": f32(rng, 2, 3, 1, 1)})


def test_attention_scale_joins_the_matmul(check, rng):
    nodes = [
        ("Mul", ["q", "half"], ["s"], {}),
        ("MatMul", ["s", "k"], ["p"], {}),
        ("Div", ["p", "two"], ["d"], {}),
        ("Softmax", ["d"], ["y"], {}),
    ]
    constants = {"half": np.float32(0.5), "two": np.float32(2)}
    graph = check(nodes, {"q": f32(rng, 2, 3, 4), "k": f32(rng, 2, 4, 3)}, constants=constants)
    assert [(node.op, node.attrs.get("scale")) for node in graph.nodes] == [("MatMul", 0.25), ("Softmax", None)]


def test_zero_pad_joins_the_conv(check, rng):
    nodes = [("Pad", ["x", "p"], ["q"], {}), ("Conv", ["q", "w"], ["y"], {})]
    constants = {"p": np.array([0, 0, 1, 2, 0, 0, 0, 1]), "w": f32(rng, 2, 3, 3, 3)}
    graph = check(nodes, {"x": f32(rng, 1, 3, 6, 6)}, constants=constants)
    assert [(node.op, node.attrs["pads"]) for node in graph.nodes] == [("Conv", [1, 2, 0, 1])]
