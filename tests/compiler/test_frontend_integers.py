"""Integers as ONNX has them: they wrap in every width, on the device as in the NumPy reference."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from libnpu import NpuError
from libnpu.compiler.frontend import load
from libnpu.compiler.reference import run_reference

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


@pytest.fixture
def both(make_model, run_on_device):
    """Return both(nodes, feeds, constants, opset) -> y, after device and reference agreed on it."""

    def run(nodes, feeds, constants=None, opset=18):
        model = make_model(nodes, feeds, ["y"], constants, opset)
        got = run_on_device(model, feeds)["y"]
        reference = run_reference(load(model, precision="fp32"), feeds)["y"]
        np.testing.assert_array_equal(got, reference)
        assert got.dtype == reference.dtype
        return got

    return run


def to(name):
    return {"to": onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name))}


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("uint8", [44, 251, 130, 0]),
        ("int8", [44, -5, -126, 0]),
        ("uint16", [300, 65531, 130, 0]),
        ("int16", [300, -5, 130, 0]),
    ],
)
def test_cast_between_integers_wraps(dtype, expected, both):
    x = np.array([300, -5, 130, 65536], np.int32)
    y = both([("Cast", ["x"], ["y"], to(dtype))], {"x": x})
    assert (y.dtype.name, y.tolist()) == (dtype, expected)


def test_cast_of_a_constant_gives_what_the_cast_of_an_input_gives(both):
    nodes = [("Cast", ["c"], ["t"], to("uint8")), ("Add", ["x", "t"], ["y"], {})]
    assert both(nodes, {"x": np.array([0], np.uint8)}, {"c": np.array([300], np.int32)}).tolist() == [44]


def test_cast_from_float_to_a_narrow_integer_saturates(both):
    x = np.array([300.7, -5.0, 7.9], np.float32)
    assert both([("Cast", ["x"], ["y"], to("uint8"))], {"x": x}).tolist() == [255, 0, 7]
    nodes = [("Cast", ["c"], ["t"], to("uint8")), ("Add", ["zero", "t"], ["y"], {})]
    assert both(nodes, {"zero": np.array([0], np.uint8)}, {"c": x}).tolist() == [255, 0, 7]


@pytest.mark.parametrize(
    ("op", "dtype", "expected"),
    [
        ("Sub", "uint8", [254, 20]),
        ("Add", "uint8", [12, 44]),
        ("Mul", "uint8", [35, 0]),
        ("Sub", "int8", [-2, 20]),
        ("Add", "int8", [12, -36]),
        ("Mul", "int8", [35, -32]),
    ],
)
def test_narrow_arithmetic_wraps(op, dtype, expected, both):
    a, b = ([5, 160], [7, 140]) if dtype == "uint8" else ([5, 120], [7, 100])
    if op == "Mul" and dtype == "uint8":
        a, b = [5, 16], [7, 16]
    assert both([(op, ["a", "b"], ["y"], {})], {"a": np.array(a, dtype), "b": np.array(b, dtype)}).tolist() == expected


def test_negation_of_the_smallest_int8_is_itself(both):
    assert both([("Neg", ["x"], ["y"], {})], {"x": np.array([-128, 5], np.int8)}).tolist() == [-128, -5]


@pytest.mark.parametrize(
    ("dtype", "x"), [("uint8", [3, 0, 2]), ("int8", [3, -128, 2]), ("int32", [3, INT32_MIN, INT32_MAX])]
)
def test_arg_min_finds_the_smallest_of_the_type(dtype, x, both):
    assert both([("ArgMin", ["x"], ["y"], {})], {"x": np.array(x, dtype)}).tolist() == [1]


def test_power_of_integers_with_a_fractional_exponent(both):
    x = np.array([81, 16, 9], np.int32)
    assert both([("Pow", ["x", "e"], ["y"], {})], {"x": x}, {"e": np.float32(0.5)}).tolist() == [9, 4, 3]
    e = np.array([0.5, 2.0, -1.0], np.float32)
    assert both([("Pow", ["x", "e"], ["y"], {})], {"x": x, "e": e}).tolist() == [9, 256, 0]


def test_power_of_integers_is_exact_beyond_24_bits(both):
    x, e = np.array([7, 3, -1, 2], np.int32), np.array([10, 19, 5, -1], np.int32)
    assert both([("Pow", ["x", "e"], ["y"], {})], {"x": x, "e": e}).tolist() == [282475249, 1162261467, -1, 0]
    assert both([("Pow", ["x", "e"], ["y"], {})], {"x": x[:1]}, {"e": np.float32(10)}).tolist() == [282475249]


@pytest.mark.parametrize(
    ("op", "x", "expected"),
    [
        ("ReduceMean", [INT32_MAX, INT32_MAX, 1], 1431655765),
        ("ReduceMean", [INT32_MIN, INT32_MIN, INT32_MIN], INT32_MIN),
        ("ReduceMean", [-3, -4], -3),
        ("ReduceMean", [-3, -3, 1], -1),
        ("ReduceMean", [7, -2, 3], 2),
        ("ReduceL1", [-3, 4], 7),
        ("ReduceL2", [3, 4, 1], 5),
        ("ReduceL2", [46339, 304], 46339),
        ("ReduceLogSum", [30, 40, 1], 4),
        ("ReduceLogSumExp", [3, 4, 4, 4], 5),
        ("ReduceSumSquare", [3, -4], 25),
    ],
)
def test_reductions_of_integers(op, x, expected, both):
    y = both([(op, ["x"], ["y"], {"keepdims": 0})], {"x": np.array(x, np.int32)})
    assert (y.dtype, y.tolist()) == (np.int32, expected)


def test_prelu_of_integers(both):
    feeds = {"x": np.array([-3, 4, -1], np.int32), "s": np.array([2, 3, -5], np.int32)}
    assert both([("PRelu", ["x", "s"], ["y"], {})], feeds).tolist() == [-6, 4, 5]


def test_an_int64_input_beyond_32_bits_is_refused_by_name_and_value(make_model, run_on_device):
    model = make_model([("Identity", ["x"], ["y"], {})], {"x": (np.int64, (2,))}, ["y"])
    with pytest.raises(NpuError, match=r"'x' holds 1099511627776; the device computes int64 in 32 bits"):
        run_on_device(model, {"x": np.array([5, 2**40])})
    ends = np.array([INT32_MIN, INT32_MAX])
    np.testing.assert_array_equal(run_on_device(model, {"x": ends})["y"], ends)


def test_an_integer_constant_beyond_32_bits_is_noted(make_model):
    model = make_model([("Add", ["x", "c"], ["y"], {})], {"x": (np.int64, (2,))}, ["y"], {"c": np.array(2**40)})
    assert load(model).notes == ["Add_0: 1 of 1 values of c are beyond int32, saturated"]
