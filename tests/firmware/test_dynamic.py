"""Inferences with a run-time scheduler: the same results as the walk, at other times."""

import msgspec
import numpy as np
import pytest
from npu_abi import C, dtype
from npu_model.profile import load_profile

from tests.device.rig import CMX, NONE, Blob, Rig, infer
from tests.firmware.launches import Program, busy

N = 12
TRIPLE = """
    ld.i64 r10, r1, 0
    ld.i64 r11, r1, 8
    li r12, 1
    li r13, 256
    li r14, 2
    setvl r12, r13
    vld.f16 v0, r10, r0, r14, 0
    fli f1, 3.0
    vmul.f32.s v1, v0, f1
    vst.f16 v1, r11, r0, r14, 0
    halt
"""


def dynamic(va):
    command = infer(va)
    command.h.type = C.NPU_CMD_INFERENCE_DYNAMIC
    return command


def pipeline(rig):
    """N times: two copies in, a product on the DPU, times three on a SHAVE, a copy out; three places in CMX, barrier ids used again.

    Returns (blob, output, expected).
    """
    rng = np.random.default_rng(0)
    act = rng.integers(-3, 4, (N, 16, 16)).astype(np.float16)
    weights = rng.integers(-3, 4, (N, 16, 16)).astype(np.float16)
    source, out = rig.alloc(np.stack([act, weights], 1).tobytes()), rig.alloc(512 * N)
    blob = Blob()
    places = [CMX + 0x4000 * i for i in range(3)]
    args = [rig.alloc(np.array([place + 0x2000, place + 0x3000], np.int64).tobytes()) for place in places]
    program = Program(rig, TRIPLE)
    index = blob.add_range(program.fields["text_va"], program.fields["code_bytes"])
    for i in range(N):
        for id_ in range(4):  # loaded, multiplied, tripled, stored: one set of ids for each of the three places
            blob.barrier(producers=2 if id_ == 0 else 1, real_id=4 * (i % 3) + id_)
    for virtual, barrier in enumerate(blob.barriers[:-12]):
        barrier["next_same_id"] = virtual + 12
    for i in range(N):
        place, ids = places[i % 3], [4 * (i % 3) + id_ for id_ in range(4)]
        after = 4 * (i - 3) + 3 if i >= 3 else NONE  # the round that had the place before is over
        blob.barriers[4 * i + 3]["consumer_count"] = 0
        blob.add_dma(source + 1024 * i, place, 512, posts=[ids[0]], start_after=after, task_id=i)
        blob.add_dma(source + 1024 * i + 512, place + 0x1000, 512, posts=[ids[0]], start_after=after, port=1, task_id=i)
        sync = {"start_after": after, "task_id": i}
        blob.add_matmul(place, place + 0x1000, place + 0x2000, 16, 16, 16, waits=[ids[0]], posts=[ids[1]], **sync)
        blob.add_shave(index, args[i % 3], 16, shave=i % 2, waits=[ids[1]], posts=[ids[2]], **sync)
        blob.add_dma(place + 0x3000, out + 512 * i, 512, waits=[ids[2]], posts=[ids[3]], port=i % 2, **sync)
    return blob, out, 3 * (act @ weights.transpose(0, 2, 1))


def ps(done):
    assert done.job_status == C.NPU_JOB_SUCCESS, (done.job_status, hex(done.error_detail), hex(done.error_info))
    return done.end_ps - done.start_ps


@pytest.mark.parametrize("profile", ["unit", "npu-37xx", "npu-40xx"])
def test_both_schedulers_compute_the_same(profile):
    times = []
    for command in (infer, dynamic):
        rig = Rig(profile)
        blob, out, expected = pipeline(rig)
        times.append(ps(rig.execute(rig.command_buffer([command(blob.place(rig))]))))
        assert np.array_equal(rig.memory(out)[: 512 * N].view(np.float16).reshape(N, 16, 16), expected)
    assert profile == "unit" or times[0] != times[1]


@pytest.mark.parametrize("seed", range(4))
def test_the_results_do_not_depend_on_how_long_tasks_take(seed):
    rig = Rig("npu-37xx")
    rig.device.set_schedule(C.NPU_SCHEDULE_SEED, seed)
    blob, out, expected = pipeline(rig)
    ps(rig.execute(rig.command_buffer([dynamic(blob.place(rig))])))
    assert np.array_equal(rig.memory(out)[: 512 * N].view(np.float16).reshape(N, 16, 16), expected)


def test_timing_without_values_is_the_same():
    times = []
    for compute in (True, False):
        rig = Rig("npu-37xx", compute=compute)
        blob, _, _ = pipeline(rig)
        times.append(ps(rig.execute(rig.command_buffer([dynamic(blob.place(rig))]))))
    assert times[0] == times[1]


def copies(rig, count):
    source = rig.alloc(65536)
    blob = Blob()
    for i in range(count):
        blob.add_dma(source, CMX + 1024 * i, 1024, task_id=i)
    return blob.place(rig)


def test_nothing_waits_in_a_fifo():
    rig = Rig("npu-37xx", trace=True)
    va = copies(rig, 8)
    rig.device.drain_trace()
    ps(rig.execute(rig.command_buffer([dynamic(va)])))
    records = np.frombuffer(rig.device.drain_trace(), dtype("npu_trace_record"))
    times = {
        kind: records[(records["kind"] == kind)]["time_ps"].tolist()
        for kind in (C.NPU_TRACE_FETCH, C.NPU_TRACE_DISPATCH, C.NPU_TRACE_START, C.NPU_TRACE_END)
    }
    assert times[C.NPU_TRACE_DISPATCH] == times[C.NPU_TRACE_START]
    assert len(times[C.NPU_TRACE_START]) == 8
    for end, fetch in zip(times[C.NPU_TRACE_END][:-1], times[C.NPU_TRACE_FETCH][1:], strict=True):
        assert 0 <= fetch - end <= 2500  # the core's next edge: it looks when the engine is idle
    for fetch, dispatch in zip(times[C.NPU_TRACE_FETCH], times[C.NPU_TRACE_DISPATCH], strict=True):
        assert 0 <= dispatch - fetch - 200_000 <= 2500  # 20 cycles for a look, 60 for fetch and dispatch, at 400 MHz


def test_a_chain_of_short_tasks_takes_longer_by_what_the_core_does_between_them():
    rig = Rig("npu-37xx")
    va = copies(rig, 16)
    static = ps(rig.execute(rig.command_buffer([infer(va)])))
    run_time = ps(rig.execute(rig.command_buffer([dynamic(va)])))
    assert abs(run_time - static - 15 * 200_000) < 16 * 5000  # clock edges


def test_looking_costs_ready_cycles():
    profile = load_profile("npu-37xx")
    slow = msgspec.structs.replace(profile, core=msgspec.structs.replace(profile.core, ready_cycles=220))
    times = []
    for one in (profile, slow):
        rig = Rig(one)
        times.append(ps(rig.execute(rig.command_buffer([dynamic(copies(rig, 16))]))))
    assert abs(times[1] - times[0] - 16 * 200 * 2500) < 16 * 4000


def test_tasks_behind_one_that_waits_start_earlier_when_their_engine_is_idle():
    """SHAVE 0 has eight short tasks behind a long copy, and SHAVE 1 a long one that stands behind them in the list."""
    times = []
    for command in (infer, dynamic):
        rig = Rig("npu-37xx")
        short, long = Program(rig, busy(4) + "halt"), Program(rig, busy(17) + "halt")
        blob = Blob()
        copied = blob.barrier(consumers=1)
        blob.add_dma(rig.alloc(1 << 20), CMX, 1 << 20, posts=[copied])
        ranges = [blob.add_range(one.fields["text_va"], one.fields["code_bytes"]) for one in (short, long)]
        blob.add_shave(ranges[0], shave=0, waits=[copied])
        for _ in range(7):
            blob.add_shave(ranges[0], shave=0)
        blob.add_shave(ranges[1], shave=1)
        times.append(ps(rig.execute(rig.command_buffer([command(blob.place(rig))]))))
    copy_ps = (1 << 20) / 27e9 * 1e12
    assert (
        copy_ps < times[0] - times[1] < copy_ps + 8 * 3_200_000
    )  # and the short ones, 3.2 us each, as they leave the FIFO


def test_tasks_of_one_engine_stay_in_the_order_of_their_list():
    """A copy that waits, and behind it on the same port one that would overwrite its source: no barrier between them."""
    rig = Rig("npu-37xx")
    first, second, out = rig.alloc(bytes([1] * 4096)), rig.alloc(bytes([2] * 4096)), rig.alloc(4096)
    blob = Blob()
    loaded, late = blob.barrier(), blob.barrier()
    blob.add_dma(first, CMX, 4096, posts=[loaded])
    blob.add_dma(rig.alloc(1 << 18), CMX + 0x10000, 1 << 18, port=1, waits=[loaded], posts=[late])
    blob.add_dma(CMX, out, 4096, waits=[late])
    blob.add_dma(second, CMX, 4096)
    ps(rig.execute(rig.command_buffer([dynamic(blob.place(rig))])))
    assert (rig.memory(out) == 1).all()


def test_a_deadlock_names_barrier_and_task():
    rig = Rig("npu-37xx")
    blob = Blob()
    first, second = blob.barrier(), blob.barrier()
    source = rig.alloc(4096)
    blob.add_dma(source, CMX, 64, waits=[first], posts=[second])
    blob.add_dma(source, CMX + 64, 64, waits=[second], posts=[first], port=1)
    done = rig.execute(rig.command_buffer([dynamic(blob.place(rig))]))
    assert (done.job_status, done.error_detail, done.error_info) == (C.NPU_JOB_DEADLOCK, first, 0)
    ps(rig.execute(rig.command_buffer([dynamic(copies(rig, 4))])))


def test_a_fault_ends_a_dynamic_inference():
    rig = Rig("npu-37xx")
    blob = Blob()
    blob.add_dma(rig.alloc(4096), CMX, 4096)
    blob.add_dma(0x9000_0000, CMX, 4096)
    done = rig.execute(rig.command_buffer([dynamic(blob.place(rig))]))
    assert (done.job_status, done.error_detail, done.error_info) == (C.NPU_JOB_CTX_VIOLATION, 0x9000_0000, 1)


def test_what_is_wrong_with_an_inference_is_refused_the_same_way():
    rig = Rig("npu-37xx")
    done = rig.execute(rig.command_buffer([dynamic(Blob(3).place(rig))]))
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_PARSING_ERR, C.NPU_PARSE_BAD_RESOURCES)
