"""COPY and FILL commands as lists of DMA tasks without barriers: the same walk runs them."""

from __future__ import annotations

from typing import Any

import numpy as np
from npu_abi import C, dtype, offsetof, sizeof

from npu_firmware import task_check
from npu_firmware.commands import Command
from npu_firmware.errors import ParseError
from npu_firmware.hal import Hal

Records = np.ndarray[Any, np.dtype[np.void]]
DESCRIPTOR_BYTES = sizeof("npu_dma_descriptor")
FILL_CHUNK_BYTES = 1 << 30  # a descriptor's length has 32 bits


def copy_tasks(hal: Hal, ssid: int, command: Command) -> Records:
    """Return the DMA tasks of a COPY command. Raises ParseError."""
    if command.address % 8:
        raise ParseError(C.NPU_PARSE_BAD_ADDRESS, command.number)
    try:
        data = hal.load(ssid, command.address, command.value * DESCRIPTOR_BYTES)
    except hal.Fault:
        raise ParseError(C.NPU_PARSE_BAD_ADDRESS, command.number) from None
    descriptors = np.frombuffer(data, dtype("npu_dma_descriptor", reserved=True))
    task_check.refuse(np.any(descriptors["reserved"] != 0, axis=1, keepdims=False), C.NPU_PARSE_RESERVED_NOT_ZERO, 0)
    tasks = _tasks(len(descriptors))
    for name in dtype("npu_dma_descriptor").names or ():
        tasks[f"transaction_{name}"] = descriptors[name]
    task_check.dma(hal.profile, 0, tasks, 0)
    return tasks


def fill_tasks(hal: Hal, command: Command) -> Records:
    """Return the DMA tasks of a FILL command: the source is the pattern in the command itself, read again and again."""
    start, size = command.address, command.value
    if start % 4 or start + size > task_check.VA_END:
        raise ParseError(C.NPU_PARSE_BAD_ADDRESS, command.number)
    offsets = range(0, size, FILL_CHUNK_BYTES)
    tasks = _tasks(len(offsets))
    tasks["transaction_src"] = command.va + offsetof("npu_cmd_fill", "pattern")
    tasks["transaction_src_width"] = 4
    tasks["transaction_num_planes"] = 1
    for task, offset in zip(tasks, offsets, strict=True):
        length = min(FILL_CHUNK_BYTES, size - offset)
        task["transaction_dst"] = start + offset
        task["transaction_length"] = task["transaction_dst_width"] = length
    task_check.dma(hal.profile, 0, tasks, 0)
    return tasks


def _tasks(count: int) -> Records:
    tasks = np.zeros(count, dtype("npu_dma_task"))
    tasks["sched_start_after"] = C.NPU_BARRIER_NONE
    return tasks
