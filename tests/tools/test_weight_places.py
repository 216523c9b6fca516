"""`npu export` and `npu mem-analyze`: the model that is written has the nodes and values of the one that was given, whose bytes alone lie elsewhere."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


def constant_of_an_old_model():
    """A Constant, in a version of the format in which each initialiser is an input, too."""
    value = numpy_helper.from_array(np.arange(8, dtype=np.float32))
    nodes = [helper.make_node("Constant", [], ["c"], value=value), helper.make_node("Add", ["x", "c"], ["y"])]
    return nodes, [], 8, 3


def weights_of_4_bits():
    """Numbers one by one, where bytes hold two of them."""
    tensors = [
        helper.make_tensor("w", TensorProto.INT4, [2, 8], list(range(-8, 8))),
        helper.make_tensor("s", TensorProto.FLOAT, [], [0.5]),
    ]
    nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["d"]), helper.make_node("Add", ["x", "d"], ["y"])]
    return nodes, tensors, 21, 10


def blocked_channels():
    """What an attribute of the compiler's own would be unknown to."""
    tensors = [numpy_helper.from_array(np.ones((8, 8, 1, 1), np.float32), "w")]
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["image"]),
        helper.make_node("Conv", ["image", "w"], ["y"], domain="com.microsoft.nchwc", kernel_shape=[1, 1]),
    ]
    return nodes, [*tensors, numpy_helper.from_array(np.array([1, 8, 1, 2]), "shape")], 17, 8


@pytest.mark.parametrize("case", [constant_of_an_old_model, weights_of_4_bits, blocked_channels])
def test_nodes_and_values_are_those_that_were_given(npu, tmp_path, case):
    nodes, tensors, opset, version = case()
    ends = ([helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 8])] for n in "xy")
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft.nchwc", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", *ends, tensors), opset_imports=opsets, ir_version=version)
    onnx.save(model, tmp_path / "m.onnx")
    assert npu("export", tmp_path / "m.onnx", "-o", tmp_path / "e.onnx")[0] == 0
    assert npu("mem-analyze", tmp_path / "e.onnx")[0] == 0
    given, found = (onnx.load(tmp_path / name) for name in ("m.onnx", "e.onnx"))
    for one in (given, found):  # how a tensor has its numbers is not its value
        for tensor in onnx.external_data_helper._get_all_tensors(one):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    assert found == given


def without_a_result(model):
    del model.graph.node[0].output[:]


def at_no_number(model):
    model.graph.node[0].attribute[0].t.external_data[0].value = "abc"


@pytest.mark.parametrize(("damage", "message"), [(without_a_result, "not a valid ONNX model"), (at_no_number, "abc")])
@pytest.mark.parametrize("command", [("export", "-o", "e.onnx"), ("mem-analyze",)])
def test_a_model_that_is_not_valid_is_refused(npu, tmp_path, monkeypatch, command, damage, message):
    monkeypatch.chdir(tmp_path)
    value = TensorProto(data_type=TensorProto.FLOAT, dims=[8], data_location=TensorProto.EXTERNAL)
    for key, text in (("offset", "0"), ("location", "data")):
        value.external_data.add(key=key, value=text)
    (tmp_path / "data").write_bytes(bytes(32))
    nodes = [helper.make_node("Constant", [], ["c"], value=value), helper.make_node("Add", ["x", "c"], ["y"])]
    ends = ([helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 8])] for n in "xy")
    model = helper.make_model(
        helper.make_graph(nodes, "g", *ends), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(model, "m.onnx")
    assert npu(*command, "m.onnx")[0] == 0
    damage(model)
    onnx.save(model, "m.onnx")
    status, out, err = npu(*command, "m.onnx")
    assert (status, out) == (1, "")
    assert err.startswith("npu: error: ") and message in err


def test_weights_of_4_bits_beside_a_model_take_half_a_byte(npu, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    weights = TensorProto(name="w", data_type=TensorProto.INT4, dims=[3, 5], data_location=TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value="data")
    (tmp_path / "data").write_bytes(bytes(8))
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"]),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    ends = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, size])] for name, size in (("x", 3), ("y", 5)))
    graph = helper.make_graph(nodes, "g", *ends, [weights, numpy_helper.from_array(np.float32(2), "s")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), "m.onnx")
    _, out, _ = npu("mem-analyze", "m.onnx", "--json")
    assert [(each["name"], each["size_bytes"]) for each in json.loads(out)["weights"]] == [("w", 8)]
