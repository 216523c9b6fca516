"""open, close, parameters: contexts and what ends with them."""

from __future__ import annotations

import errno
import re

import npu_abi
import pytest
from npu_abi import C, ioctl_request
from npu_device import Device
from npu_driver import Kernel


def test_open_returns_the_lowest_free_descriptor(process, another):
    second = another()
    assert (process.fd, second.fd) == (3, 4)
    process.call(C.NPU_SYS_CLOSE)
    assert another().fd == 3


def test_each_file_has_a_context_of_its_own(process, another):
    assert process.param(C.NPU_PARAM_CONTEXT_ID) == 2
    assert another().param(C.NPU_PARAM_CONTEXT_ID) == 3


def test_the_65th_open_is_emfile(kernel, process, another):
    for _ in range(63):
        another()
    ret, *_ = kernel.syscall(ioctl_request(C.NPU_SYS_OPEN, None), b"", [], 0)
    assert ret == -errno.EMFILE


def test_close_gives_all_memory_back(kernel, process, another):
    free = kernel.memory.free_bytes
    second = another()
    second.bo(100_000)
    second.queue()
    assert second.call(C.NPU_SYS_CLOSE)[0] == 0
    assert kernel.memory.free_bytes == free


def test_a_closed_descriptor_is_ebadf(process):
    process.call(C.NPU_SYS_CLOSE)
    assert process.call(C.NPU_SYS_CLOSE)[0] == -errno.EBADF


def test_close_waits_for_jobs_in_flight(kernel, process, another, nop):
    second = another()
    handle, queue = second.commands(nop), second.queue()
    assert second.submit(queue, handle) == 0
    assert second.call(C.NPU_SYS_CLOSE)[0] == 0
    assert not kernel.contexts.keys() - {2}


def test_handles_of_another_file_do_not_exist(process, another):
    handle, _ = process.bo()
    assert another().call(C.NPU_IOCTL_BO_INFO, "npu_bo_info", handle=handle)[0] == -errno.ENOENT


def test_parameters_describe_the_profile(process):
    assert process.param(C.NPU_PARAM_PLATFORM_TYPE) == 2
    assert process.param(C.NPU_PARAM_CORE_CLOCK_RATE) == 1_000_000
    assert process.param(C.NPU_PARAM_NUM_CONTEXTS) == 64
    assert process.param(C.NPU_PARAM_TILE_CONFIG) == 1
    assert process.param(C.NPU_PARAM_CMX_BYTES) == 65536
    assert process.param(C.NPU_PARAM_BARRIER_COUNT) == 32
    assert process.param(C.NPU_PARAM_SHAVES_PER_TILE) == 2
    assert process.param(C.NPU_PARAM_DMA_PORTS) == 2
    assert process.param(C.NPU_PARAM_MAX_JOBS) == 62
    assert process.param(C.NPU_PARAM_MAX_QUEUES) == 254
    assert process.param(C.NPU_PARAM_DDR_BYTES) == 1 << 30
    assert process.param(C.NPU_PARAM_FW_API_VERSION, 1) == 0x10000
    assert process.param(C.NPU_PARAM_PROFILE_NAME) == int.from_bytes(b"unit", "little")


def test_inference_ids_increment(process):
    first = process.param(C.NPU_PARAM_UNIQUE_INFERENCE_ID)
    assert process.param(C.NPU_PARAM_UNIQUE_INFERENCE_ID) == first + 1


@pytest.mark.parametrize(
    ("param", "index"), [(99, 0), (C.NPU_PARAM_DEVICE_ID, 1), (C.NPU_PARAM_FW_API_VERSION, 2), (13, 0)]
)
def test_unknown_parameter_or_index_is_einval(process, param, index):
    assert process.call(C.NPU_IOCTL_GET_PARAM, "npu_param_arg", param=param, index=index)[0] == -errno.EINVAL


def test_no_parameter_can_be_set(process):
    assert process.call(C.NPU_IOCTL_SET_PARAM, "npu_param_arg", param=0, value=1)[0] == -errno.EINVAL


def test_the_firmware_answers_the_heartbeat(process):
    assert process.param(C.NPU_PARAM_ENGINE_HEARTBEAT) >= 0


def test_state_dump_logs_each_queue_with_its_job(process, kernel):
    fence, fence_va = process.bo()
    process.map(fence)[:8] = bytes(8)
    wait = npu_abi.new("npu_cmd_fence", value=1)
    wait.h.type, wait.h.size = C.NPU_CMD_FENCE_WAIT, npu_abi.sizeof("npu_cmd_fence")
    process.submit(process.queue(), process.commands(wait, fence_heap_va=fence_va), fence)
    assert process.call(C.NPU_IOCTL_STATE_DUMP, "npu_state_dump")[0] == 0
    state, queue = [line.partition("npu: ")[2] for line in kernel.log][-2:]
    assert re.fullmatch(r"state at \d+ ps: heartbeat \d+, 1 queues, 1 jobs, free tiles 0x1", state)
    assert re.fullmatch(
        r"state of doorbell 1: context 2, head 1, tail 1, job 0x201 in NPU_STAGE_FENCE at command 0", queue
    )


def test_a_damaged_firmware_image_makes_open_enodev():
    kernel = Kernel(Device("unit"), firmware=bytes(4096))
    ret, *_ = kernel.syscall(ioctl_request(C.NPU_SYS_OPEN, None), b"", [], 0)
    assert ret == -errno.ENODEV
    assert "magic is 0x0" in kernel.log[-1]


def test_a_firmware_that_names_other_sources_makes_open_eio():
    import zlib

    from npu_driver.boot import read_image

    image = bytearray(read_image())
    image[64] ^= 1  # digest
    image[12:16] = bytes(4)
    image[12:16] = zlib.crc32(image).to_bytes(4, "little")
    kernel = Kernel(Device("unit"), firmware=bytes(image))
    ret, *_ = kernel.syscall(ioctl_request(C.NPU_SYS_OPEN, None), b"", [], 0)
    assert ret == -errno.EIO
    assert "NPU_BOOT_BAD_DIGEST" in kernel.log[-1]


def test_two_devices_do_not_know_each_other(process):
    other = Kernel(Device("unit"))
    ret, _, _, now_ps = other.syscall(ioctl_request(C.NPU_SYS_OPEN, None), b"", [], 0)
    assert ret == 3
    process.call(C.NPU_IOCTL_EMU_ADVANCE, "npu_emu_advance", until_ps=10**12)
    assert other.device.now_ps == now_ps


def test_pages_that_a_mapping_outlives_the_file_with_are_freed_when_it_ends(kernel, another):
    staying, leaving = another(), another()
    handle, _ = leaving.bo(1 << 20)
    view = leaving.map(handle)
    free = kernel.memory.free_bytes
    assert leaving.call(C.NPU_SYS_CLOSE)[0] == 0
    view[:4] = b"seen"  # still its memory
    assert staying.param(C.NPU_PARAM_DDR_FREE_BYTES) < free + (1 << 20)
    del view
    assert staying.param(C.NPU_PARAM_DDR_FREE_BYTES) >= free + (1 << 20)
