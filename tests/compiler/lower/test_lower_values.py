"""Values through the whole stack: every operator, both precisions, and every tiling that a smaller CMX forces."""

import numpy as np
import pytest

from libnpu.compiler import CompileOptions
from libnpu.compiler.pipeline import compile_graph
from libnpu.compiler.reference import run_reference

F16, F32 = np.float16, np.float32
SMALL_CMX = 64 << 10


@pytest.mark.parametrize("dtype", [F16, F32])
def test_outputs_are_those_of_the_reference(case, dtype, graph_of, feeds_of, run):
    graph = graph_of(case, dtype)
    feeds = feeds_of(graph)
    found = run(compile_graph(graph, CompileOptions()).blob, feeds)
    wanted = run_reference(graph, feeds)
    for value in graph.outputs:
        expected = wanted[value.name].astype(np.float64)
        tolerance = (4e-3 if dtype == F16 else 1e-5) * np.abs(expected).max()
        np.testing.assert_allclose(found[value.name].astype(np.float64), expected, rtol=0, atol=tolerance)


def test_tiled_equals_untiled_bit_for_bit(case, graph_of, feeds_of, run):
    graph = graph_of(case)
    feeds = feeds_of(graph)
    whole = run(compile_graph(graph, CompileOptions()).blob, feeds)
    tiled = compile_graph(graph_of(case), CompileOptions(cmx_bytes=SMALL_CMX))
    found = run(tiled.blob, feeds)
    assert tiled.report["peak_cmx_bytes"] <= SMALL_CMX
    for name, values in whole.items():
        assert found[name].tobytes() == values.tobytes(), name


def test_without_pingpong_values_stay(graph_of, feeds_of, run):
    graph = graph_of("chain")
    feeds = feeds_of(graph)
    outputs = [
        run(compile_graph(graph_of("chain"), CompileOptions(cmx_bytes=100 << 10, pingpong=pingpong)).blob, feeds)
        for pingpong in (True, False)
    ]
    (name,) = outputs[0]
    assert outputs[0][name].tobytes() == outputs[1][name].tobytes()
