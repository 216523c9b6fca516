"""A wait for a fence: it ends with the value, and with an error when the memory of the fence is gone."""

from npu_abi import C, new, sizeof

from tests.device.rig import SSID, Rig


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
