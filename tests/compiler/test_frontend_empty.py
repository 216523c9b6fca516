"""Tensors without elements: they are constants, so that no engine meets them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from libnpu import Unsupported
from libnpu.compiler.frontend import ModelError, load
from libnpu.compiler.reference import run_reference

F32 = np.float32


@pytest.fixture
def run(make_model):
    """Return run(nodes, feeds, constants) -> y of the NumPy reference; no value of the graph but inputs is empty."""

    def compute(nodes, feeds, constants=None, opset=18):
        graph = load(make_model(nodes, feeds, ["y"], constants, opset), precision="fp32")
        made = [value for node in graph.nodes for value in (*node.inputs, *node.outputs) if value is not None]
        assert all(math.prod(value.shape) for value in made)
        return run_reference(graph, feeds)["y"]

    return compute


def test_a_product_over_an_empty_axis_is_zero(run):
    y = run([("MatMul", ["x", "w"], ["y"], {})], {"x": np.zeros((3, 0), F32)}, {"w": np.zeros((0, 4), F32)})
    np.testing.assert_array_equal(y, np.zeros((3, 4), F32))


def test_a_gemm_over_an_empty_axis_is_its_bias(run):
    constants = {"w": np.zeros((0, 3), F32), "c": np.array([1, 2, 3], F32)}
    y = run([("Gemm", ["x", "w", "c"], ["y"], {})], {"x": np.zeros((2, 0), F32)}, constants)
    assert y.tolist() == [[1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize(
    ("op", "expected"),
    [("Sum", 0), ("Prod", 1), ("Max", -np.inf), ("Min", np.inf), ("Mean", np.nan), ("L2", 0), ("LogSumExp", -np.inf)],
)
def test_reductions_over_an_empty_axis(op, expected, run):
    nodes = [(f"Reduce{op}", ["x", "axes"], ["t"], {"keepdims": 0}), ("Add", ["t", "b"], ["y"], {})]
    y = run(nodes, {"x": np.zeros((2, 0), F32), "b": np.zeros(2, F32)}, {"axes": np.array([1])})
    np.testing.assert_array_equal(y, np.full(2, expected, F32))


def test_the_largest_of_no_integer_is_the_smallest_of_the_type(run):
    nodes = [("ReduceMax", ["x", "axes"], ["y"], {"keepdims": 0})]
    assert run(nodes, {"x": np.zeros((1, 0), np.int8)}, {"axes": np.array([1])}).tolist() == [-128]


def test_parts_without_elements_take_no_part_in_a_concatenation(run):
    nodes = [("Split", ["x", "sizes"], ["a", "b"], {"axis": 1}), ("Concat", ["b", "a", "z"], ["y"], {"axis": 1})]
    feeds = {"x": np.arange(8, dtype=F32).reshape(2, 4), "z": np.zeros((2, 0), F32)}
    np.testing.assert_array_equal(run(nodes, feeds, {"sizes": np.array([0, 4])}), feeds["x"])


def test_a_pad_of_what_a_cut_leaves_empty_is_all_padding(run):
    nodes = [("Pad", ["x", "pads", "v"], ["y"], {})]
    y = run(nodes, {"x": np.arange(4, dtype=F32)}, {"pads": np.array([-4, 3]), "v": np.array(7, F32)})
    assert y.tolist() == [7, 7, 7]


@pytest.mark.parametrize(
    "node",
    [
        ("Relu", ["x"], ["t"], {}),
        ("Softmax", ["x"], ["t"], {}),
        ("Transpose", ["x"], ["t"], {}),
        ("Conv", ["x", "w"], ["t"], {}),
        ("MaxPool", ["x"], ["t"], {"kernel_shape": [2, 2]}),
        ("GlobalAveragePool", ["x"], ["t"], {}),
        ("DepthToSpace", ["x"], ["t"], {"blocksize": 2}),
        ("Resize", ["x", "", "scales"], ["t"], {}),
        ("Cast", ["x"], ["t"], {"to": 7}),
        ("InstanceNormalization", ["x", "one", "one"], ["t"], {}),
    ],
)
def test_a_batch_of_nothing_passes_every_layer(node, run):
    constants = {"w": np.ones((2, 4, 3, 3), F32), "one": np.ones(4, F32), "scales": np.array([1, 1, 2, 2], F32)}
    nodes = [node, ("ReduceSum", ["t"], ["y"], {"keepdims": 0})]
    used = {name: array for name, array in constants.items() if name in node[1]}
    assert run(nodes, {"x": np.zeros((0, 4, 4, 4), F32)}, used).tolist() == 0


def test_an_empty_input_is_passed_on_the_device(make_model, run_on_device):
    feeds = {"x": np.ones((2, 3), F32), "past": np.zeros((0, 3), F32)}
    model = make_model([("Concat", ["past", "x"], ["y"], {"axis": 0})], feeds, ["y"])
    np.testing.assert_array_equal(run_on_device(model, feeds)["y"], feeds["x"])


def test_an_empty_output_is_refused_by_name(make_model):
    model = make_model([("Relu", ["x"], ["y"], {})], {"x": (F32, (0, 3))}, ["y"])
    with pytest.raises(Unsupported, match=r"output y: shape \(0, 3\) has no element"):
        load(model)


def test_the_index_of_the_largest_of_nothing_is_refused_by_node(make_model):
    model = make_model([("ArgMax", ["x"], ["y"], {"axis": 1})], {"x": (F32, (2, 0))}, ["y"])
    with pytest.raises(ModelError, match=r"node ArgMax_0: ArgMax: no largest element on axis 1 of \(2, 0\)"):
        load(model)


@pytest.mark.parametrize("declared", [0, "past"])
def test_an_empty_input_may_be_given_as_such(make_model, declared):
    """As the cache of a decoder's first token."""
    model = make_model(
        [("Concat", ["p", "x"], ["y"], {"axis": 1})], {"p": (F32, (2, declared)), "x": (F32, (2, 3))}, ["y"]
    )
    x = np.arange(6, dtype=F32).reshape(2, 3)
    graph = load(model, {"p": (2, 0), "x": (2, 3)})
    np.testing.assert_array_equal(run_reference(graph, {"p": np.empty((2, 0), F32), "x": x})["y"], x)
