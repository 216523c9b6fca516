"""libnpu: open a simulated NPU, load compiled models, run them on streams.

    with libnpu.open("npu-37xx") as device:
        model = device.load("model.blob")
        outputs = model.run({"input": array})

Importing this is cheap: NumPy, the driver and the device are loaded by `open`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.checker import check
from libnpu.errors import NpuError, Unimplemented, Unsupported

if TYPE_CHECKING:
    from libnpu.runtime import (
        Buffer,
        Capture,
        CommandList,
        Context,
        Device,
        DeviceInfo,
        DeviceSpan,
        Event,
        FailureMode,
        Graph,
        GraphExec,
        HostBuffer,
        ImportedBuffer,
        IpcEvent,
        Job,
        Kernel,
        Mapping,
        Module,
        Notify,
        Profiler,
        Registered,
        Stream,
        TensorInfo,
    )

__version__ = "0.1.0"
__all__ = [
    "Buffer",
    "Capture",
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
    "NpuError",
    "Profiler",
    "Registered",
    "Stream",
    "TensorInfo",
    "Unimplemented",
    "Unsupported",
    "check",
    "open",
    "timeline",
]


def open(
    profile: str | None = None,
    *,
    compute: bool = True,
    numerics: str = "exact",
    fidelity: str = "fast",
    trace: bool = False,
    semantics: str = "ascend",
    launch_blocking: bool | None = None,
    module_params: str | None = None,
    faults: str | None = None,
    where: str | None = None,
) -> Device:
    """Return a new device of hardware profile `profile` (name, alias or .json path, also
    "NAME+MEMORY" with another memory system; None: npu-37xx), booted; a context manager.
    `where` "unix:PATH" is the device that npud serves there (docs/daemon.md), which has to be what is asked for, "" one in this
    process; None: the environment variable NPU_DEVICE says.

    `compute=False` runs the same path for its times alone: no values. `numerics` is "exact" or "fast". `fidelity` of the
    memory path is "fast", bandwidth shared as a fluid, or "full", cycle by cycle (docs/memory.md).
    `trace=True` records what the device does for `Device.trace`. `semantics` is "ascend", "cuda" or "strict", see
    libnpu.runtime.semantics. `launch_blocking`: a call that enqueues returns when its operation has ended, and raises its
    error; None: the environment variable NPU_LAUNCH_BLOCKING says (1). `module_params` are parameters of the kernel module,
    "name=value ..." (npu_driver/params.py); None: the environment variable NPU_KMD_PARAMS says. `faults` names a file of
    faults that are armed before the device boots (docs/recovery.md), "" none; None: the environment variable NPU_FAULTS says,
    and what has struck once in this process is spent. Raises NpuError (INVALID_VALUE for an unknown profile, FILE for faults
    that cannot be read).
    """
    import os

    from libnpu.checker import VARIABLE, obey_environment
    from libnpu.faults import faults_of_process, read_faults
    from libnpu.runtime.arguments import path_of
    from libnpu.runtime.device import open_device

    if faults is None:
        armed = faults_of_process(os.environ.get("NPU_FAULTS", ""))
    else:
        path = path_of(faults, "faults")
        armed = tuple(read_faults(path)) if path else ()

    if os.environ.get(VARIABLE):
        obey_environment()
    return open_device(
        profile,
        compute=compute,
        numerics=numerics,
        fidelity=fidelity,
        trace=trace,
        semantics=semantics,
        launch_blocking=launch_blocking,
        module_params=module_params,
        faults=armed,
        where=where,
    )


def timeline(context: Context) -> str:
    """Return what `context.profiler` has noted as text: a line for each call of the host and each operation of a stream,
    with a bar over time; at most 100 columns.
    """
    from libnpu.runtime.arguments import instance_of
    from libnpu.runtime.context import Context
    from libnpu.runtime.timelines import timeline as text

    return text(instance_of(context, Context, "context"))


def __getattr__(name: str) -> object:
    if name in __all__:
        import libnpu.runtime

        return getattr(libnpu.runtime, name)
    raise AttributeError(f"module 'libnpu' has no attribute {name!r}")
