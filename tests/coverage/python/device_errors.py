"""What a job can end with, and every call that reports it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import libnpu
from libnpu.errors import Result
from tests.coverage import ledger
from tests.coverage.expect import blob, equal, expect, open_device

OUTPUT = np.zeros(64, np.uint8)
SECOND_NS = 1_000_000_000


def fails() -> None:
    raise ValueError("of this test")


def work(device: libnpu.Device, stream: libnpu.Stream, error: str) -> None:
    """Enqueue work that ends with `error`, behind other work, so that it fails when everything has been enqueued."""
    memory = device.alloc(1 << 20)
    stream.fill(memory, 0)
    models = {"DEVICE_PAGE_FAULT": "page_fault", "BARRIER_DEADLOCK": "deadlock", "BARRIER_UNDERFLOW": "underflow"}
    if error == "HOST_FUNCTION":
        stream.add_host_function(fails)
    elif error == "KERNEL_FAULT":
        device.load(blob("library"))["trap"].launch(stream)
    elif error == "ABORTED_BY_PRIOR_ERROR":
        pass
    else:
        name = models.get(error, "page_fault")
        device.load(blob(name))[name].launch(stream, memory.at(0, 64), memory.at(64, 64))


def waits_until_ready(stream: libnpu.Stream) -> None:
    while equal(stream.query(), False):
        pass


# What waits or asks: it gets device, stream, an event behind the work, and memory. The second value: it is about the default stream.
CALLS: dict[str, tuple[Callable[..., object], bool]] = {
    "Device.synchronize": (lambda device, stream, event, memory: device.synchronize(), False),
    "Context.synchronize": (lambda device, stream, event, memory: device.primary.synchronize(), False),
    "Stream.synchronize": (lambda device, stream, event, memory: stream.synchronize(), False),
    "Context.synchronize in time": (lambda device, stream, event, memory: device.primary.synchronize(SECOND_NS), False),
    "Stream.synchronize in time": (lambda device, stream, event, memory: stream.synchronize(SECOND_NS), False),
    "Event.synchronize in time": (lambda device, stream, event, memory: event.synchronize(SECOND_NS), False),
    "Stream.query": (lambda device, stream, event, memory: waits_until_ready(stream), False),
    "Event.synchronize": (lambda device, stream, event, memory: event.synchronize(), False),
    "Context.copy": (lambda device, stream, event, memory: device.primary.copy(OUTPUT, memory), True),
    "Context.copy_2d": (
        lambda device, stream, event, memory: device.primary.copy_2d(OUTPUT, 32, memory, 32, 32, 2),
        True,
    ),
    "Context.fill": (lambda device, stream, event, memory: device.primary.fill(memory, 1), True),
    "Context.copy_peer": (
        lambda device, stream, event, memory: device.primary.copy_peer(memory.at(0, 32), memory.at(32, 32)),
        True,
    ),
    "Stream.copy": (lambda device, stream, event, memory: stream.copy(OUTPUT, memory), False),
    "Stream.copy_2d": (lambda device, stream, event, memory: stream.copy_2d(OUTPUT, 32, memory, 32, 32, 2), False),
}
ERRORS = (
    "DEVICE_PAGE_FAULT",
    "BARRIER_DEADLOCK",
    "BARRIER_UNDERFLOW",
    "KERNEL_FAULT",
    "ABORTED_BY_PRIOR_ERROR",
    "HOST_FUNCTION",
    "DEVICE_LOST",
)

device = open_device()
for error in ERRORS:
    for name, (call, on_default) in CALLS.items():
        stream = device.default_stream if on_default else device.create_stream()
        event, memory = device.create_event(), device.alloc(64)
        work(device, stream, error)
        event.record(stream)
        if error == "ABORTED_BY_PRIOR_ERROR":
            stream.abort()
        if error == "DEVICE_LOST":
            with expect("DEVICE_PAGE_FAULT"):
                stream.synchronize()  # reported once
            while True:  # what was behind it
                try:
                    stream.query()
                except libnpu.NpuError as found:
                    ledger.compare(found)
                    if Result(found.result).name == "NPU_ERROR_DEVICE_LOST":
                        break
                    assert Result(found.result).name == "NPU_ERROR_ABORTED_BY_PRIOR_ERROR"
        try:
            with expect(error):
                call(device, stream, event, memory)
        except AssertionError as problem:
            raise AssertionError(f"{name}: {problem}") from None
        device.reset()
device.close()
