"""Convolution and pooling tap by tap, against onnxruntime: computed weights, three dimensions, indices, counts."""

from __future__ import annotations

import numpy as np
import pytest

from libnpu.compiler.frontend import load
from libnpu.compiler.frontend.ops_matrix import MAX_IMAGE
from libnpu.compiler.lower import pooling
from libnpu.compiler.reference import run_reference


def f32(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((2, 4, 7, 6), (8, 4, 3, 2), {"strides": [2, 1], "pads": [1, 0, 2, 1]}),
        ((2, 4, 7, 6), (6, 2, 3, 2), {"group": 2, "dilations": [2, 1]}),
        ((1, 3, 9), (2, 3, 4), {"auto_pad": "SAME_LOWER", "strides": [2]}),
        ((1, 2, 5, 4, 3), (3, 2, 2, 3, 2), {"pads": [1, 1, 0, 0, 1, 1]}),
    ],
)
def test_convolution_with_computed_weights_and_bias(x, w, attrs, check, rng):
    feeds = {"x": f32(rng, *x), "w": f32(rng, *w), "b": f32(rng, w[0])}
    graph = check([("Conv", ["x", "w", "b"], ["y"], attrs)], feeds)
    assert "MatMul" in {node.op for node in graph.nodes}


def test_a_kernel_longer_than_the_engine_s_is_several(check, rng):
    constants = {"w": f32(rng, 2, 3, 600), "b": f32(rng, 2)}
    attrs = {"strides": [64], "pads": [10, 30]}
    graph = check([("Conv", ["x", "w", "b"], ["y"], attrs)], {"x": f32(rng, 1, 3, 1000)}, constants=constants)
    assert [node.op for node in graph.nodes].count("Conv") == 3


def test_only_the_bias_computed_leaves_the_engine_its_convolution(check, rng):
    feeds = {"x": f32(rng, 1, 3, 5, 5), "b": f32(rng, 4)}
    graph = check([("Conv", ["x", "w", "b"], ["y"], {})], feeds, constants={"w": f32(rng, 4, 3, 3, 3)})
    assert [node.op for node in graph.nodes] == ["Conv", "Reshape", "Elementwise"]


def test_convolution_in_three_dimensions_with_constant_weights(check, rng):
    constants = {"w": f32(rng, 4, 2, 2, 3, 2), "b": f32(rng, 4)}
    check(
        [("Conv", ["x", "w", "b"], ["y"], {"strides": [1, 2, 1]})], {"x": f32(rng, 1, 2, 5, 4, 3)}, constants=constants
    )


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((1, 4, 5, 4), (4, 3, 3, 2), {"group": 2, "strides": [2, 1], "pads": [1, 0, 1, 1]}),
        ((1, 2, 5), (2, 3, 3), {"strides": [3], "output_padding": [1]}),
        ((1, 2, 3, 4, 2), (2, 2, 2, 2, 3), {"strides": [2, 1, 2]}),
        ((1, 2, 3, 3), (2, 2, 3, 3), {"strides": [3, 2], "output_shape": [10, 8]}),
    ],
)
@pytest.mark.parametrize("computed", [False, True])
def test_transposed_convolution_of_any_rank(x, w, attrs, computed, check, rng):
    feeds, weights = {"x": f32(rng, *x)}, {"w": f32(rng, *w)}
    constants = None if computed else weights
    check([("ConvTranspose", ["x", "w"], ["y"], attrs)], feeds | (weights if computed else {}), constants=constants)


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize(
    ("x", "attrs"),
    [
        ((1, 2, 7, 8), {"kernel_shape": [3, 2], "strides": [2, 3], "dilations": [2, 2], "pads": [1, 0, 1, 1]}),
        ((1, 2, 5, 6, 4), {"kernel_shape": [2, 3, 2], "strides": [2, 2, 1], "pads": [1, 1, 0, 0, 1, 1]}),
        ((1, 2, 7, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ],
)
def test_average_pool(x, attrs, ceil_mode, include, check, rng):
    attrs = attrs | {"ceil_mode": ceil_mode, "count_include_pad": include}
    check([("AveragePool", ["x"], ["y"], attrs)], {"x": f32(rng, *x)}, opset=19)


@pytest.mark.parametrize("storage_order", [0, 1])
def test_max_pool_with_indices(storage_order, check, rng):
    attrs = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 1, 0, 1], "storage_order": storage_order}
    x = np.round(f32(rng, 2, 3, 6, 5), 1)
    x[0, 0] = -np.inf  # nothing is larger than the padding
    check([("MaxPool", ["x"], ["y", "i"], attrs)], {"x": x[:, 1:]}, outputs=("y", "i"))
    check([("MaxPool", ["x"], ["y", "i"], attrs)], {"x": x}, outputs=("i",))


def test_max_pool_of_integers_and_in_three_dimensions(check, rng):
    x = rng.integers(-128, 128, (1, 2, 6, 5)).astype(np.int8)
    check([("MaxPool", ["x"], ["y"], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]})], {"x": x})
    check(
        [("MaxPool", ["x"], ["y"], {"kernel_shape": [2, 2, 3], "dilations": [2, 1, 1]})], {"x": f32(rng, 1, 2, 5, 4, 4)}
    )


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool(p, check, rng):
    attrs = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "p": p}
    check([("LpPool", ["x"], ["y"], attrs)], {"x": f32(rng, 1, 2, 6, 5)})


@pytest.mark.parametrize("attrs", [{}, {"strides": [2, 1], "pads": [1, 0, 1, 2]}, {"dilations": [2, 2]}])
def test_columns_back_to_an_image(attrs, check, rng):
    strides, pads = attrs.get("strides", [1, 1]), attrs.get("pads", [0] * 4)
    reach = [(k - 1) * d + 1 for k, d in zip((3, 2), attrs.get("dilations", [1, 1]), strict=True)]
    counts = [(size + pads[i] + pads[2 + i] - reach[i]) // strides[i] + 1 for i, size in enumerate((6, 5))]
    constants = {"i": np.array([6, 5]), "k": np.array([3, 2])}
    feeds = {"x": f32(rng, 2, 12, counts[0] * counts[1])}
    check([("Col2Im", ["x", "i", "k"], ["y"], attrs)], feeds, constants=constants, opset=18)


@pytest.mark.parametrize("size", [3, 5])
def test_normalisation_over_channels(size, check, rng):
    attrs = {"size": size, "alpha": 2e-3, "beta": 0.6, "bias": 1.5}
    check([("LRN", ["x"], ["y"], attrs)], {"x": 100 * f32(rng, 2, 7, 3, 4)})


def test_normalisation_of_one_channel_in_float16(make_model, rng):
    """Its factor is beyond what float16 holds."""
    x = f32(rng, 1, 2, 3, 4).astype(np.float16)
    model = make_model([("LRN", ["x"], ["y"], {"size": 1, "alpha": 0.9, "beta": 0.5})], {"x": x}, ["y"])
    found = run_reference(load(model), {"x": x})["y"]
    np.testing.assert_allclose(found, x / np.sqrt(1 + 0.9 * x.astype(float) ** 2), rtol=3e-3, atol=1e-6)


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
def test_one_window_is_as_large_as_two_steps_of_the_engine_reach(op, make_model):
    for rows, is_window in ((MAX_IMAGE, True), (MAX_IMAGE + 1, False)):
        graph = load(make_model([(op, ["x"], ["y"], {})], {"x": np.zeros((1, 1, rows, 1), np.float32)}, ["y"]))
        assert ("Reduce" not in {node.op for node in graph.nodes}) == is_window
        assert bool(list(pooling._sizes(rows))) == is_window


def test_batch_normalisation_with_computed_parameters(check, rng):
    feeds = {"x": f32(rng, 2, 3, 4, 5), **{name: f32(rng, 3) for name in "sbm"}, "v": np.abs(f32(rng, 3)) + 0.1}
    check([("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], {})], feeds)


@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
def test_running_sums_along_a_computed_axis(op, make_model, run_on_device):
    x = np.arange(1, 25, dtype=np.float32).reshape(2, 3, 4) / 8
    feeds = {"x": x, "axis": np.array(-2, np.int32)}
    if op == "CumProd":
        model = make_model([(op, ["x", "axis"], ["y"], {})], feeds, ["y"], opset=26)
        expected = np.cumprod(x, axis=1)
    else:
        model = make_model([(op, ["x", "axis"], ["y"], {"reverse": 1, "exclusive": 1})], feeds, ["y"])
        expected = np.cumsum(x[:, ::-1], axis=1)[:, ::-1] - x
    np.testing.assert_allclose(run_on_device(model, feeds)["y"], expected, rtol=1e-6)


@pytest.mark.parametrize("p", [2, 3])
def test_lp_pool_of_small_numbers_is_right_in_float16(p, make_model, run_on_device):
    """Their powers are below what float16 holds."""
    x = np.full((1, 2, 4, 5), 0.004, np.float16)
    model = make_model(
        [("LpPool", ["x"], ["y"], {"kernel_shape": [2, 2], "strides": [2, 1], "p": p})], {"x": x}, ["y"], opset=22
    )
    got = run_on_device(model, {"x": x}, "fp16")["y"]
    np.testing.assert_allclose(got, np.full((1, 2, 2, 4), 0.004 * 4 ** (1 / p)), rtol=2e-3)


@pytest.mark.parametrize(
    ("x", "w", "attrs", "products"),
    [
        ((1, 8, 1100), (6, 8, 3), {"dilations": [512], "pads": [512, 512]}, 3),
        ((2, 4, 900), (6, 2, 3), {"dilations": [300], "group": 2, "strides": [3], "pads": [0, 7]}, 3),
        ((1, 1, 2000), (5, 1, 1024), {"strides": [320], "pads": [100, 50]}, 1),
        ((1, 4, 1300), (8, 2, 300), {"strides": [256], "group": 2}, 1),
        ((1, 4, 1300), (8, 4, 3), {"strides": [300], "dilations": [400]}, 1),
        ((1, 4, 1300), (8, 4, 1), {"strides": [300], "dilations": [400]}, 1),
        ((1, 3, 700, 5), (4, 3, 3, 2), {"strides": [260, 2], "dilations": [100, 1], "pads": [3, 1, 0, 1]}, 1),
        ((1, 2, 400, 900), (4, 2, 2, 2), {"strides": [300, 400]}, 1),
    ],
)
def test_convolutions_with_steps_that_the_engine_does_not_take(x, w, attrs, products, check, rng):
    constants = {"w": rng.standard_normal(w).astype(np.float32) / 16, "b": rng.standard_normal(w[0]).astype(np.float32)}
    nodes = [("Conv", ["x", "w", "b"], ["y"], attrs)]
    graph = check(nodes, {"x": rng.standard_normal(x).astype(np.float32)}, constants=constants)
    convolutions = [node for node in graph.nodes if node.op == "Conv"]
    assert len(convolutions) == products
    assert all(max(*node.attrs["strides"], *node.attrs["dilations"]) <= 255 for node in convolutions)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("MaxPool", {"kernel_shape": [3], "strides": [300]}),
        ("MaxPool", {"kernel_shape": [3], "dilations": [300], "pads": [2, 0]}),
        ("AveragePool", {"kernel_shape": [3], "strides": [300], "pads": [1, 1]}),
    ],
)
def test_pools_with_steps_that_the_engine_does_not_take_are_tap_by_tap(op, attrs, check, rng):
    graph = check([(op, ["x"], ["y"], attrs)], {"x": f32(rng, 1, 4, 1200)}, opset=12)
    assert not {"MaxPool", "AvgPool"} & {node.op for node in graph.nodes}


@pytest.mark.parametrize(
    ("x", "w", "attrs", "taken"),
    [
        ((2, 1, 1000), (10, 1, 256), {"strides": [128], "pads": [20, 30]}, (2, 128, 1, 8)),
        ((1, 1, 96), (4, 1, 16), {"strides": [16]}, (1, 16, 1, 6)),
        ((1, 1, 5, 41), (3, 1, 3, 8), {"strides": [2, 4], "pads": [1, 0, 1, 3], "dilations": [2, 1]}, (1, 4, 5, 11)),
        ((1, 1, 60), (4, 1, 6), {"strides": [4]}, (1, 2, 1, 29)),
        ((1, 1, 1300), (4, 1, 512), {"strides": [160], "pads": [0, 20]}, (1, 32, 1, 41)),
        ((1, 1, 60), (4, 1, 7), {"strides": [4]}, (1, 1, 1, 60)),
        ((1, 1, 60), (4, 1, 4), {"strides": [2], "dilations": [2]}, (1, 1, 1, 60)),
        ((1, 2, 60), (4, 2, 4), {"strides": [2]}, (1, 2, 1, 60)),
    ],
)
def test_windows_of_one_channel_in_whole_steps_have_them_as_channels(x, w, attrs, taken, check, rng):
    graph = check([("Conv", ["x", "w"], ["y"], attrs)], {"x": f32(rng, *x)}, constants={"w": f32(rng, *w) / 8})
    (product,) = [node for node in graph.nodes if node.op == "Conv"]
    assert product.inputs[0].shape == taken
