"""Lower bounds that no schedule undercuts, what a schedule loses beside them, and which change would help."""

from itertools import pairwise, product
from math import ceil

import numpy as np
import pytest
from msgspec.structs import replace
from npu_abi import C, dtype
from npu_model import dtypes
from npu_model.cycles import dpu_cycles, fastest_grids
from npu_model.profile import load_profile

from libnpu.compiler import CompileOptions, compile_model
from libnpu.compiler.lower import lower
from libnpu.compiler.pipeline import compile_graph
from libnpu.compiler.program import Engine, TileOp
from libnpu.compiler.quality import LowerBound, explain, late_pixels, lower_bound, measures
from libnpu.compiler.quality.engine import Layer, least_cycles
from libnpu.compiler.quality.reach import Axis
from libnpu.compiler.quality.work import node_work
from libnpu.compiler.schedule import FeasibleMemoryScheduler, Queue, Schedule, ScheduledOp

PROFILE = load_profile("npu-37xx")
PS = 10**12
MEMORY_PS = round(PROFILE.ddr.latency_ns * 1000)
START_PS = (PROFILE.dpu.startup_cycles + PROFILE.dpu.workload_cycles) * PS / PROFILE.dpu.clock_hz


@pytest.mark.parametrize("options", [{"tiles": 1}, {}], ids=["a tile", "both"])
def test_no_schedule_undercuts_its_bound(case, compiled, options):
    report = compiled(case, **options).report
    assert (
        report["lower_bound_ps"] == max(report["bound_ps"].values()) == report["bound_ps"][report["binding_resource"]]
    )
    assert 0 < report["lower_bound_ps"] <= report["predicted_makespan_ps"]
    assert report["makespan_over_bound"] == round(report["predicted_makespan_ps"] / report["lower_bound_ps"], 3)


def test_the_bound_does_not_know_the_schedule(compiled):
    wide = compiled("chain", tiles=1).report
    tight = compiled("chain", tiles=1, cmx_bytes=64 << 10, pingpong=False).report
    assert wide["bound_ps"] == tight["bound_ps"]
    assert wide["predicted_makespan_ps"] < tight["predicted_makespan_ps"]


def test_multiply_accumulates_are_those_of_the_program(case, graph_of, compiled):
    assert lower_bound(graph_of(case), PROFILE, 2).macs == compiled(case).report["macs"]


def test_a_convolution_is_bound_by_its_weights_or_by_its_work(sketch):
    small, large = sketch(), sketch()
    graph = small.graph(small.conv(small.input(1, 512, 2, 2), 512, bias=False))
    weights, ends = 512 * 512 * 9 * 2, 2 * 512 * 4 * 2
    found = lower_bound(graph, PROFILE, 2)
    assert (found.binding, found.ddr_bytes, found.macs) == ("DDR", weights + ends, 512 * 512 * 9 * 4)
    assert found.ps["DDR"] == ceil(MEMORY_PS + (weights + ends) * PS / PROFILE.ddr.bytes_per_second)
    graph = large.graph(large.conv(large.input(1, 64, 96, 96), 64, bias=False))
    macs = 64 * 64 * 9 * 96 * 96
    contexts = 96 * 96 * 64 // 16384
    cycles = (macs / PROFILE.dpu.macs_per_cycle["f16"] + contexts * PROFILE.dpu.context_cycles) / 2
    found = lower_bound(graph, PROFILE, 2)
    assert found.ps["DPU"] == ceil(2 * MEMORY_PS + cycles * PS / PROFILE.dpu.clock_hz + START_PS / 2)
    assert found.ps["critical path"] == ceil(2 * MEMORY_PS + cycles * PS / PROFILE.dpu.clock_hz + START_PS)


OPS = {"conv": C.NPU_DPU_CONV, "depthwise": C.NPU_DPU_DWCONV, "max": C.NPU_DPU_MAXPOOL, "matmul": C.NPU_DPU_MATMUL}
SMALL = {"conv of 4 bits": "conv", "matmul of 4 bits": "matmul"}  # weights


@pytest.mark.parametrize("profile", ["npu-37xx", "npu-40xx"])
@pytest.mark.parametrize("op", [*OPS, *SMALL])
def test_no_cut_of_a_layer_takes_fewer_cycles_than_its_bound(op, profile):
    """Random layers, cut along rows, columns and channels at random, every piece in the fastest grid."""
    device, rng = load_profile(profile), np.random.default_rng(0)
    for _ in range(60):
        layer, fields, pads = random_layer(rng, op)
        channels = layer.channels // layer.groups
        boxes = [
            (*y, *x, *(z + g * channels for z in zs))
            for y in pieces(rng, layer.pixels[0])
            for x in pieces(rng, layer.pixels[1])
            for g in range(layer.groups)
            for zs in pieces(rng, channels)
        ]
        inv, parts = np.zeros(len(boxes), dtype("npu_dpu_invariant")), np.zeros(len(boxes), dtype("npu_dpu_variant"))
        for field, value in fields.items():
            inv[field] = value
        inv["variant_count"], inv["variant_first"] = 1, np.arange(len(boxes))
        parts["pad_top"], parts["pad_left"] = pads
        for axis, (start, end) in zip("yxz", np.array(boxes).T.reshape(3, 2, -1), strict=True):
            parts[f"start_{axis}"], parts[f"size_{axis}"] = start, end - start
        inv["out_z"] = parts["size_z"]
        inv["mpe_grid"] = fastest_grids(device, inv, parts)
        assert 0 < least_cycles(layer, device.dpu) <= dpu_cycles(device, inv, parts).sum(), (layer, boxes)


def random_layer(rng, op):
    """Return a layer, the fields of its invariants but for output channels, and the padding before its first pixel."""
    small, op = op in SMALL, SMALL.get(op, op)
    # Few rows, which take as long as their weights.
    kernel = [1, 1] if op == "matmul" else rng.integers(1, 6, 2).tolist()
    stride, dilation = int(rng.integers(1, 3)), int(rng.integers(1, 3)) if op == "conv" else 1
    pads = [int(rng.integers(0, k)) if op == "conv" else 0 for k in kernel]
    inputs = [1, int(rng.integers(1, 8 if small else 400))] if op == "matmul" else rng.integers(12, 60, 2).tolist()
    stride = 1 if op == "matmul" else stride
    pixels = [(i + 2 * p - (k - 1) * dilation - 1) // stride + 1 for i, p, k in zip(inputs, pads, kernel, strict=True)]
    groups = int(rng.integers(1, 4)) if op == "conv" else 1
    channels, depth = groups * int(rng.integers(1, 300)), int(rng.integers(1, 200)) * (2 if small else 1)
    kind = dtypes.I8 if small else dtypes.F16
    own = op in ("depthwise", "max")
    taps = [
        [pixels[k]] * kernel[k]
        if own
        else Axis(kernel[k], stride, dilation, pads[k], inputs[k], pixels[k]).live_outputs()
        for k in (0, 1)
    ]
    layer = Layer(
        1, tuple(pixels), channels, groups, 1 if own else depth, tuple(taps), op == "matmul", *[kind] * 3,
        own, op != "max", op == "depthwise" and 3 in kernel, has_small_weights=small,
    )  # fmt: skip
    fields = {"op": OPS[op], "groups": 1, "in_z": layer.depth, **dict.fromkeys(("act_dtype", "wt_dtype", "out_dtype"), kind)}  # fmt: skip
    fields["flags"] = C.NPU_DPU_FLAG_WEIGHTS_4BIT if small else 0
    for k, axis in enumerate("yx"):
        fields |= {f"kernel_{axis}": kernel[k], f"stride_{axis}": stride, f"dilation_{axis}": dilation}
        fields[f"in_{axis}"] = inputs[k]
    return layer, fields, pads


def pieces(rng, size):
    return list(pairwise(sorted({0, size, *rng.integers(0, size + 1, rng.integers(0, 3)).tolist()})))


def test_a_layer_in_one_piece_takes_little_more_than_its_bound():
    """3 x 3 over whole blocks: the bound leaves out start-up and the last results only."""
    taps = (tuple(Axis(3, 1, 1, 1, 64, 64).live_outputs()),) * 2
    layer = Layer(1, (64, 64), 64, 1, 64, taps, False, dtypes.F16, dtypes.F16, dtypes.F16)
    macs = 64 * 64 * 64 * 64 * 9 / PROFILE.dpu.macs_per_cycle["f16"]
    assert least_cycles(layer, PROFILE.dpu) == macs + 16 * PROFILE.dpu.context_cycles


def test_of_a_table_only_the_rows_that_are_taken_have_to_move(sketch):
    s = sketch()
    index = s.input(8, dtype=np.int32)
    graph = s.graph(s.node("Gather", [s.const(50_000, 64), index], (8, 64), axis=0))
    assert lower_bound(graph, PROFILE, 1).ddr_bytes == 8 * 4 + 2 * 8 * 64 * 2


def test_layers_that_need_all_of_the_one_before_follow_each_other(sketch):
    """One row times a matrix, on and on: each start-up counts. A sum per element may run beside the layer before."""
    s = sketch()
    value = s.input(1, 64)
    for _ in range(5):
        value = s.matmul(value, s.const(64, 64))
    row_ps = 64 * 64 / (2 * PROFILE.dpu.macs_per_cycle["f16"]) * PS / PROFILE.dpu.clock_hz
    path = lower_bound(s.graph(value), PROFILE, 2).ps["critical path"]
    assert path == pytest.approx(2 * MEMORY_PS + 5 * (START_PS / 2 + row_ps) + 5 * START_PS / 2, rel=0.3)
    beside = sketch()
    value = beside.input(64, 64)
    for _ in range(5):
        value = beside.matmul(value, beside.const(64, 64))
    found = lower_bound(beside.graph(value), PROFILE, 2)
    assert found.ps["critical path"] < 2 * MEMORY_PS + 5 * (START_PS + 64 * row_ps)


def test_what_comes_before_and_behind_all_work_of_an_engine_counts(sketch):
    """SHAVEs convert the input before, and the result behind: of each a start, and of the sum of all elements its work."""
    s = sketch()
    half = s.map(("in", 0), s.input(1, 8, 32, 32, dtype=np.float32), dtype=np.float16)
    alone = sketch()
    plain = alone.graph(alone.conv(alone.input(1, 8, 32, 32), 64))
    graph = s.graph(s.reduce("sum", s.conv(half, 64), 0, 1, 2, 3))
    start_ps = PROFILE.shave.startup_cycles * PS / PROFILE.shave.clock_hz
    more = lower_bound(graph, PROFILE, 2).ps["DPU"] - lower_bound(plain, PROFILE, 2).ps["DPU"]
    assert more == pytest.approx(2 * start_ps + node_work(graph, graph.nodes[-1], PROFILE, 2).work_ps, abs=2)


@pytest.mark.parametrize("kind", ["rows of an image", "values of an attention", "keys in two parts"])
def test_what_a_part_of_the_work_takes_does_not_hold_the_rest_back(kind, sketch):
    """All of a chain on SHAVEs becomes one number, which is repeated: behind it comes a start, not all work of what takes it, too."""
    s = sketch()
    number = s.reduce("sum", s.map(("tanh", ("exp", ("in", 0))), s.input(1, 32, 64, 64)), 0, 1, 2, 3)
    before = lower_bound(s.graph(number), PROFILE, 2).ps["critical path"]
    late = s.reshape(number, 1, 1, 1, 1)
    if kind == "rows of an image":
        image = s.concat(2, s.input(1, 16, 63, 64), s.node("Expand", [late], (1, 16, 1, 64)))
        graph, start_ps = s.graph(s.conv(image, 256)), START_PS
        alone = sketch()
        plain = alone.graph(alone.conv(alone.input(1, 16, 64, 64), 256))
        assert lower_bound(graph, PROFILE, 2).ps["DPU"] == lower_bound(plain, PROFILE, 2).ps["DPU"] > START_PS
    else:
        q, k, v = (s.input(1, 2, 128, 32) for _ in range(3))
        late = s.node("Expand", [late], (1, 2, 128, 32))
        keys, values = ([k], [late]) if kind == "values of an attention" else ([k, late], [v, v])
        attrs = {"parts": len(keys), "scale": 1.0, "expr": ("in", 0)}
        graph = s.graph(s.node("FlashSDPA", [q, *keys, *values], q.shape, **attrs))
        work = node_work(graph, graph.nodes[-1], PROFILE, 2)
        assert work.work_ps > work.start_ps
        start_ps = work.start_ps
    assert lower_bound(graph, PROFILE, 2).ps["critical path"] == pytest.approx(before + start_ps, abs=2)


@pytest.mark.parametrize(("kernel", "stride", "pad"), [(3, 1, 1), (5, 2, 1), (2, 3, 0), (4, 1, 3)])
def test_so_many_pixels_of_an_image_are_never_made_with_less_work(sketch, kernel, stride, pad):
    """All sets of the first ten pixels of a small image that an element of each is made for, two layers behind the input."""
    s = sketch()
    first = s.conv(s.input(1, 3, 8, 9), 4, kernel=kernel, stride=stride, pad=pad, bias=False)
    pooled = s.pool("MaxPool", first, (2, 1))
    image = s.conv(pooled, 5, kernel=(2, 3), pad=0, bias=False)
    graph = s.graph(image)
    height, width = image.shape[2:]
    found = late_pixels._least_work_ps(graph, image, PROFILE, 2)
    mac_ps = PS / (PROFILE.dpu.macs_per_cycle["f16"] * PROFILE.dpu.clock_hz * 2)
    live = [
        [sum(0 <= at * stride - pad + tap < count for tap in range(kernel)) for at in range(made)]
        for count, made in zip((8, 9), first.shape[2:], strict=True)
    ]
    taps = np.outer(*live)
    least = [np.inf] * (height * width + 1)
    for chosen in product((False, True), repeat=min(height * width, 10)):
        pixels = np.zeros((height, width), bool)
        pixels.flat[: len(chosen)] = chosen
        made = np.zeros(pooled.shape[2:], bool)
        for y, x in np.argwhere(pixels):
            made[y : y + 2, x : x + 3] = True
        before = np.zeros(first.shape[2:], bool)
        before[: made.shape[0], :] |= made
        before[1 : made.shape[0] + 1, :] |= made
        macs = pixels.sum() * 6 * 4 + (before * taps).sum() * 3 * 4
        least[pixels.sum()] = min(least[pixels.sum()], macs * mac_ps)
    assert found[0] == 0 < found[1] and all(a <= b + 1 for a, b in zip(found, least, strict=True))
    assert found[1] == pytest.approx(least[1])


def test_weights_of_a_product_with_an_image_come_when_its_pixels_are_there(sketch):
    """Of a last layer that is 3 x 3 over all of an image the weights of eight pixels of nine are needed behind a first element."""
    s = sketch()
    image = s.conv(s.input(1, 512, 3, 3), 512, bias=False)
    flat = s.node("Reshape", [image], (1, 512 * 9))
    graph = s.graph(s.matmul(flat, s.const(512 * 9, 1024)))
    found = late_pixels.late_pixels_ps(graph, PROFILE, 1)
    late = 512 * 9 * 1024 * 2 - PROFILE.cmx.workspace_bytes
    assert late * PS / PROFILE.ddr.bytes_per_second < found < lower_bound(graph, PROFILE, 1).ps["DDR"]


def test_exposed_dma_and_stalls():
    ops = [
        ScheduledOp(TileOp(name, name, engine, 0, [], [], None), Queue(engine, unit), start, end, {})
        for name, engine, unit, start, end in (
            ("load", Engine.DMA, 0, 0, 10),
            ("load too", Engine.DMA, 1, 4, 14),
            ("work", Engine.DPU, 0, 12, 30),
            ("store", Engine.DMA, 0, 30, 35),
        )
    ]
    found = measures(Schedule(ops, 35, 0, 0, 0, 0, [], [], []), LowerBound({"DPU": 20, "DDR": 10}, 0, 0))
    assert found["exposed_dma_ps"] == 12 + 5
    assert found["barrier_stall_ps"] == {"dma": 4 + 20, "dpu": 12, "shave": 0}
    assert found["makespan_over_bound"] == 1.75


def test_what_would_help_a_program_that_waits_for_weights(sketch):
    s = sketch()
    graph = s.graph(s.matmul(s.input(1, 2048), s.const(2048, 2048)))
    report = compile_graph(graph, CompileOptions(explain=True)).report
    found = report["what_ifs"]
    assert found[0]["change"] == "DDR twice as fast"
    assert found[0]["saves"] > 0.1
    assert found == sorted(found, key=lambda entry: entry["makespan_ps"])
    lines = explain(report)
    assert "which have to cross to and from DDR" in lines[1]
    assert any(line.startswith("What would help most: DDR twice as fast") for line in lines)


def test_what_would_help_a_program_that_converts_its_input(sketch):
    s = sketch()
    half = s.map(("in", 0), s.input(1, 3, 64, 64, dtype=np.float32), dtype=np.float16)
    report = compile_graph(s.graph(s.conv(half, 16)), CompileOptions(explain=True)).report
    saved = {entry["change"]: entry["saves"] for entry in report["what_ifs"]}
    assert saved["inputs in the type and order that the first layer takes"] > 0.02


def test_nothing_to_do_has_nothing_to_explain():
    report = {"predicted_makespan_ps": 0, "lower_bound_ps": 0}
    assert explain(report) == ["Nothing has to be done: the program has no tasks."]


def test_weights_that_do_not_fit_come_behind_a_layer(sketch):
    """Pointwise layers: behind the last pixel of the first one all weights of the third and fourth are needed, and a column of the second's."""
    s, first = sketch(), sketch()
    value = s.input(1, 64, 4, 4)
    for channels in (64, 256, 256, 256):
        value = s.conv(value, channels, kernel=1, pad=0, bias=False)
    device = small(64 << 10)
    late = 256 * 2 + 2 * 256 * 256 * 2 - (64 << 10)
    one = first.graph(first.conv(first.input(1, 64, 4, 4), 64, kernel=1, pad=0, bias=False))
    expected = lower_bound(one, device, 1).ps["DPU"] - 2 * MEMORY_PS + late * PS / device.ddr.bytes_per_second
    assert lower_bound(s.graph(value), device, 1).ps["late weights"] == pytest.approx(expected, abs=2)
    assert lower_bound(s.graph(value), PROFILE, 1).ps["late weights"] == 0


@pytest.mark.parametrize("tiles", [1, 2])
def test_no_schedule_has_late_weights_earlier(sketch, tiles):
    s = sketch()
    value = s.conv(s.input(1, 32, 24, 24), 64)
    side = s.conv(value, 64, stride=2)
    other = s.pool("MaxPool", s.conv(value, 96, kernel=1, pad=0), 2, 2)
    value = s.conv(s.concat(1, side, other), 96, kernel=(3, 1), pad=(1, 0))
    for dilation in (1, 2):
        value = s.map(("add", ("in", 0), ("in", 1)), value, s.conv(value, 96, pad=dilation, dilation=dilation))
    value = s.conv(value, 128, stride=2)
    value = s.matmul(s.reshape(s.pool("AvgPool", value, 6, count_include_pad=False), 1, 128), s.const(128, 512))
    graph, device = s.graph(value), small(96 << 10)
    found = lower_bound(graph, device, tiles)
    schedule = FeasibleMemoryScheduler(lower(graph, device, tiles=tiles), device, 96 << 10, tiles=tiles).run()
    assert 0 < found.ps["late weights"] <= schedule.makespan_ps


def small(cmx_bytes):
    return replace(PROFILE, cmx=replace(PROFILE.cmx, workspace_bytes=cmx_bytes))


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_layers_of_recurrences_that_follow_each_other_step_by_step_do_not_undercut_their_bound(direction):
    """A step takes the rows that one step of the layer below has made, where a layer has one direction; both need all of it."""
    from onnx import TensorProto, helper, numpy_helper

    steps, hidden, random = 24, 24, np.random.default_rng(0)
    count = 2 if direction == "bidirectional" else 1
    nodes, weights, size = [], [], hidden
    for layer in range(3):
        fed, shapes = f"x{layer}", {f"w{layer}": (count, 4 * hidden, size), f"r{layer}": (count, 4 * hidden, hidden)}
        weights += [
            numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
            for name, shape in shapes.items()
        ]
        nodes += [
            helper.make_node("LSTM", [fed, *shapes], [f"y{layer}"], hidden_size=hidden, direction=direction),
            helper.make_node("Transpose", [f"y{layer}"], [f"t{layer}"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"t{layer}", f"s{layer}"], [f"x{layer + 1}"]),
        ]
        size = count * hidden
        weights.append(numpy_helper.from_array(np.array([steps, 1, size]), f"s{layer}"))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (steps, 1, width))
        for name, width in (("x0", hidden), ("x3", size))
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    report = compile_model(model, CompileOptions(), cache=False).report
    slack = 1.2 if count == 2 else 3
    assert report["lower_bound_ps"] <= report["predicted_makespan_ps"] <= slack * report["lower_bound_ps"]
