"""Fences: waits for them, what becomes of those of a failed job, and what a failed job does to those behind it."""

import numpy as np
import pytest
from npu_abi import C, dtype, new, pack, sizeof, view

from tests.device.rig import CMX, JOBQ, SSID, Blob, Rig, infer


def fence(kind, offset, value=0):
    command = new("npu_cmd_fence", offset=offset, value=value)
    command.h.type, command.h.size = kind, sizeof("npu_cmd_fence")
    return command


def ring(rig):
    rig.bus.write32(C.NPU_REG_DOORBELL_BASE + C.NPU_DOORBELL_STRIDE, 1)
    rig.run()


def test_a_wait_for_a_fence_whose_memory_has_gone_fails_with_the_number_of_its_command():
    rig = Rig()
    heap = rig.alloc(bytes(4096))
    signal, wait = fence(C.NPU_CMD_FENCE_SIGNAL, 8, 1), fence(C.NPU_CMD_FENCE_WAIT, 0, 5)
    rig.enqueue(rig.command_buffer([signal, wait], fence_heap_va=heap))
    rig.run()
    assert rig.done() == []  # it waits
    rig.unmap(SSID, heap)
    ring(rig)
    (done,) = rig.done()
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_PARSING_ERR, C.NPU_PARSE_BAD_ADDRESS)
    assert done.error_info == 1


def test_a_wait_for_a_fence_ends_when_the_host_has_written_the_value():
    rig = Rig()
    heap = rig.alloc(bytes(4096))
    rig.enqueue(rig.command_buffer([fence(C.NPU_CMD_FENCE_WAIT, 16, 5)], fence_heap_va=heap))
    rig.run()
    rig.memory(heap)[16:24].view("<u8")[0] = 4
    ring(rig)
    assert rig.done() == []
    rig.memory(heap)[16:24].view("<u8")[0] = 6
    ring(rig)
    assert [done.job_status for done in rig.done()] == [C.NPU_JOB_SUCCESS]


def other_queue(rig, ssid=SSID, doorbell=2):
    va = JOBQ + 0x2000 * doorbell
    rig.alloc(bytes(4096), 0, va)
    assert rig.register_db(doorbell, va, ssid).result == C.NPU_JSM_OK
    return va


def stop_on_failure(rig, jobq=JOBQ):
    view("npu_job_queue_header", rig.memory(jobq, 0)[:64]).flags = C.NPU_JOBQ_STOP_ON_FAILURE


def values(rig, heap, count):
    return rig.memory(heap)[: 8 * count].view("<u8").tolist()


def failing():
    return infer(0x1000)  # nothing is mapped there


def test_a_doorbell_looks_again_at_a_fence_while_another_job_has_the_engines():
    rig = Rig()
    heap, source = rig.alloc(bytes(4096)), rig.alloc(32768)
    other = other_queue(rig)
    waiting = rig.enqueue(rig.command_buffer([fence(C.NPU_CMD_FENCE_WAIT, 0, 5)], fence_heap_va=heap))
    blob = Blob()
    blob.add_dma(source, CMX, 32768)
    running = rig.enqueue(rig.inference(blob), jobq=other, doorbell=2)
    rig.device.run_until(rig.device.now_ps + 2_000_000)  # of 32 us
    rig.memory(heap)[:8].view("<u8")[0] = 5
    ring(rig)
    assert [done.job_id for done in rig.done()] == [waiting, running]
    first, second = rig.done()
    assert second.end_ps - first.end_ps == 30_000_000


def test_fences_behind_a_failed_command_are_signalled_and_nothing_else_is_done():
    rig = Rig(trace=True)
    heap, data, gone = rig.alloc(bytes(4096)), rig.alloc(4096), rig.alloc(bytes(4096))
    rig.unmap(SSID, gone)
    fill = new("npu_cmd_fill", start_va=data, size=64)
    fill.h.type, fill.h.size = C.NPU_CMD_MEMORY_FILL, sizeof("npu_cmd_fill")
    signal = C.NPU_CMD_FENCE_SIGNAL
    commands = [
        fence(signal, 0, 1), failing(), fence(signal, 8, 2), fill, fence(C.NPU_CMD_FENCE_WAIT, 0, 99),
        fence(signal, gone - heap, 3), fence(signal, 16, 4),
    ]  # fmt: skip
    rig.device.drain_trace()
    done = rig.execute(rig.command_buffer(commands, fence_heap_va=heap))
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_PARSING_ERR, C.NPU_PARSE_BAD_ADDRESS)
    assert values(rig, heap, 3) == [1, 2, 4]
    assert (rig.memory(data) == 0xFF).all()
    trace = np.frombuffer(rig.device.drain_trace(), dtype("npu_trace_record"))
    assert trace["value"][trace["kind"] == C.NPU_TRACE_FENCE_WRITE].tolist() == [1, 2, 4]


def test_fences_of_a_failed_job_cost_the_core_what_fences_cost():
    rig = Rig("npu-37xx")
    heap = rig.alloc(bytes(4096))

    def duration(count):
        commands = [failing(), *(fence(C.NPU_CMD_FENCE_SIGNAL, 8 * i, 1) for i in range(count))]
        done = rig.execute(rig.command_buffer(commands, fence_heap_va=heap))
        return done.end_ps - done.start_ps

    assert duration(3) - duration(0) == 3 * 125_000  # 50 cycles at 400 MHz


@pytest.mark.parametrize(
    ("type_", "payload"),
    [
        (C.NPU_JSM_SSID_RELEASE, ("npu_jsm_ssid_release", {"host_ssid": SSID})),
        (C.NPU_JSM_UNREGISTER_DB, ("npu_jsm_unregister_db", {"db_idx": 1})),
    ],
)
def test_an_aborted_job_signals_its_fences(type_, payload):
    rig = Rig()
    heap = rig.alloc(bytes(4096))
    commands = [fence(C.NPU_CMD_FENCE_WAIT, 0, 9), fence(C.NPU_CMD_FENCE_SIGNAL, 8, 7)]
    rig.enqueue(rig.command_buffer(commands, fence_heap_va=heap))
    rig.run()
    assert values(rig, heap, 2) == [0, 0]
    struct, fields = payload
    assert rig.request(type_, new(struct, **fields)).result == C.NPU_JSM_OK
    assert [done.job_status for done in rig.done()] == [C.NPU_JOB_ABORTED]
    assert values(rig, heap, 2) == [0, 7]


def test_a_queue_that_goes_away_signals_the_fences_of_jobs_that_it_never_took():
    rig = Rig()
    heap = rig.alloc(bytes(4096))
    rig.enqueue(rig.command_buffer([fence(C.NPU_CMD_FENCE_WAIT, 0, 9)], fence_heap_va=heap))
    rig.enqueue(rig.command_buffer([failing(), fence(C.NPU_CMD_FENCE_SIGNAL, 8, 6)], fence_heap_va=heap))
    rig.run()
    rig.abort()
    assert values(rig, heap, 2) == [0, 6]
    assert [done.job_status for done in rig.done()] == [C.NPU_JOB_ABORTED]  # the one that ran


def test_stop_on_failure_ends_later_jobs_of_the_context_as_aborted_until_it_is_released():
    rig = Rig()
    heap, stranger_heap = rig.alloc(bytes(4096)), rig.alloc(bytes(4096), SSID + 1)
    same, stranger = other_queue(rig), other_queue(rig, SSID + 1, 3)
    stop_on_failure(rig)
    signal = rig.command_buffer([fence(C.NPU_CMD_FENCE_SIGNAL, 8, 1)], fence_heap_va=heap)
    assert rig.execute(signal).job_status == C.NPU_JOB_SUCCESS
    rig.execute(rig.command_buffer([failing()]))
    rig.memory(heap)[:] = 0
    rig.enqueue(signal)
    rig.enqueue(signal, jobq=same, doorbell=2)
    body = pack(fence(C.NPU_CMD_FENCE_SIGNAL, 0, 1))
    header = new("npu_cmd_buffer_header", cmd_offset=64, cmd_buffer_size=64 + len(body), fence_heap_va=stranger_heap)
    header.api_version = C.NPU_CMD_API_VERSION
    rig.enqueue(rig.alloc(pack(header) + body, SSID + 1), jobq=stranger, ssid=SSID + 1, doorbell=3)
    rig.run()
    status = {done.host_ssid: done.job_status for done in rig.done()[2:]}
    assert status == {SSID: C.NPU_JOB_ABORTED, SSID + 1: C.NPU_JOB_SUCCESS}
    assert len(rig.done()) == 5
    assert values(rig, heap, 2) == [0, 1]  # it did not run, but it is over
    rig.request(C.NPU_JSM_SSID_RELEASE, new("npu_jsm_ssid_release", host_ssid=SSID))
    rig.memory(JOBQ, 0)[:] = 0
    assert rig.register_db(1, JOBQ).result == C.NPU_JSM_OK
    assert rig.execute(signal).job_status == C.NPU_JOB_SUCCESS


def test_without_stop_on_failure_and_after_an_abort_jobs_go_on():
    rig = Rig()
    heap = rig.alloc(bytes(4096))
    signal = rig.command_buffer([fence(C.NPU_CMD_FENCE_SIGNAL, 8, 1)], fence_heap_va=heap)
    rig.execute(rig.command_buffer([failing()]))
    assert rig.execute(signal).job_status == C.NPU_JOB_SUCCESS
    stop_on_failure(rig)
    rig.enqueue(rig.command_buffer([fence(C.NPU_CMD_FENCE_WAIT, 0, 9)], fence_heap_va=heap))
    rig.run()
    rig.abort()
    assert rig.execute(signal).job_status == C.NPU_JOB_SUCCESS


def test_fences_of_a_refused_buffer_are_signalled_as_far_as_it_can_be_read():
    rig = Rig()
    heap = rig.alloc(bytes(4096))
    signal = C.NPU_CMD_FENCE_SIGNAL
    empty_fill = new("npu_cmd_fill", start_va=heap)  # of no bytes
    empty_fill.h.type, empty_fill.h.size = C.NPU_CMD_MEMORY_FILL, sizeof("npu_cmd_fill")
    unknown = new("npu_cmd_header", type=0x777, size=8)
    commands = [
        fence(signal, 0, 1),
        empty_fill,
        fence(signal, 8, 2),
        fence(signal, 12, 3),
        unknown,
        fence(signal, 16, 4),
    ]
    done = rig.execute(rig.command_buffer(commands, fence_heap_va=heap))
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_PARSING_ERR, C.NPU_PARSE_BAD_COMMAND)
    assert done.error_info == 1
    assert values(rig, heap, 3) == [1, 2, 0]
