"""Devices whose kernel module was loaded with given parameters, and cached memory that they do not snoop."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from npu_abi import C

import libnpu

SCHEDULES = ("lazy", "evict", "seed:1", "seed:7", "seed:1000")  # of the CPU's caches: parameter `evict`


@pytest.fixture
def load() -> Iterator[Callable[..., libnpu.Device]]:
    """Opens a device of profile `unit` with module parameters."""
    devices = []

    def load(**parameters: object) -> libnpu.Device:
        text = " ".join(f"{name}={value}" for name, value in parameters.items())
        devices.append(libnpu.open("unit", module_params=text))
        return devices[-1]

    yield load
    for device in devices:
        device.close()


@pytest.fixture(params=SCHEDULES)
def schedule(request: pytest.FixtureRequest) -> str:
    """Each way in which caches write lines back by themselves."""
    return str(request.param)


def cached(device: libnpu.Device, size: int = 256) -> libnpu.HostBuffer:
    """Pinned memory that the device does not snoop, all zero for the CPU and in memory."""
    memory = device.alloc_host(size, C.NPU_HOST_NON_COHERENT)
    memory.array[:] = 0
    memory.flush()
    return memory


def device_sees(device: libnpu.Device, memory: libnpu.HostBuffer) -> bytes:
    """What a DMA engine reads from pinned memory."""
    target = device.alloc(memory.size)
    device.copy(target, memory)
    return target.read(np.uint8).tobytes()


def device_writes(device: libnpu.Device, target: object, content: bytes) -> None:
    """Let a DMA engine write to pinned memory, and wait."""
    source = device.to_device(np.frombuffer(content, np.uint8))
    device.copy(target, source)
