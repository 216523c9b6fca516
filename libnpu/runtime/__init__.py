"""The user-mode runtime: devices, contexts, memory, modules and kernels, streams, events and jobs.

Talks to the driver through `libnpu.syscalls` only.
"""

from libnpu.runtime.buffer import Buffer
from libnpu.runtime.command_list import CommandList
from libnpu.runtime.context import Context
from libnpu.runtime.device import Device
from libnpu.runtime.device_machine import DeviceInfo
from libnpu.runtime.event import Event, Notify
from libnpu.runtime.graph import Capture, CaptureStatus, Graph
from libnpu.runtime.graph_exec import GraphExec
from libnpu.runtime.host_memory import HostBuffer, Mapping, Registered
from libnpu.runtime.ipc import ImportedBuffer
from libnpu.runtime.ipc_event import IpcEvent
from libnpu.runtime.job import Job
from libnpu.runtime.kernel import Kernel
from libnpu.runtime.module import Module
from libnpu.runtime.profiler import OperationRecord, Profiler
from libnpu.runtime.spans import DeviceSpan
from libnpu.runtime.stream import Stream
from libnpu.runtime.stream_queue import FailureMode
from libnpu.runtime.tensor import TensorInfo

__all__ = [
    "Buffer",
    "Capture",
    "CaptureStatus",
    "CommandList",
    "Context",
    "Device",
    "DeviceInfo",
    "DeviceSpan",
    "Event",
    "FailureMode",
    "Graph",
    "GraphExec",
    "HostBuffer",
    "ImportedBuffer",
    "IpcEvent",
    "Job",
    "Kernel",
    "Mapping",
    "Module",
    "Notify",
    "OperationRecord",
    "Profiler",
    "Registered",
    "Stream",
    "TensorInfo",
]
