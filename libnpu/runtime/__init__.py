"""The user-mode runtime: devices, contexts, memory, modules and kernels, streams, events and jobs.

Talks to the driver through `libnpu.syscalls` only.
"""

from libnpu.runtime.buffer import Buffer, DeviceSpan
from libnpu.runtime.context import Context
from libnpu.runtime.device import Device, DeviceInfo
from libnpu.runtime.event import Event, Notify
from libnpu.runtime.host_memory import HostBuffer, Mapping, Registered
from libnpu.runtime.job import Job
from libnpu.runtime.kernel import Kernel
from libnpu.runtime.module import Module
from libnpu.runtime.stream import FailureMode, Stream
from libnpu.runtime.tensor import TensorInfo

__all__ = [
    "Buffer",
    "Context",
    "Device",
    "DeviceInfo",
    "DeviceSpan",
    "Event",
    "FailureMode",
    "HostBuffer",
    "Job",
    "Kernel",
    "Mapping",
    "Module",
    "Notify",
    "Registered",
    "Stream",
    "TensorInfo",
]
