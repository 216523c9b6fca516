"""Operators that are composed of several: boxes, n-grams, offsets, determinants, caches, windows and transforms."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from libnpu.compiler.frontend import ModelError, load
from libnpu.compiler.reference import run_reference
from libnpu.errors import Unimplemented, Unsupported


def random(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def nms(rng, make_model, count, declared, limit=3, center=0):
    boxes = rng.random((2, count, 4), np.float32)
    scores = rng.random((2, 2, count), np.float32)
    constants = {"limit": np.int64(limit), "iou": np.float32(0.3), "least": np.float32(0.2)}
    node = ("NonMaxSuppression", ["boxes", "scores", *constants], ["y"], {"center_point_box": center})
    model = make_model([node], {"boxes": boxes, "scores": scores}, ["y"], constants)
    shape = [declared, 3] if declared is not None else ["count", 3]
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.INT64, shape))
    return model, {"boxes": boxes, "scores": scores}


@pytest.mark.parametrize("center", [0, 1])
def test_boxes_are_selected_in_the_order_of_onnxruntime(rng, make_model, oracle, center):
    model, feeds = nms(rng, make_model, 20, None, center=center)
    want = oracle(model, feeds)["y"]
    assert 4 < len(want) <= 12
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.INT64, want.shape))
    np.testing.assert_array_equal(run_reference(load(model, precision="fp32"), feeds)["y"], want)


def test_another_number_of_boxes_than_declared_faults(rng, make_model):
    model, feeds = nms(rng, make_model, 20, 13, limit=3)
    with pytest.raises(IndexError):
        run_reference(load(model, precision="fp32"), feeds)


def test_an_unknown_number_of_boxes_is_for_the_host(rng, make_model):
    with pytest.raises(Unsupported, match="a number of selected boxes that only a run tells"):
        load(nms(rng, make_model, 20, None)[0])


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
def test_grams_with_gaps_are_counted(mode, check):
    attrs = {"mode": mode, "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 2, "ngram_counts": [0, 3],
             "ngram_indexes": [5, 0, 1, 3, 2], "pool_int64s": [2, 3, 5, 5, 4, 5, 6], "weights": [0.5, 2.0, 3.0, 1.5, 4.0]}  # fmt: skip
    x = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8], [5, 4, 5, 4, 6, 5]], np.int64)
    check([("TfIdfVectorizer", ["x"], ["y"], attrs)], {"x": x})
    check([("TfIdfVectorizer", ["x"], ["y"], attrs)], {"x": x[2]})


def test_a_pool_of_strings_is_for_the_host(make_model):
    attrs = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0, "ngram_counts": [0],
             "ngram_indexes": [0], "pool_strings": ["a"]}  # fmt: skip
    with pytest.raises(Unsupported, match="a pool of strings"):
        load(make_model([("TfIdfVectorizer", ["x"], ["y"], attrs)], {"x": (np.int64, (4,))}, ["y"]))


def test_deformed_convolution_in_groups_with_strides_and_places_outside(rng, check):
    feeds = {
        "x": random(rng, 2, 4, 7, 6),
        "offset": 2 * random(rng, 2, 2 * 2 * 6, 4, 3),
        "mask": random(rng, 2, 2 * 6, 4, 3),
    }
    attrs = {
        "kernel_shape": [2, 3],
        "strides": [2, 2],
        "pads": [1, 1, 1, 1],
        "dilations": [2, 1],
        "group": 2,
        "offset_group": 2,
    }
    constants = {"w": random(rng, 6, 2, 2, 3), "b": random(rng, 6)}
    check([("DeformConv", ["x", "w", "offset", "b", "mask"], ["y"], attrs)], feeds, constants=constants, opset=22,
          half_tolerance=2e-2)  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_determinants_whatever_row_has_the_pivot(size, rng, check):
    x = random(rng, 3, 2, size, size)
    x[0, 0, 0] = 0  # a matrix without a pivot
    x[1, :, 0, 0] = 0
    want = np.linalg.det(x.astype(np.float64)).astype(np.float32)
    check([("Det", ["x"], ["y"], {})], {"x": x}, expected={"y": want}, half_tolerance=3e-2)


def test_determinants_of_no_square_matrices(make_model):
    model = make_model([("Det", ["x"], ["y"], {})], {"x": (np.float32, (2, 3))}, [])
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, []))
    with pytest.raises(ModelError, match="no square matrices"):
        load(model)


@pytest.mark.parametrize(("mode", "places"), [("linear", [0, 3]), ("circular", [4, 1])])
def test_a_cache_takes_an_update_at_each_batchs_place(mode, places, rng, make_model):
    feeds = {"cache": random(rng, 2, 3, 5, 4), "update": random(rng, 2, 3, 2, 4), "at": np.array(places, np.int64)}
    want = feeds["cache"].copy()
    for batch, first in enumerate(places):
        for step in range(2):
            want[batch, :, (first + step) % 5] = feeds["update"][batch, :, step]
    model = make_model([("TensorScatter", ["cache", "update", "at"], ["y"], {"mode": mode})], feeds, ["y"], opset=24)
    np.testing.assert_array_equal(run_reference(load(model, precision="fp32"), feeds)["y"], want)


def test_a_linear_cache_that_overflows_faults(rng, make_model):
    feeds = {"cache": random(rng, 1, 5, 4), "update": random(rng, 1, 2, 4), "at": np.array([4], np.int64)}
    model = make_model([("TensorScatter", ["cache", "update", "at"], ["y"], {})], feeds, ["y"], opset=24)
    with pytest.raises(IndexError):
        run_reference(load(model, precision="fp32"), feeds)


def test_what_a_pooling_found_goes_back_to_its_place(rng, check):
    nodes = [("MaxPool", ["x"], ["p", "i"], {"kernel_shape": [2, 2], "strides": [2, 2]}),
             ("MaxUnpool", ["p", "i"], ["y"], {"kernel_shape": [2, 2], "strides": [2, 2]})]  # fmt: skip
    check(nodes, {"x": random(rng, 1, 2, 4, 6)})


def test_the_middle_of_a_constant_shape(rng, check):
    check([("CenterCropPad", ["x", "s"], ["y"], {"axes": [2, -3]})], {"x": random(rng, 2, 3, 7)},
          constants={"s": np.array([4, 6])}, opset=18)  # fmt: skip


@pytest.mark.parametrize("attrs", [{}, {"onesided": 1}, {"inverse": 1}], ids=str)
@pytest.mark.parametrize(("channels", "length"), [(1, 12), (1, 9), (2, 16)])
def test_transforms_along_an_axis(attrs, channels, length, rng, check):
    if channels == 2 and "onesided" in attrs:
        attrs = {}
    x = random(rng, 2, 12, 3, channels)
    want = x[..., 0].astype(np.complex128) + (1j * x[..., 1] if channels == 2 else 0)
    if attrs.get("inverse"):
        want = np.fft.ifft(want, length, axis=1)
    else:
        want = np.fft.fft(want, length, axis=1)[:, : length // 2 + 1 if attrs.get("onesided") else length]
    expected = {"y": np.stack([want.real, want.imag], -1).astype(np.float32)}
    check(
        [("DFT", ["x", "n"], ["y"], {"axis": 1, **attrs})],
        {"x": x},
        constants={"n": np.int64(length)},
        expected=expected,
    )


def test_frames_of_a_signal_are_transformed(rng, check):
    x, window = random(rng, 2, 700, 1), np.hanning(400).astype(np.float32)
    frames = np.stack([x[:, start : start + 400, 0] * window for start in (0, 160)], 1)
    want = np.fft.rfft(frames.astype(np.float64), axis=2)
    expected = {"y": np.stack([want.real, want.imag], -1).astype(np.float32)}
    constants = {"step": np.int64(160), "window": window}
    check([("STFT", ["x", "step", "window"], ["y"], {})], {"x": x}, constants=constants, expected=expected)


def loop_model(make_model, count):
    """y = x * 2^steps, and x before each step, while the step's number is below `last`."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["x_in"], ["row"]),
            helper.make_node("Add", ["x_in", "x_in"], ["x_out"]),
            helper.make_node("Less", ["step", "last"], ["again"]),
        ],
        "body",
        [helper.make_tensor_value_info("step", TensorProto.INT64, []), helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
         helper.make_tensor_value_info("x_in", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("again", TensorProto.BOOL, []), helper.make_tensor_value_info("x_out", TensorProto.FLOAT, [3]),
         helper.make_tensor_value_info("row", TensorProto.FLOAT, [3])],
    )  # fmt: skip
    return make_model([("Loop", ["count", "", "x"], ["y", "rows"], {"body": body})], {"x": (np.float32, (3,))}, ["y", "rows"],
                      {"count": np.int64(count), "last": np.int64(3)})  # fmt: skip


@pytest.mark.parametrize(("count", "steps"), [(3, 3), (9, 4), (1, 1)])
def test_a_loop_of_known_steps_is_unrolled(count, steps, make_model, oracle, rng):
    """The condition behind a step, `step < 3`, is known as well: the fourth step is the last."""
    model, feeds = loop_model(make_model, count), {"x": random(rng, 3)}
    got, want = run_reference(load(model, precision="fp32"), feeds), oracle(model, feeds)
    assert got["rows"].shape == (steps, 3)
    for name in ("y", "rows"):
        np.testing.assert_array_equal(got[name], want[name])


def test_loops_that_are_not_known(make_model):
    with pytest.raises(Unsupported, match="Loop of no step"):
        load(loop_model(make_model, 0))
    with pytest.raises(Unimplemented, match="Loop of more than 1024 steps"):
        model = loop_model(make_model, 5000)
        model.graph.initializer[1].CopyFrom(helper.make_tensor("last", TensorProto.INT64, [], [10**6]))
        load(model)
