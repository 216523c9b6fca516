"""Which type each value has under a precision policy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from libnpu.compiler.frontend import load
from libnpu.compiler.reference import run_reference


def types(graph):
    return {value.name: value.dtype.name for node in graph.nodes for value in node.outputs}


def test_fp16_casts_inputs_and_outputs_and_keeps_bias_wide(make_model):
    constants = {"w": np.ones((2, 3, 1, 1), np.float32), "b": np.ones(2, np.float32)}
    model = make_model([("Conv", ["x", "w", "b"], ["y"], {})], {"x": (np.float32, (1, 3, 4, 4))}, ["y"], constants)
    graph = load(model, precision="fp16")
    assert types(graph) == {"x.float16": "float16", "y.inside": "float16", "y": "float32"}
    assert [value.dtype.name for value in graph.nodes[1].inputs] == ["float16", "float16", "float32"]
    assert graph.inputs[0].dtype == graph.outputs[0].dtype == np.float32


def test_a_softmax_is_of_its_outputs_type(make_model, run_on_device, oracle):
    """Its program stores either type: no cast behind it, and nothing rounded to fp16."""
    model = make_model([("Relu", ["x"], ["r"], {}), ("Softmax", ["r"], ["y"], {})], {"x": (np.float32, (3, 50))}, ["y"])
    assert types(load(model, precision="fp16")) == {"r": "float16", "y": "float32"}
    feeds = {"x": np.linspace(-4, 4, 150, dtype=np.float16).astype(np.float32).reshape(3, 50)}
    np.testing.assert_allclose(run_on_device(model, feeds, "fp16")["y"], oracle(model, feeds)["y"], rtol=1e-6)


def test_fp32_changes_no_float(make_model):
    model = make_model([("Exp", ["x"], ["y"], {})], {"x": (np.float32, (4,))}, ["y"])
    assert types(load(model, precision="fp32")) == {"y": "float32"}


def test_sums_of_squares_do_not_overflow_under_fp16(make_model):
    nodes = [
        ("Relu", ["x"], ["r"], {}),
        ("Mul", ["r", "r"], ["s"], {}),
        ("ReduceMean", ["s"], ["m"], {"axes": [1]}),
        ("Sqrt", ["m"], ["d"], {}),
        ("Softmax", ["r"], ["p"], {}),
        ("Div", ["p", "d"], ["y"], {}),
    ]
    x = np.array([[300.0, 400.0]], np.float32)
    graph = load(make_model(nodes, {"x": x}, ["y"], opset=13), precision="fp16")
    assert types(graph) == {
        "r": "float16", "s": "float32", "m": "float32", "d": "float32", "p": "float16", "y": "float32",
    }  # fmt: skip
    assert run_reference(graph, {"x": x})["d"].item() == pytest.approx(np.sqrt(125000), rel=1e-6)


def test_a_mean_that_only_a_matmul_reads_is_half(make_model):
    nodes = [
        ("Relu", ["x"], ["r"], {}),
        ("ReduceMean", ["r"], ["m"], {"axes": [2]}),
        ("Reshape", ["m", "s"], ["t"], {}),
    ]
    nodes += [("MatMul", ["t", "w"], ["y"], {})]
    constants = {"s": np.array([1, 3]), "w": np.ones((3, 2), np.float32)}
    graph = load(make_model(nodes, {"x": (np.float32, (1, 3, 4))}, ["y"], constants, opset=13), precision="fp16")
    assert types(graph)["m"] == "float16"


def test_weights_beyond_half_range_are_saturated_and_noted(make_model):
    constants = {"w": np.array([[1e6, -1e5], [1.0, np.inf]], np.float32)}
    graph = load(make_model([("MatMul", ["x", "w"], ["y"], {})], {"x": (np.float32, (1, 2))}, ["y"], constants))
    product = next(node for node in graph.nodes if node.op == "MatMul")
    np.testing.assert_array_equal(product.inputs[1].const, np.array([[65504, -65504], [1, np.inf]], np.float16))
    assert graph.notes == ["MatMul_0: 2 of 4 values of w are beyond float16, saturated"]


def test_int64_is_int32_inside(make_model):
    constants = {"c": np.array([2**40, 5, -7])}
    graph = load(make_model([("Add", ["x", "c"], ["t"], {}), ("Gather", ["d", "t"], ["y"], {})],
                            {"x": (np.int64, (3,)), "d": (np.float32, (9, 2))}, ["y"], constants), precision="fp32")  # fmt: skip
    assert sorted(set(types(graph).values())) == ["float32", "int32"]
    assert graph.inputs[0].dtype == np.int64
    assert graph.notes == ["Gather_1: 1 of 3 values of c are beyond int32, saturated"]


def test_an_output_of_int64_is_an_index_and_moves_too(make_model, run_on_device):
    x = np.array([[3, 1, 2], [0, 5, 4], [9, 8, 7], [1, 2, 6]], np.float32)
    nodes = [
        ("ArgMax", ["x"], ["i"], {"axis": 1, "keepdims": 0}),
        ("Reshape", ["i", "s"], ["u"], {}),
        ("Gather", ["x", "i"], ["y"], {"axis": 0}),
    ]
    got = run_on_device(make_model(nodes, {"x": x}, ["i", "u", "y"], {"s": np.array([2, 2])}), {"x": x})
    most = x.argmax(1)
    for name, wanted in (("i", most), ("u", most.reshape(2, 2)), ("y", x[most])):
        np.testing.assert_array_equal(got[name], wanted)


def test_an_unknown_policy_is_refused(make_model):
    model = make_model([("Relu", ["x"], ["y"], {})], {"x": (np.float32, (3,))}, ["y"])
    with pytest.raises(ValueError, match="precision 'int8'"):
        load(model, precision="int8")


@pytest.mark.parametrize("dtype", [np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("first", ["Relu", "ReduceMean"])
def test_an_output_of_a_type_that_only_shaves_have_is_multiplied_too(dtype, first, make_model, run_on_device):
    x = np.arange(16).reshape(4, 4).astype(dtype)
    nodes = [
        (first, ["x"], ["r"], {"axes": [1], "keepdims": 1} if first != "Relu" else {}),
        ("MatMul", ["x", "r"], ["y"], {}),
    ]
    got = run_on_device(make_model(nodes, {"x": x}, ["r", "y"]), {"x": x})
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(
        got["y"], (wide @ (wide if first == "Relu" else wide.mean(1, keepdims=True))).astype(dtype)
    )


def test_scales_by_axis_that_give_integers_stay_float32(make_model, oracle, run_on_device):
    """0.0175 in float16 is off by a quarter of a thousandth, which is a step at 70.5."""
    scales = {"s": np.array([0.017498884, 0.03295973], np.float32), "z": np.zeros(2, np.int8)}
    x = np.outer(scales["s"], np.arange(-126, 127) + 0.49).astype(np.float32)
    model = make_model([("QuantizeLinear", ["x", "s", "z"], ["y"], {"axis": 0})], {"x": x}, ["y"], scales)
    np.testing.assert_array_equal(run_on_device(model, {"x": x}, "fp16")["y"], oracle(model, {"x": x})["y"])


def test_whole_numbers_and_scales_beyond_float16_stay_float32(make_model):
    """As in models that are quantised as they run: sums of integers, and a product of two scales, meet behind a change of shape."""
    nodes = [("Cast", ["x"], ["f"], {"to": 1}), ("Reshape", ["f", "shape"], ["r"], {}), ("Mul", ["a", "b"], ["s"], {})]
    nodes += [("Transpose", ["r"], ["t"], {}), ("Mul", ["r", "s"], ["y"], {}), ("Relu", ["t"], ["z"], {})]
    feeds = {"x": np.array([1, -2_000_000, 70_000, 3], np.int32), "a": np.float32([2e-5]), "b": np.float32([3e-5])}
    graph = load(make_model(nodes, feeds, ["y", "z"], {"shape": np.array([2, 2])}))
    found = run_reference(graph, feeds)["y"]
    np.testing.assert_allclose(found, feeds["x"].reshape(2, 2) * 6e-10, rtol=2e-3)
