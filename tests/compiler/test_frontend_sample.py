"""Samples of images, unrolled scans, quantisation and selections by a condition, against onnxruntime or NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from libnpu import NpuError
from libnpu.compiler.frontend import load
from libnpu.errors import Unimplemented


def f32(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_samples_of_an_image(mode, padding, align, make_model, oracle, run_on_device, rng):
    feeds = {"x": f32(rng, 2, 3, 5, 4), "g": rng.uniform(-1.6, 1.6, (2, 3, 4, 2)).astype(np.float32)}
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": align}
    model = make_model([("GridSample", ["x", "g"], ["y"], attrs)], feeds, ["y"], opset=20)
    np.testing.assert_allclose(run_on_device(model, feeds)["y"], oracle(model, feeds)["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_samples_of_a_volume(padding, make_model, oracle, run_on_device, rng):
    feeds = {"x": f32(rng, 1, 2, 3, 4, 5), "g": rng.uniform(-1.4, 1.4, (1, 2, 3, 2, 3)).astype(np.float32)}
    model = make_model([("GridSample", ["x", "g"], ["y"], {"padding_mode": padding})], feeds, ["y"], opset=20)
    np.testing.assert_allclose(run_on_device(model, feeds)["y"], oracle(model, feeds)["y"], rtol=1e-4, atol=1e-5)


def test_a_sample_beside_the_image_takes_no_nan_of_it(make_model, run_on_device):
    x = np.full((1, 1, 2, 2), np.nan, np.float32)
    feeds = {"x": x, "g": np.full((1, 1, 1, 2), 3.0, np.float32)}
    model = make_model([("GridSample", ["x", "g"], ["y"], {})], feeds, ["y"], opset=20)
    assert run_on_device(model, feeds)["y"].tolist() == [[[[0.0]]]]


def scan_body():
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Add", ["s", "e"], ["sum"]),
        helper.make_node("Mul", ["sum", "k"], ["row"]),
    ]
    inputs = [info("s", TensorProto.FLOAT, [3]), info("e", TensorProto.FLOAT, [3])]
    outputs = [info("sum", TensorProto.FLOAT, [3]), info("row", TensorProto.FLOAT, [3])]
    return helper.make_graph(nodes, "body", inputs, outputs)


@pytest.mark.parametrize("turned", [0, 1])
def test_a_scan_is_unrolled_and_sees_what_is_around_it(turned, make_model, oracle, run_on_device, rng):
    attrs = {
        "body": scan_body(),
        "num_scan_inputs": 1,
        "scan_input_axes": [1],
        "scan_input_directions": [turned],
        "scan_output_axes": [1],
        "scan_output_directions": [turned],
    }
    feeds = {"s": f32(rng, 3), "x": f32(rng, 3, 4), "k": f32(rng, 3)}
    model = make_model([("Scan", ["s", "x"], ["last", "rows"], attrs)], feeds, ["last", "rows"])
    got, want = run_on_device(model, feeds), oracle(model, feeds)
    for name in ("last", "rows"):
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5)


def test_a_scan_of_too_many_steps_is_named_with_the_limit(make_model):
    shapes = {"s": (np.float32, (3,)), "x": (np.float32, (1025, 3)), "k": (np.float32, (3,))}
    model = make_model([("Scan", ["s", "x"], ["l", "r"], {"body": scan_body(), "num_scan_inputs": 1})], shapes, ["l"])
    with pytest.raises(Unimplemented, match="Scan of 1025 steps, 1 to 1024"):
        load(model)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("per_axis", [False, True])
def test_quantisation_and_back(dtype, per_axis, make_model, oracle, run_on_device, rng):
    count = 3 if per_axis else 1
    feeds = {"x": 40 * f32(rng, 2, 3, 5)}
    constants = {"s": np.abs(f32(rng, count)) / 8 + np.float32(0.01), "z": rng.integers(0, 100, count).astype(dtype)}
    if not per_axis:
        constants = {name: array[0] for name, array in constants.items()}
    nodes = [("QuantizeLinear", ["x", "s", "z"], ["q"], {}), ("DequantizeLinear", ["q", "s", "z"], ["y"], {})]
    model = make_model(nodes, feeds, ["q", "y"], constants, opset=21)
    got, want = run_on_device(model, feeds), oracle(model, feeds)
    np.testing.assert_array_equal(got["q"], want["q"])
    np.testing.assert_array_equal(got["y"], want["y"])


def test_elements_of_a_condition(make_model, run_on_device, rng):
    feeds = {"x": f32(rng, 3, 5), "c": np.array([0, 1, 1, 0, 1], bool)}
    model = make_model([("Compress", ["x", "c"], ["y"], {"axis": 1})], feeds, ["y"])
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 3
    np.testing.assert_array_equal(run_on_device(model, feeds)["y"], feeds["x"][:, feeds["c"]])
    with pytest.raises(NpuError, match="KERNEL_FAULT"):
        run_on_device(model, feeds | {"c": np.ones(5, bool)})


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("sizes", [(1, 3, 2, 4), (2, 1, 2, 3, 5)], ids=["image", "volumes"])
def test_places_of_a_grid(sizes, align, make_model, oracle, run_on_device, rng):
    rank = len(sizes) - 2
    feeds = {"theta": f32(rng, sizes[0], rank, rank + 1)}
    nodes = [("AffineGrid", ["theta", "size"], ["y"], {"align_corners": align})]
    model = make_model(nodes, feeds, ["y"], {"size": np.array(sizes)}, opset=20)
    np.testing.assert_allclose(run_on_device(model, feeds)["y"], oracle(model, feeds)["y"], rtol=1e-5, atol=1e-5)
