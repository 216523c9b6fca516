"""Operators of constants alone give what the same operators give of inputs: by onnxruntime, in opsets in which onnx's reference is wrong too."""

from __future__ import annotations

import numpy as np
import pytest

from libnpu.compiler.frontend import load


def f32(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_constant_weights_that_a_product_turns_keep_the_bytes_of_the_file_in_order(precision, make_model):
    """Lowering turns them once more, to [columns, rows]: nothing has been moved then."""
    node = ("Gemm", ["x", "w"], ["y"], {"transB": 1})
    graph = load(make_model([node], {"x": f32(2, 5)}, ["y"], {"w": f32(3, 5)}), precision=precision)
    (product,) = [one for one in graph.nodes if one.op == "MatMul"]
    weights = product.inputs[1].const
    assert weights.T.flags.c_contiguous
    np.testing.assert_array_equal(weights.T, f32(3, 5).astype(weights.dtype))


@pytest.mark.parametrize(
    ("op", "opset", "operands", "attributes"),
    [
        ("LpNormalization", 17, [f32(2, 5)], {"p": 1}),
        ("BatchNormalization", 9, [f32(2, 3, 2, 2), *(np.abs(f32(3)) + i for i in range(4))], {}),
        ("LRN", 13, [f32(2, 3, 2, 2)], {"size": 3, "alpha": 0.7}),
        ("LRN", 13, [f32(1, 7, 2, 2)], {"size": 1, "alpha": 0.7}),
        ("GlobalMaxPool", 17, [f32(2, 3, 7)], {}),
        ("Hardmax", 11, [f32(2, 3, 4)], {"axis": 1}),
        ("Softmax", 11, [f32(2, 3, 4)], {"axis": 1}),
        ("LogSoftmax", 11, [f32(2, 3, 4)], {"axis": -2}),
        ("OneHot", 13, [np.array([1, -1]), np.array(2), np.array([0.0814267, -0.59441745], np.float32)], {"axis": 1}),
        ("Unsqueeze", 11, [f32(2, 8)], {"axes": [2, 1]}),
        ("MaxPool", 13, [f32(1, 2, 7)], {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}),
        ("Slice", 13, [f32(5, 4), np.array([4, -1]), np.array([0, -(2**31)]), np.array([0, 1]), np.array([-2, -1])], {}),
    ],
)  # fmt: skip
def test_an_operator_of_constants_gives_what_it_gives_of_inputs(op, opset, operands, attributes, check):
    constants = {f"k{index}": array for index, array in enumerate(operands)}
    nodes = [(op, list(constants), ["z"], attributes), ("Identity", ["z"], ["y"], {}), ("Neg", ["x"], ["n"], {})]
    check(nodes, {"x": f32(1)}, ["y", "n"], constants, opset)
