"""Random inputs, files of arrays, and the comparison with a reference."""

from dataclasses import dataclass

import numpy as np
import pytest

from libnpu.tools.reference import compare
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


def test_an_output_of_another_shape_fails():
    (result,) = compare({"y": np.zeros(3)}, {"y": np.zeros(4)})
    assert not result.passes("fp16")
