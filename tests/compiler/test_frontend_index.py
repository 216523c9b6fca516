"""Operators about positions, and the recurrent ones, against onnxruntime or NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from libnpu import NpuError
from libnpu.errors import Unimplemented


def f32(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-2, 0, 1, 9])
def test_triangles_of_a_computed_diagonal(upper, k, check, rng):
    check([("Trilu", ["x", "k"], ["y"], {"upper": upper})], {"x": f32(rng, 2, 4, 5), "k": np.array(k)})


def test_a_triangle_leaves_no_nan_of_what_it_drops(make_model, run_on_device):
    x = np.full((3, 3), np.nan, np.float32)
    model = make_model([("Trilu", ["x"], ["y"], {"upper": 0})], {"x": x}, ["y"])
    np.testing.assert_array_equal(run_on_device(model, {"x": x})["y"], np.where(np.tri(3) > 0, np.nan, 0))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot(axis, check):
    feeds = {"i": np.array([[1, -1, 4], [0, 7, -5]]), "v": np.array([2.0, 5.0], np.float32)}
    nodes = [("OneHot", ["i", "d", "v"], ["y"], {"axis": axis})]
    check(nodes, feeds, constants={"d": np.array(5)})


@pytest.mark.parametrize("opset", [11, 13])
def test_hardmax_marks_the_first_of_the_largest(opset, check):
    x = np.array([[[1, 3, 3], [2, 2, 0]], [[0, 0, 0], [-1, -2, -1]]], np.float32)
    check([("Hardmax", ["x"], ["y"], {"axis": 1})], {"x": x}, opset=opset)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_the_last_of_equal_elements(op, check):
    x = np.array([[1, 3, 3, 1], [2, 2, 2, 2]], np.float32)
    check([(op, ["x"], ["y"], {"axis": 1, "select_last_index": 1})], {"x": x})


@pytest.mark.parametrize("attrs", [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_running_sums(attrs, dtype, check, rng):
    x = rng.integers(-9, 9, (2, 7, 3)).astype(dtype)
    check([("CumSum", ["x", "axis"], ["y"], attrs)], {"x": x}, constants={"axis": np.array(1)})


def test_a_running_sum_carries_a_nan_forwards_only(make_model, run_on_device):
    x = np.array([1, np.nan, 2], np.float32)
    model = make_model([("CumSum", ["x", "axis"], ["y"], {})], {"x": x}, ["y"], {"axis": np.array(0)})
    np.testing.assert_array_equal(run_on_device(model, {"x": x})["y"], [1, np.nan, np.nan])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_elements(axis, check, rng):
    shape = [3, 4, 5]
    indices = rng.integers(-shape[axis], shape[axis], (2, 4, 3))
    check([("GatherElements", ["x", "i"], ["y"], {"axis": axis})], {"x": f32(rng, *shape), "i": indices})


@pytest.mark.parametrize(
    ("data", "indices", "batch"), [((3, 4, 5), (2, 2), 0), ((3, 4, 5), (6, 3), 0), ((2, 3, 4, 5), (2, 3, 2, 1), 2)]
)
def test_gather_nd(data, indices, batch, check, rng):
    sizes = data[batch : batch + indices[-1]]
    places = np.stack([rng.integers(-size, size, indices[:-1]) for size in sizes], axis=-1)
    check([("GatherND", ["x", "i"], ["y"], {"batch_dims": batch})], {"x": f32(rng, *data), "i": places})


def test_a_gather_outside_of_its_axis_is_a_fault_also_where_the_table_goes_on(make_model, run_on_device):
    feeds = {"x": np.ones((3, 3), np.float32), "i": np.array([[0, 3, 0]])}
    model = make_model([("GatherElements", ["x", "i"], ["y"], {"axis": 0})], feeds, ["y"])
    with pytest.raises(NpuError, match="KERNEL_FAULT"):
        run_on_device(model, feeds)


def test_sequences_are_reversed_up_to_their_lengths(check, rng):
    feeds = {"x": f32(rng, 5, 3, 2), "n": np.array([1, 5, 3])}
    check([("ReverseSequence", ["x", "n"], ["y"], {})], feeds)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_scatters(reduction, dtype, check, rng):
    def some(*shape):
        return rng.integers(-9, 9, shape).astype(dtype)

    unique = np.stack([rng.permutation(4)[:3] for _ in range(3)], axis=1)
    indices = unique if reduction == "none" else rng.integers(-4, 4, (3, 3))
    feeds = {"x": some(4, 3), "i": indices, "u": some(3, 3)}
    check([("ScatterElements", ["x", "i", "u"], ["y"], {"axis": 0, "reduction": reduction})], feeds, opset=18)
    places = np.array([[1, 2], [0, -1], [3, 0]] if reduction == "none" else [[1, 2], [0, -1], [1, 2]])
    feeds = {"x": some(4, 3, 2), "i": places, "u": some(3, 2)}
    check([("ScatterND", ["x", "i", "u"], ["y"], {"reduction": reduction})], feeds, opset=18)


def test_a_scatter_of_too_many_pairs_is_named_with_its_numbers(make_model, rng):
    from libnpu.compiler.frontend import load

    shapes = {"x": (np.float32, (8192,)), "i": (np.int64, (4096,)), "u": (np.float32, (4096,))}
    model = make_model([("ScatterElements", ["x", "i", "u"], ["y"], {})], shapes, ["y"])
    with pytest.raises(Unimplemented, match="8192 places for 4096 updates: 33554432 comparisons, at most 16777216"):
        load(model)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_top_k(largest, axis, check, rng):
    x = np.round(f32(rng, 6, 7) * 2)
    nodes = [("TopK", ["x", "k"], ["y", "i"], {"axis": axis, "largest": largest})]
    check(nodes, {"x": x}, outputs=("y", "i"), constants={"k": np.array([4])})


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("bij,bkj", [(2, 3, 4), (2, 5, 4)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (1, 5, 4, 6)]),
        ("iij->j", [(3, 3, 4)]),
        ("ij,kl->jl", [(2, 3), (4, 5)]),
        ("i,ij,j->", [(3,), (3, 4), (4,)]),
        ("bhqd,bkhd->bhqk", [(2, 3, 4, 5), (2, 6, 3, 5)]),
        ("ij->ji", [(3, 4)]),
    ],
)
def test_einsum(equation, shapes, check, rng):
    names = "abc"[: len(shapes)]
    feeds = {name: f32(rng, *shape) for name, shape in zip(names, shapes, strict=True)}
    check([("Einsum", list(names), ["y"], {"equation": equation})], feeds)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("variant", ["plain", "all"])
def test_recurrent_networks(op, direction, variant, check, rng):
    gates, count = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 2 if direction == "bidirectional" else 1
    steps, batch, inputs, hidden = 4, 3, 5, 6
    feeds = {"x": f32(rng, steps, batch, inputs)}
    constants = {"w": f32(rng, count, gates * hidden, inputs), "r": f32(rng, count, gates * hidden, hidden)}
    names, attrs = ["x", "w", "r"], {"hidden_size": hidden, "direction": direction}
    if variant == "all":
        constants |= {"b": f32(rng, count, 2 * gates * hidden)}
        feeds |= {"n": np.array([4, 1, 3], np.int32), "h": f32(rng, count, batch, hidden)}
        names += ["b", "n", "h"]
        attrs["clip"] = 1.5
        if op == "LSTM":
            feeds["c"] = f32(rng, count, batch, hidden)
            constants["p"] = f32(rng, count, 3 * hidden)
            names += ["c", "p"]
        if op == "GRU":
            attrs["linear_before_reset"] = 1
    outputs = ["y", "yh", "yc"] if op == "LSTM" else ["y", "yh"]
    check([(op, names, outputs, attrs)], feeds, outputs=outputs, constants=constants, opset=14, half_tolerance=2e-2)


def test_a_recurrent_network_with_activations_of_its_own(check, rng):
    attrs = {"hidden_size": 4, "activations": ["LeakyRelu"], "activation_alpha": [0.3]}
    constants = {"w": f32(rng, 1, 4, 3), "r": f32(rng, 1, 4, 4)}
    check([("RNN", ["x", "w", "r"], ["y"], attrs)], {"x": f32(rng, 3, 2, 3)}, constants=constants, opset=14)


@pytest.mark.parametrize(("start", "end", "step"), [(4, -(2**31), -1), (-1, 0, -2), (3, 1, -5), (1, 3, -1)])
def test_slices_go_backwards(start, end, step, make_model, run_on_device):
    x = np.arange(30, dtype=np.int32).reshape(5, 6)
    constants = {"s": np.array([start, 1]), "e": np.array([end, 6]), "a": np.array([0, -1]), "t": np.array([step, 2])}
    model = make_model(
        [("Slice", ["x", *constants], ["z"], {}), ("ReduceSum", ["z"], ["y"], {"keepdims": 0})],
        {"x": x},
        ["y"],
        constants,
    )
    assert run_on_device(model, {"x": x})["y"] == x[start:end:step, 1::2].sum()


@pytest.mark.parametrize("of_axis", [False, True])
def test_compress_of_a_known_condition_needs_no_declared_shape(of_axis, make_model, run_on_device):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    keep = {"c": np.array([True, False, True])}
    nodes = [
        ("Compress", ["x", "c"], ["z"], {"axis": 1} if of_axis else {}),
        ("ReduceSum", ["z"], ["y"], {"keepdims": 0}),
    ]
    model = make_model(nodes, {"x": x}, ["y"], keep)
    assert run_on_device(model, {"x": x})["y"] == np.compress([1, 0, 1], x, 1 if of_axis else None).sum()


def test_erf_of_integers_is_that_of_their_floats(make_model, run_on_device):
    x = np.array([-5, -1, 0, 1, 7], np.int32)
    model = make_model([("Erf", ["x"], ["y"], {})], {"x": x}, ["y"], opset=9)
    assert run_on_device(model, {"x": x})["y"].tolist() == [-1, 0, 0, 0, 1]


@pytest.mark.parametrize(("reduction", "expected"), [("max", [True, True, False]), ("min", [False, True, False])])
def test_scatters_of_truths(reduction, expected, make_model, run_on_device):
    x, places, updates = np.array([False, True, False]), np.array([0, 1]), np.array([True, True])
    nodes = [("ScatterElements", ["x", "i", "u"], ["y"], {"reduction": reduction})]
    feeds = {"x": x, "i": places, "u": updates}
    assert run_on_device(make_model(nodes, feeds, ["y"], opset=18), feeds)["y"].tolist() == expected
