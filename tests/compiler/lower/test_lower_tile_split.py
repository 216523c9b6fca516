"""Several tiles: work on each of their engines, the same bits as on one, and blobs whose tasks stay ordered."""

from math import prod

import numpy as np
import pytest
from npu_abi import C
from npu_model.profile import load_profile

import libnpu
from libnpu import blob
from libnpu.compiler import CompileOptions
from libnpu.compiler.lower import lower
from libnpu.compiler.pipeline import compile_graph
from libnpu.compiler.program import (
    Access,
    Buffer,
    DdrKind,
    DdrTensor,
    DmaPayload,
    Engine,
    Ref,
    TileOp,
    TileProgram,
)
from libnpu.compiler.schedule import CmxAllocator, FeasibleMemoryScheduler, synchronise, unordered_pairs

PROFILE = load_profile("npu-37xx")
WIDE = load_profile("npu-40xx")
SMALL_CMX = 64 << 10


@pytest.fixture(scope="module")
def wide():
    with libnpu.open(WIDE.name) as opened:
        yield opened


def tiles_of(image, section):
    return {int(tile) for tile in image.tasks[section]["tile"]}


def test_both_tiles_give_the_same_bits_as_one(case, graph_of, compiled, feeds_of, run):
    feeds = feeds_of(graph_of(case))
    alone, found = run(compiled(case, tiles=1).blob, feeds), run(compiled(case).blob, feeds)
    for name, values in alone.items():
        assert found[name].tobytes() == values.tobytes(), name


@pytest.mark.parametrize("name", ["attention", "chain", "residuals", "streamed"])
def test_many_tiles_give_the_same_bits(name, graph_of, compiled, feeds_of, wide):
    feeds, values = feeds_of(graph_of(name)), []
    for tiles in (1, 3, 6):
        with wide.load(compiled(name, profile=WIDE.name, tiles=tiles, cmx_bytes=SMALL_CMX).blob) as module:
            values.append(module.run(feeds))
    for output, alone in values[0].items():
        assert [found[output].tobytes() == alone.tobytes() for found in values[1:]] == [True, True], output


def test_overlapping_bytes_stay_ordered_on_two_tiles(case, graph_of):
    program = lower(graph_of(case), PROFILE, SMALL_CMX, tiles=2)
    schedule = FeasibleMemoryScheduler(program, PROFILE, SMALL_CMX, tiles=2).run()
    assert unordered_pairs(schedule, synchronise(schedule, 64)) == []
    assert all(address % C.NPU_CMX_TILE_STRIDE + b.size_bytes <= SMALL_CMX for b, address, _, _ in schedule.residency)


def test_every_engine_of_every_tile_works(compiled):
    image = compiled("excitation").image
    assert image.tile_count == PROFILE.tiles
    assert tiles_of(image, ".npu.tasks.dpu_invariant") == {0, 1}
    shaves = image.tasks[".npu.tasks.shave_invocation"]
    assert {(int(r["tile"]), int(r["shave"])) for r in shaves} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert blob.verify(image, PROFILE) == []


def test_what_needs_one_tile_takes_one(sketch):
    s = sketch()
    graph = s.graph(s.reshape(s.input(4, 4), 16))
    assert compile_graph(graph, CompileOptions()).image.tile_count == 1


def macs(record):
    """Multiply-accumulates of an invariant of one group."""
    return prod(int(record[k]) for k in ("out_x", "out_y", "out_z", "kernel_x", "kernel_y", "in_z"))


@pytest.mark.parametrize(
    ("size", "channels", "split"),
    [(56, 16, "out_y"), (7, 512, "out_z")],
    ids=["one block of channels: over height", "few rows and large weights: over channels"],
)
def test_the_split_is_the_cheaper_one(sketch, size, channels, split):
    s = sketch()
    inside = s.conv(s.conv(s.input(1, 4, size, size), channels, kernel=1, pad=0), channels)
    graph = s.graph(s.pool("AvgPool", inside, size, count_include_pad=False))
    whole = {"out_y": size, "out_z": channels}
    image = compile_graph(graph, CompileOptions()).image
    records = [
        r for r in image.tasks[".npu.tasks.dpu_invariant"] if r["op"] == C.NPU_DPU_CONV and r["in_z"] == channels
    ]
    assert all(int(r[split]) < whole[split] for r in records)
    work = [sum(macs(r) for r in records if r["tile"] == tile) for tile in (0, 1)]
    assert min(work) > 0.4 * sum(work)


def test_two_tiles_are_faster_and_weights_are_loaded_once(sketch):
    reports, loaded = [], []
    for tiles in (1, 2):
        s = sketch()
        graph = s.graph(
            s.pool("AvgPool", s.conv(s.conv(s.conv(s.input(1, 4, 56, 56), 64), 64), 64), 56, count_include_pad=False)
        )
        compiled = compile_graph(graph, CompileOptions(tiles=tiles))
        reports.append(compiled.report)
        lists = (compiled.image.tasks[f".npu.tasks.dma{port}"] for port in (0, 1))
        lengths = {r["task_id"]: int(r["transaction_length"]) for records in lists for r in records}
        names = [task["name"] for task in compiled.image.debug["tasks"]]
        loaded.append(sum(lengths[k] for k, name in enumerate(names) if "load.weights" in name))
    assert reports[1]["predicted_makespan_ps"] < 0.7 * reports[0]["predicted_makespan_ps"]
    assert loaded[0] == loaded[1]


def test_what_every_dpu_reads_is_in_every_tile(sketch, feeds_of, run):
    """A DPU writes all copies at once; what SHAVEs make in one tile, here halves of floats, a DMA copies to the other."""
    s = sketch()
    x = s.map(("in", 0), s.input(1, 8, 48, 48, dtype=np.float32), dtype=s.dtype)
    graph = s.graph(s.pool("AvgPool", s.conv(s.conv(x, 64), 64), 48, count_include_pad=False))
    program = lower(graph, PROFILE, tiles=2)
    written = [
        op for op in program.ops if any(isinstance(a.target, Buffer) and a.target.copies == 2 for a in op.writes)
    ]
    assert {op.engine for op in written} == {Engine.DPU, Engine.SHAVE, Engine.DMA}
    copied = [op.payload for op in written if op.engine == Engine.DMA]
    assert {(p.dst.offset - p.src.offset, p.dst.target is p.src.target) for p in copied} == {
        (C.NPU_CMX_TILE_STRIDE, True)
    }
    image = compile_graph(graph, CompileOptions()).image
    assert {int(mask) for mask in image.tasks[".npu.tasks.dpu_invariant"]["out_tiles"]} >= {0b11}
    assert blob.verify(image, PROFILE) == []


def test_a_copy_in_every_tile_is_spilled_once_and_comes_back_to_all():
    first, second = (Buffer(name, 4096, copies=2) for name in ("first", "second"))
    source, out = DdrTensor("in", 4096, DdrKind.INPUT), DdrTensor("out", 8192, DdrKind.OUTPUT)
    act, last = Buffer("act", 64), Buffer("last", 64)

    def task(name, engine, reads, writes):
        reads, writes = ([Access(t, 0, min(t.size_bytes, 4096)) for t in targets] for targets in (reads, writes))
        return TileOp(name, name, engine, 1000, reads, writes, DmaPayload(Ref(source), Ref(out), 64))

    ops = [task("load", Engine.DMA, [source], [act])]
    ops += [task(f"make {b.name}", Engine.DPU, [act], [b]) for b in (first, second)]
    ops += [task("store", Engine.DMA, [second], [out]), task("use", Engine.DPU, [first], [last])]
    ops += [task("store last", Engine.DMA, [last], [out])]
    schedule = FeasibleMemoryScheduler(
        TileProgram("p", ops, [source, out], bytearray()), PROFILE, 4096 + 64, tiles=2
    ).run()
    back = [s.op.payload.dst.offset for s in schedule.ops if s.kind == "spill_in"]
    assert [s.kind for s in schedule.ops].count("spill_out") == 1
    assert back == [0, C.NPU_CMX_TILE_STRIDE]
    assert unordered_pairs(schedule, synchronise(schedule, 64)) == []


def test_more_tiles_than_the_profile_has_are_those_that_it_has(compiled):
    assert compiled("dense").blob == compiled("dense", tiles=2).blob == compiled("dense", tiles=100).blob


def test_no_tiles_are_refused():
    with pytest.raises(ValueError, match="tiles 0; at least 1, or None"):
        CompileOptions(tiles=0)


def test_an_allocation_never_crosses_tiles():
    allocator = CmxAllocator(1024, 64, tiles=2, stride=1024)
    first, second = allocator.alloc(1024), allocator.alloc(512)
    assert (first, second) == (0, 1024)
    assert allocator.used_bytes == [1024, 512]
    allocator.free(first, 1024)
    allocator.free(second, 512)
    assert allocator.alloc(2048) is None
    assert allocator.alloc_all([(704, False, False), (640, True, False), (320, False, False)]) == [0, 1408, 704]
    assert allocator.alloc_all([(704, False, False), (640, True, False)]) is None
    assert allocator.used_bytes == [1024, 640]


@pytest.mark.parametrize(("function", "tasks"), [("tanh", 4), ("sign", 1)])
def test_few_elements_are_shared_where_each_takes_long(function, tasks, sketch):
    """2,000 of them: a cycle and more each, or a third of one, beside 3,000 cycles for the start of a task."""
    s = sketch()
    graph = s.graph(s.map((function, ("in", 0)), s.input(2000, 1, dtype=np.float32)))
    shared, left = (lower(graph, PROFILE, tiles=2, shares_few=few) for few in (True, False))
    assert [sum(op.engine == Engine.SHAVE for op in program.ops) for program in (shared, left)] == [tasks, 1]
    assert left.leaves_few == (tasks > 1) and not shared.leaves_few
