"""Bands, preemption and engine reset, on the firmware alone."""

import numpy as np
import pytest
from npu_abi import C, dtype, new
from npu_device.engine import Engine

from tests.device.rig import CMX, JOBQ, SSID, Blob, Rig
from tests.firmware.launches import DOORBELL, Program, busy, spinning

LOW, HIGH = 0x10000, 0x12000
ELEMENTS = 1000
ROUNDS = 40


def rig_of(bands=(1, 3), ssids=(SSID, SSID), **options):
    """Return a rig of npu-37xx with a queue of each band, doorbells 2 and 3."""
    rig = Rig("npu-37xx", trace=True, **options)
    for number, (band, ssid) in enumerate(zip(bands, ssids, strict=True)):
        va = JOBQ + (LOW, HIGH)[number]
        rig.alloc(bytes(4096), 0, va)
        assert rig.register_db(2 + number, va, ssid, band).result == C.NPU_JSM_OK
    return rig


def chain(rig, tiles=2, rounds=ROUNDS):
    """Return (command buffer, output address) of an inference that copies 16,000 numbers 40 times within CMX, to and fro."""
    source = rig.alloc(np.arange(ELEMENTS * 16, dtype=np.int32).tobytes())
    out = rig.alloc(bytes(ELEMENTS * 64))
    blob = Blob(tiles)
    size = ELEMENTS * 64
    last = blob.barrier()
    blob.add_dma(source, CMX, size, posts=[last])
    for step in range(rounds):  # to and fro between two places, and between the tiles
        here, there = (CMX, CMX + (tiles - 1) * C.NPU_CMX_TILE_STRIDE + 0x80000)[:: 1 if step % 2 == 0 else -1]
        following = blob.barrier()
        blob.add_dma(here, there, size, waits=[last], posts=[following])
        last = following
    blob.add_dma(CMX, out, size, waits=[last])
    return rig.inference(blob), out


def buffer_of(rig, tiles=2):
    size = C.NPU_PREEMPT_STATE_BYTES + tiles * rig.device.profile.cmx.workspace_bytes
    return rig.alloc(size), size


def records(rig, *kinds):
    found = np.frombuffer(rig.device.drain_trace(), dtype("npu_trace_record"))
    return found[np.isin(found["kind"], kinds)]


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize("after_us", [10, 20, 40, 60])
def test_a_preempted_inference_resumes_with_the_same_bytes(after_us, seed):
    rig = rig_of()
    if seed is not None:
        rig.device.set_schedule(C.NPU_SCHEDULE_SEED, seed)
    low, out = chain(rig)
    high = spinning(rig, 2)
    first = rig.enqueue(low, JOBQ + LOW, doorbell=2, preempt=buffer_of(rig))
    rig.device.run_until(rig.device.now_ps + after_us * 1_000_000)
    second = rig.enqueue(high, JOBQ + HIGH, doorbell=3)
    rig.run()
    assert {d.job_id: d.job_status for d in rig.done()} == {first: 0, second: 0}
    assert rig.memory(out)[: ELEMENTS * 64].view(np.int32).tolist() == list(range(ELEMENTS * 16))
    moves = records(rig, C.NPU_TRACE_PREEMPT, C.NPU_TRACE_RESUME)
    if seed is None:
        assert [d.job_id for d in rig.done()] == [second, first]
        assert moves["kind"].tolist() == [C.NPU_TRACE_PREEMPT, C.NPU_TRACE_RESUME]
        assert set(moves["job_id"].tolist()) == {first}


def test_without_a_buffer_it_keeps_its_tiles():
    rig = rig_of()
    low, _ = chain(rig)
    first = rig.enqueue(low, JOBQ + LOW, doorbell=2)
    rig.device.run_until(rig.device.now_ps + 20_000_000)
    second = rig.enqueue(spinning(rig, 2), JOBQ + HIGH, doorbell=3)
    rig.run()
    assert [d.job_id for d in rig.done()] == [first, second]


@pytest.mark.parametrize("after_us", [0, 20, 60, 150, 300])
def test_a_preempted_job_can_be_aborted(after_us):
    rig = rig_of()
    low, _ = chain(rig)
    first = rig.enqueue(low, JOBQ + LOW, doorbell=2, preempt=buffer_of(rig))
    rig.device.run_until(rig.device.now_ps + 20_000_000)
    second = rig.enqueue(spinning(rig, 2, 17), JOBQ + HIGH, doorbell=3)
    rig.device.run_until(rig.device.now_ps + after_us * 1_000_000)
    rig.request(C.NPU_JSM_UNREGISTER_DB, new("npu_jsm_unregister_db", db_idx=2))
    assert {d.job_id: d.job_status for d in rig.done()} == {first: C.NPU_JOB_ABORTED, second: 0}
    assert rig.execute(spinning(rig, 2)).job_status == 0


def test_realtime_work_overtakes_at_a_task_boundary():
    """On one port: copies of 64 KiB of a normal job in its FIFO, then one of a realtime job."""
    rig = rig_of()
    source, target = rig.alloc(1 << 20), rig.alloc(1 << 20)
    blobs = []
    for count in (16, 1):
        blob = Blob(1)
        for step in range(count):
            blob.add_dma(source, target + 65536 * step, 65536, task_id=100 * count + step)
        blobs.append(rig.inference(blob))
    first = rig.enqueue(blobs[0], JOBQ + LOW, doorbell=2)
    rig.device.run_until(rig.device.now_ps + 20_000_000)
    second = rig.enqueue(blobs[1], JOBQ + HIGH, doorbell=3)
    rig.run()
    assert [d.job_id for d in rig.done()] == [second, first]


def test_a_low_job_does_not_starve_behind_a_stream_of_high_ones():
    """50 realtime jobs of 1.1 ms: the job of band 0 counts as of band 3 after 30 ms, and then comes after at most two of them."""
    rig = rig_of((0, 3))
    low = rig.enqueue(spinning(rig, 2), JOBQ + LOW, doorbell=2, ring=False)
    high = spinning(rig, 2, 20)  # about 1.07 ms
    highs = [rig.enqueue(high, JOBQ + HIGH, doorbell=3, ring=False) for _ in range(50)]
    begin = rig.device.now_ps
    for doorbell in (3, 2):
        rig.bus.write32(DOORBELL + C.NPU_DOORBELL_STRIDE * doorbell, 1)
    rig.run()
    done = {d.job_id: d for d in rig.done()}
    assert {d.job_status for d in done.values()} == {0}
    assert done[low].end_ps - begin < (3 * 10 + 3 * 1.1) * 10**9
    assert done[highs[-1]].end_ps > done[low].end_ps


def hang(rig, job_id):
    """Let the next task of a job on a SHAVE never end."""
    for engine in rig.device.fabric.engines:

        def begin(task, cycles, engine=engine):
            if task.slot.job_id != job_id:
                Engine.begin(engine, task, cycles)

        if engine.kind == C.NPU_ENGINE_SHAVE:
            engine.begin = begin


def test_an_engine_reset_names_the_guilty_and_the_other_goes_on():
    rig = rig_of((1, 1), (SSID, SSID + 1))
    low, out = chain(rig, 1, 20)
    hung_id = (SSID + 1) << 8 | 2
    first = rig.enqueue(low, JOBQ + LOW, doorbell=2)
    hang(rig, hung_id)
    program = Program(rig, busy(10) + "halt")
    buffer = rig.command_buffer([program.command(2)])
    for (ssid, va), place in list(rig.places.items()):
        if ssid == SSID:
            rig.map(SSID + 1, va, *place)
    second = rig.enqueue(buffer, JOBQ + HIGH, SSID + 1, doorbell=3)
    assert second == hung_id
    rig.device.run_until(rig.device.now_ps + 20_000_000)
    assert [(d.job_id, d.job_status, hex(d.error_detail)) for d in rig.done()] == []
    reply = rig.request(C.NPU_JSM_ENGINE_RESET, new("npu_jsm_engine_reset"))
    body = rig.payload(reply, "npu_jsm_engine_reset_done")
    found = [(one.host_ssid, one.flags) for one in body.impacted][: body.impacted_count]
    assert found == [(SSID + 1, C.NPU_IMPACTED_GUILTY), (SSID, 0)]
    assert rig.done() == []
    assert rig.request(C.NPU_JSM_ENGINE_RESUME, new("npu_jsm_engine_resume")).result == C.NPU_JSM_OK
    rig.run()
    assert [(d.job_id, d.job_status) for d in rig.done()] == [(second, C.NPU_JOB_ABORTED), (first, 0)]
    assert rig.memory(out)[: ELEMENTS * 64].view(np.int32).tolist() == list(range(ELEMENTS * 16))
