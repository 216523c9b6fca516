"""Compiled models under the core's run-time scheduler instead of the walk."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from libnpu.compiler import compile_model


@pytest.fixture(scope="module")
def model_blob():
    """Two branches of 1x1 convolutions on x [1, 16, 16, 16] that are added up; integers, exact in fp16."""
    rng = np.random.default_rng(1)
    shape = [1, 16, 16, 16]
    weights = [numpy_helper.from_array(rng.integers(-1, 2, (16, 16, 1, 1)).astype(np.float32), f"w{n}") for n in (0, 1)]
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w0"], ["a"]),
            helper.make_node("Conv", ["x", "w1"], ["b"]),
            helper.make_node("Add", ["a", "b"], ["y"]),
        ],
        "branches",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        weights,
    )
    both = sum(numpy_helper.to_array(w)[:, :, 0, 0] for w in weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return compile_model(model).blob, both


def test_a_dynamic_run_gives_the_values_of_the_walk_in_another_time(device, model_blob):
    data, both = model_blob
    x = np.random.default_rng(2).integers(-3, 4, (1, 16, 16, 16)).astype(np.float32)
    module = device.load(data)
    expected = np.einsum("kc,nchw->nkhw", both, x)
    ins, outs = ({t.name: device.alloc(t.size_bytes) for t in tensors} for tensors in (module.inputs, module.outputs))
    ins["x"].write(x)
    times = set()
    for dynamic in (False, True):
        assert np.array_equal(module.run({"x": x}, dynamic=dynamic)["y"], expected)
        job = device.default_stream.launch(module, ins, outs, dynamic=dynamic)
        job.wait()
        assert np.array_equal(outs["y"].read(np.float32, (1, 16, 16, 16)), expected)
        times.add(job.latency_ps)
    assert len(times) == 2


def test_a_graph_keeps_what_was_captured_dynamic(device, model_blob):
    module, stream = device.load(model_blob[0]), device.create_stream()
    ins, outs = ({t.name: device.alloc(t.size_bytes) for t in tensors} for tensors in (module.inputs, module.outputs))
    times = []
    for dynamic in (False, True):
        stream.launch(module, ins, outs, dynamic=dynamic).wait()  # an instance exists
        plain = stream.launch(module, ins, outs, dynamic=dynamic)
        plain.wait()
        with stream.capture() as capture:
            stream.launch(module, ins, outs, dynamic=dynamic)
        replay = capture.graph.instantiate()
        job = replay.launch(stream)
        job.wait()
        times.append((plain.latency_ps, job.latency_ps))
    (walk, walk_graph), (dynamic, dynamic_graph) = times
    assert walk != dynamic
    assert dynamic_graph - walk_graph == pytest.approx(dynamic - walk, rel=0.05)
