"""A compiled ONNX model: compile it, load the blob, run it at once or on a stream, and compare with a reference.

    python samples/python/run_model.py

`Module.run` does everything; a launch on a stream with buffers of one's own is what a serving program does.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import libnpu
from libnpu.compiler import CompileOptions, compile_model


def small_model() -> onnx.ModelProto:
    """A classifier of 8x8 images: convolution, ReLU, mean, fully connected, softmax."""

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        values = (np.arange(np.prod(shape)) * 7 % 11 - 5) / 8  # something that is not the same everywhere
        return numpy_helper.from_array(values.astype(np.float32).reshape(shape), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w2"], ["g"]),
        helper.make_node("Softmax", ["g"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])
    graph = helper.make_graph(nodes, "small", [x], [y], [weights("w1", 8, 1, 3, 3), weights("w2", 8, 4)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def image() -> np.ndarray:
    """An 8x8 image with an edge in it."""
    return np.tril(np.ones((8, 8), np.float32)).reshape(1, 1, 8, 8)


def compiled() -> bytes:
    """The blob of the model."""
    return compile_model(small_model(), CompileOptions(precision="fp16", profile="npu-37xx")).blob


def main() -> None:
    (expected,) = ReferenceEvaluator(small_model()).run(None, {"x": image()})
    with libnpu.open() as device, device.load(compiled()) as model:
        for direction, tensors in (("input", model.inputs), ("output", model.outputs)):
            for tensor in tensors:
                print(f"{direction:6} {tensor.name} {tensor.shape}")

        simple = model.run({"x": image()})["y"]  # allocates, copies, launches, waits

        x, y, stream = device.to_device(image()), device.alloc(model.outputs[0].size_bytes), device.create_stream()
        device.primary.profiler.start()
        job = stream.launch(model, {"x": x}, {"y": y})  # returns at once
        if job.done or stream.query():
            raise SystemExit("this is not so: a launch returns before the work is done")
        stream.synchronize()
        streamed = y.read(np.float32, (1, 4))
        device.primary.profiler.stop()

        print(f"reference {expected[0].round(3)}")
        print(f"device    {simple[0].round(3)}, {job.latency_ps / 1e6:.3f} us on the device")
        print(libnpu.timeline(device.primary), end="")
        if not np.array_equal(simple, streamed):
            raise SystemExit("this is not so: both ways give the same bytes")
        if not np.allclose(simple, expected, atol=5e-3):
            raise SystemExit("this is not so: the device computes what the reference does, in fp16")


if __name__ == "__main__":
    main()
