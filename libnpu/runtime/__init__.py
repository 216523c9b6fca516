"""The user-mode runtime: devices, device memory, loaded blobs, streams and jobs.

Talks to the driver through `libnpu.syscalls` only.
"""

from libnpu.runtime.blob import Blob
from libnpu.runtime.buffer import DeviceBuffer, DeviceSpan
from libnpu.runtime.device import Device, DeviceInfo
from libnpu.runtime.job import Job
from libnpu.runtime.stream import Stream
from libnpu.runtime.tensor import TensorInfo

__all__ = ["Blob", "Device", "DeviceBuffer", "DeviceInfo", "DeviceSpan", "Job", "Stream", "TensorInfo"]
