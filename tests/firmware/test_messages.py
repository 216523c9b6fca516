"""Messages, queues and commands of the firmware."""

import numpy as np
import pytest
from npu_abi import C, new, pack, sizeof
from npu_firmware import image

from tests.device.rig import CMX, IPC_TX, JOBQ, SSID, Blob, Rig, copied, infer


def command(kind, struct="npu_cmd_header", **fields):
    found = new(struct, **fields)
    head = found if struct == "npu_cmd_header" else found.h
    head.type, head.size = kind, sizeof(struct)
    return found


def test_the_committed_image_is_fresh():
    assert image.PATH.read_bytes() == image.build(), "run `make firmware`"


@pytest.mark.parametrize(
    "wrong",
    [{"db_idx": 0}, {"db_idx": 256}, {"db_idx": 1}, {"host_ssid": 0}, {"host_ssid": 66}, {"jobq_va": 0x9E000000},
     {"jobq_va": JOBQ + 64}, {"jobq_size": 8192}, {"priority_band": 4}],
)  # fmt: skip
def test_register_db_refuses(wrong):
    rig = Rig()
    fields = {"db_idx": 2, "host_ssid": SSID, "jobq_va": JOBQ, "jobq_size": 4096} | wrong
    reply = rig.request(C.NPU_JSM_REGISTER_DB, new("npu_jsm_register_db", **fields))
    assert (reply.type, reply.result) == (C.NPU_JSM_REGISTER_DB_DONE, C.NPU_JSM_INVALID)


def test_an_unknown_message_gets_unknown_type():
    reply = Rig().request(0x1177)
    assert reply.result == C.NPU_JSM_UNKNOWN_TYPE


def test_an_address_that_is_no_slot_is_dropped():
    rig = Rig()
    count = len(rig.messages)
    for address in (1, IPC_TX + 8, 0xFFFFFFFF):
        rig.bus.write32(C.NPU_REG_CPU_IPC_FIFO, address)
        rig.run()
    assert len(rig.messages) == count
    assert rig.request(C.NPU_JSM_QUERY_ENGINE_HB).result == C.NPU_JSM_OK


def test_a_message_whose_header_has_reserved_bits_is_dropped():
    rig = Rig()
    count = len(rig.messages)
    header = new("npu_ipc_hdr", data_size=128, channel=C.NPU_IPC_CHAN_GEN_CMD, status=C.NPU_IPC_ALLOCATED)
    header.reserved[56] = 1
    message = new("npu_jsm_msg", type=C.NPU_JSM_QUERY_ENGINE_HB, request_id=9)
    rig.memory(IPC_TX, 0)[:192] = np.frombuffer(pack(header) + pack(message), np.uint8)
    rig.bus.write32(C.NPU_REG_CPU_IPC_FIFO, IPC_TX)
    rig.run()
    assert len(rig.messages) == count
    assert rig.memory(IPC_TX, 0)[6] == C.NPU_IPC_FREE


@pytest.mark.parametrize(
    "wrong", [{"buffer_va": 0x9E000000}, {"buffer_va": JOBQ, "buffer_bytes": 31}, {"buffer_va": JOBQ, "reserved": 1}]
)
def test_a_state_dump_without_room_is_refused(wrong):
    body = new("npu_jsm_state_dump", **({"buffer_bytes": 4096} | wrong))
    assert Rig().request(C.NPU_JSM_STATE_DUMP, body).result == C.NPU_JSM_INVALID


def test_r037_a_priority_of_the_network_on_chip_is_a_register_that_the_firmware_writes():
    rig = Rig()
    priorities = [C.NPU_REG_NOC_QOS_BASE + 4 * client for client in range(3)]
    body = new("npu_jsm_set_noc_priority", client=1, priority=7)
    reply = rig.request(C.NPU_JSM_SET_NOC_PRIORITY, body)
    assert (reply.type, reply.result) == (C.NPU_JSM_SET_NOC_PRIORITY_DONE, C.NPU_JSM_OK)
    assert [rig.bus.read32(offset) for offset in priorities] == [0, 7, 0]


@pytest.mark.parametrize("wrong", [{"client": 3}, {"client": 0xFFFFFFFF}, {"priority": 8}, {"priority": 0xFFFFFFFF}])
def test_r037_a_priority_that_is_none_is_refused(wrong):
    rig = Rig()
    reply = rig.request(
        C.NPU_JSM_SET_NOC_PRIORITY, new("npu_jsm_set_noc_priority", **({"client": 0, "priority": 7} | wrong))
    )
    assert reply.result == C.NPU_JSM_INVALID
    assert rig.bus.read32(C.NPU_REG_NOC_QOS_BASE) == 0


def test_a_state_dump_tells_queues_heads_jobs_and_barriers():
    rig = Rig()
    dump, source = rig.alloc(4096, 0, IPC_TX + 0x10000), rig.alloc(4096)
    rig.register_db(2, rig.alloc(bytes(4096), 0, IPC_TX + 0x12000), SSID + 1)
    blob = Blob()
    first, second = blob.barrier(), blob.barrier()
    blob.add_dma(source, CMX, 4096, posts=[first])
    blob.add_dma(CMX, source, 4096, waits=[first], posts=[second])
    blob.add_dma(CMX, source, 4096, waits=[second])
    job_id = rig.enqueue(rig.inference(blob))
    while not rig.device.fabric.engines[0].tasks_done:
        rig.device.run_until(rig.device.next_event_ps())
    before = rig.device.now_ps
    body = new("npu_jsm_state_dump", buffer_va=dump, buffer_bytes=32 + 2 * 48)
    message = new("npu_jsm_msg", type=C.NPU_JSM_STATE_DUMP, request_id=9)
    message.payload[0:16] = list(pack(body))
    header = new("npu_ipc_hdr", data_size=128, channel=C.NPU_IPC_CHAN_GEN_CMD, status=C.NPU_IPC_ALLOCATED)
    rig.memory(IPC_TX, 0)[:192] = np.frombuffer(pack(header) + pack(message), np.uint8)
    rig.bus.write32(C.NPU_REG_CPU_IPC_FIFO, IPC_TX)
    rig.run()
    data = rig.memory(dump, 0).tobytes()
    state, queues = copied("npu_fw_state", data), [copied("npu_fw_queue_state", data[32 + 48 * i :]) for i in range(2)]
    assert state.time_ps == before
    assert (state.queue_count, state.job_count, state.free_tiles) == (2, 1, 0)
    assert [(q.db_idx, q.host_ssid, q.head, q.tail) for q in queues] == [(1, SSID, 1, 1), (2, SSID + 1, 0, 0)]
    busy, idle = queues
    assert (busy.job_id, busy.stage, busy.command) == (job_id, C.NPU_STAGE_ENGINES, 0)
    assert (busy.outstanding_tasks, busy.open_lists, busy.retired_barriers) == (2, 0, 1)
    assert busy.blocking_barrier == second
    assert (idle.job_id, idle.blocking_barrier) == (0, C.NPU_BARRIER_NONE)
    assert data[32 + 96 : 32 + 97] == b"\xff"  # nothing behind the room that it was given


def test_the_heartbeat_moves_with_commands_and_tasks_and_not_with_messages():
    rig = Rig()
    nop = new("npu_cmd_header", type=C.NPU_CMD_NOP, size=8)
    beats = []
    for number in range(3):
        if number == 2:
            rig.execute(rig.command_buffer([nop]))
        reply = rig.request(C.NPU_JSM_QUERY_ENGINE_HB, new("npu_jsm_query_hb"))
        beats.append(rig.payload(reply, "npu_jsm_query_hb_done").heartbeat)
    assert beats[2] > beats[1] == beats[0]


def test_fill_and_copy_and_fence_and_timestamp():
    rig = Rig()
    target, heap, fences, stamp = rig.alloc(8192), rig.alloc(4096), rig.alloc(bytes(4096)), rig.alloc(4096)
    descriptor = new(
        "npu_dma_descriptor", src=target, dst=target + 4096, length=64, num_planes=1, src_width=64, dst_width=64
    )
    rig.memory(heap)[:80] = np.frombuffer(pack(descriptor), np.uint8)
    commands = [
        command(C.NPU_CMD_MEMORY_FILL, "npu_cmd_fill", start_va=target, size=128, pattern=0x11223344),
        command(C.NPU_CMD_BARRIER),
        command(C.NPU_CMD_COPY, "npu_cmd_copy", desc_count=1),
        command(C.NPU_CMD_TIMESTAMP, "npu_cmd_timestamp", va=stamp),
        command(C.NPU_CMD_FENCE_SIGNAL, "npu_cmd_fence", offset=8, value=5),
    ]
    done = rig.execute(rig.command_buffer(commands, descriptor_heap_va=heap, fence_heap_va=fences))
    assert done.job_status == C.NPU_JOB_SUCCESS, (done.error_detail, done.error_info)
    assert (rig.memory(target)[:128].view(np.uint32) == 0x11223344).all()
    assert (rig.memory(target)[128:4096] == 0xFF).all()
    assert (rig.memory(target)[4096 : 4096 + 64].view(np.uint32) == 0x11223344).all()
    assert rig.memory(fences)[:16].view(np.uint64).tolist() == [0, 5]
    assert done.start_ps < int(rig.memory(stamp)[:8].view(np.uint64)[0]) <= done.end_ps


def second_queue(rig):
    va = 0x80010000
    rig.alloc(bytes(4096), 0, va)
    assert rig.register_db(2, va).result == C.NPU_JSM_OK
    return va


def test_a_fence_orders_two_queues():
    rig = Rig()
    other = second_queue(rig)
    fences = rig.alloc(bytes(4096))
    waiting = rig.command_buffer([command(C.NPU_CMD_FENCE_WAIT, "npu_cmd_fence", value=3)], fence_heap_va=fences)
    signal = rig.command_buffer([command(C.NPU_CMD_FENCE_SIGNAL, "npu_cmd_fence", value=4)], fence_heap_va=fences)
    first = rig.enqueue(waiting)
    rig.run()
    assert rig.done() == []
    second = rig.enqueue(signal, jobq=other, doorbell=2)
    rig.run()
    assert [d.job_id for d in rig.done()] == [second, first]


def test_jobs_of_one_queue_run_in_ring_order():
    rig = Rig()
    ids = [rig.enqueue(rig.inference(Blob())) for _ in range(5)]
    rig.run()
    assert [d.job_id for d in rig.done()] == ids


def long_blob(rig, tiles):
    blob = Blob(tiles)
    blob.add_dma(rig.source, CMX, 32768)
    return blob


def test_jobs_on_disjoint_tiles_overlap_and_a_job_without_tiles_waits():
    rig = Rig("npu-37xx", compute=False)
    other = second_queue(rig)
    rig.source = rig.alloc(65536)
    one, both = rig.inference(long_blob(rig, 1)), rig.inference(long_blob(rig, 2))
    rig.enqueue(one, ring=False)
    rig.enqueue(one, jobq=other, doorbell=2)
    rig.bus.write32(C.NPU_REG_DOORBELL_BASE + C.NPU_DOORBELL_STRIDE, 1)
    rig.run()
    a, b = rig.done()
    assert b.start_ps < a.end_ps
    rig.enqueue(both, ring=False)
    rig.enqueue(both, jobq=other, doorbell=2)
    rig.bus.write32(C.NPU_REG_DOORBELL_BASE + C.NPU_DOORBELL_STRIDE, 1)
    rig.run()
    c, d = rig.done()[2:]
    assert d.end_ps - c.end_ps >= 32768 * 10**12 // 31_200_000_000
    assert c.job_status == d.job_status == C.NPU_JOB_SUCCESS


def test_a_job_that_needs_more_tiles_than_there_are_is_refused():
    rig = Rig("npu-37xx")
    rig.source = rig.alloc(65536)
    done = rig.execute(rig.inference(long_blob(rig, 3)))
    assert (done.job_status, done.error_detail) == (C.NPU_JOB_PARSING_ERR, C.NPU_PARSE_BAD_RESOURCES)


@pytest.mark.parametrize(
    ("type_", "payload"),
    [
        (C.NPU_JSM_SSID_RELEASE, ("npu_jsm_ssid_release", {"host_ssid": SSID})),
        (C.NPU_JSM_UNREGISTER_DB, ("npu_jsm_unregister_db", {"db_idx": 1})),
    ],
)
def test_a_running_job_is_aborted_and_the_device_works_on(type_, payload):
    rig = Rig()
    rig.source = rig.alloc(65536)
    job_id = rig.enqueue(rig.inference(long_blob(rig, 1)))
    rig.device.run_until(rig.device.now_ps + 2_000_000)
    assert rig.done() == []
    struct, fields = payload
    assert rig.request(type_, new(struct, **fields)).result == C.NPU_JSM_OK
    done = rig.done()
    assert [(d.job_id, d.job_status) for d in done] == [(job_id, C.NPU_JOB_ABORTED)]
    assert rig.bus.read32(C.NPU_REG_DMA_STATUS_BASE) & 1 == 0
    rig.register_db(1, JOBQ)
    assert rig.execute(rig.command_buffer([infer(Blob().place(rig))])).job_status == C.NPU_JOB_SUCCESS


def test_ring_indices_out_of_range_stop_that_queue_only():
    rig = Rig()
    other = second_queue(rig)
    rig.memory(JOBQ, 0)[4:8] = 0xFF
    rig.bus.write32(C.NPU_REG_DOORBELL_BASE + C.NPU_DOORBELL_STRIDE, 1)
    rig.run()
    job = rig.enqueue(rig.inference(Blob()), jobq=other, doorbell=2)
    rig.run()
    assert [d.job_id for d in rig.done()] == [job]


def test_barrier_ids_are_reused_in_array_order():
    rig = Rig()
    source = rig.alloc(4096)
    blob = Blob()
    count = 12
    for i in range(count):  # 12 virtual barriers on two ids
        blob.barrier(real_id=i % 2)
        blob.barriers[i]["next_same_id"] = i + 2 if i + 2 < count else C.NPU_BARRIER_NONE
    for i in range(count + 1):
        waits, posts = [(i - 1) % 2] if i else [], [i % 2] if i < count else []
        after = i - 2 if i >= 2 else C.NPU_BARRIER_NONE
        blob.add_dma(source, CMX, 1024, waits=waits, posts=posts, port=i % 2, start_after=after)
    done = rig.execute(rig.inference(blob))
    assert done.job_status == C.NPU_JOB_SUCCESS, (done.job_status, done.error_detail)
    assert done.end_ps - done.start_ps == 13_000_000
