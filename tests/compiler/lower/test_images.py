"""Large images: pooled whole in two steps, converted in pieces of long runs, streamed in pieces for all units at once."""

import numpy as np
import pytest
from npu_abi import C
from npu_model.profile import load_profile

from libnpu.compiler import CompileOptions
from libnpu.compiler.lower import lower
from libnpu.compiler.lower.builder import LONG
from libnpu.compiler.lower.order import shrinking_first
from libnpu.compiler.pipeline import compile_graph
from libnpu.compiler.program import DdrKind, Engine

PROFILE = load_profile("npu-37xx")
F32 = np.dtype(np.float32)


def tasks(program, op):
    return [o.payload.invariant for o in program.ops if o.engine == Engine.DPU and o.payload.invariant["op"] == op]


@pytest.mark.parametrize(("shape", "parts"), [((1, 40, 13, 13), 4), ((2, 16, 40, 24), 16), ((1, 3, 300, 7), 16)])
def test_a_window_over_an_image_is_pooled_in_parts_that_fill_blocks(shape, parts, sketch, run):
    """Sizes of no equal parts have zeros behind them, of which a mean knows nothing; an axis may be longer than a kernel."""
    for op, code in (("AvgPool", C.NPU_DPU_AVGPOOL), ("MaxPool", C.NPU_DPU_MAXPOOL)):
        s = sketch()
        attrs = {"count_include_pad": False} if op == "AvgPool" else {}
        graph = s.graph(s.pool(op, s.input(*shape), shape[2:], **attrs))
        first = tasks(lower(graph, PROFILE), code)[0]
        assert first["out_x"] * first["out_y"] >= parts
        x = np.random.default_rng(0).uniform(-2, -1, shape).astype(np.float16)
        (found,) = run(compile_graph(graph, CompileOptions()).blob, {"x0": x}).values()
        wanted = x.astype(np.float64).mean((2, 3), keepdims=True) if op == "AvgPool" else x.max((2, 3), keepdims=True)
        np.testing.assert_allclose(found, wanted, rtol=2**-10 if op == "AvgPool" else 0)


def test_an_image_is_pooled_band_by_band_behind_what_makes_it_and_stored_for_others(sketch):
    s = sketch()
    a = s.conv(s.input(1, 16, 160, 160), 96, kernel=1, pad=0)
    gate = s.pool("AvgPool", a, 160, count_include_pad=False)
    program = lower(s.graph(s.map(("mul", ("in", 0), ("in", 1)), a, gate)), PROFILE, tiles=2)
    engines = {op.engine for op in program.ops if op.name.startswith("avgpool")}
    assert engines == {Engine.DPU}
    assert a.name in {op.payload.dst.target.name for op in program.ops if op.engine == Engine.DMA}


def test_a_result_that_changes_type_and_order_goes_out_in_long_runs(sketch):
    s = sketch()
    a = s.conv(s.input(1, 16, 160, 256), 64, kernel=1, pad=0)
    program = lower(s.graph(s.map(("in", 0), a, dtype=F32)), PROFILE, tiles=2)
    moved = [op.payload for op in program.ops if op.engine == Engine.DMA and op.payload.dst.target in program.ddr]
    out = [one for one in moved if one.dst.target.kind == DdrKind.OUTPUT]
    assert out and min(one.dst_width for one in out) >= 1024


def test_pieces_of_what_is_streamed_are_so_small_that_all_units_have_two(sketch):
    s = sketch()
    x = s.input(1, 96, 160, 160)
    gate = s.map(("sigmoid", ("in", 0)), s.input(1, 96, 1, 1))
    expr = ("add", ("mul", ("in", 0), ("in", 1)), ("in", 2))
    program = lower(s.graph(s.map(expr, x, gate, s.input(1, 96, 160, 160))), PROFILE, tiles=2)
    largest = max(op.payload.length for op in program.ops if op.engine == Engine.DMA)
    assert 3 * largest * 2 * 2 * PROFILE.shaves_per_tile <= 2 * PROFILE.cmx.workspace_bytes


TAILS = {
    "passes": ("hard_swish", ("in", 0)),
    "vector cores": ("tanh", ("in", 0)),
    "a type": ("mul", ("in", 0), ("const", 0.5)),
}


@pytest.mark.parametrize("kind", TAILS)
def test_what_one_value_becomes_is_made_in_cmx(kind, sketch, run, feeds_of):
    """Between convolutions that go band by band, and at the end, where type and order change."""
    s = sketch()
    a = s.conv(s.input(1, 8, 70, 33), 24, stride=1)
    b = s.map(TAILS[kind], a)
    c = s.conv(b, 20, kernel=1, pad=0)
    graph = s.graph(s.map(TAILS[kind], c, dtype=F32 if kind == "a type" else None))
    found = []
    for fused in (True, False):
        options = CompileOptions(cmx_bytes=64 << 10, vertical_fusion=fused, dump=("bytes-per-tensor",), optimisation=1)
        compiled = compile_graph(graph, options)
        moved = compiled.report["dumps"]["bytes-per-tensor"].count("scratch")
        found.append((run(compiled.blob, feeds_of(graph)), moved))
    (fused, inside), (apart, outside) = found
    assert [v.tobytes() for v in fused.values()] == [v.tobytes() for v in apart.values()]
    assert inside < outside


def test_a_node_that_frees_a_large_value_comes_early_and_what_it_makes_waits_in_ddr(sketch):
    """[64, 96, 96] of which all other nodes read the first convolution's alone, and the last one makes a half."""
    s = sketch()
    a = s.conv(s.input(1, 16, 96, 96), 64, kernel=1, pad=0)
    b = s.conv(a, 64)
    for _ in range(LONG):
        b = s.conv(b, 64)
    half = s.conv(a, 32, kernel=1, pad=0)
    graph = s.graph(s.conv(s.concat(1, half, b), 16, kernel=1, pad=0))
    ordered = shrinking_first(graph, half.shape[1] * 96 * 96 * 2, LONG)
    names = [node.outputs[0].name for node in ordered.nodes]
    assert names.index(half.name) == names.index(a.name) + 1
    assert [n for n in names if n != half.name] == [n.outputs[0].name for n in graph.nodes if n.outputs[0] is not half]
    assert shrinking_first(graph, half.shape[1] * 96 * 96 * 2 + 1, LONG) is graph
    program = lower(graph, PROFILE, tiles=2)
    first = {op.name.split(".")[0]: place for place, op in reversed(list(enumerate(program.ops)))}
    assert first[half.name.split(":")[0]] < first[b.name.split(":")[0]]


def test_what_waits_long_goes_to_ddr_where_others_need_its_room(sketch):
    s = sketch()
    a = s.conv(s.input(1, 16, 80, 80), 48, kernel=1, pad=0)
    b = s.conv(s.input(1, 16, 80, 80), 64)
    for _ in range(LONG):
        b = s.conv(b, 64)
    program = lower(s.graph(s.map(("add", ("in", 0), ("in", 1)), a, s.conv(b, 48))), PROFILE, tiles=2)
    assert a.name in {tensor.name for tensor in program.ddr}
    assert b.name not in {tensor.name for tensor in program.ddr}


@pytest.mark.parametrize("op", ["conv", "depthwise", "pool"])
def test_pieces_of_an_input_are_converted_where_they_are_taken(op, sketch, run, feeds_of):
    """Rows that two windows see are converted twice; neither type is in DDR beside the input's own."""
    s = sketch()
    x = s.map(("in", 0), s.input(2, 24, 45, 37, dtype=F32), dtype=s.dtype)
    if op == "pool":
        y = s.pool("AvgPool", x, (45, 37), count_include_pad=False)
    else:
        y = s.conv(x, 24, stride=2, group=24 if op == "depthwise" else 1)
    graph, found = s.graph(y), []
    for fused in (True, False):
        options = CompileOptions(
            cmx_bytes=64 << 10, vertical_fusion=fused, dump=("bytes-per-tensor",), optimisation=1, strict=True
        )
        compiled = compile_graph(graph, options)
        found.append((run(compiled.blob, feeds_of(graph)), compiled.report["dumps"]["bytes-per-tensor"]))
    (fused, inside), (apart, outside) = found
    assert [v.tobytes() for v in fused.values()] == [v.tobytes() for v in apart.values()]
    assert x.name not in inside and x.name in outside
