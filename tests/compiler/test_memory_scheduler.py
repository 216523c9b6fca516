"""What the FeasibleMemoryScheduler decides: places over time, loads ahead, spills, ping-pong. Units of 1000 ps."""

import statistics
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from npu_model.profile import load_profile

from benchmarks import small_graphs
from libnpu.compiler import CompileOptions, compile_model
from libnpu.compiler.options import PASSES, BadOption, UnknownPass
from libnpu.compiler.program import Access, Buffer, DdrKind, DdrTensor, DmaPayload, Engine, Ref, TileOp, TileProgram
from libnpu.compiler.schedule import (
    DecisionKind,
    FeasibleMemoryScheduler,
    improve,
    memory_scheduler,
    synchronise,
    unordered_pairs,
)
from libnpu.compiler.schedule.scheduler_pass import SchedulerPass
from libnpu.tools.session import execute
from tests.compiler.fuzz.judge import fuzz, open_device

NPU37 = load_profile("npu-37xx")
_QUICK = replace(NPU37.core, fetch_cycles=0, dispatch_cycles=0, barrier_cycles=0)
# Nothing takes time but what operations say, in units as small as these.
PROFILE = replace(NPU37, core=_QUICK, ddr=replace(NPU37.ddr, latency_ns=0.0))
UNIT = 1000


def op(name, engine, reads, writes, units, layer=None):
    whole = [[Access(t, 0, t.size_bytes) for t in targets] for targets in (reads, writes)]
    return TileOp(
        name,
        layer or name,
        engine,
        units * UNIT,
        *whole,
        DmaPayload(Ref(reads[0]), Ref(writes[0]), writes[0].size_bytes),
    )


def tiles_of_one_layer(count=4):
    """Tiles through load (2 units), matrix engine (3) and vector engine (1), one layer."""
    ops, ddr = [], []
    for n in range(count):
        source = DdrTensor(f"x{n}", 1024, DdrKind.INPUT)
        a, b, c = (Buffer(f"{letter}{n}", 1024) for letter in "abc")
        ops += [
            op(f"load {n}", Engine.DMA, [source], [a], 2, "layer"),
            op(f"conv {n}", Engine.DPU, [a], [b], 3, "layer"),
            op(f"act {n}", Engine.SHAVE, [b], [c], 1, "layer"),
        ]
        ddr.append(source)
    return TileProgram("tiles", ops, ddr, [])


def chain(layers, weight_bytes=4096, act_bytes=1024):
    """Layers that each load weights (2 units) and run 3 units on what the layer before left."""
    x = DdrTensor("x", act_bytes, DdrKind.INPUT)
    y = DdrTensor("y", act_bytes, DdrKind.OUTPUT)
    current = Buffer("act", act_bytes)
    ops, ddr = [op("load x", Engine.DMA, [x], [current], 2)], [x, y]
    for n in range(layers):
        weights, buffer, out = (
            DdrTensor(f"w{n}", weight_bytes, DdrKind.WEIGHTS),
            Buffer(f"w{n}", weight_bytes),
            Buffer(f"act{n}", act_bytes),
        )
        ddr.append(weights)
        ops.append(op(f"load {n}", Engine.DMA, [weights], [buffer], 2))
        ops.append(op(f"conv {n}", Engine.DPU, [current, buffer], [out], 3))
        current = out
    ops.append(op("store", Engine.DMA, [current], [y], 2))
    return TileProgram("chain", ops, ddr, [])


def schedule(program, cmx_bytes=64 << 10, limit=35, pingpong=True):
    return FeasibleMemoryScheduler(program, PROFILE, cmx_bytes, limit, pingpong).run()


def decided(found, kind):
    return [decision.subject for decision in found.decisions if decision.kind == kind]


# -- ping-pong --------------------------------------------------------------------------------------


def test_pingpong_of_four_tiles_takes_15_units_and_21_without():
    assert schedule(tiles_of_one_layer(), pingpong=True).makespan_ps == 15 * UNIT
    assert schedule(tiles_of_one_layer(), pingpong=False).makespan_ps == 21 * UNIT


def test_a_load_for_the_next_tile_of_the_running_layer_is_a_pingpong_decision():
    found = schedule(tiles_of_one_layer())
    assert decided(found, DecisionKind.PING_PONG) == ["load 1", "load 2", "load 3"]
    assert decided(schedule(tiles_of_one_layer(), pingpong=False), DecisionKind.PING_PONG) == []


# -- what all units share ---------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "units"), [(0, 10), (4, 10), (6, 12), (10, 20)])
def test_transfers_of_two_ports_take_as_long_as_a_port_or_the_path_that_they_share(path, units):
    sources = [DdrTensor(f"x{n}", 1024, DdrKind.INPUT) for n in range(2)]
    ops = [op("load", Engine.DMA, [source], [Buffer("a", 1024)], 10) for source in sources]
    for one in ops:
        one.path_ps = path * UNIT
    assert schedule(TileProgram("two loads", ops, sources, [])).makespan_ps == units * UNIT


def test_the_management_core_puts_one_task_after_the_other_into_a_queue_as_soon_as_there_is_room():
    profile = replace(PROFILE, core=replace(_QUICK, fetch_cycles=1, clock_hz=10**12 // UNIT))  # a unit for each task
    found = FeasibleMemoryScheduler(tiles_of_one_layer(8), profile, 64 << 10, tiles=2)
    assert found.run().makespan_ps >= 24 * UNIT  # of which there are 24
    one_queue = [op(f"act {n}", Engine.DPU, [Buffer("x", 64)], [Buffer(f"y{n}", 64)], 3) for n in range(10)]
    found = FeasibleMemoryScheduler(TileProgram("one", one_queue, [], []), profile, 64 << 10)
    assert found.run().makespan_ps == (1 + 10 * 3) * UNIT


# -- level limit ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "units", "peak"),
    [
        (0, 4 * (2 + 3) + 2, 1024 + 4096 + 1024),  # each layer waits for its weights
        (1, 2 + 4 * 3 + 2, 1024 + 2 * 4096 + 1024),  # the next layer's weights arrive meanwhile
        (2, 2 + 4 * 3 + 2, 1024 + 2 * 4096 + 1024),  # no faster: of equal schedules, the one with the smallest limit
    ],
)
def test_weights_are_loaded_as_many_layers_ahead_as_the_limit_says(limit, units, peak):
    found = schedule(chain(4), limit=limit)
    assert (found.makespan_ps, found.peak_cmx_bytes) == (units * UNIT, peak)


def test_every_limit_up_to_35_is_as_fast_as_those_below_and_takes_no_less_cmx():
    """E022: 24 layers that their engine binds, then 8 that their weights bind, which load the sooner the larger the limit."""
    program = chain(32)
    for n in range(24, 32):
        next(one for one in program.ops if one.name == f"load {n}").cost_ps = 30 * UNIT
    found = [FeasibleMemoryScheduler(program, PROFILE, 1 << 20, limit, restarts=False).run() for limit in range(36)]
    spans, peaks = [one.makespan_ps for one in found], [one.peak_cmx_bytes for one in found]
    assert spans == sorted(spans, reverse=True)
    assert peaks == sorted(peaks)
    assert spans[:18] == sorted(set(spans), reverse=True)


def test_a_load_of_another_layer_is_a_prefetch_decision():
    assert decided(schedule(chain(4), limit=1), DecisionKind.PREFETCH)[-3:] == ["load 1", "load 2", "load 3"]


def test_a_load_does_not_run_ahead_where_it_does_not_fit():
    found = schedule(chain(4), cmx_bytes=8192)  # two layers' weights are 8192 already
    assert found.makespan_ps == (4 * (2 + 3) + 2) * UNIT
    assert found.spill_out_bytes == 0 and decided(found, DecisionKind.SPILL) == []


def test_a_far_operation_of_an_idle_engine_does_not_lift_the_limit():
    program = chain(6)
    result = program.ops[-2].writes[0].target
    program.ops.insert(-1, op("act", Engine.SHAVE, [result], [Buffer("act", 1024)], 1))
    assert schedule(program, limit=0).makespan_ps == (6 * (2 + 3) + 2) * UNIT


def test_a_far_operation_that_does_not_fit_yet_holds_no_loads_back():
    program = chain(200)  # the last 64 of which the operation is near to
    source, loaded = DdrTensor("far", 4096, DdrKind.INPUT), Buffer("far", 4096)
    program.ddr.append(source)
    program.ops.append(op("load far", Engine.DMA, [source], [loaded], 2))
    program.ops.append(op("act", Engine.SHAVE, [loaded], [Buffer("wide", 12 << 10)], 1))
    found = schedule(program, cmx_bytes=18 << 10)  # 10 KiB of which two layers need
    assert found.makespan_ps <= (2 + 2 + 136 * 3 + 64 * (2 + 3) + 2 + 2 + 1) * UNIT


def zeros(tensors):
    return {t.name: np.zeros(t.shape, t.numpy_dtype) for t in tensors}


@pytest.fixture
def convolutions(make_model):
    """A model of five layers whose weights take longer to load than to use."""
    rng = np.random.default_rng(1)
    weights = {f"w{n}": rng.normal(0, 0.02, (256, 256, 3, 3)).astype(np.float32) for n in range(5)}
    names = ["x", "a", "b", "c", "d", "y"]
    nodes = [("Conv", [names[n], f"w{n}"], [names[n + 1]], {"pads": [1, 1, 1, 1]}) for n in range(5)]
    return make_model(nodes, {"x": (np.float32, (1, 256, 8, 8))}, ["y"], weights)


def test_sweep_of_the_limit_on_the_device_is_never_slower_and_takes_no_less_cmx(convolutions):
    latencies, peaks = [], []
    for limit in (0, 1, 3, 6):
        compiled = compile_model(convolutions, CompileOptions(tiles=1, prefetching_level_limit=limit))
        run = execute(compiled.blob, compiled.image, "npu-37xx", zeros, compute=False)
        latencies.append(run.end_ps - run.start_ps)
        peaks.append(compiled.report["peak_cmx_bytes"])
        assert compiled.report["predicted_makespan_ps"] == pytest.approx(latencies[-1], rel=0.15)
    assert latencies[0] > 1.2 * latencies[-1]
    assert all(later <= earlier for earlier, later in pairwise(latencies))
    assert peaks == sorted(peaks)


def test_what_two_ports_carry_is_predicted(convolutions):
    """The weights, 5.9 MB, are 95 us of one port and 43 us of the path to DDR. 5 % is chosen."""
    both = compile_model(convolutions, CompileOptions(profile="npu-40xx"))
    run = execute(both.blob, both.image, "npu-40xx", zeros, compute=False)
    assert both.report["predicted_makespan_ps"] == pytest.approx(run.end_ps - run.start_ps, rel=0.05)


# -- CMX over time ----------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(1, 3000), st.integers(1, 1000), st.integers(0, 8), st.integers(0, 20000))
def test_live_buffers_never_overlap_and_never_exceed_cmx(layers, weight_bytes, act_bytes, limit, more):
    cmx = 3 * 64 + weight_bytes + 2 * act_bytes + more
    found = schedule(chain(layers, weight_bytes, act_bytes), cmx, limit)
    times = sorted({t for _, _, since, until in found.residency for t in (since, until)})
    for time in times:
        live = sorted((a, a + b.size_bytes) for b, a, since, until in found.residency if since <= time < until)
        assert sum(end - start for start, end in live) <= cmx
        assert all(end <= start for (_, end), (start, _) in pairwise(live))
        assert all(end <= cmx for _, end in live)
    for one in found.ops:
        for buffer, address in one.addresses.items():
            assert any(
                (b, a) == (buffer, address) and since <= one.start_ps and one.end_ps <= until
                for b, a, since, until in found.residency
            )


# -- spilling ---------------------------------------------------------------------------------------


def test_the_victim_is_the_buffer_whose_next_use_is_farthest():
    x = DdrTensor("x", 1024, DdrKind.INPUT)
    start, near, far, third, fourth, fifth = (Buffer(n, 1024) for n in ("s", "near", "far", "t", "u", "v"))
    y = DdrTensor("y", 1024, DdrKind.OUTPUT)
    ops = [
        op("load", Engine.DMA, [x], [start], 1),
        op("make near", Engine.DPU, [start], [near], 1),
        op("make far", Engine.DPU, [start], [far], 1),
        op("crowd", Engine.DPU, [start], [third], 1),
        op("use near", Engine.DPU, [near, third], [fourth], 1),
        op("use far", Engine.DPU, [far, fourth], [fifth], 1),
        op("store", Engine.DMA, [fifth], [y], 1),
    ]
    found = schedule(TileProgram("p", ops, [x, y], []), 3072)
    assert decided(found, DecisionKind.SPILL) == ["far"]
    assert (found.spill_out_bytes, found.spill_in_bytes) == (1024, 1024)


def test_a_buffer_that_two_loads_fill_is_not_brought_back_by_one_of_them():
    first, second = (DdrTensor(name, 1024, DdrKind.INPUT) for name in ("first", "second"))
    y = DdrTensor("y", 1024, DdrKind.OUTPUT)
    both, large, small = Buffer("both", 2048), Buffer("large", 3072), Buffer("small", 1024)
    loads = [op(f"load {n}", Engine.DMA, [source], [both], 1) for n, source in enumerate((first, second))]
    for n, load in enumerate(loads):
        load.writes[:] = [Access(both, 1024 * n, 1024 * (n + 1))]
    ops = [*loads, op("make", Engine.DPU, [both], [small], 1), op("grow", Engine.DPU, [small], [large], 1)]
    ops += [op("shrink", Engine.DPU, [large], [small], 1), op("end", Engine.DPU, [both], [small], 1)]
    ops.append(op("store", Engine.DMA, [small], [y], 1))
    found = schedule(TileProgram("loads", ops, [first, second, y], []), 4096)
    assert sorted(decided(found, DecisionKind.SPILL)) == ["both", "small"]
    assert found.spill_in_bytes == 1024 + 2048  # all of it


def test_a_program_that_linear_scan_makes_spill_is_packed_before_it_is_scheduled():
    program = small_graphs.graph(1)
    live = max(FeasibleMemoryScheduler(program, NPU37, 1 << 20).live_bytes)
    plan = FeasibleMemoryScheduler(program, NPU37, live * 11 // 10)
    scanned = plan.run()
    packed = plan.without_spills(scanned.makespan_ps)
    assert scanned.spill_out_bytes > 0
    assert packed.spill_out_bytes == packed.spill_in_bytes == 0 and {one.kind for one in packed.ops} == {"op"}
    assert unordered_pairs(packed, synchronise(packed, 64)) == []
    assert packed.peak_cmx_bytes <= plan.cmx_bytes


def test_a_small_cmx_spills_as_much_out_as_in_and_the_values_stay(make_model, oracle):
    rng = np.random.default_rng(3)
    names = ["x", "a", "b", "c", "d"]  # all but x are still needed at the end, 16 KiB each
    nodes = [("Conv", [names[n], f"w{n}"], [names[n + 1]], {}) for n in range(4)]
    nodes += [("Add", ["d", "c"], ["e"], {}), ("Add", ["e", "b"], ["f"], {}), ("Add", ["f", "a"], ["y"], {})]
    weights = {f"w{n}": rng.normal(0, 0.1, (32, 32, 1, 1)).astype(np.float32) for n in range(4)}
    model = make_model(nodes, {"x": (np.float32, (1, 32, 16, 16))}, ["y"], weights)
    feeds = {"x": rng.normal(0, 1, (1, 32, 16, 16)).astype(np.float32)}
    values, spilled = [], []
    for cmx_bytes in (1 << 20, 64 << 10):
        compiled = compile_model(model, CompileOptions(tiles=1, cmx_bytes=cmx_bytes))
        run = execute(compiled.blob, compiled.image, "npu-37xx", lambda tensors: feeds)
        values.append(run.outputs["y"])
        spilled.append((compiled.report["spill_out_bytes"], compiled.report["spill_in_bytes"]))
    assert spilled[0] == (0, 0)
    assert spilled[1][0] == spilled[1][1] > 0
    assert values[0].tobytes() == values[1].tobytes()
    np.testing.assert_allclose(values[0], oracle(model, feeds)["y"], atol=2e-3)


# -- the dump ---------------------------------------------------------------------------------------


@pytest.fixture
def small_model(make_model):
    weights = {"w": np.full((16, 16, 1, 1), 0.1, np.float32)}
    return make_model([("Conv", ["x", "w"], ["y"], {})], {"x": (np.float32, (1, 16, 8, 8))}, ["y"], weights)


def test_every_pass_can_be_dumped_by_its_name(small_model):
    compiled = compile_model(small_model, CompileOptions(dump=PASSES))
    assert sorted(compiled.report["dumps"]) == sorted(PASSES)


def test_the_dump_of_the_scheduler_lists_what_was_decided(make_model):
    weights = {name: np.full((64, 64, 3, 3), 0.01, np.float32) for name in ("w", "v")}
    nodes = [
        ("Conv", ["x", "w"], ["a"], {"pads": [1, 1, 1, 1]}),
        ("Conv", ["a", "v"], ["b"], {"pads": [1, 1, 1, 1]}),
        ("Add", ["a", "b"], ["y"], {}),
    ]
    model = make_model(nodes, {"x": (np.float32, (1, 64, 32, 32))}, ["y"], weights)
    name = "FeasibleMemoryScheduler"
    lines = compile_model(model, CompileOptions(cmx_bytes=160 << 10, dump=(name,))).report["dumps"][name].splitlines()
    kinds = {line.split(": ")[1].split()[0] for line in lines[1:]}
    assert {"alloc", "prefetch", "ping-pong"} <= kinds


def test_an_unknown_pass_is_refused_with_the_names_there_are():
    with pytest.raises(UnknownPass, match=r"nope: the compiler has no such pass; it has import, .*FeasibleMemory"):
        CompileOptions(dump=("nope",))


def test_constants_that_fp16_saturates_are_warnings_with_their_layer(make_model):
    weights = {"w": np.full((1, 1, 1, 1), 1e6, np.float32)}
    model = make_model([("Conv", ["x", "w"], ["y"], {})], {"x": (np.float32, (1, 1, 4, 4))}, ["y"], weights)
    assert compile_model(model).report["warnings"] == ["Conv_0: 1 of 1 values of w are beyond float16, saturated"]


def test_results_at_alternate_ends_leave_gaps_that_add_up():
    """Bottom up, the last result would fit neither below nor above the one before; at alternate ends nothing is spilled."""
    source, target = DdrTensor("x", 128, DdrKind.INPUT), DdrTensor("y", 1600, DdrKind.OUTPUT)
    x, a, b, c = (Buffer(name, size) for name, size in (("x", 128), ("a", 1280), ("b", 4480), ("c", 1600)))
    ops = [
        op("load", Engine.DMA, [source], [x], 1),
        op("a", Engine.DPU, [x], [a], 2),
        op("b", Engine.DPU, [a], [b], 2),
        op("c", Engine.DPU, [b], [c], 2),
        op("store", Engine.DMA, [c], [target], 1),
    ]
    program = TileProgram("alternate", ops, [source, target], [])
    schedule = FeasibleMemoryScheduler(program, PROFILE, 6400).run()
    assert schedule.spill_out_bytes == schedule.spill_in_bytes == 0
    assert schedule.makespan_ps == 8 * UNIT


def test_an_operation_starts_before_the_one_ahead_of_it_when_that_waits_for_another_engine():
    """The head of the matrix engine waits 9 units for the vector engine; the one behind it has what it needs."""
    x, y = DdrTensor("x", 64, DdrKind.INPUT), DdrTensor("y", 64, DdrKind.INPUT)
    a, b, c, d, e = (Buffer(letter, 64) for letter in "abcde")
    ops = [
        op("load x", Engine.DMA, [x], [a], 1),
        op("load y", Engine.DMA, [y], [b], 1),
        op("slow", Engine.SHAVE, [a], [c], 9),
        op("head", Engine.DPU, [c], [d], 2),
        op("behind", Engine.DPU, [b], [e], 5),
    ]
    schedule = FeasibleMemoryScheduler(TileProgram("late", ops, [x, y], []), PROFILE, 4096).run()
    start = {s.op.name: s.start_ps for s in schedule.ops}
    assert start["behind"] < start["head"]
    assert schedule.makespan_ps <= 13 * UNIT


def test_more_optimisation_takes_no_longer_and_gives_the_same_values(make_model):
    rng = np.random.default_rng(4)
    weights = {f"w{n}": rng.normal(0, 0.05, (64, 64, 3, 3)).astype(np.float32) for n in range(2)}
    nodes = [("Conv", ["x", "w0"], ["a"], {"pads": [1] * 4}), ("Sigmoid", ["a"], ["b"], {})]
    nodes += [("Mul", ["a", "b"], ["c"], {}), ("Conv", ["c", "w1"], ["y"], {"pads": [1] * 4})]
    model = make_model(nodes, {"x": (np.float32, (1, 64, 32, 32))}, ["y"], weights)
    feeds = {"x": rng.normal(0, 1, (1, 64, 32, 32)).astype(np.float32)}
    made = [compile_model(model, CompileOptions(optimisation=level)) for level in (0, 1, 2)]
    times = [compiled.report["predicted_makespan_ps"] for compiled in made]
    assert times == sorted(times, reverse=True)
    values = {execute(one.blob, one.image, "npu-37xx", lambda tensors: feeds).outputs["y"].tobytes() for one in made}
    assert len(values) == 1


def test_a_level_that_asks_a_solver_says_in_one_line_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools", None)
    with pytest.raises(BadOption, match=r"^optimisation 3 needs the package ortools: pip install 'libnpu\[solver\]'$"):
        CompileOptions(optimisation=3)


# -- distance from the shortest ---------------------------------------------------------------------


@pytest.mark.slow
def test_small_graphs_end_within_8_percent_of_the_shortest_and_a_solver_brings_them_nearer():
    pytest.importorskip("ortools")
    found = [
        small_graphs.compare(seed, slack, 0.5) for seed, slack in ((1, 1.5), (2, 2.5), (3, 2.5), (8, 2.5), (4, 2.5))
    ]
    assert all(one.is_shortest for one in found)
    assert all(one.ratio >= 1 for one in found)
    assert statistics.mean(one.ratio for one in found) <= 1.08
    last = found[-1]
    improved = improve(last.plan, last.schedule)
    assert last.shortest_ps <= improved.makespan_ps < last.schedule.makespan_ps
    again = improve(last.plan, last.schedule)
    assert [(s.op.name, s.start_ps) for s in again.ops] == [(s.op.name, s.start_ps) for s in improved.ops]
    assert unordered_pairs(improved, synchronise(improved, 64)) == []


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")  # of NumPy about what overflows, while a model is drawn
def test_random_models_are_right_when_a_solver_orders_their_tasks():
    pytest.importorskip("ortools")
    with open_device() as device:
        for _, model, verdict in fuzz([(13, number) for number in range(8)], device, options=({"optimisation": 3},)):
            assert verdict.fault == "", model.text()


def test_operations_start_by_when_they_must_where_program_order_is_slower():
    """In program order the vector engine gets its work when the matrix engine has done what nobody waits for."""
    x = DdrTensor("x", 64, DdrKind.INPUT)
    a, wide, made, end = (Buffer(name, 64) for name in ("a", "wide", "made", "end"))
    ops = [
        op("load", Engine.DMA, [x], [a], 1),
        op("alone", Engine.DPU, [a], [wide], 9),
        op("first", Engine.DPU, [a], [made], 1),
        op("last", Engine.SHAVE, [made], [end], 8),
    ]
    assert schedule(TileProgram("late", ops, [x], [])).makespan_ps == (1 + 1 + 9) * UNIT


def test_the_first_part_of_a_long_program_says_which_limit_is_best(monkeypatch):
    """With little CMX, loads that run far ahead are in the way; each pass but one ends early, also one that loads nothing ahead."""
    program = chain(60)
    monkeypatch.setattr(memory_scheduler, "_REORDERED", 0)  # as of a long program
    best, none = schedule(program, 16 << 10), schedule(program, 16 << 10, limit=0)
    ended = []
    run = SchedulerPass.run
    monkeypatch.setattr(SchedulerPass, "run", lambda one: ended.append(one.limit) or run(one))
    monkeypatch.setattr(memory_scheduler, "_FIRST_LEVELS", 20)
    found = schedule(program, 16 << 10)
    assert found.makespan_ps == best.makespan_ps < none.makespan_ps
    assert ended == [found.level_limit]
    assert len(found.ops) == len(program.ops)
