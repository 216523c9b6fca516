"""A small compiled model with DPU and SHAVE tasks, and streams of three priorities that run it."""

from __future__ import annotations

import numpy as np
import pytest
from npu_abi import C
from onnx import TensorProto, helper, numpy_helper

import libnpu
from libnpu.blob import KernelSource, kernel_library
from libnpu.compiler import CompileOptions, compile_model
from tests.firmware.launches import busy

X = np.random.default_rng(0).standard_normal((1, 3, 24, 24)).astype(np.float32)


def small_model():
    """Two 3x3 convolutions (DPU), HardSigmoid, mean and Softmax (SHAVE) of an image of 24 x 24."""
    rng = np.random.default_rng(5)
    shapes = {"w0": (16, 3, 3, 3), "w1": (16, 16, 3, 3), "w2": (16, 10)}
    weights = [
        numpy_helper.from_array((rng.standard_normal(shape) / 4).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], pads=[1] * 4),
        helper.make_node("HardSigmoid", ["c0"], ["s"]),
        helper.make_node("Conv", ["s", "w1"], ["c1"], pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w2"], ["g"]),
        helper.make_node("Softmax", ["g"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])
    graph = helper.make_graph(nodes, "small", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def spin_library():
    """Kernels whose blocks take 0.13 ms ("short") and 1.1 ms ("long")."""
    return kernel_library(
        "spin", {name: KernelSource(busy(n) + "halt", ()) for name, n in (("short", 17), ("long", 20))}
    )


@pytest.fixture(scope="session")
def small_blob():
    """The small model, compiled for npu-37xx: one tile."""
    return compile_model(small_model(), CompileOptions(tiles=1)).blob


class Pair:
    """Two streams whose inferences take both tiles of npu-37xx, `idle` and `normal`, and `urgent`, whose work needs one of them.

    `expected` is what an inference of `model` gives that nobody disturbs, from `x`.
    """

    def __init__(self, device, blob, feeds, context=None):
        self.device = device
        self.context = context or device.primary
        self.kernel = device.node.machine.syscall.__self__
        self.model = self.context.load(blob)
        self.expected = {name: value.tobytes() for name, value in self.model.run(feeds).items()}
        self.inputs = {name: self.context.to_device(value) for name, value in feeds.items()}
        self.outputs = [{t.name: self.context.alloc(t.size_bytes) for t in self.model.outputs} for _ in range(3)]
        self.idle, self.normal, self.urgent = (
            self.context.create_stream(priority=int(priority))
            for priority in (C.NPU_PRIORITY_IDLE, C.NPU_PRIORITY_NORMAL, C.NPU_PRIORITY_REALTIME)
        )
        self._spins = self.context.load(spin_library())
        self.moves()

    def launch(self, stream, number, **options):
        """Enqueue an inference into outputs `number`, which are poison before."""
        for output in self.outputs[number].values():
            output.write(np.full(output.size, 255, np.uint8))
        return stream.launch(self.model, self.inputs, self.outputs[number], **options)

    def begin(self, **options):
        """Take both tiles."""
        return self.launch(self.idle, 0, **options), self.launch(self.normal, 1, **options)

    def spin(self, name="short", grid=1, stream=None):
        """Enqueue a kernel of `spin_library`, by default in `urgent`."""
        return self._spins[name].launch(stream or self.urgent, grid=grid)

    def is_right(self, number):
        """Whether outputs `number` have the bytes of the undisturbed inference."""
        return all(out.read().tobytes() == self.expected[name] for name, out in self.outputs[number].items())

    def host_works(self, duration_ns):
        """Let the device go on for so long."""
        self.device.node.work(round(duration_ns * 1000))

    def moves(self):
        """How often inferences have left their tiles, and come back, since the last time somebody asked."""
        kinds = self.device.trace()["kind"].tolist()
        return kinds.count(C.NPU_TRACE_PREEMPT), kinds.count(C.NPU_TRACE_RESUME)

    def buffers(self):
        """How many preemption buffers the driver has, in all contexts."""
        size = self.preempt_bytes()
        objects = [bo for context in self.kernel.contexts.values() for bo in context.objects.values()]
        return sum(bo.size >= size and not bo.flags & C.NPU_BO_MAPPABLE for bo in objects)

    def preempt_bytes(self):
        return C.NPU_PREEMPT_STATE_BYTES + 2 * self.device.profile.cmx.workspace_bytes


@pytest.fixture
def device():
    """An open device of profile npu-37xx, traced."""
    with libnpu.open("npu-37xx", trace=True) as opened:
        yield opened


@pytest.fixture
def pair(device, small_blob):
    """The small model on a device's primary context."""
    return Pair(device, small_blob, {"x": X})


@pytest.fixture
def fault():
    """fault(context) -> a kernel that writes where no memory is."""
    library = kernel_library("fault", {"fault": KernelSource("li r6, 0x70000000\nst.i64 r2, r6, 0\nhalt", ())})
    return lambda context: context.load(library)["fault"]
