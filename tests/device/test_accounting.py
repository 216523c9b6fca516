"""Counters, traces and schedules: exact, and the same in every run."""

import numpy as np
import pytest
from npu_abi import C, dtype
from npu_device.clock import Clock, ClockDomain
from npu_device.trace import Trace

from tests.device.rig import CMX, Blob, Rig

BUSY = {C.NPU_ENGINE_DMA: C.NPU_PMU_DMA_BUSY, C.NPU_ENGINE_DPU: C.NPU_PMU_DPU_BUSY}


def run(profile="npu-37xx", seed=None, **options):
    """Two layers: copies on both ports, matmuls, copies out."""
    rig = Rig(profile, trace=True, **options)
    if seed is not None:
        rig.device.set_schedule(C.NPU_SCHEDULE_SEED, seed)
    src, dst = rig.alloc(bytes(16384)), rig.alloc(16384)
    blob = Blob()
    for layer in range(2):
        at = CMX + layer * 0x8000
        loaded, done = blob.barrier(producers=2), blob.barrier()
        blob.add_dma(src, at, 8192, posts=[loaded], port=0, task_id=10 * layer)
        blob.add_dma(src + 8192, at + 0x2000, 8192, posts=[loaded], port=1, task_id=10 * layer + 1)
        blob.add_matmul(at, at + 0x2000, at + 0x4000, 64, 64, 64, waits=[loaded], posts=[done], task_id=10 * layer + 2)
        blob.add_dma(at + 0x4000, dst + layer * 8192, 8192, waits=[done], port=layer, task_id=10 * layer + 3)
    before = rig.device.counters()
    rig.device.drain_trace()
    done = rig.execute(rig.inference(blob))
    assert done.job_status == C.NPU_JOB_SUCCESS
    counters = [b - a for a, b in zip(before, rig.device.counters(), strict=True)]
    return counters, np.frombuffer(rig.device.drain_trace(), dtype("npu_trace_record")), rig.memory(dst).tobytes()


def test_busy_counters_are_the_sum_of_the_traced_intervals():
    counters, trace, _ = run()
    for engine, counter in BUSY.items():
        of = trace[trace["engine"] == engine]
        starts, ends = of[of["kind"] == C.NPU_TRACE_START], of[of["kind"] == C.NPU_TRACE_END]
        begin = {int(r["task_id"]): int(r["cycle"]) for r in starts}
        intervals = [int(r["cycle"]) - begin[int(r["task_id"])] for r in ends]
        assert intervals == ends["value"].tolist()
        assert counters[counter] == sum(intervals) > 0


def test_byte_and_task_counters():
    counters, _, _ = run()
    assert counters[C.NPU_PMU_TASKS] == 8
    assert counters[C.NPU_PMU_DMA_DDR_READ] == counters[C.NPU_PMU_DMA_CMX_WRITE] == 4 * 8192
    assert counters[C.NPU_PMU_DMA_DDR_WRITE] == counters[C.NPU_PMU_DMA_CMX_READ] == 2 * 8192
    assert counters[C.NPU_PMU_DPU_MACS] == 2 * 64**3
    assert counters[C.NPU_PMU_DOORBELLS] == 1
    assert counters[C.NPU_PMU_IRQS] == 1
    assert counters[C.NPU_PMU_SRAM_WRITE] == 2 * 8192


def test_frozen_counters_stand_still_and_clear_sets_zero():
    rig = Rig()
    write = rig.bus.write32
    write(C.NPU_REG_PMU_CTRL, 3)
    held = rig.device.counters()
    rig.device.run_until(rig.device.now_ps + 5_000_000)
    assert rig.device.counters() == held
    write(C.NPU_REG_PMU_CTRL, 1 | 4)
    assert rig.device.counters()[C.NPU_PMU_CYCLES] == 0
    assert rig.bus.read32(C.NPU_REG_PMU_CTRL) == 1
    rig.device.run_until(rig.device.now_ps + 5_000_000)
    assert rig.device.counters()[C.NPU_PMU_CYCLES] == 5
    assert rig.bus.read32(C.NPU_REG_PMU_COUNTER_BASE) == 5


def test_two_runs_are_identical_to_the_byte_and_the_picosecond():
    first, second = run(), run()
    assert first[0] == second[0]
    assert first[1].tobytes() == second[1].tobytes()
    assert first[2] == second[2]


def test_time_does_not_depend_on_the_data():
    computed, timed = run(), run(compute=False)
    assert computed[1]["time_ps"].tolist() == timed[1]["time_ps"].tolist()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_stretches_tasks_reproducibly_and_leaves_values_alone(seed):
    plain, stretched, again = run(), run(seed=seed), run(seed=seed)
    assert stretched[2] == plain[2]
    assert stretched[1]["time_ps"].tolist() == again[1]["time_ps"].tolist()
    assert stretched[1]["time_ps"].tolist() != plain[1]["time_ps"].tolist()


def test_two_ports_share_ddr_and_one_port_alone_gets_all_of_it():
    """npu-37xx: 27 GB/s of DDR for ports of 31.2 GB/s, 956 ns latency."""

    def duration(ports):
        rig = Rig("npu-37xx", compute=False, trace=True)
        src = rig.alloc(1 << 20)
        blob = Blob()
        for port in range(ports):
            blob.add_dma(src, CMX + port * 0x40000, 0x40000, port=port)
        assert rig.execute(rig.inference(blob)).job_status == C.NPU_JOB_SUCCESS
        trace = np.frombuffer(rig.device.drain_trace(), dtype("npu_trace_record"))
        ends = trace[trace["kind"] == C.NPU_TRACE_END]["time_ps"]
        starts = trace[trace["kind"] == C.NPU_TRACE_START]["time_ps"]
        return int(ends.max()) - int(starts.min())

    alone, shared = duration(1), duration(2)
    transfer_ps = 0x40000 * 10**12 // 27_000_000_000
    assert abs(alone - 956_000 - transfer_ps) < 20_000
    assert abs(shared - 956_000 - 2 * transfer_ps) < 200_000  # the second starts a dispatch later


def test_a_trace_has_large_numbers_as_they_are():
    clock, domain = Clock(), ClockDomain(1_300_000_000)
    trace = Trace(clock, domain)
    clock.now_ps = (1 << 62) + 7
    trace.add(C.NPU_TRACE_FENCE_WRITE, 3, 0, 5, 6, (1 << 64) - 1)
    (record,) = np.frombuffer(trace.drain(), dtype("npu_trace_record"))
    assert (record["time_ps"], record["value"]) == ((1 << 62) + 7, (1 << 64) - 1)
    assert record["cycle"] == domain.cycle_at((1 << 62) + 7)
    assert trace.drain() == b""
