"""uint32, uint64, float64 and bfloat16, which the vector engine holds in 32 bits: right in all of them, or refused by value."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest

from libnpu import NpuError
from libnpu.compiler.frontend import load
from libnpu.compiler.reference import run_reference

WORDS = np.array([0, 1, 7, 2**24 + 1, 2**31 - 1, 2**31, 2**31 + 129, 2**32 - 2, 2**32 - 1], np.uint32)
PAIRS = np.repeat(WORDS, len(WORDS)), np.tile(WORDS, len(WORDS))


@pytest.fixture
def both(make_model, run_on_device):
    """Return both(op, feeds, attributes, opset) -> y, after device and reference agreed on it."""

    def run(op, feeds, attributes=None, opset=18):
        model = make_model([(op, list(feeds), ["y"], attributes or {})], feeds, ["y"], opset=opset)
        got = run_on_device(model, feeds)["y"]
        reference = run_reference(load(model, precision="fp32"), feeds)["y"]
        assert got.dtype == reference.dtype
        np.testing.assert_array_equal(got, reference)
        return got

    return run


def to(name):
    return {"to": onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name))}


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize(
    ("op", "function", "attributes"),
    [
        ("Add", np.add, {}),
        ("Sub", np.subtract, {}),
        ("Mul", np.multiply, {}),
        ("Div", lambda a, b: a // np.maximum(b, 1), {}),
        ("Mod", lambda a, b: a % np.maximum(b, 1), {}),
        ("Mod", lambda a, b: a % np.maximum(b, 1), {"fmod": 1}),
        ("Max", np.maximum, {}),
        ("Min", np.minimum, {}),
        ("Less", np.less, {}),
        ("GreaterOrEqual", np.greater_equal, {}),
        ("Equal", np.equal, {}),
        ("BitwiseAnd", np.bitwise_and, {}),
        ("BitwiseOr", np.bitwise_or, {}),
        ("BitwiseXor", np.bitwise_xor, {}),
        ("BitShift", lambda a, b: np.where(b < 32, a >> np.minimum(b, 31), 0), {"direction": "RIGHT"}),
        ("BitShift", lambda a, b: np.where(b < 32, a << np.minimum(b, 31), 0), {"direction": "LEFT"}),
    ],
)
def test_unsigned_words_have_all_their_32_bits(op, function, attributes, dtype, both):
    a, b = PAIRS
    if op in ("Div", "Mod"):
        b = np.maximum(b, 1)
    expected = function(a, b)
    got = both(op, {"a": a.astype(dtype), "b": b.astype(dtype)}, attributes)
    np.testing.assert_array_equal(got, expected.astype(got.dtype))


def test_unsigned_words_of_one_operand(both):
    assert both("BitwiseNot", {"a": WORDS}).tolist() == (~WORDS).tolist()
    assert both("Abs", {"a": WORDS}).tolist() == WORDS.tolist()
    assert both("Sign", {"a": WORDS}).tolist() == [0, *[1] * (len(WORDS) - 1)]
    bounds = {"low": np.array(5, np.uint32), "high": np.array(2**31 + 5, np.uint32)}
    assert both("Clip", {"a": WORDS} | bounds).tolist() == np.clip(WORDS, 5, 2**31 + 5).tolist()
    assert both("Clip", {"a": WORDS, "low": bounds["low"]}).tolist() == np.maximum(WORDS, 5).tolist()
    assert both("ReduceMax", {"a": WORDS}, {"keepdims": 0}) == 2**32 - 1
    assert both("ReduceMin", {"a": WORDS[1:]}, {"keepdims": 0}) == 1
    assert both("ArgMax", {"a": WORDS}, {"keepdims": 0}) == len(WORDS) - 1
    assert both("ArgMin", {"a": WORDS}, {"keepdims": 0}) == 0


def test_casts_of_unsigned_words(both):
    np.testing.assert_array_equal(both("Cast", {"a": WORDS}, to("float32")), WORDS.astype(np.float32))
    np.testing.assert_array_equal(both("Cast", {"a": WORDS}, to("uint64")), WORDS.astype(np.uint64))
    np.testing.assert_array_equal(both("Cast", {"a": WORDS}, to("uint8")), WORDS.astype(np.uint8))
    np.testing.assert_array_equal(both("Cast", {"a": WORDS}, to("int32")), WORDS.astype(np.int32))
    x = np.array([-1, 0.9, 2**24 + 2, 2**31 + 256, 2**32 - 256, 1e20, np.nan], np.float32)
    expected = [0, 0, 2**24 + 2, 2**31 + 256, 2**32 - 256, 2**32 - 1, 0]
    assert both("Cast", {"a": x}, to("uint32")).tolist() == expected


@pytest.mark.parametrize(
    ("dtype", "value", "words"),
    [
        (np.uint64, 2**32, "holds 4294967296; the device computes uint64 in 32 bits, 0 to 4294967295"),
        (np.float64, -1e300, r"holds -1e\+300; the device computes float64 as float32, -3.4\S+ to 3.4"),
    ],
)
def test_an_input_beyond_what_the_device_computes_in_is_refused_by_value(
    dtype, value, words, make_model, run_on_device
):
    model = make_model([("Identity", ["x"], ["y"], {})], {"x": (dtype, (2,))}, ["y"])
    with pytest.raises(NpuError, match=words):
        run_on_device(model, {"x": np.array([5, value], dtype)})


def test_float64_is_computed_in_float32_and_that_is_said(make_model, run_on_device):
    x = np.array([1 / 3, -np.inf, np.nan, 2.0**24 + 1])
    model = make_model([("Add", ["x", "x"], ["y"], {})], {"x": x}, ["y"])
    np.testing.assert_array_equal(run_on_device(model, {"x": x})["y"], (2 * x.astype(np.float32)).astype(np.float64))
    assert load(model, precision="fp32").notes == ["y: float64 is computed as float32"]


def test_bfloat16_is_multiplied_as_float32_under_fp32(make_model, run_on_device):
    rng = np.random.default_rng(5)
    feeds = {
        name: rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for name, shape in (("a", (3, 8)), ("b", (8, 5)))
    }
    model = make_model([("MatMul", ["a", "b"], ["y"], {})], feeds, ["y"])
    wide = feeds["a"].astype(np.float64) @ feeds["b"].astype(np.float64)
    got = run_on_device(model, feeds)["y"]
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(got, wide.astype(np.float32).astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize(
    ("op", "function", "low", "high"),
    [
        ("Tan", np.tan, -1.5, 1.5),
        ("Asin", np.arcsin, -1, 1),
        ("Acos", np.arccos, -1, 1),
        ("Atan", np.arctan, -50, 50),
        ("Sinh", np.sinh, -89, 89),
        ("Cosh", np.cosh, -89, 89),
        ("Asinh", np.arcsinh, -1e4, 1e4),
        ("Acosh", np.arccosh, 1, 1e4),
        ("Atanh", np.arctanh, -0.999, 0.999),
    ],
)
def test_trigonometric_functions_are_right_to_float32(op, function, low, high, make_model, run_on_device):
    ends = np.array([low, high, 0.0, -0.0, 1e-6, -1e-6, 1e-30, 0.5, -0.5], np.float32)
    x = np.concatenate([np.linspace(low, high, 3001, dtype=np.float32), np.clip(ends, low, high)])
    model = make_model([(op, ["x"], ["y"], {})], {"x": x}, ["y"])
    expected = function(x.astype(np.float64))
    atol = 5e-7 if op == "Acos" else 1e-37  # of Acos near 1 the root of 1 - x counts
    np.testing.assert_allclose(run_on_device(model, {"x": x})["y"], expected, rtol=2e-6, atol=atol)


@pytest.mark.parametrize(
    ("op", "function"),
    [("Asin", np.arcsin), ("Acos", np.arccos), ("Atan", np.arctan), ("Sinh", np.sinh), ("Cosh", np.cosh),
     ("Asinh", np.arcsinh), ("Acosh", np.arccosh), ("Atanh", np.arctanh)],
)  # fmt: skip
def test_trigonometric_functions_at_their_ends_and_beyond(op, function, make_model, run_on_device):
    x = np.array([np.inf, -np.inf, np.nan, 1, -1, 2, -2, 1e20, -1e20], np.float32)
    model = make_model([(op, ["x"], ["y"], {})], {"x": x}, ["y"])
    with np.errstate(all="ignore"):
        expected = function(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(run_on_device(model, {"x": x})["y"], expected, rtol=1e-6)


@pytest.mark.parametrize("fmod", [0, 1])
def test_remainders_have_the_sign_that_fmod_says(fmod, both):
    a = np.array([-4, 7, 5, 4, -7, 8, 6, -6], np.float32)
    b = np.array([2, -3, 8, -2, 3, 5, -3, 4.5], np.float32)
    expected = (np.fmod if fmod else np.mod)(a, b)
    np.testing.assert_array_equal(both("Mod", {"a": a, "b": b}, {"fmod": fmod}), expected)
    if fmod:
        a, b = a.astype(np.int32), np.array([2, -3, 8, -2, 3, 5, -3, 4], np.int32)
        np.testing.assert_array_equal(both("Mod", {"a": a, "b": b}, {"fmod": 1}), np.fmod(a, b))


def test_shifts_of_signed_integers_keep_the_sign(both):
    a, b = np.array([-128, 127, -5, 5, -5], np.int8), np.array([3, 3, 8, 8, -1], np.int8)
    assert both("BitShift", {"a": a, "b": b}, {"direction": "RIGHT"}, 28).tolist() == [-16, 15, -1, 0, -1]
    assert both("BitShift", {"a": a, "b": b}, {"direction": "LEFT"}, 28).tolist() == [0, -8, 0, 0, 0]
