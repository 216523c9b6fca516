"""Counters of engines are sums of the trace's intervals, cycle by cycle: random task lists, with turns, preemption, aborts and resets."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_abi import C, dtype, enum, new, pack
from npu_device import Device
from npu_model import cycles as cost
from npu_model.shave_isa import assemble

from tests.device.rig import CMX, JOBQ, SSID, Blob, Rig
from tests.firmware.launches import DOORBELL, Program, busy, queues

DMA, DPU, SHAVE = C.NPU_ENGINE_DMA, C.NPU_ENGINE_DPU, C.NPU_ENGINE_SHAVE
NAMES = {DMA: "DMA", DPU: "DPU", SHAVE: "SHAVE"}
IN_DDR = 0x8000  # in the id of a task: its transfers have a side in DDR
OPERATION_BYTES = 4096
MACS = 32**3
COUNTERS = [kind for kind in enum("npu_pmu") if kind != C.NPU_PMU_COUNT]
VISIBLE_PS = 10**6


def programs(rig):
    """Return (text address, bytes) of a program that computes while it copies from DDR, then waits for the copy."""
    source = rig.alloc(bytes(OPERATION_BYTES))
    fields = dict.fromkeys(("length", "src_width", "dst_width"), OPERATION_BYTES)
    copy = rig.alloc(pack(new("npu_dma_descriptor", src=source, dst=CMX + 0x20000, num_planes=1, **fields)))
    code = assemble(f"li r2, {copy}\ndmastart r2, 1, 0\n" + busy(9) + "dmawait 0\nhalt")
    return rig.alloc(code), len(code)


def random_job(rig, program, seed, tiles=1, tasks=12, kinds=("copy", "copy", "copy", "matmul", "program")):
    """Return (command buffer, cycles of the transfers by task id) of an inference: copies, matmuls and programs with random barriers."""
    choose = random.Random(seed)
    blob = Blob(tiles)
    memory = rig.alloc(1 << 18)
    text = blob.add_range(*program)
    producers = []
    for number in range(tasks):
        waits = [b for b in choose.sample(producers, min(len(producers), 2)) if choose.random() < 0.6]
        for barrier in waits:
            blob.barriers[barrier]["consumer_count"] += 1
        posts = [blob.barrier(consumers=0)]
        producers += posts
        kind, tile = choose.choice(kinds), choose.randrange(tiles)
        at = CMX + tile * C.NPU_CMX_TILE_STRIDE
        if kind == "copy":
            inside = choose.random() < 0.3
            size = choose.choice((64, 4096, 100_000, 200_000))
            source = CMX if inside else memory
            task_id = number | (0 if inside else IN_DDR)
            blob.add_dma(source, at + 0x40000, size, waits, posts, port=choose.randrange(2), task_id=task_id)
        elif kind == "matmul":
            blob.add_matmul(at, at + 4096, at + 8192, 32, 32, 32, waits, posts, tile=tile, task_id=number)
        else:
            blob.add_shave(
                text, shave=choose.randrange(2), waits=waits, posts=posts, tile=tile, task_id=number | IN_DDR
            )
    for barrier in blob.barriers:  # every barrier needs a consumer
        barrier["consumer_count"] = barrier["consumer_count"] or 1
    unread = [b for b in producers if not any(b in waited for waited in _waited(blob))]
    at = CMX + 0x10000
    for number, barrier in enumerate(unread):
        blob.add_dma(at, at + 0x2000, 64, [barrier], port=number % 2, task_id=tasks + number)
    return rig.inference(blob), {
        int(task): int(cycles)
        for array in blob.records()[:2]
        for task, cycles in zip(array["task_id"], cost.dma_cycles(rig.device.profile, array), strict=True)
    }


def _waited(blob):
    rows = [*blob.dma[0], *blob.dma[1], *blob.invariants, *blob.invocations]
    return [{b for b in range(64) if row["barriers_wait_mask"] >> b & 1} for row in rows]


class Seen:
    """What a trace says of the engines: intervals of tasks and waits in cycles, and the sums that were traced."""

    def __init__(self, trace):
        self.tasks = []  # (engine, job, task id, start, end, busy cycles)
        self.waits = []  # (engine, job, start, end)
        self.sums = Counter()  # (kind, engine)
        started = {}
        columns = ("kind", "engine", "unit", "task_id", "job_id", "cycle", "value")
        for kind, engine, unit, task, job, cycle, value in zip(*(trace[c].tolist() for c in columns), strict=True):
            key = engine, unit, task, job
            if kind == C.NPU_TRACE_START:
                started[key] = cycle
            elif kind in (C.NPU_TRACE_END, C.NPU_TRACE_CANCEL):
                self.tasks.append((engine, job, task, started.pop(key, cycle), cycle, value))
            elif kind == C.NPU_TRACE_BARRIER_WAIT:
                self.waits.append((engine, job, cycle - value, cycle))
            self.sums[kind, engine] += value
        assert not started

    def pending(self, engine):
        """Return the cycles of tasks, and those of waits, of an engine kind in which a transfer of the job with DDR was in progress."""
        found = [0, 0]
        tasks = [(job, start, end) for e, job, _, start, end, _ in self.tasks if e == engine]
        waits = [(job, start, end) for e, job, start, end in self.waits if e == engine]
        for index, intervals in enumerate((tasks, waits)):
            for job, start, end in intervals:
                requests = sorted(
                    (s, t) for e, j, task, s, t, _ in self.tasks if e == DMA and j == job and task & IN_DDR
                )
                for first, last in requests:
                    first = max(first, start)
                    last = min(last, end)
                    if last > first:
                        found[index] += last - first
                        start = last
        return found


def check_sums(rig, before):
    """Compare the counters since `before` with the sums of the trace; return both."""
    after = rig.device.counters()
    counted = {kind.name.removeprefix("NPU_PMU_"): after[kind] - before[kind] for kind in COUNTERS}
    seen = Seen(np.frombuffer(rig.device.drain_trace(), dtype("npu_trace_record")))
    for engine, name in NAMES.items():
        assert counted[f"{name}_BUSY"] == sum(task[5] for task in seen.tasks if task[0] == engine)
        assert counted[f"{name}_MEM_PENDING"] == seen.sums[C.NPU_TRACE_MEM_PENDING, engine]
        assert counted[f"{name}_MEM_STALL"] == seen.sums[C.NPU_TRACE_MEM_STALL, engine]
        assert counted[f"{name}_MEM_STALL"] <= counted[f"{name}_MEM_PENDING"]
    assert counted["BARRIER_WAIT"] == sum(end - start for _, _, start, end in seen.waits)
    assert counted["CODE_LOAD_CYCLES"] == seen.sums[C.NPU_TRACE_CODE_LOADED, SHAVE]
    assert counted["DPU_MAC_SLOTS"] == counted["DPU_BUSY"] * rig.device.profile.dpu.macs_per_cycle["f16"]
    return counted, seen


def check(rig, before, own=None):
    """Compare the counters since `before` with the sums of the trace, and those of memory with its intervals too.

    `own`: cycles of DMA transfers by task id, of one job without programs.
    """
    counted, seen = check_sums(rig, before)
    assert counted["DMA_MEM_PENDING"] == sum(t[5] for t in seen.tasks if t[0] == DMA and t[2] & IN_DDR)
    during, waiting = seen.pending(DPU)
    assert (counted["DPU_MEM_PENDING"], counted["DPU_MEM_STALL"]) == (during + waiting, waiting)
    during, waiting = seen.pending(SHAVE)
    assert counted["SHAVE_MEM_PENDING"] == during + waiting + counted["CODE_LOAD_CYCLES"]
    assert counted["SHAVE_MEM_STALL"] >= waiting + counted["CODE_LOAD_CYCLES"]
    if own is not None:
        engine_hz, dma_hz = rig.device.profile.dpu.clock_hz, rig.device.profile.dma.clock_hz
        transfers = [t for t in seen.tasks if t[0] == DMA and t[2] & IN_DDR]
        assert counted["DMA_MEM_STALL"] == sum(max(t[5] - own[t[2]] * engine_hz // dma_hz, 0) for t in transfers)
    return counted, seen


def rig_of(seed=None, profile="npu-37xx", compute=False, fidelity="fast"):
    rig = Rig(profile, trace=True, compute=compute, fidelity=fidelity)
    if seed is not None:
        rig.device.set_schedule(C.NPU_SCHEDULE_SEED, seed)
    program = programs(rig)
    rig.device.drain_trace()
    return rig, program


@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), profile=st.sampled_from(["npu-37xx", "npu-40xx"]), whole=st.booleans())
def test_one_job(seed, profile, whole):
    rig, program = rig_of(profile=profile)
    buffer, own = random_job(rig, program, seed, kinds=("copy", "matmul", "program") if whole else ("copy", "matmul"))
    before = rig.device.counters()
    assert rig.execute(buffer).job_status == C.NPU_JOB_SUCCESS
    counted, seen = check(rig, before, None if whole else own)
    for engine, _, _, start, end, cycles in seen.tasks:
        assert cycles == end - start, engine  # nobody else wanted the ports
    assert counted["TASKS"] == len(seen.tasks)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_one_job_with_network_and_ddr_cycle_by_cycle(seed):
    rig, program = rig_of(fidelity="full")
    buffer, own = random_job(rig, program, seed, kinds=("copy", "matmul"))
    before = rig.device.counters()
    assert rig.execute(buffer).job_status == C.NPU_JOB_SUCCESS
    check(rig, before, own)


@pytest.mark.parametrize("fidelity", ["fast", "full"])
@pytest.mark.parametrize("after_us", [8, 12, 16, 20])
def test_jobs_that_are_aborted_between_their_turns_leave_nothing_behind(fidelity, after_us):
    rig, _ = rig_of(fidelity=fidelity)
    before = rig.device.counters()
    for number, (va, doorbell) in enumerate(queues(rig, 2)):
        blob = Blob()
        blob.add_dma(rig.alloc(1 << 20), CMX, 1 << 20, task_id=number | IN_DDR)
        rig.enqueue(rig.inference(blob), jobq=va, doorbell=doorbell)
    rig.device.run_until(rig.device.now_ps + after_us * VISIBLE_PS)
    rig.abort()
    check_sums(rig, before)
    assert rig.device.next_event_ps() is None
    assert rig.device.idle


@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), stretch=st.sampled_from([None, 1, 2]))
def test_jobs_that_take_turns_on_the_ports(seed, stretch):
    rig, program = rig_of(stretch)
    places = queues(rig, 2)
    before = rig.device.counters()
    rig.device.drain_trace()
    for number, (va, doorbell) in enumerate(places):
        rig.enqueue(random_job(rig, program, seed + number)[0], jobq=va, doorbell=doorbell, ring=False)
    for _, doorbell in places:
        rig.bus.write32(DOORBELL + C.NPU_DOORBELL_STRIDE * doorbell, 1)
    rig.run()
    assert [done.job_status for done in rig.done()] == [C.NPU_JOB_SUCCESS] * 2
    check(rig, before)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), after_ps=st.integers(0, 40 * VISIBLE_PS))
def test_a_job_that_is_preempted(seed, after_ps):
    rig, program = rig_of()
    for number, band in enumerate((1, 3)):
        va = JOBQ + 0x10000 + 0x2000 * number
        rig.alloc(bytes(4096), 0, va)
        assert rig.register_db(2 + number, va, SSID, band).result == C.NPU_JSM_OK
    low, high = random_job(rig, program, seed, tiles=2)[0], random_job(rig, program, seed + 1, tiles=2)[0]
    size = C.NPU_PREEMPT_STATE_BYTES + 2 * rig.device.profile.cmx.workspace_bytes
    before = rig.device.counters()
    rig.device.drain_trace()
    rig.enqueue(low, JOBQ + 0x10000, doorbell=2, preempt=(rig.alloc(size), size))
    rig.device.run_until(rig.device.now_ps + after_ps)
    rig.enqueue(high, JOBQ + 0x12000, doorbell=3)
    rig.run()
    assert [done.job_status for done in rig.done()] == [C.NPU_JOB_SUCCESS] * 2
    check_sums(rig, before)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), after_ps=st.integers(0, 60 * VISIBLE_PS))
def test_a_job_that_is_aborted_and_counters_that_never_go_back(seed, after_ps):
    rig, program = rig_of()
    before = rig.device.counters()
    rig.enqueue(random_job(rig, program, seed)[0])
    start, last = rig.device.now_ps, before
    for step in range(1, 9):
        rig.device.run_until(start + after_ps * step // 8)
        now = rig.device.counters()
        assert all(new >= old for new, old in zip(now, last, strict=True))
        last = now
    rig.abort()
    assert all(new >= old for new, old in zip(rig.device.counters(), last, strict=True))
    check(rig, before)
    before = rig.device.counters()
    assert rig.execute(random_job(rig, program, seed)[0]).job_status == C.NPU_JOB_SUCCESS
    check(rig, before)


def test_a_job_that_faults_while_others_of_its_tasks_run_and_wait():
    rig, _ = rig_of()
    before = rig.device.counters()
    memory, size = rig.alloc(1 << 20), 1 << 19
    blob = Blob()
    barrier = blob.barrier()
    blob.add_dma(memory, CMX, size, port=1, task_id=1)
    blob.add_matmul(CMX, CMX + 4096, CMX + 8192, 32, 32, 32, [barrier], task_id=2)
    blob.add_dma(memory, CMX + size, 4096, task_id=3)
    blob.add_dma(CMX, 0x7000_0000, 4096, posts=[barrier], task_id=4)
    assert rig.execute(rig.inference(blob)).job_status == C.NPU_JOB_CTX_VIOLATION
    counted, seen = check_sums(rig, before)
    assert {task[2] for task in seen.tasks} == {1, 3, 4}
    assert len(seen.waits) == 1
    assert counted["TASKS"] == 1


@pytest.mark.parametrize("after_us", [1, 3, 8, 20])
def test_after_a_reset_counters_and_trace_begin_anew(after_us):
    rig, program = rig_of()
    rig.enqueue(random_job(rig, program, 5)[0])
    rig.device.run_until(rig.device.now_ps + after_us * VISIBLE_PS)
    rig.bus.write32(C.NPU_REG_IP_RESET, 1)
    assert rig.device.counters() == [0] * C.NPU_PMU_COUNT
    rig.device.drain_trace()
    rig.messages.clear()
    rig = Rig("npu-37xx", trace=True, compute=False)
    before = rig.device.counters()
    rig.device.drain_trace()
    assert rig.execute(random_job(rig, programs(rig), 5)[0]).job_status == C.NPU_JOB_SUCCESS
    check(rig, before)


def test_a_kernel_counts_the_fill_of_its_instruction_cache_as_a_stall():
    rig, _ = rig_of()
    before = rig.device.counters()
    Program(rig, busy(10) + "halt").launch(4)
    counted, _ = check(rig, before)
    assert counted["SHAVE_MEM_STALL"] == counted["SHAVE_MEM_PENDING"] == counted["CODE_LOAD_CYCLES"] > 0


def test_mac_util_is_one_when_the_array_is_full_on_a_device_without_overheads():
    rig, _ = rig_of(profile="unit")
    blob = Blob()
    blob.add_matmul(CMX, CMX + 4096, CMX + 8192, 32, 32, 32)
    before = rig.device.counters()
    assert rig.execute(rig.inference(blob)).job_status == C.NPU_JOB_SUCCESS
    counted, _ = check(rig, before)
    assert counted["DPU_MACS"] == counted["DPU_MAC_SLOTS"] == MACS


def test_a_transfer_stalls_for_its_latency_and_for_its_neighbour():
    rig, _ = rig_of()
    size, (profile, latency_ps) = 1 << 16, (rig.device.profile, 956_000)

    def stall(ports):
        memory = rig.alloc(size)
        blob = Blob()
        for port in range(ports):
            blob.add_dma(memory, CMX + port * size, size, port=port, task_id=IN_DDR | port)
        before = rig.device.counters()
        assert rig.execute(rig.inference(blob)).job_status == C.NPU_JOB_SUCCESS
        return check(rig, before)[0]["DMA_MEM_STALL"] / ports

    ports_ps = size * 10**12 // (profile.dma.bytes_per_cycle * profile.dma.clock_hz)
    ddr_ps = size * 10**12 // profile.ddr.bytes_per_second
    cycle_ps = 10**12 / profile.dpu.clock_hz
    assert abs(stall(1) * cycle_ps - (latency_ps + ddr_ps - ports_ps)) < 20_000
    assert stall(2) * cycle_ps > latency_ps + 1.8 * ddr_ps - ports_ps


@settings(max_examples=6, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), profile=st.sampled_from(["npu-37xx", "npu-40xx"]))
def test_energy_is_the_sum_of_operations_bytes_and_time(seed, profile):
    rig, program = rig_of(profile=profile)
    energy = rig.device.profile.energy
    buffer, _ = random_job(rig, program, seed)
    before, start_ps = rig.device.counters(), rig.device.now_ps
    rig.execute(buffer)
    counted, seen = check(rig, before)
    matmuls = sum(task[0] == DPU for task in seen.tasks)
    cmx = sum(counted[name] for name in ("DMA_CMX_READ", "DMA_CMX_WRITE", "SRAM_READ", "SRAM_WRITE"))
    asked = ("DMA_DDR_READ", "DMA_DDR_WRITE", "SHAVE_DDR_READ", "SHAVE_DDR_WRITE", "CODE_LOAD")
    assert counted["DDR_MOVED"] >= sum(counted[name] for name in asked)
    expected = {
        "DPU": matmuls * MACS * energy.mac_fj["f16"],
        "SHAVE": counted["SHAVE_LANE_OPS"] * energy.lane_fj,
        "CMX": cmx * energy.cmx_byte_fj,
        "NOC": counted["DDR_MOVED"] * energy.noc_byte_fj,
        "DDR": counted["DDR_MOVED"] * energy.ddr_byte_fj,
        "STATIC": energy.static_mw * (rig.device.now_ps - start_ps),
    }
    assert {name: counted[f"ENERGY_{name}"] for name in expected} == expected


@settings(max_examples=20)
@given(
    profile=st.sampled_from(["npu-37xx", "npu-40xx", "npu-37xx+edge-soc"]),
    copies=st.lists(
        st.tuples(
            st.integers(0, 200),
            st.integers(1, 60),
            st.sampled_from([1, 7, 32, 100, 600]),
            st.integers(0, 700),
            st.booleans(),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_bytes_moved_are_the_whole_accesses_that_memory_moves(profile, copies):
    """(offset, rows, bytes of a row, gap between rows, to memory)."""
    moved = []
    for fidelity in ("fast", "full"):
        rig, _ = rig_of(profile=profile, fidelity=fidelity)
        blob, memory = Blob(), rig.alloc(1 << 17)
        for number, (offset, rows, width, gap, write) in enumerate(copies):
            inside, outside = {"width": rows * width}, {"width": width, "stride": width + gap}
            ends = (inside, outside) if write else (outside, inside)
            fields = {
                f"{name}_{key}": value
                for name, end in zip(("src", "dst"), ends, strict=True)
                for key, value in end.items()
            }
            at = (CMX, memory + offset) if write else (memory + offset, CMX)
            blob.add_dma(*at, rows * width, port=number % 2, task_id=number | IN_DDR, **fields)
        buffer = rig.inference(blob)
        before = rig.device.counters()
        assert rig.execute(buffer).job_status == C.NPU_JOB_SUCCESS
        rig.device.run_until(rig.device.now_ps + 10**8)
        counted, _ = check_sums(rig, before)
        moved.append(counted["DDR_MOVED"])
        assert counted["DDR_MOVED"] % rig.device.profile.memory_system.dram.access_bytes == 0
        if fidelity == "full":
            memory = rig.device.fabric.memory
            assert counted["DDR_MOVED"] == memory.counters.clients[memory.system.client("npu_dma")].bytes_moved
    assert moved[0] == moved[1]


@pytest.mark.parametrize("stride", [64, 16, 1024])
def test_a_gather_of_rows_moves_an_access_for_each(stride):
    """Rows of 16 bytes; without values it is not known which of them share one."""
    rig, _ = rig_of(profile="npu-37xx+edge-soc", compute=True)
    size = rig.device.profile.memory_system.dram.access_bytes
    before = rig.device.counters()
    Program(rig, GATHER.format(table=rig.alloc(bytes(1 << 16)), stride=stride, column=4)).launch()
    counted, _ = check(rig, before)
    assert counted["CODE_LOAD"] % size == 0
    assert counted["DDR_MOVED"] == counted["CODE_LOAD"] + 2 * 8 * size


def test_lane_operations_and_bytes_outside_of_cmx():
    rig, _ = rig_of(profile="npu-37xx", compute=True)
    memory = rig.alloc(bytes(4096))
    text = f"""
        li r10, 1
        li r11, 100
        setvl r10, r11
        li r12, {memory}
        li r13, 400
        li r14, 4
        vld.f32 v0, r12, r13, r14, 0
        vadd.f32 v1, v0, v0
        vexp.f32 v2, v1
        li r12, {CMX}
        vst.f32 v2, r12, r13, r14, 0
        halt
    """
    before = rig.device.counters()
    Program(rig, text).launch()
    counted, _ = check(rig, before)
    assert counted["SHAVE_LANE_OPS"] == 100 + 100 * rig.device.profile.shave.special_cycles["f32"]
    assert (counted["SHAVE_DDR_READ"], counted["SHAVE_DDR_WRITE"]) == (400, 0)
    assert (counted["SRAM_READ"], counted["SRAM_WRITE"]) == (0, 400)


GATHER = """
    li r10, 8
    li r11, 1
    setvl r10, r11
    viota.i32 v1
    vadd.i32 v1, v1, v1
    li r11, 4
    setvl r10, r11
    li r12, {table}
    li r13, 64
    li r14, {stride}
    li r15, {column}
    vgather.f32 v2, v1, r12, r13, r14, r15
    vscatter.f32 v2, v1, r12, r13, r14, r15
    halt
"""


@pytest.mark.parametrize(("stride", "column"), [(64, 4), (16, 4), (1024, 256), (4, 4)])
def test_gather_and_scatter_count_what_they_take_of_a_table(stride, column):
    rig, _ = rig_of(profile="npu-37xx", compute=True)
    counted = []
    for table in (rig.alloc(bytes(1 << 17)), CMX):
        before = rig.device.counters()
        Program(rig, GATHER.format(table=table, stride=stride, column=column)).launch()
        counted.append(check(rig, before)[0])
    ddr, cmx = counted
    assert (ddr["SHAVE_DDR_READ"], ddr["SHAVE_DDR_WRITE"]) == (8 * 16, 8 * 16)
    assert (cmx["SRAM_READ"], cmx["SRAM_WRITE"]) == (8 * 16, 8 * 16)
    assert cmx["SHAVE_DDR_READ"] == cmx["SHAVE_DDR_WRITE"] == ddr["SRAM_READ"] == ddr["SRAM_WRITE"] == 0


def test_what_a_program_reads_again_is_read_again():
    rig, _ = rig_of(profile="npu-37xx")
    text = f"""
        li r10, 100
        setvl r10, r10
        li r12, {CMX}
        li r13, 400
        li r14, 4
        li r20, 0
        li r21, 5
    again:
        vld.f32 v0, r12, r13, r14, 0
        addi r20, r20, 1
        blt r20, r21, again
        halt
    """
    before = rig.device.counters()
    Program(rig, text).launch()
    assert check(rig, before)[0]["SRAM_READ"] == 5 * 40_000


def test_every_counter_is_in_its_registers():
    rig, program = rig_of()
    rig.execute(random_job(rig, program, 3)[0])
    read, base = rig.bus.read32, C.NPU_REG_PMU_COUNTER_BASE
    rig.bus.write32(C.NPU_REG_PMU_CTRL, C.NPU_PMU_CTRL_EN | C.NPU_PMU_CTRL_FREEZE)
    found = [read(base + 8 * index) | read(base + 8 * index + 4) << 32 for index in range(C.NPU_PMU_COUNT)]
    assert found == rig.device.counters()


def test_an_idle_device_uses_its_idle_power():
    device = Device("npu-37xx")
    before = device.counters()
    device.run_until(device.now_ps + 10**9)
    spent = [b - a for a, b in zip(before, device.counters(), strict=True)]
    assert spent[C.NPU_PMU_ENERGY_STATIC] == device.profile.energy.static_mw * 10**9
    assert sum(spent) == spent[C.NPU_PMU_ENERGY_STATIC] + spent[C.NPU_PMU_CYCLES]
