"""The shape of tile programs: what is written, what fits, what the accesses say."""

import numpy as np
import pytest
from npu_abi import C
from npu_model import footprint
from npu_model.profile import load_profile

from libnpu.compiler.lower import CompileError, lower
from libnpu.compiler.lower.dpu_tiler import Geometry, plan_tiles, sizes
from libnpu.compiler.lower.records import dma_records, dpu_records
from libnpu.compiler.lower.verify import verify_program
from libnpu.compiler.program import Buffer, DdrKind, DdrTensor, DmaPayload, DpuPayload, Engine

PROFILE = load_profile("npu-37xx")
SMALL_CMX = 64 << 10


def byte_counts(accesses, target):
    """How often the accesses name each byte of `target`."""
    counts = np.zeros(target.size_bytes, np.int64)
    for a in accesses:
        if a.target is target:
            starts = np.array([a.offset])
            for count, stride in a.dims:
                starts = np.add.outer(starts, np.arange(count) * stride).reshape(-1)
            np.add.at(counts, np.add.outer(starts, np.arange(a.width)), 1)
    return counts


@pytest.mark.parametrize("cmx_bytes", [None, SMALL_CMX])
def test_every_output_byte_is_written_exactly_once(case, cmx_bytes, graph_of):
    program = lower(graph_of(case), PROFILE, cmx_bytes)
    for tensor in program.ddr:
        if tensor.kind == DdrKind.OUTPUT:
            assert (byte_counts([a for op in program.ops for a in op.writes], tensor) == 1).all()


@pytest.mark.parametrize("keeps_values", [True, False])
def test_scratch_of_a_program_is_read_or_written(case, keeps_values, graph_of):
    program = lower(graph_of(case), PROFILE, keeps_values=keeps_values)
    used = {access.target for op in program.ops for access in (*op.reads, *op.writes)}
    assert [tensor.name for tensor in program.ddr if tensor.kind == DdrKind.SCRATCH and tensor not in used] == []


def test_matrices_that_share_the_left_one_are_one_product(graph_of):
    program = lower(graph_of("one_left"), PROFILE)
    assert sum(op.engine == Engine.DPU and op.payload.invariant["op"] == C.NPU_DPU_MATMUL for op in program.ops) == 4


@pytest.mark.parametrize("cmx_bytes", [None, SMALL_CMX])
def test_programs_verify_and_engines_work_in_cmx(case, cmx_bytes, graph_of):
    program = lower(graph_of(case), PROFILE, cmx_bytes)
    verify_program(program, cmx_bytes or PROFILE.cmx.workspace_bytes)
    for op in program.ops:
        assert op.cost_ps > 0
        buffers = {a.target for a in (*op.reads, *op.writes) if isinstance(a.target, Buffer)}
        assert sum(b.size_bytes for b in buffers) <= (cmx_bytes or PROFILE.cmx.workspace_bytes)


def test_accesses_cover_the_footprint_of_the_descriptor(case, graph_of):
    """Equal for what is written and for DMA; a DPU task may claim whole rows of what a stride leaves out."""
    program = lower(graph_of(case), PROFILE, SMALL_CMX)
    bases = {}

    def address(_, ref):
        base = bases.setdefault(ref.target, C.NPU_CMX_BASE + 2**24 * (len(bases) + 1))
        return base + ref.offset

    def masks(boxes):
        found = {target: np.zeros(target.size_bytes, bool) for target in bases}
        for low, high in (run for b in boxes for run in footprint.runs(b).tolist()):
            target = max((t for t in bases if bases[t] <= low), key=bases.get)
            found[target][low - bases[target] : high - bases[target]] = True
        return found

    for op in program.ops:
        bases.clear()
        if isinstance(op.payload, DmaPayload):
            reads, writes = footprint.dma_footprint(dma_records([op.payload], address)[0])
        elif isinstance(op.payload, DpuPayload):
            invariants, variants = dpu_records([op.payload], address)
            reads, writes = footprint.dpu_footprint(invariants[0], variants)
        else:
            continue
        read, written = masks(reads), masks(writes)
        for target in bases:
            claimed = byte_counts(op.reads, target) > 0
            assert (written[target] == (byte_counts(op.writes, target) > 0)).all(), op.name
            assert not (read[target] & ~claimed).any(), op.name
            if isinstance(op.payload, DmaPayload):
                assert (read[target] == claimed).all(), op.name


def test_channel_tiles_are_multiples_of_the_alignment_except_the_last():
    assert list(sizes(100, 16)) == [100, 64, 48, 32, 16]
    assert list(sizes(16, 16)) == [16]
    assert list(sizes(7, 1)) == [7, 4, 3, 2, 1]


@pytest.mark.parametrize("room", [50_000, 100_000, 1_000_000])
def test_the_plan_fits_the_room(room):
    geometry = Geometry(
        rows=56,
        row_unit=1,
        images=1,
        channels=256,
        channel_unit=16,
        act_bytes=lambda r, c: (r + 2) * 56 * 64 * 2,
        out_bytes=lambda r, c: r * 56 * c * 2,
        other_bytes=lambda r, c: 0,
        stored=True,
        weight_bytes=lambda c: c * 9 * 64 * 2,
        act_run_bytes=lambda c: 4096,
        out_run_bytes=lambda c: c * 2,
        act_per_channel=False,
        parts=1,
        task_cycles=lambda tiles: [r * c for r, c in tiles],
    )
    plan = plan_tiles(geometry, (room // 2, room, room), PROFILE, True, "conv")
    assert plan.tile_bytes <= room
    assert plan.channels % 16 == 0


def test_what_cannot_fit_names_the_node_and_the_bytes(sketch):
    s = sketch()
    x = s.input(1, 512, 4, 400)
    graph = s.graph(s.conv(x, 16))
    with pytest.raises(
        CompileError, match=r"conv0 \(Conv\): a tile of 1 rows and 16 channels needs \d+ bytes of CMX, there are 32768"
    ):
        lower(graph, PROFILE, 32 << 10)


def test_a_single_wide_row_is_split(graph_of):
    program = lower(graph_of("rows"), PROFILE, 24 << 10)
    tasks = [op for op in program.ops if op.engine == Engine.DPU]
    assert len(tasks) > 4
    assert all(op.payload.invariant["out_y"] == 1 for op in tasks)


def test_weights_are_loaded_once_when_they_fit(sketch):
    s = sketch()
    graph = s.graph(s.conv(s.input(1, 64, 56, 56), 64, bias=True))
    program = lower(graph, PROFILE)
    loads = [
        a
        for op in program.ops
        for a in op.reads
        if isinstance(a.target, DdrTensor) and a.target.kind == DdrKind.WEIGHTS
    ]
    taps, table = 64 * 9 * 64 * 2, 64 * 16
    assert sum(a.width for a in loads) == taps + table


def test_a_tile_of_weights_serves_the_rows_of_all_units(sketch):
    s = sketch()
    graph = s.graph(s.matmul(s.input(128, 512), s.const(512, 1024)))
    program = lower(graph, PROFILE, 192 << 10, tiles=2)
    loads = [
        op
        for op in program.ops
        for a in op.reads
        if isinstance(a.target, DdrTensor) and a.target.kind == DdrKind.WEIGHTS
    ]
    tasks = [op for op in program.ops if op.engine == Engine.DPU]
    assert sum(op.payload.length * op.payload.num_planes for op in loads) == 512 * 1024 * 2
    for load in loads:
        tile = load.writes[0].target
        readers = [op for op in tasks if any(a.target is tile for a in op.reads)]
        assert len(readers) >= 2 and sum(op.payload.invariant["out_x"] for op in readers) == 128


def test_inputs_of_a_group_of_rows_stay_while_large_weights_pass():
    """512 x 4096 by 4096 x 13312 in fp16: weights of 104 MiB cross twice, not once for each tile of rows."""
    geometry = Geometry(
        rows=512,
        row_unit=16,
        images=1,
        channels=13312,
        channel_unit=16,
        act_bytes=lambda r, c: r * 4096 * 2,
        out_bytes=lambda r, c: r * c * 2,
        other_bytes=lambda r, c: 0,
        stored=True,
        weight_bytes=lambda c: c * 4096 * 2,
        act_run_bytes=lambda c: 8192,
        out_run_bytes=lambda c: c * 2,
        act_per_channel=False,
        parts=1,
        task_cycles=lambda tiles: [r * c * 4 for r, c in tiles],
    )
    one = 1936 << 10
    plan = plan_tiles(geometry, (one * 2 * 9 // 10, one * 2 * 9 // 10, one), PROFILE, True, "product", units=2)
    assert plan.group * plan.rows >= 256 and not plan.channels_outside
    assert plan.tasks < 2000


@pytest.mark.parametrize(("cycles", "sets"), [(20, 1), (200, 2)])
def test_units_hold_one_tile_of_weights_each_where_ports_take_longer_to_fill_the_others(cycles, sets):
    """1 x 4096 by 4096 x 11008 in int8 on six tiles with two ports, by cycles of the engine for a channel."""
    geometry = Geometry(
        rows=1,
        row_unit=16,
        images=1,
        channels=11008,
        channel_unit=16,
        act_bytes=lambda r, c: 0,
        out_bytes=lambda r, c: 0,
        other_bytes=lambda r, c: 0,
        stored=False,
        weight_bytes=lambda c: c * 4096,
        act_run_bytes=lambda c: 4096,
        out_run_bytes=lambda c: c,
        act_per_channel=False,
        parts=1,
        task_cycles=lambda tiles: [c * cycles for _, c in tiles],
        constant_weights=True,
    )
    one = 1472 << 10
    plan = plan_tiles(geometry, (one * 6, one * 6, one), load_profile("npu-40xx"), True, "product", units=6)
    assert one // plan.tile_bytes == sets


def test_transposed_keys_need_no_copy(sketch):
    """Q K^T: the engine wants [N][K], which is how K lies in memory."""
    s = sketch()
    q, k = (s.matmul(s.input(16, 32), s.const(32, 32)) for _ in range(2))
    program = lower(s.graph(s.matmul(q, s.transpose(k, 1, 0))), PROFILE)
    moves = [op for op in program.ops if op.engine == Engine.DMA]
    assert [op.attrs["what"] for op in moves] == ["load act", "load weights"] * 2 + ["store"]


def test_producers_write_into_a_concatenation(sketch):
    s = sketch()
    x = s.input(1, 16, 14, 14)
    graph = s.graph(s.conv(s.concat(1, s.conv(x, 32, kernel=1, pad=0), s.conv(x, 48)), 16))
    program = lower(graph, PROFILE)
    assert not [op for op in program.ops if op.attrs["what"] == "concat"]
    outs = {op.payload.refs["out_addr"].offset for op in program.ops if op.engine == Engine.DPU}
    assert {0, 64} <= outs  # channels 0 and 32 of [14][14][80] float16


def test_two_lowerings_are_equal(case, graph_of):
    dumps = []
    for _ in range(2):
        program = lower(graph_of(case), PROFILE, SMALL_CMX)
        dumps.append([(op.name, op.engine, op.cost_ps, str(op.payload.__class__)) for op in program.ops])
        dumps[-1].append(bytes(program.weights))
    assert dumps[0] == dumps[1]


def test_a_constant_operand_is_stored_in_the_order_in_which_it_is_walked(sketch):
    s = sketch()
    a = s.conv(s.input(1, 16, 8, 8), 16)
    data = np.arange(16 * 64).reshape(1, 16, 8, 8)
    program = lower(s.graph(s.map(("sub", ("in", 0), ("in", 1)), a, s.const(data=data))), PROFILE)
    stored = np.frombuffer(bytes(program.weights[-data.size * 2 :]), np.float16)
    assert stored.tolist() == data.transpose(0, 2, 3, 1).reshape(-1).astype(np.float16).tolist()


@pytest.mark.parametrize("shape", [(1, 16, 1, 204), (1, 16, 204, 1)])
def test_a_long_row_without_padding_fills_the_rows_of_a_block(sketch, shape):
    s = sketch()
    kernel = tuple(5 if n > 1 else 1 for n in shape[2:])
    program = lower(s.graph(s.conv(s.input(*shape), 32, kernel=kernel, pad=0)), PROFILE)
    tasks = [op.payload.invariant for op in program.ops if op.engine == Engine.DPU]
    assert {(task["out_y"], task["kernel_x"], task["kernel_y"]) for task in tasks} == {(4, 5, 1)}
    assert sum(task["out_x"] * task["out_z"] for task in tasks) == 50 * 32


@pytest.mark.parametrize("shape", [(12, 16, 1, 30), (12, 16, 30, 1)])
def test_rows_of_many_images_are_those_of_one(sketch, shape):
    s = sketch()
    kernel, pad = (3 if n > 1 else 1 for n in shape[2:]), (1 if n > 1 else 0 for n in shape[2:])
    program = lower(s.graph(s.conv(s.input(*shape), 32, kernel=tuple(kernel), pad=tuple(pad))), PROFILE)
    tasks = [op.payload.invariant for op in program.ops if op.engine == Engine.DPU]
    assert len(tasks) < 12
    assert {task["kernel_y"] for task in tasks} == {1}
    assert sum(task["out_y"] * task["out_x"] * task["out_z"] for task in tasks) == 12 * 30 * 32
