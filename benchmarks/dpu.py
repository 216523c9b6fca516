"""Time the DPU's values on the layers of ResNet-50 (224 x 224), one thread: ms per layer class, beside a plain dgemm of the
same shapes, and onnxruntime where it is installed.

    python benchmarks/dpu.py [--dtype f16|bf16|f32|u8|i8] [--fast] [--no-native] [--repeat N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import npu_abi
import numpy as np
from npu_abi import C
from npu_device import dpu_compute
from npu_model import casts, dtypes, native
from threadpoolctl import threadpool_limits

ONE_BY_ONE, CONV, MAXPOOL, AVGPOOL, ADD = "conv 1x1", "conv kxk", "maxpool", "avgpool", "add"
MOBILE = "depthwise (MobileNet-v2, not in ResNet-50)"


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer shape and how often the model has it."""

    kind: str
    op: int
    side: int  # input height and width
    in_z: int
    out_z: int
    kernel: int
    stride: int
    pad: int
    count: int

    @property
    def out_side(self) -> int:
        """Output height and width."""
        return (self.side + 2 * self.pad - self.kernel) // self.stride + 1

    @property
    def depth(self) -> int:
        """Terms per output."""
        return self.kernel * self.kernel * self.in_z


def resnet50() -> Iterator[Layer]:
    """Yield the layers: version 1.5, stride on the 3x3 convolution."""
    yield Layer(CONV, C.NPU_DPU_CONV, 224, 3, 64, 7, 2, 3, 1)
    yield Layer(MAXPOOL, C.NPU_DPU_MAXPOOL, 112, 64, 64, 3, 2, 1, 1)
    side, in_z = 56, 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        out = side // stride
        yield Layer(ONE_BY_ONE, C.NPU_DPU_CONV, side, in_z, width, 1, 1, 0, 1)
        yield Layer(CONV, C.NPU_DPU_CONV, side, width, width, 3, stride, 1, 1)
        yield Layer(ONE_BY_ONE, C.NPU_DPU_CONV, side, in_z, 4 * width, 1, stride, 0, 1)
        yield Layer(ONE_BY_ONE, C.NPU_DPU_CONV, out, width, 4 * width, 1, 1, 0, blocks)
        yield Layer(ONE_BY_ONE, C.NPU_DPU_CONV, out, 4 * width, width, 1, 1, 0, blocks - 1)
        yield Layer(CONV, C.NPU_DPU_CONV, out, width, width, 3, 1, 1, blocks - 1)
        yield Layer(ADD, C.NPU_DPU_ELTWISE_ADD, out, 4 * width, 4 * width, 1, 1, 0, blocks)
        side, in_z = out, 4 * width
    yield Layer(AVGPOOL, C.NPU_DPU_AVGPOOL, 7, 2048, 2048, 7, 1, 0, 1)
    yield Layer(ONE_BY_ONE, C.NPU_DPU_MATMUL, 1, 2048, 1000, 1, 1, 0, 1)


def mobilenet() -> Iterator[Layer]:
    """Yield the depthwise layers of MobileNet-v2."""
    for side, z, stride, count in (
        (112, 32, 1, 1), (112, 96, 2, 1), (56, 144, 1, 1), (56, 144, 2, 1), (28, 192, 1, 2), (28, 192, 2, 1),
        (14, 384, 1, 4), (14, 576, 1, 2), (14, 576, 2, 1), (7, 960, 1, 3),
    ):  # fmt: skip
        yield Layer(MOBILE, C.NPU_DPU_DWCONV, side, z, z, 3, stride, 1, count)


def task(layer: Layer, dtype: int) -> tuple[Any, Any, Callable[..., Any]]:
    """Return invariant, variants and a view of a memory with random operands."""
    size = dtypes.size_bytes(dtype)
    rng = np.random.default_rng(layer.side * layer.in_z)
    act = layer.side**2 * layer.in_z
    weights = layer.out_z * (layer.kernel**2 if layer.op == C.NPU_DPU_DWCONV else layer.depth)
    offsets = np.cumsum([0, act * size, act * size, weights * size])
    memory = np.zeros(int(offsets[-1]) + layer.out_side**2 * layer.out_z * size + 64, np.uint8)
    values = rng.standard_normal(2 * act + weights).astype(np.float32)
    values[: 2 * act] = np.maximum(values[: 2 * act], 0)  # activations behind a ReLU
    values[2 * act :] *= np.float32(np.sqrt(2 / layer.depth))  # weights that keep their size
    operands = casts.narrow(values, dtype) if dtypes.is_float(dtype) else rng.integers(0, 256, len(values), np.uint8)
    memory[: operands.nbytes] = operands.view(np.uint8)
    invariant = np.zeros(1, npu_abi.dtype("npu_dpu_invariant"))
    rows = layer.side if layer.op != C.NPU_DPU_MATMUL else 1
    fields = {
        "op": layer.op, "act_addr": 0, "act2_addr": offsets[1], "wt_addr": offsets[2], "out_addr": offsets[3],
        "in_x": layer.side, "in_y": rows, "in_z": layer.in_z, "out_x": layer.out_side, "out_y": layer.out_side, "out_z": layer.out_z,
        "act_stride_x": layer.in_z * size, "act_stride_y": layer.side * layer.in_z * size,
        "act2_stride_x": layer.in_z * size, "act2_stride_y": layer.side * layer.in_z * size,
        "out_stride_x": layer.out_z * size, "out_stride_y": layer.out_side * layer.out_z * size, "groups": 1,
        "kernel_x": layer.kernel, "kernel_y": layer.kernel, "stride_x": layer.stride, "stride_y": layer.stride,
        "dilation_x": 1, "dilation_y": 1, "act_dtype": dtype, "wt_dtype": dtype, "out_dtype": dtype,
        "ppe_fn": C.NPU_PPE_RELU, "ppe_scale": 1.0, "clamp_low": -np.inf, "clamp_high": np.inf, "variant_count": 1,
    }  # fmt: skip
    for name, value in fields.items():
        invariant[name] = value
    variants = np.zeros(1, npu_abi.dtype("npu_dpu_variant"))
    for name in ("size_x", "size_y"):
        variants[name] = layer.out_side
    variants["size_z"] = layer.out_z
    for name in ("pad_left", "pad_right", "pad_top", "pad_bottom"):
        variants[name] = layer.pad

    def view(address: int, shape: tuple[int, ...], strides: tuple[int, ...], element: Any, write: bool) -> Any:
        return np.ndarray(shape, element, memory, address, strides)

    return invariant[0], variants, view


def onnxruntime_ms(layer: Layer, repeat: int) -> float:
    """Return the ms of the layer in onnxruntime: float32, one thread."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    shape = [1, layer.in_z, layer.side, layer.side]
    window = {"kernel_shape": [layer.kernel] * 2, "strides": [layer.stride] * 2, "pads": [layer.pad] * 4}
    if layer.op == C.NPU_DPU_MATMUL:
        shape = [1, layer.in_z]
    rng = np.random.default_rng(1)
    weights: list[Any] = []
    if layer.op in (C.NPU_DPU_CONV, C.NPU_DPU_DWCONV):
        groups = layer.in_z if layer.op == C.NPU_DPU_DWCONV else 1
        weights = [rng.standard_normal((layer.out_z, layer.in_z // groups, layer.kernel, layer.kernel), np.float32)]
        node = helper.make_node("Conv", ["x", "w"], ["y"], group=groups, **window)
    elif layer.op == C.NPU_DPU_MATMUL:
        weights = [rng.standard_normal((layer.in_z, layer.out_z), np.float32)]
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
    elif layer.op == C.NPU_DPU_ELTWISE_ADD:
        weights = [rng.standard_normal(shape, np.float32)]
        node = helper.make_node("Add", ["x", "w"], ["y"])
    else:
        node = helper.make_node("MaxPool" if layer.op == C.NPU_DPU_MAXPOOL else "AveragePool", ["x"], ["y"], **window)
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(w, "w") for w in weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = {"x": rng.standard_normal(shape, np.float32)}
    return best_ms(lambda: session.run(None, feed), repeat)


def best_ms(call: Callable[[], Any], repeat: int) -> float:
    """Return the shortest of `repeat` runs after one to warm up."""
    call()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def dgemm_ms(layer: Layer, repeat: int) -> float:
    """Return the ms of the bare float64 product of the layer's shape; 0 for layers without one."""
    if layer.op not in (C.NPU_DPU_CONV, C.NPU_DPU_MATMUL):
        return 0.0
    a, b = np.ones((layer.out_side**2, layer.depth)), np.ones((layer.out_z, layer.depth))
    out = np.empty((len(a), len(b)))
    return best_ms(lambda: np.matmul(a, b.T, out=out), repeat)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="f16", choices=["f16", "bf16", "f32", "u8", "i8"])
    parser.add_argument("--fast", action="store_true", help="numerics fast: sgemm")
    parser.add_argument("--no-native", action="store_true", help="NumPy only")
    parser.add_argument("--layers", action="store_true", help="one line per layer shape too")
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    dtype = dtypes.code_of_name(arguments.dtype)
    helper = None if arguments.no_native else native.load()
    numerics = "fast" if arguments.fast else "exact"
    totals: dict[str, list[float]] = {}
    with threadpool_limits(1):
        for layer in (*resnet50(), *mobilenet()):
            record, variants, view = task(layer, dtype)

            def run(record: Any = record, variants: Any = variants, view: Any = view) -> None:
                for target, bits in dpu_compute.execute(record, variants, view, numerics, helper):
                    target[...] = bits

            times = (
                best_ms(run, arguments.repeat),
                dgemm_ms(layer, arguments.repeat),
                onnxruntime_ms(layer, arguments.repeat),
            )
            line = totals.setdefault(layer.kind, [0.0, 0.0, 0.0])
            for index, value in enumerate(times):
                line[index] += value * layer.count
            if arguments.layers:
                print(
                    f"  {layer.kind:10} {layer.side:4} {layer.in_z:5} {layer.out_z:5} x{layer.count}",
                    *(f"{value:9.2f}" for value in times),
                )
    print(f"{arguments.dtype} {numerics}, {'C helpers' if helper else 'NumPy only'}, one thread, ms")
    print(f"{'layer class':45}{'DPU':>9}{'dgemm':>9}{'onnxruntime f32':>17}")
    total = [sum(line[i] for kind, line in totals.items() if kind != MOBILE) for i in range(3)]
    for kind, line in [*totals.items(), ("ResNet-50", total)]:
        print(f"{kind:45}{line[0]:9.1f}{line[1]:9.1f}{line[2]:17.1f}")


if __name__ == "__main__":
    main()
