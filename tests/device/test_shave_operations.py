"""DMA and DPU operations that a SHAVE program starts: values, time, order, refusals."""

import numpy as np
import pytest
from npu_abi import C, dtype, new, pack
from npu_model.shave_isa import ShaveFaultCode, assemble

from tests.device.rig import CMX, SSID, Blob, Rig

COUNT = 1024  # fp32 elements
BYTES = 4 * COUNT
A, B = CMX, CMX + 0x4000


def descriptor(src, dst, nbytes=BYTES, /, **fields):
    one = {"src": src, "dst": dst, "length": nbytes, "num_planes": 1, "src_width": nbytes, "dst_width": nbytes}
    return pack(new("npu_dma_descriptor", **(one | fields)))


def triple(source, destination):
    """Return text that stores 3 * x, for COUNT elements."""
    return f"""
        li r10, 1
        li r11, {COUNT}
        setvl r10, r11
        li r12, {source}
        li r13, {BYTES}
        li r14, 4
        vld.f32 v0, r12, r13, r14, 0
        fli f1, 3.0
        vmul.f32.s v1, v0, f1
        li r12, {destination}
        vst.f32 v1, r12, r13, r14, 0
    """


def li(register, value):
    return f"li r{register}, {value}\n"


def run(rig, text, *, blob=None, **options):
    """Run one program as a job; return its JOB_DONE."""
    blob = blob or Blob()
    code = assemble(text)
    blob.add_shave(blob.add_range(rig.alloc(code), len(code)), **options)
    return rig.execute(rig.inference(blob))


def succeed(rig, text, **options):
    done = run(rig, text, **options)
    assert done.job_status == C.NPU_JOB_SUCCESS, (done.job_status, hex(done.error_detail), hex(done.error_info))
    return done


@pytest.fixture
def values():
    return np.arange(COUNT, dtype=np.float32)


def copy_compute_copy(rig, values, waits=("dmawait -1", "dmawait -1")):
    """Return (text, output va): DDR to CMX, times 3, back to DDR."""
    source, out = rig.alloc(values.tobytes()), rig.alloc(bytes(BYTES))
    load, store = rig.alloc(descriptor(source, A)), rig.alloc(descriptor(B, out))
    text = li(2, load) + li(3, store) + f"dmastart r2, 0, 1\n{waits[0]}\n" + triple(A, B)
    return text + f"dmastart r3, 1, 2\n{waits[1]}\nhalt", out


@pytest.mark.parametrize("profile", ["unit", "npu-37xx", "npu-40xx"])
@pytest.mark.parametrize("waits", [("dmawait -1", "dmawait -1"), ("dmawait 1", "dmawait 2"), ("dmawait 1", "nop")])
def test_a_program_loads_computes_and_stores(profile, waits, values):
    rig = Rig(profile)
    text, out = copy_compute_copy(rig, values, waits)
    succeed(rig, text)
    assert np.array_equal(rig.memory(out)[:BYTES].view(np.float32), 3 * values)


def test_a_program_that_does_not_wait_for_its_operand_computes_poison(values):
    rig = Rig("npu-40xx")
    text, out = copy_compute_copy(rig, values, ("nop", "dmawait -1"))
    succeed(rig, text)
    assert np.isnan(rig.memory(out)[:BYTES].view(np.float32)).all()


def test_a_store_after_the_start_of_a_copy_of_the_same_bytes_is_a_race(values):
    rig = Rig("npu-40xx")
    out = rig.alloc(bytes(BYTES))
    store = rig.alloc(descriptor(A, out))
    succeed(rig, li(2, store) + triple(A, A) + "dmastart r2, 0, 0\n" + triple(A, A) + "halt")
    assert (rig.memory(out)[:BYTES] == 0xFF).all()


@pytest.mark.parametrize("compute", [True, False])
def test_the_latency_is_that_of_the_parts_and_overlaps_when_it_may(compute, values):
    rig = Rig("npu-40xx", compute=compute)
    source = rig.alloc(np.zeros(1 << 16, np.uint8).tobytes())
    load = rig.alloc(descriptor(source, CMX + 0x10000, 1 << 16))
    busy = triple(A, B) + "vexp.f32 v2, v1\n" * 8

    def latency(text):
        done = succeed(rig, li(2, load) + text + "halt")
        return done.end_ps - done.start_ps

    copy = latency("dmastart r2, 0, 0\n")
    compute_only = latency(busy)
    serial = latency("dmastart r2, 0, 0\ndmawait 0\n" + busy)
    overlapped = latency("dmastart r2, 0, 0\n" + busy + "dmawait 0\n")
    idle = latency("")
    assert min(copy, compute_only) - idle > 1_000_000  # both take more than 1 us
    assert abs(serial - (copy + compute_only - idle)) < 20_000  # clock edges and the waits themselves
    assert abs(overlapped - max(copy, compute_only)) < 20_000


def test_timing_without_values_is_the_same(values):
    times = []
    for compute in (True, False):
        rig = Rig("npu-40xx", compute=compute, trace=True)
        text, _ = copy_compute_copy(rig, values)
        done = succeed(rig, text)
        counters = rig.device.counters()
        del counters[C.NPU_PMU_TLB_MISS]  # no data is touched without values
        times.append((done.start_ps, done.end_ps, counters, rig.device.drain_trace()))
    assert times[0] == times[1]


def test_two_ports_work_at_the_same_time(values):
    rig = Rig("unit")
    source = rig.alloc(bytes(8192))
    first, second = rig.alloc(descriptor(source, A)), rig.alloc(descriptor(source + BYTES, B))

    def latency(port):
        text = li(2, first) + li(3, second) + f"dmastart r2, 0, 0\ndmastart r3, {port}, 0\ndmawait 0\nhalt"
        done = succeed(rig, text)
        return done.end_ps - done.start_ps

    assert latency(0) > latency(1)


def dpu_operation(m, k, n, out, **fields):
    """Return invariant and variants: out[m, n] = A[m, k] @ B[n, k].T in fp16, in two halves of its channels."""
    record = {
        "act_addr": A, "wt_addr": B, "out_addr": out, "in_x": m, "in_y": 1, "in_z": k, "out_x": m, "out_y": 1, "out_z": n,
        "act_stride_x": 2 * k, "act_stride_y": 2 * k * m, "out_stride_x": 2 * n, "out_stride_y": 2 * n * m, "groups": 1,
        "op": C.NPU_DPU_MATMUL, "ppe_scale": 1.0, "clamp_low": -np.inf, "clamp_high": np.inf,
        "sched_start_after": C.NPU_BARRIER_NONE, "variant_count": 2,
    } | fields  # fmt: skip
    invariant = np.zeros(1, dtype("npu_dpu_invariant", reserved=True))
    for name, value in record.items():
        invariant[name] = value
    variants = np.zeros(2, dtype("npu_dpu_variant", reserved=True))
    variants["size_x"], variants["size_y"], variants["size_z"] = m, 1, n // 2
    variants["start_z"] = [0, n // 2]
    return invariant.tobytes() + variants.tobytes()


@pytest.mark.parametrize("tile", [0, 1])
def test_a_matmul_that_a_program_starts_gives_the_right_values(tile):
    m, k, n = 16, 32, 32
    rng = np.random.default_rng(2)
    a, b = rng.integers(-4, 5, (m, k)).astype(np.float16), rng.integers(-4, 5, (n, k)).astype(np.float16)
    rig = Rig("npu-40xx")
    out = CMX + 0x8000
    out_va = rig.alloc(bytes(4096))
    operation = rig.alloc(dpu_operation(m, k, n, out, tile=tile))
    addresses = [
        rig.alloc(descriptor(rig.alloc(array.tobytes()), place, array.nbytes)) for array, place in ((a, A), (b, B))
    ]
    store = rig.alloc(descriptor(out, out_va, 2 * m * n))
    text = li(2, addresses[0]) + li(3, addresses[1]) + li(4, operation) + li(5, store)
    text += "dmastart r2, 0, 0\ndmastart r3, 1, 0\ndmawait 0\ndpustart r4, 7\ndpuwait 7\ndmastart r5, 0, 0\nhalt"
    succeed(rig, text, blob=Blob(tiles=2), tile=tile)
    found = rig.memory(out_va)[: 2 * m * n].view(np.float16).reshape(m, n)
    assert np.array_equal(found, (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16))


def test_operations_appear_in_trace_and_counters_with_the_task_of_the_program(values):
    rig = Rig("npu-40xx", trace=True)
    text, _ = copy_compute_copy(rig, values)
    before = rig.device.counters()
    rig.device.drain_trace()
    succeed(rig, text, task_id=77)
    after = rig.device.counters()
    moved = [after[i] - before[i] for i in (C.NPU_PMU_DMA_DDR_READ, C.NPU_PMU_DMA_DDR_WRITE, C.NPU_PMU_TASKS)]
    assert moved == [BYTES, BYTES, 3]
    assert after[C.NPU_PMU_SRAM_READ] - before[C.NPU_PMU_SRAM_READ] == BYTES
    trace = np.frombuffer(rig.device.drain_trace(), dtype("npu_trace_record"))
    starts = trace[trace["kind"] == C.NPU_TRACE_START]
    assert [(int(r["engine"]), int(r["unit"]), int(r["task_id"])) for r in starts] == [
        (C.NPU_ENGINE_SHAVE, 0, 77),
        (C.NPU_ENGINE_DMA, 0, 77),
        (C.NPU_ENGINE_DMA, 1, 77),
    ]
    ends = trace[trace["kind"] == C.NPU_TRACE_END]
    assert ends["engine"].tolist() == [C.NPU_ENGINE_DMA, C.NPU_ENGINE_DMA, C.NPU_ENGINE_SHAVE]


def test_an_operation_is_not_stuck_behind_a_task_that_waits_for_its_program(values):
    rig = Rig("npu-40xx")
    text, out = copy_compute_copy(rig, values)
    text = text.replace("r3, 1, 2", "r3, 0, 2")
    blob = Blob()
    done, second = blob.barrier(), rig.alloc(bytes(BYTES))
    blob.add_dma(B, second, BYTES, waits=[done], port=0)
    succeed(rig, text, blob=blob, posts=[done])
    for place in (out, second):
        assert np.array_equal(rig.memory(place)[:BYTES].view(np.float32), 3 * values)


def test_an_operation_takes_its_turn_with_the_tasks_of_its_engine(values):
    rig = Rig("npu-40xx")
    text, out = copy_compute_copy(rig, values)
    blob = Blob()
    big = rig.alloc(bytes(1 << 18))
    for _ in range(6):
        blob.add_dma(big, CMX + 0x40000, 1 << 18, port=0)
        blob.add_dma(big, CMX + 0x80000, 1 << 18, port=1)
    succeed(rig, text, blob=blob)
    assert np.array_equal(rig.memory(out)[:BYTES].view(np.float32), 3 * values)


def fault(done):
    assert done.job_status == C.NPU_JOB_SHAVE_FAULT, (done.job_status, hex(done.error_detail))
    return ShaveFaultCode(done.error_detail >> 32).name, done.error_detail & 0xFFFFFFFF


@pytest.mark.parametrize(
    "fields",
    [
        {"length": 0},
        {"num_planes": 0},
        {"src_width": 3},
        {"dst_width": 0},
        {"cfg": 6},
        {"reserved": [1] + [0] * 6},
        {"dst": CMX + 0x1FFFF0},
        {"dst": CMX + 0x200000},
        {"src": 1 << 48},
        {"dst_width": BYTES // 4, "dst_stride": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("compute", [True, False])
def test_a_bad_dma_descriptor_is_a_fault_by_name(fields, compute):
    rig = Rig("unit", compute=compute)
    source = rig.alloc(bytes(BYTES))
    bad = rig.alloc(descriptor(source, A, **fields))
    assert fault(run(rig, li(2, bad) + "nop\ndmastart r2, 0, 0\ndmawait 0\nhalt")) == ("BAD_DESCRIPTOR", 32)
    succeed(rig, "halt")


@pytest.mark.parametrize(
    "fields",
    [
        {"barriers_wait_mask": 1},
        {"barriers_post_mask": 1},
        {"sched_start_after": 0},
        {"variant_first": 1},
        {"variant_count": 0},
        {"variant_count": 1 << 20},
        {"tile": 1},
        {"op": 99},
        {"flags": 2},
        {"mpe_grid": 3},
        {"out_z": 16},
        {"act_addr": 0x1000},
        {"out_addr": CMX + 0x200000},
        {"act_dtype": C.NPU_DT_I64},
        {"out_stride_x": 2},
        {"reserved0": 1},
    ],
    ids=str,
)
def test_a_bad_dpu_operation_is_a_fault_by_name(fields):
    rig = Rig("unit")
    bad = rig.alloc(dpu_operation(16, 32, 32, CMX + 0x8000, **fields))
    assert fault(run(rig, li(2, bad) + "dpustart r2, 0\ndpuwait 0\nhalt")) == ("BAD_DESCRIPTOR", 16)
    succeed(rig, "halt")


@pytest.mark.parametrize("port", [-1, 2])
def test_a_port_that_does_not_exist_is_a_fault_by_name(port):
    assert fault(run(Rig("unit"), f"dmastart r1, {port}, 0\nhalt")) == ("BAD_PORT", 0)


def test_a_descriptor_that_is_not_mapped_is_a_violation():
    done = run(Rig("unit"), li(2, 0x7000_0000) + "dmastart r2, 0, 0\nhalt")
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_CTX_VIOLATION, 0x7000_0000)


def test_an_operand_that_is_not_mapped_is_a_violation_of_the_program_s_task():
    rig = Rig("unit")
    bad = rig.alloc(descriptor(0x7000_0000, A))
    done = run(rig, li(2, bad) + "dmastart r2, 0, 0\ndmawait 0\nhalt")
    assert (done.job_status, done.error_detail, done.error_info) == (C.NPU_JOB_CTX_VIOLATION, 0x7000_0000, 5 << 32)
    succeed(rig, "halt")


def test_without_values_a_descriptor_in_cmx_is_unsupported_by_name():
    rig = Rig("unit", compute=False)
    assert fault(run(rig, li(2, A) + "dmastart r2, 0, 0\nhalt")) == ("NEEDS_VALUES", 16)


def test_a_descriptor_that_the_program_wrote_is_seen(values):
    rig = Rig("unit")
    source, out = rig.alloc(values.tobytes()), rig.alloc(bytes(BYTES))
    template = rig.alloc(descriptor(0, 0))
    text = li(2, template) + li(3, source) + li(4, out) + "st.i64 r3, r2, 0\nst.i64 r4, r2, 8\ndmastart r2, 0, 0\nhalt"
    succeed(rig, text)
    assert np.array_equal(rig.memory(out)[:BYTES].view(np.float32), values)


def test_starting_operations_for_ever_ends_at_the_watchdog(values):
    rig = Rig("unit")
    load = rig.alloc(descriptor(rig.alloc(values.tobytes()), A, 64))
    assert fault(run(rig, li(2, load) + "top:\ndmastart r2, 0, 0\njmp top"))[0] == "WATCHDOG"
    succeed(rig, "halt")


def test_the_watchdog_counts_what_operations_move(monkeypatch):
    monkeypatch.setattr("npu_model.shave_machine.MAX_WORK", 1 << 18)
    rig = Rig("npu-40xx")
    source = rig.alloc(bytes(1 << 18))
    big, small = rig.alloc(descriptor(source, A, 1 << 18)), rig.alloc(descriptor(source, A, 1 << 17))
    succeed(rig, li(2, small) + "dmastart r2, 0, 0\nhalt")
    assert fault(run(rig, li(2, big) + "dmastart r2, 0, 0\nhalt")) == ("WATCHDOG", 16)


def test_every_timing_gives_the_same_values(values):
    for seed in range(8):
        rig = Rig("npu-40xx")
        rig.device.set_schedule(C.NPU_SCHEDULE_SEED, seed)
        text, out = copy_compute_copy(rig, values)
        succeed(rig, text)
        assert np.array_equal(rig.memory(out)[:BYTES].view(np.float32), 3 * values)


def test_a_reset_while_a_program_waits_leaves_a_device_that_works(values):
    rig = Rig("npu-40xx")
    text, out = copy_compute_copy(rig, values)
    blob = Blob()
    code = assemble(text)
    blob.add_shave(blob.add_range(rig.alloc(code), len(code)))
    rig.enqueue(rig.inference(blob))
    engine = rig.device.shaves[0][0]
    while engine.task is None or not engine.task.waiting:
        rig.device.run_until(rig.device.next_event_ps())
    rig.bus.write32(C.NPU_REG_IP_RESET, 1)
    assert rig.device.next_event_ps() is None and engine.task is None
    assert (SSID, out) in rig.places


@pytest.mark.parametrize("compute", [True, False])
def test_flipped_bits_of_descriptors_never_crash_or_hang(compute):
    rng = np.random.default_rng(3)
    rig = Rig("unit", compute=compute)
    source = rig.alloc(bytes(BYTES))
    places = [rig.alloc(descriptor(source, A)), rig.alloc(dpu_operation(16, 32, 32, CMX + 0x8000))]
    code = assemble(li(2, places[0]) + li(3, places[1]) + "dmastart r2, 0, 0\ndmawait 0\ndpustart r3, 0\nhalt")
    blob = Blob()
    blob.add_shave(blob.add_range(rig.alloc(code), len(code)))
    job = rig.inference(blob)
    seen = set()
    for turn in range(120):
        place, size = places[turn % 2], (80, 384)[turn % 2]
        memory = rig.memory(place)
        before = memory[:size].copy()
        for _ in range(int(rng.integers(1, 3))):
            memory[int(rng.integers(size))] ^= 1 << int(rng.integers(8))
        seen.add(rig.execute(job).job_status)
        memory[:size] = before
        while rig.bus.read32(C.NPU_REG_MMU_EVT_COUNT):
            rig.bus.write32(C.NPU_REG_MMU_EVT_POP, 1)
    assert C.NPU_JOB_SHAVE_FAULT in seen
    assert seen <= {C.NPU_JOB_SUCCESS, C.NPU_JOB_SHAVE_FAULT, C.NPU_JOB_CTX_VIOLATION}
    assert rig.execute(job).job_status == C.NPU_JOB_SUCCESS
