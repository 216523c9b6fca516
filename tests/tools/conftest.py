"""A small model, and the blob that the compiler makes of it."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


def make_model(path):
    """Write conv 3x3 (3 -> 16 channels) and ReLU on x [1, 3, 8, 8]; values are multiples of 1/4, exact in fp16."""
    weights = np.random.default_rng(1).integers(-4, 5, (16, 3, 3, 3)).astype(np.float32) / 4
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["y"], name="relu"),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "h", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, "h", 8])],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), path)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    make_model(path)
    return str(path)


@pytest.fixture(scope="session")
def blob_path(npu, model_path, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("blob") / "small.blob")
    assert npu("compile", model_path, "--shape", "x=1,3,8,8", "-o", path) == (0, "", "")
    return path
