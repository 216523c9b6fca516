"""Changes of the order of elements: SHAVEs do what DMA would do element by element, layouts that save them, and the same values."""

import numpy as np
import pytest
from npu_abi import C
from npu_model.profile import load_profile

from libnpu.compiler import CompileOptions
from libnpu.compiler.lower import lower
from libnpu.compiler.lower.boxes import chunks
from libnpu.compiler.lower.movement import _grown_order
from libnpu.compiler.pipeline import compile_graph
from libnpu.compiler.program import DdrTensor


def engines(compiled, *words):
    """Return the engines of the tasks whose names have all of `words`."""
    return {t["engine"] for t in compiled.image.debug["tasks"] if all(word in t["name"] for word in words)}


def shuffled(s, channels, size):
    """Groups of channels interleaved between two convolutions, as ShuffleNet does."""
    a = s.conv(s.input(1, 16, size, size), channels, kernel=1, pad=0)
    b = s.transpose(s.reshape(a, 1, 3, channels // 3, size, size), 0, 2, 1, 3, 4)
    return s.graph(s.conv(s.reshape(b, 1, channels, size, size), 16, kernel=1, pad=0))


def test_single_elements_are_the_shaves_to_move(sketch, run, feeds_of):
    graph = shuffled(sketch(), 96, 24)
    compiled = compile_graph(graph, CompileOptions())
    assert engines(compiled, "reshape3.", "Reshape") == {"SHAVE"}
    assert engines(compiled, "reshape3.", "relayout") == set()
    feeds = feeds_of(graph)
    (found,) = run(compiled.blob, feeds).values()
    (small,) = run(
        compile_graph(shuffled(sketch(), 96, 24), CompileOptions(cmx_bytes=64 << 10, tiles=1)).blob, feeds
    ).values()
    assert found.tobytes() == small.tobytes()


def test_a_few_elements_are_moved_by_dma(sketch):
    assert engines(compile_graph(shuffled(sketch(), 48, 4), CompileOptions()), "reshape3.", "relayout") == {"DMA"}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32, np.int8, np.uint8])
def test_bits_stay_what_they_are(dtype, sketch, run):
    """Whatever the bits mean: NaNs of all kinds and both zeros."""
    s = sketch()
    x = s.input(1, 64, 40, 40, dtype=dtype)
    graph = s.graph(s.reshape(s.transpose(x, 0, 2, 3, 1), 1600, 64))
    compiled = compile_graph(graph, CompileOptions())
    raw = np.random.default_rng(0).integers(0, 256, (1, 64, 40, 40, np.dtype(dtype).itemsize), dtype=np.uint8)
    data = raw.view(dtype)[..., 0]
    (found,) = run(compiled.blob, {"x0": data}).values()
    assert found.tobytes() == np.ascontiguousarray(data.transpose(0, 2, 3, 1)).tobytes()
    assert engines(compiled, "SHAVE") == set()


def test_one_change_of_order_serves_all_matrices_of_a_batch(sketch, run, feeds_of):
    s = sketch()
    a, b = s.input(12, 32, 64), s.input(12, 64, 48)
    graph = s.graph(s.matmul(a, b))
    compiled = compile_graph(graph, CompileOptions())
    assert not [t for t in compiled.image.debug["tasks"] if "load.matrix" in t["name"]]
    feeds = feeds_of(graph)
    (found,) = run(compiled.blob, feeds).values()
    wanted = feeds["x0"].astype(np.float32) @ feeds["x1"].astype(np.float32)
    np.testing.assert_allclose(found.astype(np.float32), wanted, rtol=2e-3, atol=2e-3)


def test_what_is_repeated_or_padded_between_pixels_keeps_channels_together(sketch):
    """Both ways to make an image larger: pixels repeated, and zeros between them. No run is shorter than the channels."""
    s = sketch()
    x = s.conv(s.input(1, 32, 12, 12), 32, kernel=1, pad=0)
    wide = s.node("Expand", [s.reshape(x, 1, 32, 12, 1, 12, 1)], (1, 32, 12, 2, 12, 2))
    apart = s.pad(s.reshape(x, 1, 32, 12, 1, 12, 1), (0, 0), (0, 0), (0, 0), (0, 1), (0, 0), (0, 1))
    sides = [s.conv(s.reshape(v, 1, 32, 24, 24), 16, kernel=1, pad=0) for v in (wide, apart)]
    image = compile_graph(s.graph(*sides), CompileOptions()).image
    names = [t["name"] for t in image.debug["tasks"]]
    for section in (".npu.tasks.dma0", ".npu.tasks.dma1"):
        for record in image.tasks.get(section, ()):
            name = names[int(record["task_id"])]
            if "relayout" in name or ".pad." in name or ".fill." in name:
                assert min(record["transaction_src_width"], record["transaction_dst_width"]) >= 64 or "conv0" in name, (
                    name
                )


@pytest.mark.parametrize(
    ("order", "shape", "grown"),
    [
        ((0, 2, 4, 3, 1, 5), (1, 8, 5, 1, 6, 1), (0, 2, 3, 4, 5, 1)),
        ((0, 1, 2, 3), (1, 8, 5, 6), (0, 1, 2, 3)),
        ((1, 0), (4, 1), (0, 1)),
    ],
)
def test_an_axis_that_grows_stays_beside_the_one_it_will_merge_with(order, shape, grown):
    assert _grown_order(order, shape) == grown


def test_each_task_has_the_grid_that_is_fastest(sketch):
    """One row reads weights most of the time: 4 x 16 loads them fastest. Many pixels and channels: 16 x 16."""
    row, plane = sketch(), sketch()
    compiled = compile_graph(row.graph(row.matmul(row.input(1, 512), row.const(512, 512))), CompileOptions())
    assert set(compiled.image.tasks[".npu.tasks.dpu_invariant"]["mpe_grid"]) == {C.NPU_MPE_4X16}
    graph = plane.graph(plane.conv(plane.input(1, 64, 64, 64), 64))
    compiled = compile_graph(graph, CompileOptions(optimisation=1))
    assert set(compiled.image.tasks[".npu.tasks.dpu_invariant"]["mpe_grid"]) == {C.NPU_MPE_16X16}


def runs_in(program, name):
    """Return the bytes that lie together of what operations read and write of the one tensor in DDR with this in its name."""
    accesses = [
        (kind, access)
        for op in program.ops
        for kind, accesses in (("read", op.reads), ("written", op.writes))
        for access in accesses
        if isinstance(access.target, DdrTensor) and name in access.target.name
    ]
    assert len({access.target for _, access in accesses}) == 1
    return {kind: {access.width for each, access in accesses if each == kind} for kind in ("read", "written")}


def test_a_large_matrix_is_transposed_in_pieces_of_long_runs_on_both_sides(sketch):
    """In DDR, where a row of few elements costs an access as well."""
    s = sketch()
    program = lower(s.graph(s.matmul(s.input(512, 4096), s.input(4096, 2048))), load_profile("npu-37xx"), tiles=2)
    assert min(runs_in(program, "x1")["read"]) >= 256
    assert min(runs_in(program, "relayout")["written"]) >= 256
    assert runs_in(program, "x1")["written"] == set()


@pytest.mark.parametrize(
    ("pieces", "size"),
    [(1, [512, 700]), (4, [128, 700]), (8, [128, 384]), (24, [128, 128]), (25, [64, 128]), (2048, [2, 128])],
)
def test_an_axis_is_cut_below_its_step_when_no_other_is_longer(pieces, size):
    assert chunks((512, 700), (0, 1), pieces, (128, 128)) == size


def test_a_right_matrix_that_changes_type_is_written_as_the_engine_reads_it(sketch, run, feeds_of):
    """Each element of it is read once and written once before the product, and nothing changes its order again."""
    s = sketch()
    wide = s.input(512, 2048, dtype=np.float32)
    graph = s.graph(s.matmul(s.input(1536, 512), s.map(("in", 0), wide)))
    compiled = compile_graph(graph, CompileOptions(cmx_bytes=256 << 10, tiles=1, dump=("bytes-per-tensor",)))
    moved = dict(line.split(": ") for line in compiled.report["dumps"]["bytes-per-tensor"].splitlines())
    assert [name for name in moved if "relayout" in name] == []
    assert int(moved["input x0"].split()[0]) == 512 * 2048 * 4
    scratch = next(text for name, text in moved.items() if name.startswith("scratch"))
    assert int(scratch.split()[3]) == 512 * 2048 * 2
    feeds = feeds_of(graph)
    (found,) = run(compiled.blob, feeds).values()
    wanted = feeds["x1"].astype(np.float32) @ feeds["x0"].astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(found.astype(np.float32), wanted, rtol=2e-3, atol=2e-2)


def test_a_softmax_over_part_of_channels_is_shared_by_rows_not_by_channels(sketch, run, feeds_of):
    """The distances of a detector's head: four groups of 16 of a pixel's channels, where 18 of others lie beside them."""
    s = sketch()
    pixels, x = 300, s.input(1, 32, 15, 20)
    joined = s.reshape(s.concat(1, s.conv(x, 64, kernel=1, pad=0), s.conv(x, 18, kernel=1, pad=0)), 1, 82, pixels)
    apart = s.reshape(s.slice(joined, slice(0, 1), slice(0, 64), slice(0, pixels)), 1, 4, 16, pixels)
    turned = s.transpose(apart, 0, 2, 1, 3)
    graph = s.graph(s.node("Softmax", [turned], turned.shape, axis=1, log=False))
    compiled = compile_graph(graph, CompileOptions())
    feeds = feeds_of(graph)
    tasks = [t for t in compiled.image.debug["tasks"] if "Softmax" in t["name"]]
    assert len(tasks) <= 32
    (found,) = run(compiled.blob, feeds).values()
    (small,) = run(compile_graph(graph, CompileOptions(cmx_bytes=32 << 10, tiles=1)).blob, feeds).values()
    assert found.tobytes() == small.tobytes()
    np.testing.assert_allclose(found.astype(np.float32).sum(1), 1, atol=2e-3)
