"""Fidelity of the memory path: the same bytes whatever it is, times near each other, and one order of events."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from npu_abi import C, dtype
from npu_device import Device
from npu_model.memory_cycles import Background
from npu_model.profile import load_profile

from tests.device.rig import CMX, Blob, Rig
from tests.firmware.launches import DOORBELL, queues

START, END = C.NPU_TRACE_START, C.NPU_TRACE_END
US = 10**6


def copies(fidelity, sizes, *, profile="npu-37xx", step_ps=None, traffic=None, **options):
    """Run a job per size, each one descriptor on port 0; return the rig, DMA records (kind, time, job), what was copied."""
    rig = Rig(profile, trace=True, fidelity=fidelity, **options)
    if traffic is not None:
        rig.device.fabric.ddr.memory.set_background(traffic)
    places = queues(rig, len(sizes))
    rig.device.drain_trace()
    moved = []
    for number, (size, (va, doorbell)) in enumerate(zip(sizes, places, strict=True)):
        data = np.random.default_rng(number).integers(0, 256, size, np.uint8)
        src, dst = rig.alloc(data.tobytes()), rig.alloc(size)
        blob = Blob()
        blob.add_dma(src, dst, size, task_id=7)
        rig.enqueue(rig.inference(blob), jobq=va, doorbell=doorbell, ring=False)
        moved.append((data, dst))
    for _, doorbell in places:
        rig.bus.write32(DOORBELL + C.NPU_DOORBELL_STRIDE * doorbell, 1)
    if step_ps is not None:
        for _ in range(300):
            rig.device.run_until_interrupt(rig.device.now_ps + step_ps)
            rig.device.next_event_ps()
    rig.run()
    assert [one.job_status for one in rig.done()] == [C.NPU_JOB_SUCCESS] * len(sizes)
    trace = np.frombuffer(rig.device.drain_trace(), dtype("npu_trace_record"))
    trace = trace[(trace["engine"] == C.NPU_ENGINE_DMA) & np.isin(trace["kind"], (START, END))]
    return rig, trace[["kind", "time_ps", "job_id"]].tolist(), moved


def duration(fidelity, size, **options):
    (_, start, _), (_, end, _) = copies(fidelity, [size], **options)[1]
    return end - start


def into_cmx(fidelity, size, profile):
    """The time that loads of `size` bytes in all take, one after the other."""
    rig = Rig(profile, trace=True, fidelity=fidelity)
    blob = Blob()
    source = rig.alloc(size)
    for at in range(0, size, 1 << 18):
        blob.add_dma(source + at, CMX, min(size - at, 1 << 18))
    rig.device.drain_trace()
    rig.execute(rig.inference(blob))
    trace = np.frombuffer(rig.device.drain_trace(), dtype("npu_trace_record"))
    times = trace["time_ps"][(trace["engine"] == C.NPU_ENGINE_DMA) & np.isin(trace["kind"], (START, END))]
    return int(times[-1] - times[0])


@pytest.mark.parametrize("profile", ["npu-37xx", "npu-40xx", "npu-37xx+edge-soc"])
@pytest.mark.parametrize("size", [64, 4096, 4 << 20])
def test_loads_take_as_long_as_under_fast_within_five_percent_or_one_refresh(profile, size):
    assert into_cmx("full", size, profile) == pytest.approx(into_cmx("fast", size, profile), rel=0.05, abs=400_000)


def test_a_copy_within_memory_takes_as_long_as_under_fast_within_five_percent():
    assert duration("full", 1 << 20) == pytest.approx(duration("fast", 1 << 20), rel=0.05)


def test_jobs_that_take_turns_move_the_right_bytes_in_about_the_time_of_fast():
    sizes = [1 << 20, (1 << 20) - 64, 300_000, 64]
    rig, records, moved = copies("full", sizes)
    for data, dst in moved:
        assert rig.memory(dst).tobytes()[: len(data)] == data.tobytes()
    fast = copies("fast", sizes)[1]
    assert records[-1][1] - records[0][1] == pytest.approx(fast[-1][1] - fast[0][1], rel=0.05)


def test_times_do_not_depend_on_values_nor_on_how_the_host_lets_time_pass():
    sizes = [200_000, 70_000, 64]
    expected = copies("full", sizes)[1]
    assert copies("full", sizes, compute=False)[1] == expected
    assert copies("full", sizes, step_ps=70_001)[1] == expected
    assert copies("full", sizes)[1] == expected


def test_the_memory_counts_the_bytes_that_the_ports_count():
    rig, _, _ = copies("full", [100_000, 4096])
    counters = rig.device.counters()
    memory = rig.device.fabric.ddr.memory
    memory.advance(rig.device.now_ps + US)  # what is written may wait in the controller's queue
    client = memory.counters.clients[0]
    assert client.bytes_asked == counters[C.NPU_PMU_DMA_DDR_READ] + counters[C.NPU_PMU_DMA_DDR_WRITE]
    assert client.accesses_issued == client.accesses_done
    assert client.bytes_moved >= client.bytes_asked


def test_rows_apart_move_whole_accesses():
    """1024 rows of 16 bytes, 256 apart: each moves an access of 64 bytes, and one row of as many bytes moves no more."""
    moved = []
    for rows in (1024, 1):
        rig = Rig("npu-37xx", fidelity="full")
        blob = Blob()
        blob.add_dma(rig.alloc(1 << 18), CMX, 16384, src_width=16384 // rows, src_stride=256 * 1024 // rows)
        rig.execute(rig.inference(blob))
        counters = rig.device.fabric.ddr.memory.counters.clients[0]
        moved.append((counters.bytes_asked, counters.bytes_moved))
    assert moved == [(16384, 65536), (16384, 16384)]


def test_cpu_traffic_makes_a_copy_longer():
    traffic = Background("cpu", 20 * 10**9, address=1 << 20)
    alone = duration("full", 1 << 20, profile="npu-37xx+edge-soc")
    assert duration("full", 1 << 20, profile="npu-37xx+edge-soc", traffic=traffic) > 1.2 * alone


def in_a_transfer():
    """A device in the middle of a transfer."""
    rig = Rig("npu-37xx", fidelity="full")
    blob = Blob()
    blob.add_dma(rig.alloc(1 << 20), rig.alloc(1 << 20), 1 << 20)
    rig.enqueue(rig.inference(blob))
    rig.device.run_until(rig.device.now_ps + 20 * US)
    return rig


def test_an_abort_in_the_middle_of_a_transfer_leaves_the_memory_to_the_next_job():
    rig = in_a_transfer()
    assert not rig.device.fabric.ddr.idle
    rig.abort()
    assert rig.device.fabric.ddr.idle
    data = np.arange(4096, dtype=np.uint8)
    dst = rig.alloc(4096)
    after = Blob()
    after.add_dma(rig.alloc(data.tobytes()), dst, 4096)
    rig.execute(rig.inference(after))
    assert rig.memory(dst).tobytes()[:4096] == data.tobytes()


def test_a_reset_forgets_every_transfer():
    rig = in_a_transfer()
    rig.device.reset()
    assert rig.device.fabric.ddr.idle
    assert rig.device.next_event_ps() is None


def test_a_profile_has_another_memory_system_by_a_plus_and_its_figures_follow():
    plain, combined = load_profile("npu-37xx"), load_profile("npu-37xx+edge-soc")
    assert combined.name == "npu-37xx+edge-soc"
    assert (combined.dpu, combined.dma) == (plain.dpu, plain.dma)
    assert combined.memory_system.name == "edge-soc"
    assert 45e9 <= combined.ddr.bytes_per_second <= 52e9
    assert msgspec.json.decode(msgspec.json.encode(combined), type=type(combined)) == combined


@pytest.mark.parametrize("name", ["npu-37xx", "npu-40xx"])
def test_the_figures_of_a_profile_are_what_its_memory_gives_in_closed_form(name):
    profile = load_profile(name)
    ports = profile.dma_ports * profile.dma.bytes_per_cycle * profile.dma.clock_hz
    given = min(profile.memory_system.bytes_per_second("npu_dma"), ports)
    assert given == pytest.approx(min(profile.ddr.bytes_per_second, ports), rel=0.05)
    assert profile.memory_system.latency_ns("npu_dma") == pytest.approx(profile.ddr.latency_ns, rel=0.05)


def test_another_fidelity_is_refused():
    with pytest.raises(ValueError, match="fidelity 'best': 'fast' or 'full'"):
        Device("unit", fidelity="best")
