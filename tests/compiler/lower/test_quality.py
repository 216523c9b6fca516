"""Lower bounds that no schedule undercuts, what a schedule loses beside them, and which change would help."""

from math import ceil

import numpy as np
import pytest
from npu_model.profile import load_profile

from libnpu.compiler import CompileOptions
from libnpu.compiler.pipeline import compile_graph
from libnpu.compiler.program import Engine, TileOp
from libnpu.compiler.quality import LowerBound, explain, lower_bound, measures
from libnpu.compiler.schedule import Queue, Schedule, ScheduledOp

PROFILE = load_profile("npu-37xx")
PS = 10**12
MEMORY_PS = round(PROFILE.ddr.latency_ns * 1000)
START_PS = (PROFILE.dpu.startup_cycles + PROFILE.dpu.workload_cycles) * PS / PROFILE.dpu.clock_hz


@pytest.mark.parametrize("tiles", [1, 2])
def test_no_schedule_undercuts_its_bound(case, graph_of, tiles):
    report = compile_graph(graph_of(case), CompileOptions(tiles=tiles)).report
    assert (
        report["lower_bound_ps"] == max(report["bound_ps"].values()) == report["bound_ps"][report["binding_resource"]]
    )
    assert 0 < report["lower_bound_ps"] <= report["predicted_makespan_ps"]
    assert report["makespan_over_bound"] == round(report["predicted_makespan_ps"] / report["lower_bound_ps"], 3)


def test_the_bound_does_not_know_the_schedule(graph_of):
    wide = compile_graph(graph_of("chain"), CompileOptions(tiles=1)).report
    tight = compile_graph(graph_of("chain"), CompileOptions(tiles=1, cmx_bytes=64 << 10, pingpong=False)).report
    assert wide["bound_ps"] == tight["bound_ps"]
    assert wide["predicted_makespan_ps"] < tight["predicted_makespan_ps"]


def test_multiply_accumulates_are_those_of_the_program(case, graph_of):
    graph = graph_of(case)
    assert lower_bound(graph, PROFILE, 2).macs == compile_graph(graph_of(case), CompileOptions()).report["macs"]


def test_a_convolution_is_bound_by_its_weights_or_by_its_work(sketch):
    small, large = sketch(), sketch()
    graph = small.graph(small.conv(small.input(1, 512, 2, 2), 512, bias=False))
    weights, ends = 512 * 512 * 9 * 2, 2 * 512 * 4 * 2
    found = lower_bound(graph, PROFILE, 2)
    assert (found.binding, found.ddr_bytes, found.macs) == ("DDR", weights + ends, 512 * 512 * 9 * 4)
    assert found.ps["DDR"] == ceil((weights + ends) * PS / PROFILE.ddr.bytes_per_second)
    graph = large.graph(large.conv(large.input(1, 64, 96, 96), 64, bias=False))
    macs = 64 * 64 * 9 * 96 * 96
    cycles = macs / (2 * PROFILE.dpu.macs_per_cycle["f16"])
    found = lower_bound(graph, PROFILE, 2)
    assert found.ps["DPU"] == ceil(cycles * PS / PROFILE.dpu.clock_hz + START_PS / 2)
    assert found.ps["critical path"] == ceil(2 * MEMORY_PS + cycles * PS / PROFILE.dpu.clock_hz + START_PS / 2)


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
