"""What simplification and fusion leave of a graph, and that the values stay onnxruntime's."""

from __future__ import annotations

import numpy as np
import pytest

from libnpu.compiler import CompileOptions, compile_model
from libnpu.compiler.frontend import load, stages
from libnpu.compiler.frontend.expr import rewrite
from libnpu.compiler.frontend.text import graph_text
from libnpu.compiler.hollow import is_hollow

X = ("in", 0)


def f32(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def expressions(graph):
    return [node.attrs["expr"] for node in graph.nodes if node.op == "Elementwise"]


@pytest.mark.parametrize(
    "nodes",
    [
        [("Add", ["x", "3"], ["a"], {}), ("Clip", ["a", "0", "6"], ["c"], {}), ("Mul", ["x", "c"], ["m"], {}), ("Div", ["m", "6"], ["y"], {})],
        [("Add", ["x", "3"], ["a"], {}), ("Clip", ["a", "0", "6"], ["c"], {}), ("Div", ["c", "6"], ["d"], {}), ("Mul", ["d", "x"], ["y"], {})],
        [("HardSigmoid", ["x"], ["h"], {"alpha": 1 / 6}), ("Mul", ["h", "x"], ["y"], {})],
    ],
)  # fmt: skip
def test_hard_swish_is_recognised(nodes, check, rng):
    constants = {"3": np.float32(3), "0": np.float32(0), "6": np.float32(6)}
    used = {name: constants[name] for name in constants if any(name in node[1] for node in nodes)}
    graph = check(nodes, {"x": f32(rng, 2, 3) * 4}, constants=used, opset=13)
    assert expressions(graph) == [("hard_swish", X)]


def test_a_chain_becomes_one_expression(check, rng):
    nodes = [("Sub", ["a", "b"], ["s"], {}), ("Exp", ["s"], ["e"], {}), ("Mul", ["e", "c"], ["y"], {})]
    graph = check(nodes, {name: f32(rng, 3, 4) for name in "abc"})
    assert expressions(graph) == [("mul", ("exp", ("sub", ("in", 0), ("in", 1))), ("in", 2))]


def test_a_smaller_operand_is_not_computed_again_for_every_element(check, rng):
    nodes = [("Exp", ["s"], ["e"], {}), ("Mul", ["x", "e"], ["y"], {})]
    graph = check(nodes, {"x": f32(rng, 3, 4), "s": f32(rng, 3, 1)})
    assert len(graph.nodes) == 2


def test_a_residual_sum_stays_alone_with_its_activation(check, rng):
    nodes = [
        ("Conv", ["x", "v"], ["a"], {}),
        ("Conv", ["x", "w"], ["b"], {}),
        ("Add", ["a", "b"], ["s"], {}),
        ("Relu", ["s"], ["r"], {}),
        ("Mul", ["r", "r"], ["m"], {}),
        ("Exp", ["m"], ["y"], {}),
    ]
    constants = {"v": f32(rng, 3, 3, 1, 1) / 3, "w": f32(rng, 3, 3, 1, 1) / 3}
    graph = check(nodes, {"x": f32(rng, 1, 3, 4, 4)}, constants=constants, half_tolerance=2e-2)
    assert expressions(graph) == [("relu", ("add", ("in", 0), ("in", 1))), ("exp", ("mul", X, X))]


@pytest.mark.parametrize(("order", "expr"), [("ab", ("add", ("in", 0), ("in", 1))), ("bb", None)])
def test_a_difference_of_products_is_a_sum_with_weights_of_the_other_sign(order, expr, check, rng):
    """Weights that the minuend has too are negated for the subtrahend alone; what others read as well stays as it is."""
    nodes = [("MatMul", ["x", "w"], ["a"], {}), ("MatMul", ["z", "w"], ["p"], {}), ("Add", ["p", "c"], ["b"], {})]
    nodes += (
        [("Sub", list(order), ["y"], {})] if expr else [("Sub", ["a", "b"], ["s"], {}), ("Mul", ["s", "b"], ["y"], {})]
    )
    graph = check(nodes, {"x": f32(rng, 6, 4), "z": f32(rng, 6, 4)}, constants={"w": f32(rng, 4, 4), "c": f32(rng, 4)})
    assert expressions(graph) == ([expr] if expr else [("mul", ("sub", ("in", 0), ("in", 1)), ("in", 1))])


def test_an_expression_has_at_most_sixteen_operators(check, rng):
    nodes = [("Sin", ["x" if i == 0 else f"t{i - 1}"], [f"t{i}"], {}) for i in range(18)]
    graph = check(nodes, {"x": f32(rng, 5)}, ("t17",))
    assert len(graph.nodes) == 2


def test_an_expression_has_at_most_eight_inputs(check, rng):
    names = "abcdefghij"
    nodes = [("Mul", ["a" if i == 0 else f"t{i - 1}", names[i + 1]], [f"t{i}"], {}) for i in range(9)]
    graph = check(nodes, {name: f32(rng, 3) for name in names}, ("t8",))
    assert [len(node.inputs) for node in graph.nodes] == [8, 3]


def test_movement_that_moves_nothing_disappears(check, rng):
    nodes = [
        ("Transpose", ["x"], ["a"], {"perm": [1, 0, 2]}),
        ("Transpose", ["a"], ["b"], {"perm": [1, 0, 2]}),
        ("Reshape", ["b", "s"], ["c"], {}),
        ("Flatten", ["c"], ["d"], {}),
        ("Slice", ["d", "zero", "end"], ["e"], {}),
        ("Relu", ["e"], ["y"], {}),
    ]
    constants = {"s": np.array([2, 2, 6]), "zero": np.array([0]), "end": np.array([2**31])}
    graph = check(nodes, {"x": f32(rng, 2, 3, 4)}, constants=constants)
    assert [node.op for node in graph.nodes] == ["Reshape", "Elementwise"]


def test_shape_arithmetic_is_folded(check, rng):
    nodes = [
        ("Shape", ["x"], ["s"], {}),
        ("Gather", ["s", "zero"], ["n"], {}),
        ("Unsqueeze", ["n", "axis"], ["u"], {}),
        ("Concat", ["u", "rest"], ["t"], {"axis": 0}),
        ("Reshape", ["x", "t"], ["y"], {}),
    ]
    constants = {"zero": np.array(0), "axis": np.array([0]), "rest": np.array([-1])}
    graph = check(nodes, {"x": f32(rng, 2, 3, 4)}, constants=constants)
    assert [node.op for node in graph.nodes] == ["Reshape"]


def test_softmax_that_is_spelled_out_is_recognised(check, rng):
    nodes = [
        ("ReduceMax", ["x"], ["m"], {"axes": [1], "keepdims": 0}),
        ("Reshape", ["m", "column"], ["c"], {}),
        ("Expand", ["c", "shape"], ["w"], {}),
        ("Sub", ["x", "w"], ["s"], {}),
        ("Exp", ["s"], ["e"], {}),
        ("ReduceSum", ["e", "one"], ["t"], {}),
        ("Div", ["e", "t"], ["y"], {}),
    ]
    constants = {"column": np.array([3, 1]), "shape": np.array([3, 5]), "one": np.array([1])}
    graph = check(nodes, {"x": f32(rng, 3, 5)}, constants=constants)
    assert [(node.op, node.attrs["axis"]) for node in graph.nodes] == [("Softmax", 1)]


def test_an_exponential_over_the_sum_of_another_axis_is_no_softmax(check, rng):
    nodes = [
        ("Exp", ["x"], ["e"], {}),
        ("ReduceSum", ["e", "one"], ["t"], {"keepdims": 0}),
        ("Div", ["e", "t"], ["y"], {}),
    ]
    graph = check(nodes, {"x": f32(rng, 4, 4)}, constants={"one": np.array([1])})
    assert [node.op for node in graph.nodes] == ["Elementwise", "Reduce", "Elementwise"]


def test_text_of_a_graph(make_model, rng):
    nodes = [("Conv", ["x", "w"], ["c"], {}), ("Relu", ["c"], ["r"], {}), ("Mul", ["r", "k"], ["y"], {})]
    x = np.zeros((1, 2, 3, 3), np.float32)
    model = make_model(nodes, {"x": x}, ["y"], {"w": f32(rng, 4, 2, 1, 1), "k": np.float32(0.5)})
    assert graph_text(load(model)) == (
        "graph g\n"
        "input x: float32[1, 2, 3, 3]\n"
        "x.float16: float16[1, 2, 3, 3] = x  # x\n"
        "r: float16[1, 4, 3, 3] = Conv(x.float16, w=float16[4, 2, 1, 1], -) "
        "{strides=[1,1], pads=[0,0,0,0], dilations=[1,1], group=1, act=('relu',)}  # Conv_0 Relu_1\n"
        "y: float32[1, 4, 3, 3] = mul(r, 0.5)  # Mul_2\n"
        "output y: float32[1, 4, 3, 3]\n"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("mul", X, ("const", 1.0)), X),
        (("reciprocal", ("sqrt", X)), ("rsqrt", X)),
        (("max", ("const", 0.0), X), ("relu", X)),
        (("max", X, ("const", float("-inf"))), X),
        (("add", X, ("const", 0.0)), ("add", X, ("const", 0.0))),  # -0.0 + 0.0 is 0.0
        (("mul", ("in", 1), ("clip", ("add", X, ("const", 3.0)), ("const", 0.0), ("const", 6.0))),) * 2,
    ],
)
def test_rewriting_of_expressions(before, after):
    assert rewrite(before) == after


@pytest.mark.parametrize(
    ("groups", "each", "taken", "padded"),
    [
        (4, 28, 4, 112),  # runs of seven channels
        (4, 10, 4, 48),  # runs of two and three: channels of zeros fill them
        (2, 6, 1, 12),  # what reads all channels takes them in any order
        (3, 4, 2, 12),
        (3, 5, 5, 15),
    ],
)
def test_a_shuffle_of_channels_is_read_by_the_convolution_behind_it(groups, each, taken, padded, check, rng):
    """With what works channel by channel between: its weights are in the order in which the channels lie."""
    channels = groups * each
    nodes = [
        ("Conv", ["x", "v", "bias"], ["a"], {"group": groups}),
        ("Reshape", ["a", "apart"], ["b"], {}),
        ("Transpose", ["b"], ["c"], {"perm": [0, 2, 1, 3, 4]}),
        ("Reshape", ["c", "whole"], ["d"], {}),
        ("Conv", ["d", "depthwise", "bias"], ["e"], {"group": channels, "pads": [1, 1, 1, 1]}),
        ("MaxPool", ["e"], ["m"], {"kernel_shape": [2, 2]}),
        ("Sigmoid", ["m"], ["s"], {}),
        ("Conv", ["s", "w"], ["y"], {"group": taken, "strides": [2, 2]}),
    ]
    constants = {
        "v": f32(rng, channels, 2, 1, 1),
        "bias": f32(rng, channels),
        "apart": np.array([1, groups, each, 6, 7]),
        "whole": np.array([1, channels, 6, 7]),
        "depthwise": f32(rng, channels, 1, 3, 3) / 3,
        "w": f32(rng, 2 * taken, channels // taken, 1, 1) / 4,
    }
    graph = check(nodes, {"x": f32(rng, 1, 2 * groups, 6, 7)}, constants=constants, half_tolerance=2e-2)
    made = [node.outputs[0].shape[1] for node in graph.nodes if node.op == "Conv"]
    assert made == [padded, padded, 2 * taken]
    *_, last = (node for node in graph.nodes if node.op == "Conv")
    assert last.inputs[1].shape[2:] == ((1, groups) if taken > 1 else (1, 1))


def test_a_shuffle_that_others_read_stays(check, rng):
    nodes = [
        ("Reshape", ["x", "apart"], ["b"], {}),
        ("Transpose", ["b"], ["c"], {"perm": [0, 2, 1, 3, 4]}),
        ("Reshape", ["c", "whole"], ["d"], {}),
        ("Conv", ["d", "w"], ["e"], {}),
        ("Add", ["d", "e"], ["y"], {}),
    ]
    constants = {"apart": np.array([1, 2, 3, 4, 5]), "whole": np.array([1, 6, 4, 5]), "w": f32(rng, 6, 6, 1, 1)}
    graph = check(nodes, {"x": f32(rng, 1, 6, 4, 5)}, constants=constants, half_tolerance=2e-2)
    assert "Transpose" in [node.op for node in graph.nodes]


def test_a_shuffle_between_convolutions_moves_nothing(make_model, oracle, run_on_device, rng):
    """The views that its reader takes are of what the convolution before it has written."""
    nodes = [
        ("Conv", ["x", "v"], ["a"], {"group": 4}),
        ("Reshape", ["a", "apart"], ["b"], {}),
        ("Transpose", ["b"], ["c"], {"perm": [0, 2, 1, 3, 4]}),
        ("Reshape", ["c", "whole"], ["d"], {}),
        ("Conv", ["d", "w"], ["y"], {"group": 4}),
    ]
    constants = {"v": f32(rng, 40, 4, 1, 1), "apart": np.array([1, 4, 10, 8, 12]), "whole": np.array([1, 40, 8, 12])}
    constants["w"] = f32(rng, 16, 10, 1, 1) / 4
    feeds = {"x": f32(rng, 1, 16, 8, 12)}
    model = make_model(nodes, feeds, ["y"], constants)
    compiled = compile_model(model, CompileOptions(precision="fp32"))
    assert "SHAVE" not in {task["engine"] for task in compiled.image.debug["tasks"]}
    moved = [t["name"] for t in compiled.image.debug["tasks"] if t["engine"] != "DPU" and "Reshape" in t["name"]]
    assert not moved
    np.testing.assert_allclose(run_on_device(model, feeds)["y"], oracle(model, feeds)["y"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_is_what_a_convolution_writes_row_by_row(mode, check, rng, make_model):
    """Scale, shift and activation behind it are the convolution's, whose channels then become pixels in place."""
    nodes = [
        ("Conv", ["x", "w", "b"], ["a"], {}),
        ("DepthToSpace", ["a"], ["d"], {"blocksize": 2, "mode": mode}),
        ("Mul", ["d", "scale"], ["m"], {}),
        ("Add", ["m", "shift"], ["s"], {}),
        ("Relu", ["s"], ["r"], {}),
        ("Conv", ["r", "v"], ["y"], {}),
    ]
    constants = {"w": f32(rng, 24, 5, 1, 1), "b": f32(rng, 24), "scale": f32(rng, 6, 1, 1), "shift": f32(rng, 6, 1, 1)}
    constants["v"] = f32(rng, 16, 6, 1, 1)
    feeds = {"x": f32(rng, 2, 5, 8, 7)}
    graph = check(nodes, feeds, constants=constants, half_tolerance=2e-2)
    moves = ["Concat", "Reshape", "Transpose", "Reshape"]
    assert [node.op for node in graph.nodes] == ["Conv", "Conv", *moves, "Conv"]
    assert [node.attrs["act"] for node in graph.nodes[:2]] == [("relu",)] * 2
    compiled = compile_model(make_model(nodes, feeds, ["y"], constants), CompileOptions(precision="fp32"))
    moved = [t["name"] for t in compiled.image.debug["tasks"] if t["engine"] != "DPU" and "Depth" in t["name"]]
    assert not moved


@pytest.mark.parametrize("start", [0, 3])
def test_channels_that_nobody_reads_are_not_computed(start, check, rng):
    """Through a pool, a function of each channel and a convolution of each; zeros before a convolution are not read."""
    constants = {"w": f32(rng, 16, 6, 3, 3), "d": f32(rng, 16, 1, 3, 3), "b": f32(rng, 16), "k": f32(rng, 16, 1, 1)}
    constants |= {"pads": np.array([0, 1, 0, 0, 0, 2, 0, 0]), "start": np.array([start]), "stop": np.array([start + 5])}
    constants |= {"one": np.array([1]), "half": np.float32(0.5)}
    nodes = [
        ("Pad", ["x", "pads"], ["p"], {}),
        ("Conv", ["p", "w", "b"], ["c"], {"pads": [1] * 4}),
        ("Mul", ["c", "k"], ["m"], {}),
        ("Conv", ["m", "d"], ["e"], {"group": 16}),
        ("MaxPool", ["e"], ["q"], {"kernel_shape": [2, 2]}),
        ("Sigmoid", ["q"], ["s"], {}),
        ("Slice", ["s", "start", "stop", "one"], ["y"], {}),
    ]
    graph = check(nodes, {"x": f32(rng, 1, 3, 8, 9)}, constants=constants, half_tolerance=1e-2)
    assert {node.op for node in graph.nodes} == {"Conv", "MaxPool", "Elementwise"}
    assert [node.inputs[1].shape for node in graph.nodes if node.op == "Conv"] == [(5, 3, 3, 3), (5, 1, 3, 3)]


def test_weights_of_a_plan_have_no_values_after_channels_are_cut_either(make_model, rng):
    constants = {"w": f32(rng, 64, 32, 3, 3), "start": np.array([8]), "stop": np.array([40]), "one": np.array([1])}
    nodes = [("Conv", ["x", "w"], ["c"], {"pads": [1] * 4}), ("Slice", ["c", "start", "stop", "one"], ["y"], {})]
    *_, (_, graph) = stages(make_model(nodes, {"x": f32(rng, 1, 32, 8, 8)}, ["y"], constants), is_plan=True)
    (weights,) = (node.inputs[1] for node in graph.nodes if node.op == "Conv")
    assert weights.shape == (32, 32, 3, 3)
    assert is_hollow(weights.const)


def stacked(kind, keepdims, axis=1):
    """Return nodes that stack three tensors [2, 5] and reduce them along that axis, or another."""
    nodes = [("Unsqueeze", [name, "one"], [f"{name}1"], {}) for name in "abc"]
    nodes.append(("Concat", ["a1", "b1", "c1"], ["s"], {"axis": 1}))
    if kind == "ReduceSum":
        return [*nodes, (kind, ["s", "axes"], ["y"], {"keepdims": keepdims})], {"axes": np.array([axis], np.int64)}
    return [*nodes, (kind, ["s"], ["y"], {"axes": [axis], "keepdims": keepdims})], {}


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("kind", ["ReduceMax", "ReduceMin", "ReduceSum"])
def test_a_reduction_over_what_was_stacked_is_an_expression(kind, keepdims, check, rng):
    nodes, constants = stacked(kind, keepdims)
    feeds = {name: f32(rng, 2, 5) for name in "abc"}
    feeds["c"][1, 1] = np.inf
    graph = check(nodes, feeds, constants=constants | {"one": np.array([1], np.int64)})
    assert {node.op for node in graph.nodes} <= {"Elementwise", "Reshape"}
    assert len(expressions(graph)) == 1


@pytest.mark.parametrize(("kind", "axis"), [("ReduceMean", 1), ("ReduceMax", 2)])
def test_another_reduction_of_what_was_stacked_stays_one(kind, axis, check, rng):
    nodes, constants = stacked(kind, 1, axis)
    feeds = {name: f32(rng, 2, 5) for name in "abc"}
    graph = check(nodes, feeds, constants=constants | {"one": np.array([1], np.int64)})
    assert "Reduce" in {node.op for node in graph.nodes}
