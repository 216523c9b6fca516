"""Random graphs of which random nodes are refused: the parts have no cycle, take turns, and give the model's values."""

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import libnpu
from libnpu.compiler import CompileOptions
from libnpu.compiler.frontend.source import read_model
from libnpu.compiler.partition.partition import partition
from libnpu.compiler.pipeline import _run_whole
from libnpu.errors import Unsupported
from libnpu.parts import HostPart, pack

FP32 = CompileOptions(precision="fp32")
SHAPE = (2, 3, 4)


def random_model(make_model, rng, count):
    """A graph of `count` nodes over values of one shape; every value that no node reads is an output."""
    nodes, values, read = [], ["x", "z"], set()
    for index in range(count):
        a, b = (values[int(rng.integers(len(values)))] for _ in range(2))
        kind = ["Relu", "Neg", "Abs", "Add", "Sub", "Max", "Split"][int(rng.integers(7))]
        read |= {a, b} if kind in ("Add", "Sub", "Max") else {a}
        if kind == "Split":
            nodes += [("Split", [a, "halves"], [f"l{index}", f"r{index}"], {"axis": 2}),
                      ("Concat", [f"r{index}", f"l{index}"], [f"v{index}"], {"axis": 2})]  # fmt: skip
        else:
            nodes.append((kind, [a, b] if kind in ("Add", "Sub", "Max") else [a], [f"v{index}"], {}))
        values.append(f"v{index}")
    outputs = [name for name in values[2:] if name not in read]
    feeds = {name: rng.standard_normal(SHAPE).astype(np.float32) for name in ("x", "z")}
    return make_model(nodes, feeds, outputs, {"halves": np.array([2, 2])}), feeds


@pytest.fixture(scope="module")
def device():
    with libnpu.open("npu-37xx") as device:
        yield device


@pytest.mark.parametrize("seed", range(12))
def test_any_nodes_on_the_host_give_the_same_values(seed, make_model, device):
    rng = np.random.default_rng(seed)
    model, feeds = random_model(make_model, rng, 14)
    refusal = Unsupported("because")
    names = [node.name for node in model.graph.node]
    refusal.layers = tuple(name for name in names if rng.random() < 0.3) or (names[0],)
    found = partition(read_model(model), FP32, _run_whole, refusal).model
    assert {node.name for node in found.host_nodes} == set(refusal.layers)
    assert all(
        isinstance(a, HostPart) != isinstance(b, HostPart) for a, b in zip(found.parts, found.parts[1:], strict=False)
    )
    want = dict(zip((o.name for o in model.graph.output), ReferenceEvaluator(model).run(None, feeds), strict=True))
    with device.load(pack(found)) as module:
        got = module.run(feeds)
        spans = {name: device.to_device(array) for name, array in feeds.items()}
        memory = {tensor.name: device.alloc(tensor.size_bytes) for tensor in module.outputs}
        device.default_stream.launch(module, spans, memory)
        device.synchronize()
        for tensor in module.outputs:
            np.testing.assert_array_equal(got[tensor.name], want[tensor.name])
            np.testing.assert_array_equal(memory[tensor.name].read(np.float32, tensor.shape), want[tensor.name])
