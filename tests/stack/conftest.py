"""Fixtures for tests that go through every layer."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def models():
    """The module scripts/models.py."""
    spec = importlib.util.spec_from_file_location("npu_test_models", ROOT / "scripts" / "models.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def skips():
    """Six results that stay live until they are added up in reverse order: more than a small CMX can hold."""
    rng = np.random.default_rng(2)
    nodes, constants, last = [], [], "x"
    for n in range(6):
        constants.append(numpy_helper.from_array((rng.standard_normal((16, 16, 1, 1)) / 4).astype(np.float32), f"w{n}"))
        nodes.append(helper.make_node("Conv", [last, f"w{n}"], [f"c{n}"]))
        last = f"c{n}"
    for n in range(4, -1, -1):
        nodes.append(helper.make_node("Add", [last, f"c{n}"], [f"s{n}"]))
        last = f"s{n}"
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "skips",
        [info("x", TensorProto.FLOAT, [1, 16, 20, 20])],
        [info(last, TensorProto.FLOAT, [1, 16, 20, 20])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
