"""Compiled models that realtime work preempts, through the library: same bytes, whoever preempts and whatever becomes of it."""

from __future__ import annotations

import numpy as np
import pytest
from npu_abi import C

import libnpu
from tests.preemption.conftest import Pair, X

MOMENTS_NS = range(0, 20_000, 500)  # an inference takes 17 us
SOME_NS = MOMENTS_NS[::2]


def disturbed(pair, urgent, duration_ns, **options):
    """Let `urgent()` be enqueued so long after two inferences, and check all values. Return (preempted, resumed)."""
    low = pair.begin(**options)
    pair.host_works(duration_ns)
    high = urgent()
    pair.device.synchronize()
    assert [job.error for job in (*low, high)] == [None] * 3
    assert pair.is_right(0)
    assert pair.is_right(1)
    return pair.moves()


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_inference_preempted_at_any_moment_gives_the_same_bytes(pair, dynamic):
    moves = []
    for moment in MOMENTS_NS:
        moves.append(disturbed(pair, lambda: pair.launch(pair.urgent, 2, dynamic=dynamic), moment, dynamic=dynamic))
        assert pair.is_right(2)
    assert all(preempted == resumed for preempted, resumed in moves)
    assert (
        sum(preempted > 0 for preempted, _ in moves) >= 25
    )  # of 50: the rest is before the tiles are taken, and behind the ends


def test_realtime_work_waits_no_longer_than_running_tasks_and_the_copy_of_a_tile(pair):

    def takes_ps():
        begin_ps = pair.kernel.device.now_ps
        job = pair.launch(pair.urgent, 2)
        pair.device.synchronize()
        return job.end_ps - begin_ps

    alone_ps, profile = takes_ps(), pair.device.profile
    copy_ps = profile.cmx.workspace_bytes * 10**12 // profile.ddr.bytes_per_second
    waited = []
    for moment in SOME_NS:
        pair.begin()
        pair.host_works(moment)
        waited.append(takes_ps() - alone_ps)
    assert copy_ps < max(waited) < copy_ps + 15 * 10**6  # 15 us: of an inference that takes 17


@pytest.mark.parametrize("seed", [1, 2])
def test_under_a_seed_too(pair, seed):
    pair.device.set_schedule(f"seed:{seed}")
    moves = [disturbed(pair, lambda: pair.launch(pair.urgent, 2), moment) for moment in SOME_NS]
    assert all(preempted == resumed for preempted, resumed in moves)
    assert pair.is_right(2)


def test_built_in_kernels_preempt(pair):
    relu, values = pair.device.kernel("relu"), np.arange(-500, 500, dtype=np.float32)
    x, y = pair.device.to_device(values), pair.device.alloc(values.nbytes)
    moves = []
    for moment in SOME_NS:
        y.write(np.full(1000, 7, np.float32))
        moves.append(disturbed(pair, lambda: relu.launch(pair.urgent, x, y, 1000), moment))
        assert np.array_equal(y.read(np.float32), np.maximum(values, 0))
    assert all(preempted == resumed for preempted, resumed in moves)
    assert sum(preempted > 0 for preempted, _ in moves) >= 10


def test_tasks_of_all_engines_are_among_what_is_preempted(pair):
    """The moments reach inferences whose DPU and SHAVE tasks have ended before, and others that have them before them."""
    before, behind = set(), set()
    for moment in SOME_NS:
        jobs = pair.begin()
        pair.host_works(moment)
        pair.launch(pair.urgent, 2)
        pair.device.synchronize()
        trace = pair.device.trace()
        gone = {int(r["job_id"]): int(r["time_ps"]) for r in trace if r["kind"] == C.NPU_TRACE_PREEMPT}
        for record in trace[trace["kind"] == C.NPU_TRACE_START]:
            time_ps = gone.get(int(record["job_id"]))
            if time_ps is not None:
                (before if record["time_ps"] < time_ps else behind).add(int(record["engine"]))
        assert [job.error for job in jobs] == [None, None]
    engines = {int(C.NPU_ENGINE_DMA), int(C.NPU_ENGINE_DPU), int(C.NPU_ENGINE_SHAVE)}
    assert engines <= before
    assert engines <= behind


def preempt(pair, after_ns=4000):
    """Let the idle inference be preempted by a kernel that takes every SHAVE it gets; return (its job, the kernel's)."""
    jobs = pair.begin()
    pair.host_works(after_ns)
    urgent = pair.spin(grid=2 * pair.device.profile.shaves_per_tile)
    for _ in range(200):  # CMX takes 80 us
        pair.host_works(1000)
        if pair.moves() == (1, 0):
            return jobs[0], urgent
    raise AssertionError("nothing was preempted")


def test_priorities_of_streams_decide_who_comes_first(device, small_blob):
    """While a kernel has the SHAVEs and all queues are full of work, streams are served from realtime to idle."""
    pair = Pair(device, small_blob, {"x": X})
    priorities = [C.NPU_PRIORITY_IDLE, C.NPU_PRIORITY_REALTIME, C.NPU_PRIORITY_NORMAL, C.NPU_PRIORITY_FOCUS]
    streams = [device.create_stream(priority=int(priority)) for priority in priorities]
    assert [pair.kernel.contexts[2].queues[stream.cmdq_id].priority for stream in streams] == [1, 4, 2, 3]
    blocks = 2 * device.profile.shaves_per_tile
    first = pair.spin(grid=blocks)
    jobs = [pair.spin(grid=blocks, stream=stream) for stream in streams]
    device.synchronize()
    assert all(job.start_ps < first.end_ps for job in jobs)  # all of them waited
    assert sorted(range(4), key=lambda number: jobs[number].end_ps) == [1, 3, 2, 0]


@pytest.mark.parametrize("end", ["abort", "close", "context"])
def test_a_preempted_stream_can_be_ended(device, small_blob, end):
    """Abort and the end of its context end its inference, which waits in its buffer; close waits for it. Others are right."""
    context = device.create_context()
    pair, mine = Pair(device, small_blob, {"x": X}), Pair(device, small_blob, {"x": X}, context)
    buffers = pair.buffers() - 1
    job, _ = preempt(mine)
    if end == "abort":
        mine.idle.abort()
        with pytest.raises(libnpu.NpuError, match="ABORTED_BY_PRIOR_ERROR"):
            mine.idle.synchronize()
        mine.launch(mine.idle, 0)
        context.synchronize()
        assert mine.is_right(0)
        assert mine.is_right(1)
    elif end == "close":
        mine.idle.close()  # waits for it
        assert job.error is None
        assert mine.is_right(0)
    context.destroy(force=True)
    assert job.done
    assert pair.buffers() == buffers
    pair.launch(pair.normal, 1).wait()
    assert pair.is_right(1)


def test_a_stream_closed_under_cuda_while_preempted_finishes(small_blob):
    with libnpu.open("npu-37xx", semantics="cuda", trace=True) as device:
        pair = Pair(device, small_blob, {"x": X})
        preempt(pair)
        buffers = pair.buffers()
        pair.idle.close()
        assert pair.buffers() == buffers
        device.synchronize()
        assert pair.buffers() == buffers - 1
        assert pair.is_right(0)


def test_a_fault_of_the_preempting_job_does_not_harm_the_preempted(pair, fault):
    for moment in MOMENTS_NS[::4]:
        other = pair.device.create_context()
        stream = other.create_stream(priority=int(C.NPU_PRIORITY_REALTIME))
        jobs = pair.begin()
        pair.host_works(moment)
        fault(other).launch(stream, grid=1)
        with pytest.raises(libnpu.NpuError, match="DEVICE_PAGE_FAULT"):
            stream.synchronize()
        pair.context.synchronize()
        assert [job.error for job in jobs] == [None, None]
        assert pair.is_right(0)
        assert pair.is_right(1)
        other.destroy(force=True)
    preempted, resumed = pair.moves()
    assert preempted == resumed > 0


def test_an_idle_inference_ends_within_the_starvation_bound(device, small_blob):
    """Realtime kernels take all SHAVEs for ever again; an inference of the idle band comes after 30 ms and the kernels that run then."""
    pair = Pair(device, small_blob, {"x": X})
    blocks = 2 * device.profile.shaves_per_tile
    streams = [device.create_stream(priority=int(C.NPU_PRIORITY_REALTIME)) for _ in range(2)]
    highs = [pair.spin("long", blocks, streams[number % 2]) for number in range(60)]
    job = pair.launch(pair.idle, 0)
    device.synchronize()
    longest = max(high.latency_ps for high in highs)
    assert pair.is_right(0)
    assert highs[-1].end_ps > job.end_ps
    assert job.latency_ps < 3 * 10**10 + 3 * longest
