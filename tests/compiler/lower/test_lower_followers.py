"""Sums that follow a convolution tile by tile, pointwise convolutions as matmuls, and what gives way when CMX is short."""

import pytest
from npu_abi import C
from npu_model.profile import load_profile

from libnpu.compiler import CompileOptions, pipeline
from libnpu.compiler.lower import CompileError, lower
from libnpu.compiler.lower.eltwise import block_rows
from libnpu.compiler.program import Buffer, DdrKind, Engine
from libnpu.compiler.schedule import OutOfBarriers

PROFILE = load_profile("npu-37xx")
ADD = ("add", ("in", 0), ("in", 1))


def tasks(program, *ops):
    return [op for op in program.ops if op.engine == Engine.DPU and op.payload.invariant["op"] in ops]


def residual(s, read_again=False):
    """[conv0, conv1, conv2 + conv0, conv4] at 20 x 20 x 32, 25,600 bytes each."""
    a = s.conv(s.input(1, 16, 20, 20), 32)
    b = s.conv(s.conv(a, 32), 32)
    total = s.map(ADD, b, a)
    return s.graph(s.conv(total, 32), *([a] if read_again else []))


def test_a_sum_writes_over_the_operand_that_nothing_else_needs(sketch):
    program = lower(residual(sketch()), PROFILE)
    sums = tasks(program, C.NPU_DPU_ELTWISE_ADD)
    assert sums
    for op in sums:
        refs = op.payload.refs
        assert refs["out_addr"] == refs["act2_addr"] != refs["act_addr"]
        assert refs["out_addr"].target.name == "conv0:0"


@pytest.mark.parametrize("tiles", [1, 2])
def test_parts_of_a_small_result_are_added_to_and_stored_at_once(sketch, tiles):
    """Weights of 4 MiB come in parts of less than a tile; of the row that they give each part is some hundred bytes."""
    s = sketch()
    x = s.input(1, 2048)
    program = lower(s.graph(s.map(ADD, s.matmul(x, s.const(2048, 1024)), s.input(1, 1024))), PROFILE, tiles=tiles)
    products, sums = tasks(program, C.NPU_DPU_MATMUL), tasks(program, C.NPU_DPU_ELTWISE_ADD)
    (store,) = [op for op in program.ops if op.name.split(".")[-2] == "store"]
    assert len(products) > 2
    (whole,) = {op.payload.refs["out_addr"].target for op in products}
    assert [op.payload.refs["act_addr"] for op in sums] == [store.payload.src]
    assert (whole.size_bytes, store.payload.src.target, store.payload.length) == (2048, whole, 2048)


def test_an_operand_stays_in_cmx_when_half_a_tile_is_left_beside_it(sketch):
    """On six tiles a reserve for all of them is more than any one has."""
    s = sketch()
    a = s.conv(s.input(1, 16, 128, 128), 32, kernel=1, pad=0)
    program = lower(s.graph(s.map(("exp", ("in", 0)), a)), load_profile("npu-40xx"), tiles=6)
    assert not [op.name for op in program.ops if "evict" in op.name]


def test_a_sum_does_not_write_over_what_its_convolution_reads(sketch):
    s = sketch()
    a = s.conv(s.input(1, 16, 20, 20), 32)
    program = lower(s.graph(s.conv(s.map(ADD, s.conv(a, 32), a), 32)), PROFILE)
    (name,) = {op.payload.refs["out_addr"].target.name for op in tasks(program, C.NPU_DPU_ELTWISE_ADD)}
    assert name == "elementwise2:0"


def test_a_sum_does_not_write_over_a_value_that_is_returned(sketch):
    program = lower(residual(sketch(), read_again=True), PROFILE)
    assert {op.payload.refs["out_addr"].target.name for op in tasks(program, C.NPU_DPU_ELTWISE_ADD)} == {
        "elementwise3:0"
    }


def test_tiles_that_a_sum_follows_never_see_ddr(sketch):
    program = lower(residual(sketch()), PROFILE, 48 << 10)
    scratch = {tensor.name for tensor in program.ddr if tensor.kind == DdrKind.SCRATCH}
    assert scratch == {"conv0:0", "conv1:0", "elementwise3:0"}
    for op in tasks(program, C.NPU_DPU_ELTWISE_ADD):  # the tile of the convolution is the tile of the sum
        assert op.payload.refs["out_addr"] == op.payload.refs["act_addr"]


def test_a_result_that_is_read_twice_keeps_a_home(sketch):
    s = sketch()
    a = s.conv(s.input(1, 16, 20, 20), 32)
    b = s.conv(s.conv(a, 32), 32)
    program = lower(s.graph(s.conv(s.map(ADD, b, a), 32), s.conv(b, 32)), PROFILE)
    (last,) = {op.payload.refs["out_addr"].target.name for op in tasks(program, C.NPU_DPU_CONV) if op.layer == "conv2"}
    assert last == "conv2:0"


def test_a_pointwise_convolution_is_a_matmul_over_its_pixels(sketch):
    """14 x 14 pixels are 13 blocks of a row, and 16 of a plane."""
    s = sketch()
    program = lower(s.graph(s.conv(s.input(1, 64, 14, 14), 64, kernel=1, pad=0)), PROFILE)
    (task,) = [op.payload.invariant for op in tasks(program, C.NPU_DPU_MATMUL)]
    assert (task["in_x"], task["in_y"], task["in_z"], task["out_x"], task["out_z"]) == (196, 1, 64, 196, 64)


def test_channels_are_not_cut_without_need(sketch):
    s = sketch()
    a = s.conv(s.input(1, 64, 28, 28), 128)
    program = lower(s.graph(s.conv(s.conv(a, 128), 128)), PROFILE)
    assert len(tasks(program, C.NPU_DPU_CONV)) <= 12


@pytest.mark.parametrize("features", [2900, 3000])
def test_a_tile_may_fill_cmx_to_the_brim(sketch, features):
    """16 channels of `features` weights and the row that they multiply: more than 90 % of CMX, less than all."""
    s = sketch()
    graph = s.graph(s.matmul(s.input(1, features), s.const(features, 32)))
    assert 0.9 * (100 << 10) < 17 * features * 2 < 100 << 10
    assert pipeline.compile_graph(graph, CompileOptions(cmx_bytes=100 << 10)).report["peak_cmx_bytes"] <= 100 << 10


def test_a_resident_operand_gives_way_to_weights_that_need_its_place(sketch):
    """40,960 bytes of input and 73,728 of 16 channels' weights do not fit 102,400 together; an input row and the weights do."""
    s = sketch()
    a = s.conv(s.input(1, 16, 8, 10), 256)
    program = lower(s.graph(s.conv(a, 16)), PROFILE, 100 << 10)
    assert [op.attrs["what"] for op in program.ops].count("evict") == 1
    for op in program.ops:
        assert sum(b.size_bytes for b in {a.target for a in (*op.reads, *op.writes)} if isinstance(b, Buffer)) <= 102400


def test_lack_of_barriers_names_the_operation(sketch, monkeypatch):
    def none_left(schedule, id_count):
        raise OutOfBarriers(id_count + 1, id_count, 0)

    monkeypatch.setattr(pipeline, "synchronise", none_left)
    s = sketch()
    graph = s.graph(s.conv(s.input(1, 16, 8, 8), 16))
    with pytest.raises(
        CompileError,
        match=r"conv0 \(conv0\.[\w.]+\.\d+\): 33 orders are open at operation 0; there are 32 barrier ids",
    ):
        pipeline.compile_graph(graph, CompileOptions(tiles=1))


def bottlenecks(s, count=2):
    """Blocks of 1x1, 3x3 and 1x1 convolutions with a residual sum at 56 x 56 x 256, which is 1.6 MB."""
    x = s.conv(s.input(1, 64, 56, 56), 256, kernel=1, pad=0)
    for _ in range(count):
        a = s.conv(s.conv(x, 64, kernel=1, pad=0, act=("relu",)), 64, act=("relu",))
        x = s.map(("relu", ADD), s.conv(a, 256, kernel=1, pad=0), x)
    return s.graph(x)


def test_a_pointwise_convolution_reads_tiles_on_their_way_to_ddr(sketch):
    program = lower(bottlenecks(sketch()), PROFILE)
    loaded = {}
    for op in program.ops:
        for access in op.reads if op.engine == Engine.DMA else ():
            moved = op.payload.length * op.payload.num_planes
            loaded[access.target.name] = loaded.get(access.target.name, 0) + moved
    whole = 56 * 56 * 256 * 2
    assert loaded["elementwise4:0"] == whole  # by the next sum; the convolution conv5 had it on chip
    first = {op.payload.refs["act_addr"].target for op in tasks(program, C.NPU_DPU_MATMUL) if op.layer == "conv5"}
    assert first == {op.payload.refs["out_addr"].target for op in tasks(program, C.NPU_DPU_ELTWISE_ADD)[: len(first)]}


def test_a_vector_result_lies_where_the_operand_was_that_nobody_reads_again(sketch):
    s = sketch()
    a = s.conv(s.input(1, 16, 20, 20), 32)
    over = lower(s.graph(s.conv(s.map(("exp", ("in", 0)), a), 32)), PROFILE)
    vector = [op for op in over.ops if op.attrs["what"] == "Elementwise"]
    assert vector
    assert all(op.payload.refs[0] == op.payload.refs[-1] for op in vector)
    s = sketch()
    a = s.conv(s.input(1, 16, 20, 20), 32)
    b = s.conv(s.map(("exp", ("in", 0)), a), 32)
    kept = lower(s.graph(s.conv(s.map(ADD, a, b), 32)), PROFILE)  # reads `a` again
    assert all(
        op.payload.refs[0].target is not op.payload.refs[-1].target for op in kept.ops if op.engine == Engine.SHAVE
    )


def test_products_with_the_same_small_weights_load_them_once(sketch):
    s = sketch()
    weights = s.const(64, 64)
    a = s.matmul(s.input(8, 64), weights)
    program = lower(s.graph(s.matmul(a, weights)), PROFILE)
    assert sum(op.attrs["what"] == "load weights" for op in program.ops) == 1
    assert program.weight_bytes == 64 * 64 * 2


@pytest.mark.parametrize(("pixels", "rows"), [(3136, 4), (49, 7), (13, 1), (16, 4), (8, 2)])
def test_pixels_of_a_line_make_the_rectangle_with_the_fewest_blocks(pixels, rows):
    assert block_rows(pixels) == rows
