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
    """A classifier that looks at its features and negates them when they are all small: values of onnxruntime."""
    path, shapes = models.model_path("ppocr_v2_cls"), models.shapes("ppocr_v2_cls")
    model = onnx.load(path)
    nodes = model.graph.node
    middle = next(i for i, node in enumerate(nodes) if i > len(nodes) // 2 and node.op_type == "Conv")
    value = nodes[middle].input[0]
    branches = [
        helper.make_graph([helper.make_node(op, [value], [op])], op, [], [onnx.ValueInfoProto(name=op)])
        for op in ("Identity", "Neg")
    ]
    added = [
        helper.make_node("ReduceMax", [value], ["peak"], keepdims=0, name="peak"),
        helper.make_node("Constant", [], ["least"], value=helper.make_tensor("least", TensorProto.FLOAT, (), [0.01])),
        helper.make_node("Greater", ["peak", "least"], ["is_large"], name="is_large"),
        helper.make_node(
            "If", ["is_large"], ["chosen"], name="choose", then_branch=branches[0], else_branch=branches[1]
        ),
    ]
    nodes[middle].input[0] = "chosen"
    for node in reversed(added):
        nodes.insert(middle, node)
    feeds = models.inputs(path, fixed=shapes)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, feeds)
    with pytest.warns(HostPartWarning, match="1 node of"):
        blob = compile_model(model, CompileOptions(precision="fp32", shapes=shapes)).blob
    with libnpu.open("npu-37xx") as device, device.load(blob) as module:
        (got,) = module.run(feeds).values()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
