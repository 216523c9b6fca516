"""With and without values: the same descriptors are refused, the same addresses fault, the same pages are walked."""

import numpy as np
import pytest
from npu_abi import C
from npu_device.dpu import plan_dpu
from npu_firmware import task_check
from npu_model.shave_isa import assemble

from tests.device.rig import CMX, SSID, Blob, Rig

HOLE = 0x1_2345_6000


def outcome(rig, blob):
    """Run a blob; return what the firmware and the MMU say of it."""
    done = rig.execute(rig.inference(blob))
    events = []
    while rig.bus.read32(C.NPU_REG_MMU_EVT_COUNT):
        names = ("CODE", "SSID", "ADDR_LO", "ADDR_HI", "INFO")
        events.append([rig.bus.read32(getattr(C, f"NPU_REG_MMU_EVT_{name}")) for name in names])
        rig.bus.write32(C.NPU_REG_MMU_EVT_POP, 1)
    return (done.job_status, done.error_detail, done.error_info, done.end_ps - done.start_ps), events


def on_both(make):
    """Return the outcome of `make(rig)` with values, and check that it is the one without."""
    found = []
    for compute in (True, False):
        rig = Rig("npu-37xx", compute=compute)
        found.append((*outcome(rig, make(rig)), rig.device.counters()[C.NPU_PMU_TLB_MISS]))
    assert found[0] == found[1]
    return found[0]


def test_a_copy_from_unmapped_memory_is_a_context_violation():
    def make(rig):
        blob = Blob()
        blob.add_dma(HOLE, CMX, 64)
        return blob

    job, events, _ = on_both(make)
    assert job[:3] == (C.NPU_JOB_CTX_VIOLATION, HOLE, 0)
    assert events == [[C.NPU_MMU_EVT_TRANSLATION, SSID, HOLE & 0xFFFFFFFF, 1, C.NPU_ENGINE_DMA << 8]]


def test_a_copy_to_read_only_memory_is_a_context_violation():
    def make(rig):
        blob = Blob()
        blob.add_dma(CMX, rig.alloc(4096, flags=C.NPU_PTE_RO), 64)
        return blob

    job, events, _ = on_both(make)
    assert job[0] == C.NPU_JOB_CTX_VIOLATION
    assert events[0][0] == C.NPU_MMU_EVT_PERMISSION


def test_a_copy_that_runs_out_of_its_mapping_names_the_first_address_behind_it():
    def make(rig):
        blob = Blob()
        blob.add_dma(rig.alloc(8192), CMX, 64, src_stride=4096, src_width=16)
        return blob

    job, _, _ = on_both(make)
    assert job[0] == C.NPU_JOB_CTX_VIOLATION
    assert job[1] % 4096 == 0


@pytest.mark.parametrize("access", ["vld.f32 v0, r1, r6, r5, 0", "vst.i32 v0, r1, r6, r5, 0", "ld.i32 r7, r1, 0"])
def test_a_program_that_leaves_its_memory_is_a_context_violation(access):
    text = assemble(f"li r2, 4\nsetvl r2, r2\nviota.i32 v0\nli r5, 4\nli r6, 16\n{access}\nhalt\n")

    def make(rig):
        blob = Blob()
        blob.add_shave(blob.add_range(rig.alloc(text), len(text)), args_va=0x9123_4000)
        return blob

    job, events, _ = on_both(make)
    assert job[:2] == (C.NPU_JOB_CTX_VIOLATION, 0x9123_4000)
    assert events[0][4] >> 8 == C.NPU_ENGINE_SHAVE


def test_the_same_pages_are_walked():
    def make(rig):
        blob = Blob()
        pages = [rig.alloc(4096) for _ in range(8)]
        for page in pages:
            blob.add_dma(page, CMX, 4096)
            blob.add_dma(CMX, page, 64, src_stride=128, src_width=32, port=1)
        return blob

    job, events, misses = on_both(make)
    assert (job[0], events) == (C.NPU_JOB_SUCCESS, [])
    assert misses >= 8


@pytest.mark.parametrize("compute", [True, False])
def test_memory_that_goes_while_a_copy_runs_faults_at_its_end(compute):
    rig = Rig("npu-37xx", compute=compute)
    target = rig.alloc(4096)
    blob = Blob()
    blob.add_dma(CMX, target, 4096)
    rig.enqueue(rig.inference(blob))
    while not rig.device.fabric.engines[0].task:
        rig.device.run_until(rig.device.next_event_ps())
    rig.unmap(SSID, target)
    rig.run()
    (done,) = rig.done()
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_CTX_VIOLATION, target)


@pytest.mark.parametrize("compute", [True, False])
def test_translations_are_checked_again_after_they_were_dropped(compute):
    rig = Rig("npu-37xx", compute=compute)
    source = rig.alloc(4096)
    blob = Blob()
    blob.add_dma(source, CMX, 4096)
    buffer = rig.inference(blob)
    assert rig.execute(buffer).job_status == C.NPU_JOB_SUCCESS
    rig.unmap(SSID, source)
    assert rig.execute(buffer).job_status == C.NPU_JOB_CTX_VIOLATION


@pytest.mark.parametrize("compute", [True, False])
def test_a_descriptor_that_only_an_engine_refuses_is_a_processing_error_that_names_the_engine(compute, monkeypatch):
    monkeypatch.setattr(task_check, "dma", lambda *_: None)
    rig = Rig("npu-37xx", compute=compute)
    source = rig.alloc(4096)
    blob = Blob()
    blob.add_dma(source, CMX, 64)
    blob.add_dma(source, CMX, 100, src_width=64, port=1)
    done = rig.execute(rig.inference(blob))
    assert (done.job_status, done.error_detail, done.error_info) == (
        C.NPU_JOB_PROCESSING_ERR,
        C.NPU_ENGINE_DMA,
        1 << 32,
    )
    assert rig.bus.read32(C.NPU_REG_DMA_STATUS_BASE + C.NPU_DMA_STATUS_STRIDE) & 2
    monkeypatch.undo()
    good = Blob()
    good.add_dma(source, CMX, 64, port=1)
    assert rig.execute(rig.inference(good)).job_status == C.NPU_JOB_SUCCESS


ROW = assemble(
    "ldm r8, r1, 8, 2\nli r2, 1\nsetvl r2, r8\nli r5, 4\nvld.f32 v0, r9, r5, r5, 0\nvst.f32 v0, r9, r5, r5, 4\nhalt\n"
)


def ran(compute, blocks):
    """Run a program that moves `columns` floats at a pointer, once for each (place of the arguments, columns, pointer) of `blocks`.

    Return counters and times, and how many programs have run that are known now.
    """
    rig = Rig("npu-37xx", compute=compute, trace=True)
    memory = rig.alloc(8192)
    text = rig.alloc(ROW)
    blob = Blob()
    program = blob.add_range(text, len(ROW))
    for place, columns, pointer in blocks:
        at = pointer if pointer >= CMX else memory + 4096 + pointer
        rig.memory(memory)[place + 8 : place + 24] = np.array([columns, at], np.int64).view(np.uint8)
        blob.add_shave(program, memory + place, 24)
    done = rig.execute(rig.inference(blob))
    assert done.job_status == C.NPU_JOB_SUCCESS
    known = len(rig.device.fabric.known_runs._known)
    return (rig.device.counters(), done.end_ps - done.start_ps, rig.device.drain_trace()), known


@pytest.mark.parametrize(
    ("blocks", "kinds"),
    [
        ([(64 * n, 9, CMX) for n in range(6)], 1),
        ([(64 * n, 9 + n % 2, CMX) for n in range(8)], 2),
        ([(64 * n, 9, CMX + 4096 * (n % 2)) for n in range(8)], 1),
        ([(64 * n, 9, 20 * (n % 3)) for n in range(9)], 3),  # in DDR, of which whole accesses move
        ([(64 * n + 48 * (n % 2), 9, CMX) for n in range(8)], 2),  # as are arguments
        ([(64 * n, 9, 20 if n % 2 else CMX) for n in range(8)], 2),
    ],
)
def test_programs_that_have_run_with_the_same_arguments_cost_the_same(blocks, kinds):
    expected, unused = ran(True, blocks)
    found, known = ran(False, blocks)
    assert found == expected
    assert (known, unused) == (kinds, 0)


@pytest.mark.parametrize("compute", [True, False])
def test_a_program_that_has_run_faults_where_its_pointer_takes_it_out_of_cmx(compute):
    rig = Rig("npu-37xx", compute=compute)
    arguments, text = rig.alloc(64), rig.alloc(ROW)
    blob = Blob()
    blob.add_shave(blob.add_range(text, len(ROW)), arguments, 24)
    buffer = rig.inference(blob)
    end = CMX + rig.device.profile.cmx.workspace_bytes
    for pointer, status in (
        (CMX, C.NPU_JOB_SUCCESS),
        (end - 40, C.NPU_JOB_SUCCESS),
        (end - 36, C.NPU_JOB_CTX_VIOLATION),
        (CMX, C.NPU_JOB_SUCCESS),
    ):
        rig.memory(arguments)[8:24] = np.array([9, pointer], np.int64).view(np.uint8)
        done = rig.execute(buffer)
        assert done.job_status == status
        assert done.error_detail == (end if status else 0)


def test_an_address_that_a_program_computes_with_is_part_of_what_its_cost_depends_on():
    text = assemble("ldm r8, r1, 8, 2\nli r2, 4096\nrem r3, r9, r2\nbeq r3, r0, end\nnop\nnop\nend:\nhalt\n")
    rig = Rig("npu-37xx", compute=False)
    arguments, program = rig.alloc(64), rig.alloc(text)
    blob = Blob()
    blob.add_shave(blob.add_range(program, len(text)), arguments, 24)
    buffer, insns = rig.inference(blob), [0]
    for pointer in (CMX, CMX + 64, CMX, CMX + 64):
        rig.memory(arguments)[16:24] = np.array([pointer], np.int64).view(np.uint8)
        rig.execute(buffer)
        insns.append(rig.device.counters()[C.NPU_PMU_SHAVE_INSNS])
    assert np.diff(insns).tolist() == [5, 7, 5, 7]


def outcomes(compute, text, blocks):
    """Run a program with each of some argument blocks; return status, error and time of each run, and the counters."""
    rig = Rig("npu-37xx", compute=compute)
    arguments, program = rig.alloc(4096), rig.alloc(text)
    blob = Blob()
    blob.add_shave(blob.add_range(program, len(text)), arguments, 8 * len(blocks[0]))
    buffer, found = rig.inference(blob), []
    for block in blocks:
        rig.memory(arguments)[: 8 * len(block)] = np.array(block, np.int64).view(np.uint8)
        done = rig.execute(buffer)
        found.append((done.job_status, done.error_detail, done.end_ps - done.start_ps))
    return found, rig.device.counters()


def test_a_program_with_more_pointers_than_can_be_told_apart_costs_the_same():
    text = assemble("ld.i64 r9, r1, 2000\nli r2, 1\nsetvl r2, r2\nli r5, 4\nvld.f32 v0, r9, r5, r5, 0\nhalt\n")
    blocks = [[CMX + 4096 * (n % 2) + 64 * word for word in range(251)] for n in range(3)]
    expected = outcomes(True, text, blocks)
    assert [status for status, *_ in expected[0]] == [C.NPU_JOB_SUCCESS] * 3
    assert outcomes(False, text, blocks) == expected


def test_the_watchdog_counts_the_same_wherever_pointers_are():
    """Places that continue each other are one to it: with others between them the same program is too much."""
    text = assemble(
        "ldm r8, r1, 8, 2\nli r2, 1\nsetvl r2, r2\nli r5, 4\nli r3, 24000\nli r4, 0\nloop:\nvld.f32 v0, r8, r5, r5, 0\n"
        "mov r6, r8\nmov r8, r9\nmov r9, r6\naddi r4, r4, 1\nblt r4, r3, loop\nhalt\n"
    )
    blocks = [[0, CMX, CMX + 4], [0, CMX + 64, CMX + 68], [0, CMX, CMX + 64]]
    expected = outcomes(True, text, blocks)
    assert [status for status, *_ in expected[0]] == [C.NPU_JOB_SUCCESS, C.NPU_JOB_SUCCESS, C.NPU_JOB_SHAVE_FAULT]
    assert outcomes(False, text, blocks) == expected


def test_what_a_program_costs_is_found_again_when_its_arguments_change():
    rig = Rig("npu-37xx", compute=False)
    arguments, text = rig.alloc(4096), rig.alloc(ROW)
    blob = Blob()
    blob.add_shave(blob.add_range(text, len(ROW)), arguments, 24)
    buffer = rig.inference(blob)
    moved = [0]
    for columns in (8, 8, 4096, 8):
        rig.memory(arguments)[8:24] = np.array([columns, CMX], np.int64).view(np.uint8)
        rig.execute(buffer)
        moved.append(rig.device.counters()[C.NPU_PMU_SRAM_READ])
    assert np.diff(moved).tolist() == [32, 32, 16384, 32]


def test_a_program_that_has_run_faults_when_its_memory_is_gone():
    rig = Rig("npu-37xx", compute=False)
    arguments, data, text = rig.alloc(4096), rig.alloc(4096), rig.alloc(ROW)
    rig.memory(arguments)[8:24] = np.array([8, data], np.int64).view(np.uint8)
    blob = Blob()
    for _ in range(3):
        blob.add_shave(blob.add_range(text, len(ROW)), arguments, 24)
    buffer = rig.inference(blob)
    assert rig.execute(buffer).job_status == C.NPU_JOB_SUCCESS
    rig.unmap(SSID, data)
    assert rig.execute(buffer).job_status == C.NPU_JOB_CTX_VIOLATION


def test_equal_descriptors_are_decoded_once():
    rig = Rig("npu-37xx", compute=False)
    blob = Blob()
    for n in range(6):
        blob.add_matmul(CMX, CMX + 4096, CMX + 8192 + 4096 * (n % 2), 16, 16, 16, task_id=n)
    arrays = blob.records()
    plan = plan_dpu(rig.device.profile, arrays[2], arrays[3])
    assert plan.like == [0, 1, 0, 1, 0, 1]
    assert plan.work(4) is plan.work(0) is not plan.work(1)
    assert plan.work(1).invariant.out_addr == CMX + 12288
