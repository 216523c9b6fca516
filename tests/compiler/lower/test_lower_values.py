"""Values through the whole stack: every operator, both precisions, and every tiling that a smaller CMX forces."""

import numpy as np
import pytest

import libnpu
from libnpu.compiler import CompileOptions
from libnpu.compiler.lower import CompileError
from libnpu.compiler.pipeline import compile_graph
from libnpu.compiler.reference import run_reference

F16, F32 = np.float16, np.float32
SMALL_CMX = 64 << 10


@pytest.mark.parametrize("dtype", [F16, F32])
def test_outputs_are_those_of_the_reference(case, dtype, graph_of, compiled, feeds_of, run):
    graph = graph_of(case, dtype)
    feeds = feeds_of(graph)
    found = run(compiled(case, dtype).blob, feeds)
    wanted = run_reference(graph, feeds)
    for value in graph.outputs:
        expected = wanted[value.name].astype(np.float64)
        tolerance = (4e-3 if dtype == F16 else 1e-5) * np.abs(expected).max()
        np.testing.assert_allclose(found[value.name].astype(np.float64), expected, rtol=0, atol=tolerance)


def test_tiled_equals_untiled_bit_for_bit(case, graph_of, compiled, feeds_of, run):
    feeds = feeds_of(graph_of(case))
    whole = run(compiled(case).blob, feeds)
    tiled = compiled(case, cmx_bytes=SMALL_CMX)
    found = run(tiled.blob, feeds)
    assert tiled.report["peak_cmx_bytes"] <= SMALL_CMX
    for name, values in whole.items():
        assert found[name].tobytes() == values.tobytes(), name


def test_without_pingpong_values_stay(graph_of, compiled, feeds_of, run):
    feeds = feeds_of(graph_of("chain"))
    outputs = [run(compiled("chain", cmx_bytes=100 << 10, pingpong=pingpong).blob, feeds) for pingpong in (True, False)]
    (name,) = outputs[0]
    assert outputs[0][name].tobytes() == outputs[1][name].tobytes()


def test_rows_of_a_table_that_is_larger_than_what_is_taken_are_read_where_it_is(sketch, feeds_of):
    s = sketch(F32)
    ids = s.input(6, dtype=np.int32)
    graph = s.graph(s.node("Gather", [s.const(50_000, 32), ids], (6, 32), axis=0))
    blob = compile_graph(graph, CompileOptions()).blob
    with libnpu.open("npu-37xx") as device, device.load(blob) as module:
        before = device.counters()
        module.run(feeds_of(graph))
        moved = {name: count - before[name] for name, count in device.counters().items()}
    arguments = moved["SHAVE_DDR_READ"] - 6 * 32 * 4
    assert 0 < arguments <= 4 * 128  # blocks of 16 words, one per SHAVE at most
    assert moved["DMA_DDR_READ"] == 6 * 4


def test_a_column_that_does_not_fit_names_the_node_and_the_bytes(sketch):
    s = sketch(F32)
    graph = s.graph(s.node("Gather", [s.input(20_000, 4), s.input(6, dtype=np.int32)], (6, 4), axis=0))
    with pytest.raises(CompileError, match=r"gather0 \(Gather\): one column of its table needs 80000 bytes of CMX"):
        compile_graph(graph, CompileOptions(cmx_bytes=SMALL_CMX))


@pytest.mark.parametrize("shape", [(1, 8), (1, 5, 2, 3, 12), (4, 1), (1, 1)])
def test_of_operands_that_both_repeat_an_axis_there_is_a_task_for_each(shape, sketch, feeds_of, run):
    s = sketch(F32)
    wide = tuple(4 if n == 1 else n for n in shape)
    moved = s.node("Elementwise", [s.input(*shape), s.input(*shape)], shape, expr=("add", ("in", 0), ("in", 1)))
    many = s.node("Expand", [moved], wide)
    graph = s.graph(s.node("Elementwise", [many, many], wide, expr=("mul", ("in", 0), ("in", 1))))
    feeds = feeds_of(graph)
    found = run(compile_graph(graph, CompileOptions()).blob, feeds)
    (output,) = graph.outputs
    np.testing.assert_allclose(found[output.name], run_reference(graph, feeds)[output.name], rtol=1e-5)
