"""Handlers: parameters of the device and of the context."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from npu_abi import C, codec

from npu_driver.error import KernelError
from npu_driver.ioctl_job import MAX_QUEUE_ID, preempt_bytes

if TYPE_CHECKING:
    from npu_driver.file import Context
    from npu_driver.kernel import Kernel

DEVICE_ID = 0x4E50  # chosen: "NP"; no vendor's
CAPABILITIES = {
    C.NPU_CAP_METRIC_STREAMER: 0,
    C.NPU_CAP_DMA_MEMORY_RANGE: 1,
    C.NPU_CAP_MANAGE_CMDQ: 1,
    C.NPU_CAP_USER_POINTERS: 0,
}
NAME_WORDS = 8
ANY_INDEX = 1 << 32  # the parameter checks it
_HEARTBEAT = codec("npu_jsm_query_hb_done", "heartbeat")


def _heartbeat(kernel: Kernel, context: Context, index: int) -> int:
    reply = kernel.request(C.NPU_JSM_QUERY_ENGINE_HB, "npu_jsm_query_hb", engine_idx=index)
    (heartbeat,) = _HEARTBEAT.unpack_from(reply)
    return int(heartbeat)


def _inference_id(kernel: Kernel, context: Context, index: int) -> int:
    kernel.inference_ids += 1
    return kernel.inference_ids


def _firmware_api(kernel: Kernel, context: Context, index: int) -> int:
    major, minor = kernel.firmware_header.api_version[index]
    return int(major << 16 | minor)


def _free_bytes(kernel: Kernel, context: Context, index: int) -> int:
    context.sweep()
    return kernel.memory.free_bytes


def _name_word(kernel: Kernel, context: Context, index: int) -> int:
    name = kernel.profile.name.encode()[: 8 * NAME_WORDS].ljust(8 * NAME_WORDS, b"\0")
    return int.from_bytes(name[8 * index : 8 * index + 8], "little")


def _noc_priority(kernel: Kernel, context: Context, index: int) -> int:
    _check_client(kernel, index)
    return kernel.registers.read(C.NPU_REG_NOC_QOS_BASE + 4 * index)


def _check_client(kernel: Kernel, index: int) -> None:
    clients = kernel.registers.read(C.NPU_REG_NOC_CLIENTS)
    if index >= clients:
        raise KernelError(errno.EINVAL, f"client {index} of the network on chip; it has {clients}")


# parameter -> (number of indices, value)
PARAMS: dict[int, tuple[int, Callable[[Kernel, Context, int], int]]] = {
    C.NPU_PARAM_DEVICE_ID: (1, lambda k, c, i: DEVICE_ID),
    C.NPU_PARAM_DEVICE_REVISION: (1, lambda k, c, i: k.registers.read(C.NPU_REG_HW_VERSION)),
    C.NPU_PARAM_PLATFORM_TYPE: (1, lambda k, c, i: C.NPU_PLATFORM_SIMULATED),
    C.NPU_PARAM_CORE_CLOCK_RATE: (1, lambda k, c, i: k.frequency_hz),
    C.NPU_PARAM_NUM_CONTEXTS: (1, lambda k, c, i: C.NPU_NUM_SSIDS - C.NPU_SSID_FIRST_USER),
    C.NPU_PARAM_CONTEXT_BASE_ADDRESS: (1, lambda k, c, i: C.NPU_VA_USER_BASE),
    C.NPU_PARAM_CONTEXT_ID: (1, lambda k, c, i: c.ssid),
    C.NPU_PARAM_FW_API_VERSION: (C.NPU_FW_API_COUNT, _firmware_api),
    C.NPU_PARAM_ENGINE_HEARTBEAT: (1, _heartbeat),
    C.NPU_PARAM_UNIQUE_INFERENCE_ID: (1, _inference_id),
    C.NPU_PARAM_TILE_CONFIG: (1, lambda k, c, i: k.tile_config),
    C.NPU_PARAM_SKU: (1, lambda k, c, i: 0),
    C.NPU_PARAM_CAPABILITIES: (1 + max(CAPABILITIES), lambda k, c, i: CAPABILITIES[i]),
    C.NPU_PARAM_PREEMPT_BUFFER_SIZE: (1, lambda k, c, i: preempt_bytes(k)),
    C.NPU_PARAM_CMX_BYTES: (1, lambda k, c, i: k.profile.cmx.workspace_bytes),
    C.NPU_PARAM_BARRIER_COUNT: (1, lambda k, c, i: k.profile.barriers_per_tile * k.tile_config.bit_count()),
    C.NPU_PARAM_SHAVES_PER_TILE: (1, lambda k, c, i: k.profile.shaves_per_tile),
    C.NPU_PARAM_DMA_PORTS: (1, lambda k, c, i: k.profile.dma_ports),
    C.NPU_PARAM_DDR_BYTES: (1, lambda k, c, i: k.memory.capacity_bytes),
    C.NPU_PARAM_DDR_FREE_BYTES: (1, _free_bytes),
    C.NPU_PARAM_MAX_JOBS: (1, lambda k, c, i: C.NPU_JOBQ_SLOTS - 1),
    C.NPU_PARAM_PROFILE_NAME: (NAME_WORDS, _name_word),
    C.NPU_PARAM_MAX_QUEUES: (1, lambda k, c, i: MAX_QUEUE_ID - 1),
    C.NPU_PARAM_FW_RELEASE: (1, lambda k, c, i: k.firmware_header.release),
    C.NPU_PARAM_NOC_PRIORITY: (ANY_INDEX, _noc_priority),
}


def get_param(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Read a parameter. EINVAL for an unknown one or an index that it does not have."""
    count, read = PARAMS.get(arg.param, (0, None))
    if read is None:
        raise KernelError(errno.EINVAL, f"unknown parameter {arg.param}")
    if arg.index >= count or (arg.param == C.NPU_PARAM_CAPABILITIES and arg.index not in CAPABILITIES):
        raise KernelError(errno.EINVAL, f"parameter {arg.param} has no index {arg.index}")
    arg.value = read(kernel, context, arg.index)
    return 0, []


def set_param(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Write a parameter, NPU_PARAM_NOC_PRIORITY. EINVAL for another one, an index that it does not have, or a value beyond its limit; EPERM for
    who may not; else as `Firmware.set_noc_priority`.
    """
    if arg.param != C.NPU_PARAM_NOC_PRIORITY:
        raise KernelError(errno.EINVAL, f"parameter {arg.param} cannot be set")
    if not kernel.current.privileged:
        raise KernelError(errno.EPERM, f"user {kernel.current.uid} may not set parameters")
    _check_client(kernel, arg.index)
    if arg.value >= C.NPU_NOC_PRIORITIES:
        raise KernelError(
            errno.EINVAL, f"priority {arg.value} of client {arg.index}; 0 to {C.NPU_NOC_PRIORITIES - 1} are allowed"
        )
    kernel.firmware.set_noc_priority(arg.index, arg.value)
    return 0, []
