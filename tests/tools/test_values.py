"""Random inputs, files of arrays, and the comparison with a reference."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

from libnpu.tools.console import ToolError, json_text
from libnpu.tools.reference import compare, reference_outputs
from libnpu.tools.source import parse_shapes
from libnpu.tools.values import load_inputs, random_inputs, save_outputs


@dataclass
class Tensor:
    name: str
    shape: tuple
    numpy_dtype: np.dtype


@pytest.mark.parametrize("dtype", ["f2", "f4", "i4", "i8", "u1", "?"])
def test_random_inputs_fit_the_type_and_follow_the_seed(dtype):
    tensors = [Tensor("x", (3, 50), np.dtype(dtype)), Tensor("s", (), np.dtype(dtype))]
    first, again, other = random_inputs(tensors, 0), random_inputs(tensors, 0), random_inputs(tensors, 1)
    assert first["x"].dtype == dtype
    assert first["x"].shape == (3, 50)
    assert first["s"].shape == ()
    assert np.array_equal(first["x"], again["x"])
    assert not np.array_equal(first["x"], other["x"])
    if dtype in ("i4", "i8", "u1"):
        assert first["x"].min() >= 0
        assert first["x"].max() < 10


def test_outputs_of_any_name_are_written_and_read_back(tmp_path):
    arrays = {"file": np.arange(3), "a/b:0": np.float32([[1.5]]), "allow_pickle": np.array(True)}
    path = str(tmp_path / "o.npz")
    save_outputs(path, arrays)
    found = load_inputs(path, [Tensor(n, a.shape, a.dtype) for n, a in arrays.items()])
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())


def test_shapes_of_the_command_line():
    assert parse_shapes(["x=1,3,224,224", "a=b=7", "s="]) == {"x": (1, 3, 224, 224), "a=b": (7,), "s": ()}


@pytest.mark.parametrize(
    ("found", "expected", "fp32", "fp16"),
    [
        ([1.0, 2.0], [1.0, 2.0], True, True),
        ([1.0, 2.0001], [1.0, 2.0], True, True),
        ([1.0, 2.001], [1.0, 2.0], False, True),
        ([2.0, 1.0], [1.0, 2.0], False, False),
        ([np.nan, 2.0], [1.0, 2.0], False, False),
        ([np.nan, 2.0], [np.nan, 2.0], True, True),
        ([np.inf, 2.0], [np.inf, 2.0], True, True),
        ([0.0, 0.0], [0.0, 0.0], True, True),
        ([0.0, 1.0], [0.0, 0.0], False, False),
        ([1.0, 3.0], [15.0, 45.0], False, False),  # a cosine of 1, and 15 times too small
        ([15.0, 45.0], [1.0, 3.0], False, False),
        ([65504.0], [1e6], False, False),  # one element always has a cosine of 1
        ([1.04, 2.08], [1.0, 2.0], False, True),
        ([1.06, 2.12], [1.0, 2.0], False, False),
        ([1e30, 2e30], [1e30, 2e30], True, True),
        ([np.inf, 2.0], [3.0, 2.0], False, False),
        ([3.0, 2.0], [np.inf, 2.0], False, False),
        ([], [], True, True),
    ],
)
def test_what_passes_a_check(found, expected, fp32, fp16):
    (result,) = compare({"y": np.float32(found)}, {"y": np.float32(expected)})
    assert (result.passes("fp32"), result.passes("fp16")) == (fp32, fp16)


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ([1.0, 2.0, 0.0], [1.0, 2.0, 0.0], True),
        ([2.0, 1.999, 0.0], [1.999, 2.0, 0.0], True),  # margin of 0.0005 of the largest
        ([2.0, 1.9, 0.0], [1.9, 2.0, 0.0], False),
        ([np.nan, np.nan], [1.0, 2.0], False),
    ],
)
def test_the_arg_max_agrees_up_to_fp16_rounding(found, expected, same):
    (result,) = compare({"y": np.float32(found)}, {"y": np.float32(expected)})
    assert result.same_argmax == same


@pytest.mark.parametrize(
    ("found", "expected", "difference"),
    [
        (np.zeros(3), np.zeros(4), "it is float64 [3], not float64 [4]"),
        (np.zeros((1, 4)), np.zeros(4), "it is float64 [1, 4], not float64 [4]"),
        (np.zeros(4, np.float32), np.zeros(4, np.int64), "it is float32 [4], not int64 [4]"),
        (np.zeros((0, 4), np.float32), np.zeros((4, 0), np.float32), "it is float32 [0, 4], not float32 [4, 0]"),
    ],
)
def test_an_output_of_another_shape_or_type_fails(found, expected, difference):
    (result,) = compare({"y": found}, {"y": expected})
    assert not result.passes("fp16")
    assert not result.passes("fp32")
    assert result.difference() == difference


def test_a_reference_beyond_float16_is_said_so():
    (result,) = compare({"y": np.float32([np.inf, 1])}, {"y": np.float32([7e4, 1])})
    assert result.beyond_fp16 == 1
    assert "1 values of the reference are beyond float16 (65504): try --precision fp32" in result.difference()
    (result,) = compare({"y": np.float32([1, 1])}, {"y": np.float32([np.inf, 65504])})
    assert result.beyond_fp16 == 0


def test_a_model_that_the_reference_cannot_run_is_a_user_error(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_text("text")
    with pytest.raises(ToolError, match=r"model\.onnx: the reference cannot run it"):
        reference_outputs(str(path), {})


def test_json_has_null_for_what_it_cannot_say():
    assert json.loads(json_text({"a": [np.inf, float("nan"), 1.5], "b": (1,)})) == {"a": [None, None, 1.5], "b": [1]}
