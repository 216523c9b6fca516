"""DynamicDataMask: results of a sequence do not depend on what lies behind its end."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import libnpu
from libnpu.compiler import CompileOptions, compile_model
from libnpu.compiler.options import BadOption
from libnpu.errors import Unsupported
from libnpu.tools.console import ToolError
from libnpu.tools.source import parse_dynamic

LENGTH, ROOM = 5, 9


def f32(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def device():
    with libnpu.open("npu-37xx") as opened:
        yield opened


@pytest.fixture
def run(device):
    def execute(model, x, axis, length=LENGTH, **options):
        options = {"precision": "fp32", "dynamic": {"x": axis}} | options
        compiled = compile_model(model, CompileOptions(**options))
        with device.load(compiled.blob) as module:
            return module.run({"x": x, "x.length": np.array(length, np.int32)})["y"]

    return execute


def padded(x, axis, room, filler):
    behind = list(x.shape)
    behind[axis] = room - x.shape[axis]
    return np.concatenate([x, np.full(behind, filler, np.float32)], axis=axis)


def norm(axis):
    return [("LayerNormalization", ["x", "g"], ["y"], {"axis": axis})], {"g": np.ones(ROOM, np.float32)}


def attention():
    nodes = [
        ("Transpose", ["x"], ["t"], {"perm": [0, 2, 1]}),
        ("MatMul", ["x", "t"], ["s"], {}),
        ("Softmax", ["s"], ["w"], {"axis": -1}),
        ("MatMul", ["w", "x"], ["y"], {}),
    ]
    return nodes, {}


def reduction(op):
    return [(op, ["x"], ["y"], {"axes": [1], "keepdims": 0})], {}


CASES = {
    "mean": (*reduction("ReduceMean"), (2, LENGTH, 6), 1),
    "max": (*reduction("ReduceMax"), (2, LENGTH, 6), 1),
    "min": (*reduction("ReduceMin"), (2, LENGTH, 6), 1),
    "product": (*reduction("ReduceProd"), (2, LENGTH, 6), 1),
    "attention": (*attention(), (2, LENGTH, 6), 1),
    "contraction": ([("MatMul", ["a", "x"], ["y"], {})], {"a": f32(9, 3, ROOM)}, (2, LENGTH, 6), 1),
    "convolution": (
        [("Conv", ["x", "w"], ["y"], {"pads": [1, 1]})],
        {"w": f32(8, 4, 6, 3)},
        (2, 6, LENGTH),
        2,
    ),
    "through a reshape": (
        [
            ("Reshape", ["x", "to"], ["r"], {}),
            ("Relu", ["r"], ["q"], {}),
            ("ReduceSum", ["q", "axis"], ["y"], {"keepdims": 1}),
        ],
        {"to": np.array([2, 9, 2, 3]), "axis": np.array([1])},
        (2, LENGTH, 6),
        1,
    ),
}


@pytest.mark.parametrize("filler", [np.nan, 1e6, np.inf])
@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_the_sequence_alone(case, filler, make_model, run):
    nodes, constants, shape, axis = CASES[case]
    x = f32(1, *shape)
    wide = padded(x, axis, ROOM, filler)
    model = make_model(nodes, {"x": wide}, ["y"], constants)
    found = run(model, wide, axis)
    short = {"to": np.array([2, LENGTH, 2, 3])} if "to" in constants else {}
    narrow = {name: array[:, :LENGTH] if name == "a" else array for name, array in constants.items()} | short
    expected = ReferenceEvaluator(make_model(nodes, {"x": x}, ["y"], narrow)).run(None, {"x": x})[0]
    counted = tuple(slice(0, n) for n in expected.shape)
    np.testing.assert_allclose(found[counted], expected, rtol=1e-5, atol=1e-5)


def test_e059_a_normalisation_over_garbage_is_wrong_without_the_pass(make_model, run):
    nodes, constants = norm(-1)
    x = f32(2, 4, LENGTH)
    wide = padded(x, 1, ROOM, 50.0)
    model = make_model(nodes, {"x": wide}, ["y"], constants)
    expected = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    error = np.abs(run(model, wide, 1)[:, :LENGTH] - expected).max()
    wrong = np.abs(run(model, wide, 1, disable=("DynamicDataMask",))[:, :LENGTH] - expected).max()
    assert error < 1e-3
    assert wrong > 1e-1


def test_one_blob_is_for_every_length(make_model, run):
    nodes, constants = reduction("ReduceMean")
    x = f32(3, 2, ROOM, 6)
    model = make_model(nodes, {"x": x}, ["y"], constants)
    for length in (1, 4, ROOM):
        np.testing.assert_allclose(run(model, x, 1, length), x[:, :length].mean(axis=1), rtol=0, atol=1e-6)


def test_e058_the_dump_lists_what_is_masked(make_model):
    nodes, constants = reduction("ReduceMax")
    model = make_model(nodes, {"x": f32(3, 2, ROOM, 6)}, ["y"], constants)
    options = CompileOptions(dynamic={"x": 1}, dump=("DynamicDataMask",))
    text = compile_model(model, options).report["dumps"]["DynamicDataMask"]
    assert "ReduceMax_0.mask1.0: float32[2, 9, 6] = where(lt(" in text
    assert "x.length), x, -inf)" in text


def test_what_the_pass_cannot_follow_is_refused(make_model):
    feeds = {"x": f32(4, 2, ROOM, 6)}
    flat = make_model([("Flatten", ["x"], ["y"], {"axis": 1})], feeds, ["y"])
    with pytest.raises(Unsupported, match="padding of a dynamic axis cannot be followed through it"):
        compile_model(flat, CompileOptions(dynamic={"x": 1}, strict=True))
    with pytest.raises(Unsupported, match="dynamic axis 3 of x: its shape is"):
        compile_model(flat, CompileOptions(dynamic={"x": 3}, strict=True))
    with pytest.raises(BadOption, match="disable 'fold'; of DynamicDataMask"):
        CompileOptions(disable=("fold",))


def test_axes_on_a_command_line():
    assert parse_dynamic(["x=1", "a=b=0"]) == {"x": 1, "a=b": 0}
    for text in ("x", "=1", "x=-1", "x=one"):
        with pytest.raises(ToolError, match="expected NAME=AXIS"):
            parse_dynamic([text])
    with pytest.raises(ToolError, match="'x' has an axis already"):
        parse_dynamic(["x=1", "x=2"])
