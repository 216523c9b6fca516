"""Operands that say a shape and are computed: the declared shape says it too, and the program faults when they disagree."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from libnpu import NpuError
from libnpu.compiler.frontend import load
from libnpu.errors import Unsupported

X = np.arange(12, dtype=np.float32).reshape(3, 1, 4) - 5


def ints(*values):
    return np.array(values, np.int64)


def model_of(op, feeds, shapes, opset=18, **attributes):
    names = [f"y{index}" for index in range(len(shapes))]
    node = helper.make_node(op, list(feeds), names, **attributes)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in zip(names, shapes, strict=True)
    ]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


# operator, its second operand, shapes of the results, the results, a second operand that contradicts the shapes
CASES = [
    ("Reshape", ints(2, -1), [(2, 6)], lambda x: [x.reshape(2, 6)], ints(3, 4)),
    ("Reshape", ints(0, 4, 1), [(3, 4, 1)], lambda x: [x.reshape(3, 4, 1)], ints(3, 0, 1)),
    ("Squeeze", ints(-2), [(3, 4)], lambda x: [x[:, 0]], ints(0)),
    ("Unsqueeze", ints(3, 0), [(1, 3, 1, 1, 4)], lambda x: [x.reshape(1, 3, 1, 1, 4)], ints(4, 0)),
    ("Expand", ints(2, 1, 5, 4), [(2, 3, 5, 4)], lambda x: [np.broadcast_to(x, (2, 3, 5, 4))], ints(2, 3, 6, 4)),
    ("Tile", ints(1, 2, 3), [(3, 2, 12)], lambda x: [np.tile(x, (1, 2, 3))], ints(1, 2, 4)),
    ("ReduceSum", ints(-1), [(3, 1, 1)], lambda x: [x.sum(2, keepdims=True)], ints(0)),
    ("ReduceMax", ints(2, 0), [(1, 1, 1)], lambda x: [x.max(keepdims=True)], ints(2, 2)),
]


@pytest.mark.parametrize(("op", "operand", "shapes", "function", "wrong"), CASES)
def test_a_computed_operand_is_what_the_declared_shape_implies(op, operand, shapes, function, wrong, run_on_device):
    model = model_of(op, {"x": X, "s": operand}, shapes)
    got = run_on_device(model, {"x": X, "s": operand})
    for array, want in zip(got.values(), function(X), strict=True):
        np.testing.assert_array_equal(array, want)
    with pytest.raises(NpuError, match="KERNEL_FAULT"):
        run_on_device(model, {"x": X, "s": wrong})


@pytest.mark.parametrize("axes", [0, 1, -1])
def test_axes_that_the_shape_leaves_open_are_chosen_when_the_program_runs(axes, run_on_device):
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    model = model_of("ReduceMean", {"x": x, "s": ints(axes)}, [(3,)], keepdims=0)
    np.testing.assert_array_equal(run_on_device(model, {"x": x, "s": ints(axes)})["y0"], x.mean(axes))


def test_parts_of_a_split_are_those_that_are_declared(run_on_device):
    model = model_of("Split", {"x": X, "s": ints(1, 3)}, [(3, 1, 1), (3, 1, 3)], axis=2)
    got = run_on_device(model, {"x": X, "s": ints(1, 3)})
    np.testing.assert_array_equal(got["y1"], X[..., 1:])
    with pytest.raises(NpuError, match="KERNEL_FAULT"):
        run_on_device(model, {"x": X, "s": ints(2, 2)})


@pytest.mark.parametrize(("start", "limit", "delta"), [(1, 10, 3), (5, -6, -4)])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_a_range_of_computed_bounds(start, limit, delta, dtype, make_model, run_on_device):
    feeds = {name: np.array(value, dtype) for name, value in (("a", start), ("b", limit), ("c", delta))}
    model = make_model([("Range", ["a", "b", "c"], ["y"], {})], feeds, ["y"])
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 3
    np.testing.assert_array_equal(run_on_device(model, feeds)["y"], np.arange(start, limit, delta, dtype))
    with pytest.raises(NpuError, match="KERNEL_FAULT"):
        run_on_device(model, feeds | {"b": np.array(limit + 4 * delta, dtype)})


def test_without_a_declared_shape_the_operand_must_be_constant():
    model = model_of("Reshape", {"x": X, "s": ints(2, 6)}, [(2, 6)])
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    with pytest.raises(Unsupported, match=r"shape of Reshape \(s\) is not a constant"):
        load(model)
