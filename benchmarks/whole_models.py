"""Whole models on npu-37xx beside what was measured on such a device: latency of one inference, inferences per second of many.

    python -m benchmarks.whole_models         the tables of docs/silicon.md

The topologies are ResNet-50 and MobileNet-v2 with seeded weights in fp16, one image of 224 x 224. Measured is the throughput of
"Core Ultra 7-165H NPU-only" in OpenVINO's published benchmarks (2024.1), with several requests in flight; its latencies are of
int8 alone, which a second table has: plans of these topologies and of two more (`topologies.py`), times without values, and quantised files (`quantise.py`). In fp16 each model is compiled layer by layer and with vertical fusion: the same device, two schedules. No parameter of the profile was set from these figures.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from npu_model.profile import Profile, load_profile

from benchmarks.quantise import quantised
from benchmarks.topologies import bert, yolo_v3_tiny

if TYPE_CHECKING:
    import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
PROFILE = "npu-37xx"
IN_FLIGHT = 4  # requests, what OpenVINO has in flight on this device when asked for throughput
INFERENCES = 16  # of which the second half is timed
# Of MobileNet-v2: expansion, output channels, blocks, stride of the first one (Sandler et al., table 2).
_MOBILENET = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


@dataclass(frozen=True, slots=True)
class Model:
    """A topology and its measured inferences per second in fp16."""

    name: str
    measured: float
    make: Callable[[], Any]


def resnet50() -> Path:
    """Return ResNet-50 with seeded weights."""
    from models import seeded

    return seeded("resnet50")


def mobilenet_v2() -> onnx.ModelProto:
    """Return MobileNet-v2 with seeded weights, its normalisations folded into the convolutions."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    nodes, weights = [], []

    def conv(
        source: str, inputs: int, outputs: int, kernel: int, stride: int, group: int = 1, clip: bool = True
    ) -> str:
        name = f"conv{len(nodes)}"
        taps = kernel * kernel * inputs // group
        shape = (outputs, inputs // group, kernel, kernel)
        values = random.standard_normal(shape, dtype=np.float32) * np.float32((2 / taps) ** 0.5)
        bias = random.standard_normal(outputs, dtype=np.float32) * np.float32(0.1)
        weights.extend([numpy_helper.from_array(values, f"{name}.w"), numpy_helper.from_array(bias, f"{name}.b")])
        operands, pad = [source, f"{name}.w", f"{name}.b"], kernel // 2
        nodes.append(
            helper.make_node(
                "Conv",
                operands,
                [name],
                name=name,
                group=group,
                kernel_shape=[kernel] * 2,
                strides=[stride] * 2,
                pads=[pad] * 4,
            )
        )
        if clip:
            nodes.append(helper.make_node("Clip", [name, "zero", "six"], [f"{name}.clip"], name=f"{name}.clip"))
        return f"{name}.clip" if clip else name

    weights.extend([numpy_helper.from_array(np.float32(0), "zero"), numpy_helper.from_array(np.float32(6), "six")])
    value, channels = conv("image", 3, 32, 3, 2), 32
    for expansion, outputs, blocks, first in _MOBILENET:
        for block in range(blocks):
            stride, inner, whole = first if block == 0 else 1, channels * expansion, value
            if expansion > 1:
                whole = conv(whole, channels, inner, 1, 1)
            whole = conv(whole, inner, inner, 3, stride, group=inner)
            whole = conv(whole, inner, outputs, 1, 1, clip=False)
            if stride == 1 and channels == outputs:
                nodes.append(helper.make_node("Add", [value, whole], [f"{whole}.sum"], name=f"{whole}.sum"))
                whole = f"{whole}.sum"
            value, channels = whole, outputs
    value = conv(value, channels, 1280, 1, 1)
    nodes.append(helper.make_node("GlobalAveragePool", [value], ["pool"], name="pool"))
    nodes.append(helper.make_node("Flatten", ["pool"], ["flat"], name="flat"))
    classifier = random.standard_normal((1280, 1000), dtype=np.float32) * np.float32(1280**-0.5)
    weights.extend(
        [numpy_helper.from_array(classifier, "fc.w"), numpy_helper.from_array(np.zeros(1000, np.float32), "fc.b")]
    )
    nodes.append(helper.make_node("Gemm", ["flat", "fc.w", "fc.b"], ["classes"], name="fc"))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 224, 224])
    classes = helper.make_tensor_value_info("classes", TensorProto.FLOAT, [1, 1000])
    graph = helper.make_graph(nodes, "mobilenet_v2", [image], [classes], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


MODELS = (Model("ResNet-50", 378.14, resnet50), Model("MobileNet-v2", 1264.15, mobilenet_v2))


@dataclass(frozen=True, slots=True)
class Planned:
    """A topology with what was measured of it in int8, and why the model's figures are what they are."""

    name: str
    per_second: float
    latency_ms: float
    make: Callable[[], Any]
    why: str


PLANNED = (
    Planned(
        "ResNet-50",
        783.3,
        1.61,
        resnet50,
        "as in fp16: first the DPUs are busy, then the last stage waits for its weights",
    ),
    Planned(
        "MobileNet-v2", 1947.05, 0.78, mobilenet_v2, "planes of bytes fit in CMX: DDR moves weights and the image alone"
    ),
    Planned(
        "YOLO v3 tiny",
        385.72,
        3.49,
        yolo_v3_tiny,
        "the first layers, of 3 and 16 channels, leave most MACs idle; measured is 5 times what MACs need",
    ),
    Planned(
        "BERT-base, 128 tokens",
        73.09,
        14.83,
        partial(bert, 12, 768, 12, 128),
        "SHAVEs are busy for three quarters of the time: softmax, norms and Gelu, in fp16",
    ),
)


@dataclass(frozen=True, slots=True)
class Times:
    """What one inference takes on an idle device, and what many take that are in flight together."""

    latency_ps: int
    per_second: float
    counters: dict[str, int]  # of the one inference


def measure(blob: bytes, profile: str) -> Times:
    """Run a blob on a device of `profile`, alone and with IN_FLIGHT requests, each on a stream with buffers of its own."""
    import libnpu

    with libnpu.open(profile, compute=False, where="") as device, device.load(blob) as module:
        buffers = [
            {t.name: device.alloc(t.size_bytes) for t in (*module.inputs, *module.outputs)} for _ in range(IN_FLIGHT)
        ]
        streams = [device.create_stream() for _ in range(IN_FLIGHT)]

        def launch(number: int) -> None:
            own = buffers[number % IN_FLIGHT]
            ins, outs = ({t.name: own[t.name] for t in tensors} for tensors in (module.inputs, module.outputs))
            streams[number % IN_FLIGHT].launch(module, ins, outs)

        for number in range(IN_FLIGHT):  # what only a first launch does
            launch(number)
            streams[number].synchronize()
        start_ps, before = device.now_ps, device.counters()
        launch(0)
        streams[0].synchronize()
        latency_ps = device.now_ps - start_ps
        counters = {name: value - before[name] for name, value in device.counters().items()}
        for number in range(IN_FLIGHT):
            launch(number)
        ends_ps = []
        for number in range(INFERENCES):
            streams[number % IN_FLIGHT].synchronize()
            ends_ps.append(device.now_ps)
            launch(number + IN_FLIGHT)
        for stream in streams:
            stream.synchronize()
        half = INFERENCES // 2
        return Times(latency_ps, half * 1e12 / (ends_ps[-1] - ends_ps[half - 1]), counters)


def slower(profile: Profile, part: str, field: str) -> Profile:
    """Return the profile with one rate halved."""
    old = getattr(profile, part)
    return msgspec.structs.replace(profile, **{part: msgspec.structs.replace(old, **{field: getattr(old, field) // 2})})


HALVES = {
    "DDR rate / 2": ("ddr", "bytes_per_second"),
    "DPU clock / 2": ("dpu", "clock_hz"),
    "core clock / 2": ("core", "clock_hz"),
}


def table() -> list[str]:
    """Return the lines of the table."""
    from libnpu.compiler import CompileOptions, compile_model

    profile = load_profile(PROFILE)
    columns = (
        "model",
        "schedule",
        "tiles",
        "measured, 1/s",
        "model, 1/s",
        "error",
        "latency, ms",
        "MACs at peak, ms",
        "DDR at its rate, ms",
        "DPUs busy",
        *HALVES,
    )
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for model in MODELS:
        source = model.make()
        for fused, tiles in product((False, True), range(profile.tiles, 0, -1)):
            options = CompileOptions(precision="fp16", profile=PROFILE, tiles=tiles, vertical_fusion=fused)
            compiled = compile_model(source, options)
            found = measure(compiled.blob, PROFILE)
            counted = found.counters
            peak = profile.dpu.macs_per_cycle["f16"] * profile.dpu.clock_hz * tiles
            moved = counted["DMA_DDR_READ"] + counted["DMA_DDR_WRITE"]
            busy = counted["DPU_BUSY"] * 1e12 / profile.dpu.clock_hz / tiles / found.latency_ps
            cells = [
                model.name,
                "fused" if fused else "by layers",
                str(tiles),
                f"{model.measured:.0f}",
                f"{found.per_second:.0f}",
                f"{found.per_second / model.measured - 1:+.1%}",
                f"{found.latency_ps / 1e9:.2f}",
                f"{counted['DPU_MACS'] * 1e3 / peak:.2f}",
                f"{moved * 1e3 / profile.ddr.bytes_per_second:.2f}",
                f"{busy:.0%}",
            ]
            with tempfile.TemporaryDirectory() as folder:
                for half in HALVES.values():
                    path = Path(folder) / f"{half[0]}.json"
                    path.write_bytes(msgspec.json.encode(slower(profile, *half)))
                    cells.append(f"{measure(compiled.blob, str(path)).per_second:.0f}")
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def planned() -> list[str]:
    """Return the lines of the table of models in int8."""
    import onnx

    from libnpu.compiler import CompileOptions, compile_model

    columns = (
        "model, int8",
        "as",
        "tiles",
        "measured, 1/s",
        "predicted, 1/s",
        "error",
        "measured latency, ms",
        "predicted, ms",
        "error",
        "MACs at peak, ms",
        "class",
        "why",
    )
    dpu = load_profile(PROFILE).dpu
    peak = dpu.macs_per_cycle["i8"] * dpu.clock_hz
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for model, is_plan in product(PLANNED, (True, False)):
        source = model.make()
        if not is_plan and isinstance(source, Path):
            source = quantised(onnx.load(source))
        elif not is_plan and all(tensor.HasField("raw_data") for tensor in source.graph.initializer):
            source = quantised(source)
        elif not is_plan:
            continue  # of which only shapes are there
        for tiles in range(load_profile(PROFILE).tiles, 0, -1):
            options = CompileOptions(profile=PROFILE, tiles=tiles)
            if is_plan:
                options = CompileOptions(precision="int8", plan_only=True, profile=PROFILE, tiles=tiles)
            found = measure(compile_model(source, options).blob, PROFILE)
            latency_ms = found.latency_ps / 1e9
            cells = [
                model.name,
                "plan" if is_plan else "quantised file",
                str(tiles),
                f"{model.per_second:.0f}",
                f"{found.per_second:.0f}",
                f"{found.per_second / model.per_second - 1:+.0%}",
                f"{model.latency_ms:.2f}",
                f"{latency_ms:.2f}",
                f"{latency_ms / model.latency_ms - 1:+.0%}",
                f"{found.counters['DPU_MACS'] * 1e3 / peak / tiles:.2f}",
                "M",
                model.why,
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    print("\n".join([*table(), "", *planned()]))
