"""Every profile's devices: what is compiled for them verifies, and the waits of a blob point forward."""

import pytest
from npu_model.profile import load_profile

from libnpu.compiler import CompileOptions
from libnpu.compiler.lower import lower
from libnpu.compiler.pipeline import compile_graph
from libnpu.compiler.program import DpuPayload
from libnpu.compiler.schedule import FeasibleMemoryScheduler, synchronise


@pytest.mark.parametrize("profile", ["npu-40xx", "unit"])
def test_every_case_compiles_to_a_verified_blob(case, profile, graph_of):
    compiled = compile_graph(graph_of(case), CompileOptions(profile=profile))
    assert compiled.image.profile == profile


@pytest.mark.parametrize("ids", [8, 16, 32])
def test_no_barrier_waits_for_what_its_own_consumers_start(ids, graph_of):
    """Merging barriers for lack of ids must not join a group to one whose consumers came before its producers."""
    profile = load_profile("unit")
    program = lower(graph_of("folded"), profile, 48 << 10)
    schedule = FeasibleMemoryScheduler(program, profile, 48 << 10).run()
    plan = synchronise(schedule, ids)
    assert plan.ids_used <= ids
    for barrier in plan.barriers:
        assert max(barrier.producers) < min(barrier.consumers)


@pytest.mark.parametrize(("name", "sizes"), [("npu-37xx", [64]), ("npu-40xx", [32, 32])])
def test_depthwise_workloads_are_narrow_where_the_engine_keeps_rows_of_narrow_ones(sketch, name, sizes):
    s = sketch()
    program = lower(s.graph(s.conv(s.input(1, 64, 24, 24), 64, group=64)), load_profile(name))
    tasks = [op.payload for op in program.ops if isinstance(op.payload, DpuPayload)]
    assert [part["size_z"] for part in tasks[0].variants] == sizes
