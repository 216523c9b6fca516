"""What holds for every job on the engines: nobody works twice at once, and who waits for less is not later."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_abi import C, dtype
from npu_model.shave_isa import assemble

from tests.device.rig import CMX, Blob, Rig
from tests.firmware.launches import busy

BUSY = {
    C.NPU_ENGINE_DMA: C.NPU_PMU_DMA_BUSY,
    C.NPU_ENGINE_DPU: C.NPU_PMU_DPU_BUSY,
    C.NPU_ENGINE_SHAVE: C.NPU_PMU_SHAVE_BUSY,
}
PROGRAMS = [assemble(busy(size) + "halt") for size in (1, 3, 9)]


@st.composite
def jobs(draw):
    """Tasks without a side in DDR, which take the same time whenever they run: (kind, unit, size); and edges, from a task to a later one."""
    sizes = {
        "copy": st.sampled_from([64, 4096, 12_000, 28_000]),
        "matmul": st.sampled_from([32, 128, 512]),
        "program": st.integers(0, 2),
    }
    kinds = st.lists(st.sampled_from(["copy", "copy", "matmul", "program"]), min_size=3, max_size=14)
    tasks = [(kind, draw(st.integers(0, 3)), draw(sizes[kind])) for kind in draw(kinds)]
    pairs = st.tuples(st.integers(0, len(tasks) - 2), st.integers(1, len(tasks) - 1)).filter(
        lambda pair: pair[0] < pair[1]
    )
    return tasks, draw(st.lists(pairs, min_size=1, max_size=24, unique=True))


def run(profile, fidelity, tasks, edges):
    """Return what the trace of a job says, its time from submission to the end of its last task, and the counters."""
    rig = Rig(profile, trace=True, compute=False, fidelity=fidelity)
    figures = rig.device.profile
    tiles = min(figures.tiles, 2)
    blob = Blob(tiles)
    texts = [blob.add_range(rig.alloc(code), len(code)) for code in PROGRAMS]
    waits, posts = defaultdict(list), defaultdict(list)
    for producer, consumer in edges:
        barrier = blob.barrier()
        posts[producer].append(barrier)
        waits[consumer].append(barrier)
    for number, (kind, unit, size) in enumerate(tasks):
        tile, sync = unit % tiles, {"waits": waits[number], "posts": posts[number], "task_id": number}
        at = CMX + tile * C.NPU_CMX_TILE_STRIDE
        if kind == "copy":
            blob.add_dma(CMX, CMX + 0x8000, size, port=unit % figures.dma_ports, **sync)
        elif kind == "matmul":
            blob.add_matmul(at, at + 0x2000, at + 0x4000, 32, size, 32, tile=tile, **sync)
        else:
            blob.add_shave(texts[size], shave=unit // 2, tile=tile, **sync)
    buffer = rig.inference(blob)
    rig.device.drain_trace()
    before, start_ps = rig.device.counters(), rig.device.now_ps
    assert rig.execute(buffer).job_status == C.NPU_JOB_SUCCESS
    trace = np.frombuffer(rig.device.drain_trace(), dtype("npu_trace_record"))
    ends = trace["time_ps"][trace["kind"] == C.NPU_TRACE_END]
    assert len(ends) == len(tasks)
    counted = [after - b for b, after in zip(before, rig.device.counters(), strict=True)]
    return trace, int(ends.max()) - start_ps, counted


def core_ps(figures, edges):
    """Return how much later a task may come when the core does other things first: give out one task, and retire every barrier."""
    core = figures.core
    cycles = core.fetch_cycles + core.dispatch_cycles + len(edges) * core.barrier_cycles
    clock_edge_ps = 10**12 // min(figures.dma.clock_hz, figures.dpu.clock_hz, figures.shave.clock_hz) if cycles else 0
    return cycles * 10**12 // core.clock_hz + clock_edge_ps


@pytest.mark.parametrize("fidelity", ["fast", "full"])
@pytest.mark.parametrize("profile", ["unit", "npu-37xx", "npu-40xx"])
@settings(max_examples=6, deadline=None, derandomize=True)
@given(job=jobs(), choice=st.integers(0, 23))
def test_a_job_with_an_edge_less_never_takes_longer(profile, fidelity, job, choice):
    tasks, edges = job
    rest = edges.copy()
    rest.pop(choice % len(edges))
    allowed = core_ps(Rig(profile, boot=False).device.profile, edges)
    assert (allowed == 0) == (profile == "unit")
    assert run(profile, fidelity, tasks, rest)[1] <= run(profile, fidelity, tasks, edges)[1] + allowed


@pytest.mark.parametrize("fidelity", ["fast", "full"])
@settings(max_examples=6, deadline=None, derandomize=True)
@given(job=jobs(), profile=st.sampled_from(["unit", "npu-37xx", "npu-40xx"]))
def test_an_engine_is_busy_or_idle_and_its_tasks_come_one_after_the_other(fidelity, job, profile):
    trace, _, counted = run(profile, fidelity, *job)
    began, ended, busy_cycles = {}, defaultdict(int), Counter()
    for kind, engine, unit, cycle in zip(
        *(trace[c].tolist() for c in ("kind", "engine", "unit", "cycle")), strict=True
    ):
        if kind == C.NPU_TRACE_START:
            assert (engine, unit) not in began
            assert cycle >= ended[engine, unit]
            began[engine, unit] = cycle
        elif kind == C.NPU_TRACE_END:
            ended[engine, unit] = cycle
            busy_cycles[engine, unit] += cycle - began.pop((engine, unit))
    assert all(cycles <= counted[C.NPU_PMU_CYCLES] for cycles in busy_cycles.values())
    for engine, counter in BUSY.items():
        assert counted[counter] == sum(cycles for (kind, _), cycles in busy_cycles.items() if kind == engine)
