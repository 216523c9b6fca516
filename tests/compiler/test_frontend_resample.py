"""Resizing, transposed convolution and padding by copies, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest


def f32(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("transform", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(2.0, 3.0), (0.5, 1.5)])
def test_resize_by_scales(transform, mode, scales, check, rng):
    constants = {"roi": np.zeros(0, np.float32), "s": np.array([1, 1, *scales], np.float32)}
    attrs = {"mode": mode, "coordinate_transformation_mode": transform}
    check([("Resize", ["x", "roi", "s"], ["y"], attrs)], {"x": f32(rng, 1, 2, 4, 6)}, constants=constants, opset=13)


@pytest.mark.parametrize("nearest_mode", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_resize_to_sizes(nearest_mode, check, rng):
    constants = {"sizes": np.array([1, 2, 7, 9])}
    nodes = [("Resize", ["x", "", "", "sizes"], ["y"], {"nearest_mode": nearest_mode})]
    check(nodes, {"x": f32(rng, 1, 2, 4, 6)}, constants=constants, opset=13)


def test_whole_nearest_scale_needs_no_gather(check, rng):
    constants = {"s": np.array([1, 1, 2, 2], np.float32)}
    graph = check([("Upsample", ["x", "s"], ["y"], {})], {"x": f32(rng, 1, 2, 3, 3)}, constants=constants, opset=9)
    assert {node.op for node in graph.nodes} == {"Reshape", "Expand"}


@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"strides": [2, 3]},
        {"strides": [3, 2]},
        {"strides": [2, 2], "pads": [1, 0, 1, 2], "output_padding": [1, 0]},
        {"strides": [2, 1], "dilations": [2, 2]},
        {"strides": [3, 3], "pads": [2, 2, 2, 2]},
        {"strides": [2, 2], "output_shape": [9, 11]},
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
    ],
)
@pytest.mark.parametrize("group", [1, 2])
def test_conv_transpose(attrs, group, check, rng):
    constants = {"w": f32(rng, 4, 3, 3, 2), "b": f32(rng, 3 * group)}
    nodes = [("ConvTranspose", ["x", "w", "b"], ["y"], attrs | {"group": group})]
    check(nodes, {"x": f32(rng, 2, 4, 5, 6)}, constants=constants, opset=11)


def test_transposed_kernels_side_by_side_put_no_zeros_between(check, rng):
    nodes = [("ConvTranspose", ["x", "w"], ["y"], {"strides": [3, 2]})]
    graph = check(nodes, {"x": f32(rng, 2, 4, 5, 6)}, constants={"w": f32(rng, 4, 3, 3, 2)}, opset=11)
    rows = ["Conv"] * 3  # of the blocks
    assert [node.op for node in graph.nodes] == [*rows, "Concat", "Reshape", "Transpose", "Reshape"]


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_pad_by_copies(mode, check, rng):
    constants = {"p": np.array([0, 2, 1, 0, 1, 3])}
    check([("Pad", ["x", "p"], ["y"], {"mode": mode})], {"x": f32(rng, 2, 3, 5)}, constants=constants, opset=13)


@pytest.mark.parametrize("transform", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("attrs", [{}, {"cubic_coeff_a": -0.5}, {"exclude_outside": 1}])
@pytest.mark.parametrize("sizes", [(7, 9), (3, 4)])
def test_cubic_resize(transform, attrs, sizes, check, rng):
    attrs = attrs | {"mode": "cubic", "coordinate_transformation_mode": transform}
    constants = {"sizes": np.array([1, 2, *sizes])}
    check(
        [("Resize", ["x", "", "", "sizes"], ["y"], attrs)], {"x": f32(rng, 1, 2, 5, 6)}, constants=constants, opset=18
    )


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_smoothed_resize_of_the_axes_that_are_given(mode, check, rng):
    attrs = {"mode": mode, "antialias": 1, "axes": [2, 3]}
    constants = {"sizes": np.array([3, 2])}
    check(
        [("Resize", ["x", "", "", "sizes"], ["y"], attrs)], {"x": f32(rng, 1, 2, 8, 7)}, constants=constants, opset=18
    )


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_a_crop_extrapolates_beside_the_image(mode, check, rng):
    attrs = {
        "mode": mode,
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 7.0,
    }
    constants = {"roi": np.array([0, 0, -0.2, 0.3, 1, 1, 0.8, 1.4], np.float32), "sizes": np.array([1, 1, 4, 5])}
    nodes = [("Resize", ["x", "roi", "", "sizes"], ["y"], attrs)]
    check(nodes, {"x": f32(rng, 1, 1, 6, 7)}, constants=constants, opset=18)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_resize_that_keeps_the_aspect_ratio(policy, check, rng):
    attrs = {"mode": "nearest", "keep_aspect_ratio_policy": policy, "axes": [2, 3]}
    constants = {"sizes": np.array([7, 8])}
    check(
        [("Resize", ["x", "", "", "sizes"], ["y"], attrs)], {"x": f32(rng, 1, 1, 2, 4)}, constants=constants, opset=18
    )


def test_linear_resize_of_a_leading_axis(check, rng):
    constants = {"sizes": np.array([5, 7, 2, 2])}
    attrs = {"mode": "linear"}
    check(
        [("Resize", ["x", "", "", "sizes"], ["y"], attrs)], {"x": f32(rng, 5, 3, 2, 2)}, constants=constants, opset=18
    )


@pytest.mark.parametrize("op", ["Upsample", "Resize"])
def test_integers_are_blended_as_floats_and_cut(op, make_model, oracle, run_on_device):
    x = np.array([[[[0, 10, 255, 3]]]], np.uint8)
    scales = {"s": np.array([1, 1, 1, 2], np.float32)}
    inputs = ["x", "s"] if op == "Upsample" else ["x", "", "s"]
    attrs = {"mode": "linear"} | ({} if op == "Upsample" else {"coordinate_transformation_mode": "asymmetric"})
    model = make_model([(op, inputs, ["y"], attrs)], {"x": x}, ["y"], scales, 9 if op == "Upsample" else 13)
    np.testing.assert_array_equal(run_on_device(model, {"x": x})["y"], oracle(model, {"x": x})["y"])
