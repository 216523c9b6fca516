"""Kernels and inferences share tiles: who owns what, and that nobody starves."""

import numpy as np
import pytest
from npu_abi import C, dtype, new

from tests.device.rig import CMX, Blob, Rig
from tests.firmware.launches import DOORBELL, Program, busy, queues, spinning

START, END = C.NPU_TRACE_START, C.NPU_TRACE_END
COOPERATIVE = {"flags": C.NPU_KERNEL_COOPERATIVE}


def fill(rig, place, buffer, count):
    """Put `count` jobs in a ring; the doorbell is not rung."""
    va, doorbell = place
    return [rig.enqueue(buffer, jobq=va, doorbell=doorbell, ring=False) for _ in range(count)]


def run(rig, places):
    for _, doorbell in places:
        rig.bus.write32(DOORBELL + C.NPU_DOORBELL_STRIDE * doorbell, 1)
    rig.run()
    done = rig.done()
    assert {one.job_status for one in done} == {C.NPU_JOB_SUCCESS}
    return [one.job_id for one in done]


def intervals(rig, engine):
    """Return (job, unit, start, end) of what ran on an engine."""
    records = np.frombuffer(rig.device.drain_trace(), dtype("npu_trace_record"))
    open_, found = {}, []
    for record in records[(records["engine"] == engine) & np.isin(records["kind"], (START, END))]:
        unit = int(record["unit"])
        if record["kind"] == START:
            open_[unit] = int(record["job_id"]), unit, int(record["time_ps"])
        else:
            found.append((*open_.pop(unit), int(record["time_ps"])))
    return found


def test_a_tile_never_runs_blocks_while_an_inference_owns_it():
    rig = Rig("npu-37xx", trace=True)
    places = queues(rig, 4)
    kernel = rig.command_buffer([Program(rig, busy(12) + "halt").command(7)])
    kernels = {*fill(rig, places[0], kernel, 10), *fill(rig, places[1], kernel, 10)}
    inferences = {*fill(rig, places[2], spinning(rig, 1), 6), *fill(rig, places[3], spinning(rig, 2), 6)}
    run(rig, places)
    by_tile = {tile: [] for tile in range(2)}
    for job, unit, start, end in intervals(rig, C.NPU_ENGINE_SHAVE):
        by_tile[unit >> 4].append((start, end, job))
    for found in by_tile.values():
        of_kernels = [one for one in found if one[2] in kernels]
        of_inferences = [one for one in found if one[2] in inferences]
        assert of_kernels
        assert of_inferences
        for start, end, _ in of_kernels:
            assert all(end <= other[0] or other[1] <= start for other in of_inferences)


def test_a_launch_beside_an_inference_uses_the_other_tile():
    rig = Rig("npu-37xx")
    places = queues(rig, 2)
    rig.enqueue(spinning(rig, 1, 20), jobq=places[0][0])
    rig.device.run_until(rig.device.now_ps + 10_000_000)
    program = Program(rig, busy(12) + "halt")
    rig.enqueue(rig.command_buffer([program.command(8)]), jobq=places[1][0], doorbell=2)
    rig.run()
    assert set(program.records(8)["unit"].tolist()) == {16, 17}
    assert [done.host_ssid for done in rig.done()] == [2, 2]


@pytest.mark.parametrize("tiles", [1, 2])
def test_an_inference_does_not_starve_behind_a_stream_of_kernels(tiles):
    """Three queues always have a launch of 20 us; the inference ends after the launches that came before it."""
    rig = Rig("npu-37xx")
    places = queues(rig, 4)
    kernel = rig.command_buffer([Program(rig, busy(14) + "halt").command(5)])
    for place in places[:3]:
        fill(rig, place, kernel, 20)
    (inference,) = fill(rig, places[3], spinning(rig, tiles), 1)
    order = run(rig, places)
    assert order.index(inference) <= 4


@pytest.mark.parametrize("tiles", [1, 2])
@pytest.mark.parametrize("fields", [{}, COOPERATIVE])
def test_a_launch_does_not_starve_behind_a_stream_of_inferences(tiles, fields):
    rig = Rig("npu-37xx")
    places = queues(rig, 4)
    for place in places[:3]:
        fill(rig, place, spinning(rig, tiles), 20)
    kernel = rig.command_buffer([Program(rig, busy(10) + "halt").command(4, **fields)])
    (launch,) = fill(rig, places[3], kernel, 1)
    order = run(rig, places)
    assert order.index(launch) <= 4


def test_a_cooperative_launch_does_not_starve_behind_a_stream_of_small_launches():
    rig = Rig("npu-37xx")
    places = queues(rig, 4)
    small = rig.command_buffer([Program(rig, busy(13) + "halt").command(2)])
    for place in places[:3]:
        fill(rig, place, small, 20)
    (launch,) = fill(rig, places[3], rig.command_buffer([Program(rig, "bar\nhalt").command(4, **COOPERATIVE)]), 1)
    order = run(rig, places)
    assert order.index(launch) <= 4


def test_a_large_launch_goes_on_beside_a_stream_of_inferences_of_one_tile():
    """They share the two tiles: the launch of 64 blocks of 8 us has one of them nearly all the time."""
    rig = Rig("npu-37xx")
    places = queues(rig, 2)
    program = Program(rig, busy(13) + "halt")
    fill(rig, places[0], rig.command_buffer([program.command(64)]), 1)
    fill(rig, places[1], spinning(rig, 1), 20)
    run(rig, places)
    records = program.records(64)
    span = int(records["end_ps"].max() - records["picked_ps"].min())
    assert span < 1.3 * 32 * 8.5e6  # 64 blocks on two SHAVEs


def test_an_aborted_inference_that_waits_for_tiles_lets_later_launches_go():
    rig = Rig("npu-37xx")
    places = queues(rig, 3)
    long = Program(rig, busy(17) + "halt")
    rig.enqueue(rig.command_buffer([long.command(2)]), jobq=places[0][0])
    rig.enqueue(spinning(rig, 2), jobq=places[1][0], doorbell=2)
    rig.device.run_until(rig.device.now_ps + 10_000_000)
    later = Program(rig, busy(10) + "halt")
    rig.enqueue(rig.command_buffer([later.command(4)]), jobq=places[2][0], doorbell=3)
    rig.device.run_until(rig.device.now_ps + 10_000_000)
    assert later.records(4)["end_ps"].tolist() == [0] * 4  # it waits: the inference was there before
    rig.request(C.NPU_JSM_UNREGISTER_DB, new("npu_jsm_unregister_db", db_idx=2))
    assert later.records(4)["end_ps"].max() < long.records(2)["end_ps"].min()


def test_copies_and_fills_need_no_tiles_and_run_beside_both():
    rig = Rig("npu-37xx")
    places = queues(rig, 2)
    fill_command = new("npu_cmd_fill", start_va=rig.alloc(4096), size=4096)
    fill_command.h.type, fill_command.h.size = C.NPU_CMD_MEMORY_FILL, 32
    rig.enqueue(rig.command_buffer([Program(rig, busy(16) + "halt").command(4)]), jobq=places[0][0])
    rig.enqueue(rig.command_buffer([fill_command]), jobq=places[1][0], doorbell=2)
    rig.run()
    assert [done.job_id & 0xFF for done in rig.done()] == [2, 1]


def test_a_block_and_an_inference_find_poison_after_each_other():
    """A block leaves its slice full of numbers; the inference that gets the tile copies it out."""
    rig = Rig("npu-37xx")
    text = "li r10, 1\nli r11, 4096\nli r12, 4\nsetvl r10, r11\nviota.i32 v0\nvst.i32 v0, r4, r0, r12, 0\nhalt"
    Program(rig, text).launch(4)
    out = rig.alloc(bytes(16384))
    blob = Blob(1)
    blob.add_dma(CMX, out, 16384)
    assert rig.execute(rig.inference(blob)).job_status == C.NPU_JOB_SUCCESS
    assert (rig.memory(out) == 0xFF).all()
