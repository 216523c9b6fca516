"""Functions of the model: attributes and operands reach the body, whatever the caller leaves out."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from libnpu.compiler.frontend import load
from libnpu.compiler.reference import run_reference

X = np.array([-1, 9], np.float32)
OPSETS = [helper.make_opsetid("", 18)]


def call(function, inputs, constants=(), **attributes):
    """Return the result of the only function of a model, for x = [-1, 9]."""
    node = helper.make_node(function.name, inputs, ["y"], domain="own", **attributes)
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("x", "y")]
    tensors = [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in constants]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], tensors)
    opsets = [*OPSETS, helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10)
    return run_reference(load(model, precision="fp32"), {"x": X})["y"].tolist()


@pytest.mark.parametrize(("alpha", "expected"), [(0.5, [-0.5, 9]), (2.0, [-2, 9])])
def test_an_attribute_reaches_a_branch_in_the_body(alpha, expected):
    leaky = helper.make_node("LeakyRelu", ["x"], ["r"])
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    branches = {
        "then_branch": helper.make_graph([leaky], "then", [], [helper.make_tensor_value_info("r", 1, None)]),
        "else_branch": helper.make_graph(
            [helper.make_node("Identity", ["x"], ["e"])], "else", [], [helper.make_tensor_value_info("e", 1, None)]
        ),
    }
    condition = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True)))
    body = [condition, helper.make_node("If", ["c"], ["y"], **branches)]
    function = helper.make_function("own", "Leaky", ["x"], ["y"], body, OPSETS, ["slope"])
    assert call(function, ["x"], slope=alpha) == expected


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [(["x", "", "hi"], [-1, 2]), (["x", "lo"], [0, 9]), (["x"], [-1, 9]), (["x", "lo", "hi"], [0, 2])],
)
def test_an_operand_that_the_caller_leaves_out_is_left_out_in_the_body(inputs, expected):
    body = [helper.make_node("Clip", ["a", "b", "c"], ["d"])]
    function = helper.make_function("own", "Limit", ["a", "b", "c"], ["d"], body, OPSETS)
    assert call(function, inputs, [("lo", 0), ("hi", 2)]) == expected
