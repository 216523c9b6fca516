"""Inputs and outputs of the graph: names, repetitions, types and sizes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from libnpu import Unsupported
from libnpu.compiler import CompileOptions, compile_model
from libnpu.compiler.frontend import load
from libnpu.compiler.lower import CompileError
from libnpu.compiler.options import BadOption

X = np.array([-1, 2], np.float32)


def model_of(nodes, outputs, element=onnx.TensorProto.FLOAT, shape=(2,), opset=18):
    """Return a model of one input x; all outputs have its type and shape."""
    infos = [helper.make_tensor_value_info(name, element, list(shape)) for name in ("x", *outputs)]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


RELU = helper.make_node("Relu", ["x"], ["y"], name="relu")


@pytest.mark.parametrize("nodes", [[], [RELU]])
def test_an_input_that_is_an_output_keeps_its_name(nodes, run_on_device):
    outputs = ["x", *("y" for _ in nodes)]
    graph = load(model_of(nodes, outputs))
    assert ([v.name for v in graph.inputs], [v.name for v in graph.outputs]) == (["x"], outputs)
    got = run_on_device(model_of(nodes, outputs), {"x": X})
    expected = {"x": [-1, 2], "y": [0, 2]}
    assert {name: array.tolist() for name, array in got.items()} == {name: expected[name] for name in outputs}


def test_an_output_that_is_declared_twice_is_one(run_on_device):
    got = run_on_device(model_of([RELU], ["y", "y"]), {"x": X})
    assert {name: array.tolist() for name, array in got.items()} == {"y": [0, 2]}


@pytest.mark.parametrize(("opset", "element"), [(7, onnx.TensorProto.FLOAT), (13, onnx.TensorProto.BOOL)])
def test_the_mask_of_a_dropout_has_the_type_of_its_operator_set(opset, element, run_on_device):
    model = model_of([helper.make_node("Dropout", ["x"], ["y", "mask"])], ["y", "mask"], opset=opset)
    model.graph.output[1].type.tensor_type.elem_type = element
    got = run_on_device(model, {"x": X})
    assert (got["y"].tolist(), got["mask"].tolist()) == ([-1, 2], [1, 1])


def test_a_type_that_the_vector_engine_lacks_is_refused_by_the_input_s_name():
    node = helper.make_node("Identity", ["x"], ["y"])
    with pytest.raises(
        Unsupported, match=r"input x: type complex64; inputs and outputs may be bfloat16, bool, .*uint8$"
    ):
        load(model_of([node], ["y"], onnx.TensorProto.COMPLEX64))


@pytest.mark.parametrize("size", [2**33, 2**62])
def test_a_value_larger_than_device_memory_is_refused_by_name_bytes_and_limit(size):
    expected = rf"value x: shape \(1, {size}\) needs {4 * size} bytes; device memory of npu-37xx has 4294967296 bytes"
    with pytest.raises(CompileError, match=expected):
        compile_model(model_of([RELU], ["y"], shape=(1, size)))


def test_inputs_and_outputs_must_fit_device_memory_together():
    with pytest.raises(CompileError, match=r"inputs and outputs need 6442450944 bytes together; device memory"):
        compile_model(model_of([RELU], ["y"], shape=(3, 2**28)))


def test_a_constant_made_from_a_huge_shape_is_refused_by_node():
    shape = helper.make_node("Constant", [], ["s"], value_ints=[2**50])
    nodes = [
        shape,
        helper.make_node("ConstantOfShape", ["s"], ["c"], name="fill"),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    with pytest.raises(
        Unsupported, match=r"node fill: a constant of shape \(1125899906842624,\), over 4294967296 bytes"
    ):
        load(model_of(nodes, ["y"]))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"prefetching_level_limit": -1}, "prefetching_level_limit -1; at least 0"),
        ({"cmx_bytes": 0}, "cmx_bytes 0; at least 1"),
        ({"precision": "int2"}, "precision 'int2'; one of fp16, fp32, int8, int4"),
        ({"precision": "int8"}, "precision 'int8' needs plan_only"),
        ({"precision": "int4"}, "precision 'int4' needs plan_only"),
        ({"optimisation": 4}, "optimisation 4; one of 0, 1, 2, 3"),
        ({"shapes": {"x": (-1, 3)}}, r"shapes: x \(-1, 3\); no size is below 0"),
    ],
)
def test_an_option_out_of_its_range_is_refused_by_name(option, message):
    with pytest.raises(BadOption, match=message):
        CompileOptions(**option)


def test_a_program_of_too_many_tasks_is_refused_by_node(monkeypatch):
    monkeypatch.setattr("libnpu.compiler.lower.builder.MAX_OPS", 8)
    with pytest.raises(CompileError, match=r"relu \(Elementwise\): .* tasks or more, at most 8 are compiled"):
        compile_model(model_of([RELU], ["y"], shape=(2**22,)))
