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
MAX_KNOWN = 256  # chosen: the copies of a loop
MAX_KNOWN_TASKS = 16  # chosen: what is longer costs more to run than to check


class Transfers:
    """Plans of commands that have few tasks, by the context and what they were made of: the next ones that are the same are
    not checked again.
    """

    def __init__(self, hal: Hal) -> None:
        self._hal = hal
        self._known: dict[tuple[int, bytes | tuple[int, int, int]], list[Any]] = {}

    def load(self, ssid: int, command: Command) -> list[Any]:
        """Return the DMA plans of a COPY or FILL command, by port. Raises ParseError."""
        hal = self._hal
        copy = command.type == C.NPU_CMD_COPY
        key = ssid, _descriptors(hal, ssid, command) if copy else (command.va, command.address, command.value)
        plans = self._known.pop(key, None)
        if plans is None:
            tasks = copy_tasks(hal, key[1]) if isinstance(key[1], bytes) else fill_tasks(hal, command)
            ports = hal.profile.dma_ports
            plans = [hal.plan_dma(tasks[port::ports]) for port in range(ports)]
            if len(tasks) > MAX_KNOWN_TASKS:
                return plans
        self._known[key] = plans  # the latest last
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        return plans

    def forget(self, ssid: int) -> None:
        """Drop what belongs to a context."""
        for key in [key for key in self._known if key[0] == ssid]:
            del self._known[key]


def _descriptors(hal: Hal, ssid: int, command: Command) -> bytes:
    if command.address % 8:
        raise ParseError(C.NPU_PARSE_BAD_ADDRESS, command.number)
    try:
        return hal.load(ssid, command.address, command.value * DESCRIPTOR_BYTES)
    except hal.Fault:
        raise ParseError(C.NPU_PARSE_BAD_ADDRESS, command.number) from None


def copy_tasks(hal: Hal, data: bytes) -> Records:
    """Return the DMA tasks of a COPY command with the descriptors `data`. Raises ParseError."""
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
