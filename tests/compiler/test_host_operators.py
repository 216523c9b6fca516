"""Operators of parts on the host that onnx's evaluator has wrong: as onnxruntime."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from libnpu.errors import Unsupported
from libnpu.parts.evaluator import REFERENCE, RUNTIME, HostEvaluator, evaluator_of

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def both(nodes, feeds, outputs):
    """Return the outputs by the evaluator, and by onnxruntime."""
    import onnxruntime

    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name=name) for name in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return HostEvaluator(model, REFERENCE).run(feeds, outputs), session.run(list(outputs), feeds)


@pytest.mark.parametrize("turns", [0, 1, 3])
@pytest.mark.parametrize("has_condition", [True, False])
def test_a_loop_stacks_what_its_turns_give(turns, has_condition):
    nodes = [
        helper.make_node("Identity", ["keep"], ["goes_on"]),
        helper.make_node("Add", ["a", "a"], ["twice"]),
        helper.make_node("ReduceSum", ["twice"], ["sum"], keepdims=0),
    ]
    ends = [("number", I64, []), ("keep", BOOL, []), ("a", F32, [2, 3])]
    results = [("goes_on", BOOL, []), ("twice", F32, [2, 3]), ("twice", F32, [2, 3]), ("sum", F32, [])]
    nodes.insert(2, helper.make_node("Identity", ["twice"], ["image"]))
    results[2] = ("image", F32, [2, 3])
    body = helper.make_graph(nodes, "body", *([helper.make_tensor_value_info(*e) for e in g] for g in (ends, results)))
    loop = helper.make_node("Loop", ["n", "c" if has_condition else "", "x"], ["y", "images", "sums"], body=body)
    feeds = {"n": np.array(turns, np.int64), "x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    feeds |= {"c": np.array(True)} if has_condition else {}
    for found, wanted in zip(*both([loop], feeds, ("y", "images", "sums")), strict=True):
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("axes", [(), (1,)])
@pytest.mark.parametrize(
    "given", [("most", "overlap", "least"), ("most", "overlap"), ("most",), ("most", "", "least"), ()]
)
def test_limits_of_boxes_may_be_numbers_without_an_axis_or_absent(axes, given):
    rng = np.random.default_rng(3)
    corners = rng.uniform(0, 1, (1, 12, 2)).astype(np.float32)
    boxes = np.concatenate([corners, corners + rng.uniform(0.2, 0.6, (1, 12, 2)).astype(np.float32)], 2)
    limits = {"most": np.int64(4), "overlap": np.float32(0.4), "least": np.float32(0.3)}
    feeds = {"boxes": boxes, "scores": rng.uniform(0, 1, (1, 2, 12)).astype(np.float32)}
    feeds |= {name: np.full(axes, limits[name]) for name in given if name}
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores", *given], ["y"])
    (found,), (wanted,) = both([node], feeds, ("y",))
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


IMAGE = np.random.default_rng(0).standard_normal((2, 5, 3, 4)).astype(np.float32)
TABLE = np.random.default_rng(1).standard_normal((40, 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("op", "feeds", "attrs"),
    [
        ("OneHot", [np.array([0, 2, -1]), np.array([3]), np.array([0, 1], np.float32)], {}),
        ("OneHot", [np.array([0, 2, -1]), np.array([3.0], np.float32), np.array([5, 7], np.float32)], {"axis": 0}),
        ("CumSum", [TABLE, np.array([1])], {}),
        ("CumSum", [TABLE, np.array([-2])], {"reverse": 1, "exclusive": 1}),
        ("GatherElements", [TABLE, np.array([[39, 0], [-40, 33]])], {"axis": 0}),
        ("GatherElements", [IMAGE, np.array([[[[0], [-1]]]])], {"axis": 3}),
        ("LRN", [IMAGE], {"size": 3}),
        ("LRN", [IMAGE], {"size": 5, "alpha": 0.5, "beta": 0.5, "bias": 2.0}),
    ],
)
def test_operators_that_the_evaluator_has_otherwise(op, feeds, attrs):
    named = dict(zip("abc", feeds, strict=False))
    (found,), (wanted,) = both([helper.make_node(op, list(named), ["y"], **attrs)], named, ["y"])
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("opset", "op", "nested", "evaluator"),
    [
        (17, "Softmax", False, REFERENCE),
        (11, "Softmax", False, RUNTIME),
        (17, "LpNormalization", False, RUNTIME),
        (17, "LpNormalization", True, RUNTIME),
        (17, "Relu", True, REFERENCE),
    ],
)
def test_what_the_evaluator_has_wrong_is_left_to_onnxruntime(opset, op, nested, evaluator):
    ends = [helper.make_tensor_value_info(name, F32, [2, 3, 4]) for name in "xy"]
    nodes = [helper.make_node(op, ["x"], ["y"])]
    if nested:
        bodies = {
            name: helper.make_graph(
                [helper.make_node(op, ["x"], [name])], name, [], [helper.make_tensor_value_info(name, F32, [2, 3, 4])]
            )
            for name in ("then_branch", "else_branch")
        }
        nodes = [helper.make_node("If", ["c"], ["y"], **bodies)]
        ends.insert(1, helper.make_tensor_value_info("c", BOOL, []))
    graph = helper.make_graph(nodes, "g", ends[:-1], ends[-1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    assert evaluator_of(model) == evaluator
    if evaluator == RUNTIME:
        with pytest.raises(Unsupported, match=f"its {op} is not what ONNX says"):
            HostEvaluator(model.SerializeToString(), REFERENCE)
