"""The NumPy reference, against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from libnpu.compiler.ir import Graph, Node, Value
from libnpu.compiler.reference import run_node, run_reference

HALF, SINGLE = np.dtype(np.float16), np.dtype(np.float32)
POOL = {"kernel": [2, 2], "strides": [1, 1], "pads": [1, 1, 0, 0]}


def node_of(op, shape, dtype, attrs):
    return Node(op, "n", [], [Value("y", shape, np.dtype(dtype))], attrs)


def conv_attrs(**changes):
    return {"strides": [1, 1], "pads": [0, 0, 0, 0], "dilations": [1, 1], "group": 1, "act": None} | changes


def test_conv_is_a_sum_over_channels_and_kernel():
    x = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
    weights = np.array([[[[1]], [[10]]], [[[-1]], [[0.5]]]], np.float32)
    bias = np.array([100, 0], np.float32)
    result = run_node(node_of("Conv", (1, 2, 2, 2), SINGLE, conv_attrs()), [x, weights, bias])
    np.testing.assert_array_equal(result, [[[[140, 151], [162, 173]], [[2, 1.5], [1, 0.5]]]])


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (None, [-3, 0, 3]),
        (("relu",), [0, 0, 3]),
        (("clip", -1.0, 2.0), [-1, 0, 2]),
        (("leaky_relu", 0.5), [-1.5, 0, 3]),
    ],
)
def test_activation_comes_last(act, expected):
    x = np.array([-1, 0, 1], np.float32).reshape(1, 1, 1, 3)
    node = node_of("Conv", (1, 1, 1, 3), SINGLE, conv_attrs(act=act))
    np.testing.assert_array_equal(run_node(node, [x, np.full((1, 1, 1, 1), 3, np.float32), None]).reshape(-1), expected)


def test_grouped_conv_keeps_groups_apart():
    x = np.array([1, 2, 3, 4], np.float32).reshape(1, 4, 1, 1)
    weights = np.array([[1, 1], [1, -1]], np.float32).reshape(2, 2, 1, 1)
    node = node_of("Conv", (1, 2, 1, 1), SINGLE, conv_attrs(group=2))
    np.testing.assert_array_equal(run_node(node, [x, weights, None]).reshape(-1), [3, -1])


def test_the_sum_is_wide_and_rounds_once():
    # In float16, 2048 + 1 + 1 would stay 2048.
    a = np.array([[2048, 1, 1]], np.float16)
    node = node_of("MatMul", (1, 1), HALF, {"act": None, "scale": 1.0})
    assert run_node(node, [a, np.ones((3, 1), np.float16), None]).item() == 2050


def test_scale_comes_before_bias():
    node = node_of("MatMul", (1, 1), SINGLE, {"act": None, "scale": 0.5})
    operands = [np.array([[4]], np.float32), np.array([[3]], np.float32), np.array([1], np.float32)]
    assert run_node(node, operands).item() == 7


def test_pools_treat_padding_as_told():
    x = np.array([[-1, -2], [-3, -4]], np.float32).reshape(1, 1, 2, 2)
    largest = node_of("MaxPool", (1, 1, 2, 2), SINGLE, POOL | {"dilations": [1, 1]})
    np.testing.assert_array_equal(run_node(largest, [x])[0, 0], [[-1, -1], [-1, -1]])
    inside = node_of("AvgPool", (1, 1, 2, 2), SINGLE, POOL | {"count_include_pad": False})
    np.testing.assert_array_equal(run_node(inside, [x])[0, 0], [[-1, -1.5], [-2, -2.5]])
    everywhere = node_of("AvgPool", (1, 1, 2, 2), SINGLE, POOL | {"count_include_pad": True})
    np.testing.assert_array_equal(run_node(everywhere, [x])[0, 0], [[-0.25, -0.75], [-1, -2.5]])


@pytest.mark.parametrize(
    ("expr", "inputs", "dtype", "expected"),
    [
        (("div", ("in", 0), ("in", 1)), ([7, -7], [2, 2]), np.int32, [3, -3]),
        (("mod", ("in", 0), ("in", 1)), ([7, -7], [3, 3]), np.int32, [1, 2]),
        (("cast_i32", ("in", 0)), ([1.9, -1.9],), np.int32, [1, -1]),
        (("cast_i32", ("in", 0)), ([3e9, np.nan],), np.int32, [2147483647, 0]),
        (("cast_f32", ("lt", ("in", 0), ("const", 0.0))), ([1.0, -1.0],), np.float32, [0, 1]),
        (("where", ("in", 0), ("const", 2.5), ("const", -1.0)), ([1, 0],), np.float32, [2.5, -1]),
        (("add", ("in", 0), ("const", 1.0)), ([2048.0, 65504.0],), np.float16, [2048, 65504]),
        (("mul", ("in", 0), ("const", 2.0)), ([40000.0, 1.0],), np.float16, [np.inf, 2]),
        (("add", ("in", 0), ("const", 1)), ([2147483647, 0],), np.int32, [-2147483648, 1]),
        (("hard_swish", ("in", 0)), ([-4.0, 1.5],), np.float32, [0, 1.125]),
        (("hard_sigmoid", ("in", 0), ("const", 0.25), ("const", 0.5)), ([-4.0, 1.0],), np.float32, [0, 0.75]),
        (("round", ("in", 0)), ([0.5, 1.5],), np.float32, [0, 2]),
    ],
)
def test_expressions(expr, inputs, dtype, expected):
    arrays = [np.array(data, np.float32 if isinstance(data[0], float) else np.int32) for data in inputs]
    result = run_node(node_of("Elementwise", (2,), dtype, {"expr": expr}), arrays)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, np.array(expected, dtype))


def test_every_operation_of_an_expression_rounds_to_float32():
    # 2**24 + 1 is no float32: the sum rounds back, and the difference is 0.
    x = np.array([2.0**24], np.float32)
    expr = ("sub", ("add", ("in", 0), ("const", 1.0)), ("in", 0))
    assert run_node(node_of("Elementwise", (1,), SINGLE, {"expr": expr}), [x]).item() == 0


def test_softmax_does_not_overflow():
    node = node_of("Softmax", (1, 2), SINGLE, {"axis": 1, "log": False})
    np.testing.assert_array_equal(run_node(node, [np.array([[1000, 1000]], np.float32)]), [[0.5, 0.5]])


@pytest.mark.parametrize(
    ("kind", "expected"), [("sum", [6, 15]), ("mean", [2, 5]), ("max", [3, 6]), ("min", [1, 4]), ("prod", [6, 120])]
)
def test_reductions(kind, expected):
    node = node_of("Reduce", (2,), SINGLE, {"kind": kind, "axes": [1], "keepdims": False})
    np.testing.assert_array_equal(run_node(node, [np.arange(1, 7, dtype=np.float32).reshape(2, 3)]), expected)


def test_a_run_returns_every_value_by_name():
    x, t, y = (Value(name, (2,), SINGLE) for name in "xty")
    nodes = [
        Node("Elementwise", "a", [x], [t], {"expr": ("neg", ("in", 0))}),
        Node("Elementwise", "b", [t], [y], {"expr": ("abs", ("in", 0))}),
    ]
    values = run_reference(Graph("g", [x], [y], nodes), {"x": np.array([1, -2], np.float32)})
    assert {name: array.tolist() for name, array in values.items()} == {"x": [1, -2], "t": [-1, 2], "y": [1, 2]}


def test_a_wrong_input_is_refused_by_name():
    x = Value("x", (2,), SINGLE)
    with pytest.raises(ValueError, match=r"input x: float64\(2,\), expected float32\(2,\)"):
        run_reference(Graph("g", [x], [x], []), {"x": np.zeros(2)})
