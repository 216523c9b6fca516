"""A real model of which the NPU does not do one node in the middle: parts through the whole stack."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import libnpu
from libnpu.compiler import CompileOptions, HostPartWarning, compile_model

pytestmark = [pytest.mark.models, pytest.mark.timeout(300)]


def test_a_real_model_with_an_unsupported_node_in_the_middle(models):
    """A classifier that divides its features by a number that only a run tells: values of onnxruntime."""
    path, shapes = models.model_path("ppocr_v2_cls"), models.shapes("ppocr_v2_cls")
    model = onnx.load(path)
    nodes = model.graph.node
    middle = next(i for i, node in enumerate(nodes) if i > len(nodes) // 2 and node.op_type == "Conv")
    value = nodes[middle].input[0]
    added = [
        helper.make_node("NonZero", [value], ["places"], name="places"),
        helper.make_node("Size", ["places"], ["count"], name="count"),
        helper.make_node("Cast", ["count"], ["number"], name="number", to=TensorProto.FLOAT),
        helper.make_node("Log", ["number"], ["scale"], name="scale"),
        helper.make_node("Div", [value, "scale"], ["chosen"], name="divide"),
    ]
    nodes[middle].input[0] = "chosen"
    for node in reversed(added):
        nodes.insert(middle, node)
    feeds = models.inputs(path, fixed=shapes)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, feeds)
    with pytest.warns(HostPartWarning, match=r"2 nodes of .* between 2 blobs"):
        blob = compile_model(model, CompileOptions(precision="fp32", shapes=shapes)).blob
    with libnpu.open("npu-37xx") as device, device.load(blob) as module:
        (got,) = module.run(feeds).values()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
