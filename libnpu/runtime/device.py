"""A device: the machine with its clock, schedule, counters and trace, and the contexts on it.

Programs that need one context only use the device's own, `Device.primary`, through the device's methods.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from npu_abi import C
from npu_model.memory import MemoryUnsupported
from npu_model.profile import ProfileError

from libnpu import syscalls
from libnpu.errors import NpuError, Unsupported
from libnpu.runtime import host_team
from libnpu.runtime.arguments import environment_switch, instance_of, path_of, truth, whole
from libnpu.runtime.context import Context
from libnpu.runtime.context_streams import NORMAL
from libnpu.runtime.device_machine import DeviceMachine
from libnpu.runtime.guard import Guard, failures_yield_to, public, uninterrupted
from libnpu.runtime.hold import say_missing, text_of
from libnpu.runtime.schedule import TIMED, Schedule, schedule_of
from libnpu.runtime.semantics import ASCEND, Semantics, semantics_of
from libnpu.runtime.site import Place, calling_place
from libnpu.syscalls import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npu_model.armed import Armed
    from numpy.typing import ArrayLike

    from libnpu.runtime.buffer import Buffer
    from libnpu.runtime.command_list import CommandList
    from libnpu.runtime.event import Event, Notify
    from libnpu.runtime.host_memory import HostBuffer, Registered
    from libnpu.runtime.ipc import ImportedBuffer
    from libnpu.runtime.ipc_event import IpcEvent, Records
    from libnpu.runtime.kernel import Kernel
    from libnpu.runtime.module import Module
    from libnpu.runtime.profiler import Profiler
    from libnpu.runtime.stream import Stream


DEFAULT_PROFILE = "npu-37xx"


class Device(DeviceMachine):
    """An open device; a context manager. Everything made from it ends with `close`.

    It and everything made from it may be used by several threads; one call runs at a time (`guard.py`).

    >>> import numpy as np, libnpu
    >>> with libnpu.open("npu-37xx") as npu:
    ...     x = npu.to_device(np.arange(4, dtype=np.float32))
    ...     npu.kernel("scale_add").launch(npu.default_stream, x, x, 10.0, 4)  # x = 10 x + x
    ...     npu.synchronize()
    ...     x.read(np.float32)
    <...Job object at ...>
    array([ 0., 11., 22., 33.], dtype=float32)
    """

    def __init__(
        self, node: Node, *, compute: bool, semantics: Semantics = ASCEND, launch_blocking: bool = False
    ) -> None:
        self.node = node  # of the primary context
        self.guard = Guard(node)
        self.profile = node.profile
        self.compute = compute
        self.semantics = semantics
        self.launch_blocking = launch_blocking  # what enqueues returns when its operation has ended
        self.schedule = TIMED
        self.times_meaningful = True  # False once another schedule than "timed" was chosen
        self.call_site: Callable[[], Place | str | int] = (
            calling_place  # where an operation is enqueued; C has addresses
        )
        self.records: WeakValueDictionary[bytes, Records] = WeakValueDictionary()  # of events with handles, by these
        self._primary: Context | None = None
        self._contexts: list[Context] = []  # besides the primary one
        self._context_number = 0  # of the last one

    @property
    @public
    def primary(self) -> Context:
        """The context behind the device's own methods, made on first use."""
        if self._primary is None:
            self.node.check_usable()
            self._primary = Context(self, self.node)
        return self._primary

    @public
    def create_context(self) -> Context:
        """Create a context of its own. Raises OUT_OF_RESOURCES when the driver has none left."""
        node = self.node.sibling()
        try:
            context = Context(self, node)
        except BaseException:
            node.close()
            raise
        self._contexts.append(context)
        return context

    def load(self, source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> Module:
        """As `Context.load` in the primary context."""
        return self.primary.load(source)

    def kernel(self, name: str) -> Kernel:
        """As `Context.kernel` in the primary context."""
        return self.primary.kernel(name)

    def alloc(self, nbytes: int) -> Buffer:
        """As `Context.alloc` in the primary context."""
        return self.primary.alloc(nbytes)

    def alloc_host(self, nbytes: int, flags: int = int(C.NPU_HOST_CACHED)) -> HostBuffer:
        """As `Context.alloc_host` in the primary context."""
        return self.primary.alloc_host(nbytes, flags)

    def register(self, memory: Any, size: int | None = None, *, sva: bool = False) -> Registered:
        """As `Context.register` in the primary context."""
        return self.primary.register(memory, size, sva=sva)

    def to_device(self, array: ArrayLike) -> Buffer:
        """As `Context.to_device` in the primary context."""
        return self.primary.to_device(array)

    def copy(self, dst: Any, src: Any, size: int | None = None) -> None:
        """As `Context.copy` in the primary context."""
        self.primary.copy(dst, src, size)

    def create_stream(self, *, blocking: bool = True, priority: int = NORMAL) -> Stream:
        """As `Context.create_stream` in the primary context."""
        return self.primary.create_stream(blocking=blocking, priority=priority)

    @property
    def default_stream(self) -> Stream:
        """The default stream of the primary context."""
        return self.primary.default_stream

    def create_command_list(self) -> CommandList:
        """As `Context.create_command_list` in the primary context."""
        return self.primary.create_command_list()

    @property
    def profiler(self) -> Profiler:
        """The profiler of the primary context."""
        return self.primary.profiler

    def create_event(self, *, timing: bool = True, interprocess: bool = False) -> Event:
        """As `Context.create_event` in the primary context."""
        return self.primary.create_event(timing=timing, interprocess=interprocess)

    def open_ipc_event(self, handle: bytes) -> IpcEvent:
        """As `Context.open_ipc_event` in the primary context."""
        return self.primary.open_ipc_event(handle)

    def open_ipc_memory(self, handle: bytes) -> ImportedBuffer:
        """As `Context.open_ipc_memory` in the primary context."""
        return self.primary.open_ipc_memory(handle)

    def create_notify(self) -> Notify:
        """As `Context.create_notify` in the primary context."""
        return self.primary.create_notify()

    def overflows(self) -> list[tuple[str, int]]:
        """As `Context.overflows` of the primary context."""
        return self.primary.overflows()

    @public
    def synchronize(self) -> None:
        """Wait for the work of all contexts, then raise the first error that was not raised before, as `Context.synchronize`."""
        first: NpuError | None = None
        work = [(context, context.streams) for context in (self.primary, *self._contexts)]
        for context, streams in work:
            try:
                if context.is_alive:  # no other thread has ended it during the waits before
                    context.enter()
                context.finish(streams)
            except NpuError as error:
                first = first or error
        if first is not None:
            raise first

    @public
    def set_schedule(self, schedule: str | None = None, *, seed: int | None = None) -> None:
        """Choose in which order work runs (`schedule.py`) that is enqueued from now on, and wait for the work before:
        "timed" (the default), "eager", "lazy", "newest-first", or "seed:N", for which `seed` is another way.

        Raises INVALID_VALUE for what is none of them.
        """
        chosen = schedule_of(schedule, None if seed is None else whole(seed, "seed"))
        for context in self._all_contexts():
            context.finish_all()
        chosen.apply(self.node)
        self._take_schedule(chosen)

    def _take_schedule(self, schedule: Schedule) -> None:
        self.schedule = schedule
        if schedule.holds:
            say_missing(text_of(schedule.holds))
        self.times_meaningful = self.times_meaningful and schedule is TIMED
        for context in self._all_contexts():
            context.dispatcher = schedule.dispatcher(context)

    def _all_contexts(self) -> Sequence[Context]:
        return (*([self._primary] if self._primary is not None else []), *self._contexts)

    @public
    def export_trace(self, path: str) -> None:
        """Write what the profilers of its contexts have noted, and what `trace` would return, which is forgotten, as a
        Chrome trace, which Perfetto shows. Raises FILE.
        """
        from libnpu.runtime.timelines import export_trace

        path = path_of(path, "path")
        export_trace(self, (self.primary, *self._contexts), path)

    @public
    def memory_info(self) -> tuple[int, int]:
        """Return (free, total) bytes of device memory."""
        _ = self.primary  # what it needs for itself does not count as anybody's
        return self._param(C.NPU_PARAM_DDR_FREE_BYTES), self._param(C.NPU_PARAM_DDR_BYTES)

    @public
    def close(self) -> None:
        """End everything: work in flight is waited for or aborted, all contexts and what was made in them become stale.

        Twice is allowed.
        """
        primary, self._primary = self._primary, None
        with contextlib.ExitStack() as ends:  # each of them, whatever the others raise
            ends.callback(self.node.close)
            if primary is not None:
                ends.callback(primary.destroy, force=True)
            for context in reversed(self._contexts):
                ends.callback(context.destroy, force=True)

    @public
    def reset(self) -> None:
        """Begin anew without contexts, for instance after a fault ended one (DEVICE_LOST); everything made before is
        stale. The clock goes on; a device that was lost as a whole is started again, and its schedule and counters
        begin anew too. Raises STALE_HANDLE after `close`.
        """
        if not self.node.is_open:
            self.node.check_usable()
        restarted = self.node.machine.lost is not None
        self.close()
        self._open_again()
        if restarted:
            self.times_meaningful = True
            self._take_schedule(TIMED)

    def __enter__(self) -> Device:
        return self

    @public
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with failures_yield_to(kind):
            self.close()

    def next_context_number(self) -> int:
        """Return the number of a context that is being made, from 1."""
        self._context_number += 1
        return self._context_number

    def forget_context(self, context: Context) -> None:
        """Drop a context that was destroyed. The node of the primary one is opened again, for the next."""
        if context is self._primary:
            self._primary = None
            self._open_again()
        elif context in self._contexts:
            self._contexts.remove(context)

    def _open_again(self) -> None:
        """Open a new node; what was made on the old one keeps that, and stays stale."""
        self.node = self.guard.node = self.node.successor()
        self.node.open()


@uninterrupted
def open_device(
    profile: str | None,
    *,
    compute: bool,
    numerics: str,
    fidelity: str,
    trace: bool,
    semantics: str,
    launch_blocking: bool | None,
    module_params: str | None,
    faults: Sequence[Armed],
    where: str | None = None,
) -> Device:
    """Return a new booted device. Raises INVALID_VALUE for an unknown profile, numerics policy, fidelity, semantics or module
    parameter, and for what NPU_SCHEDULE and NPU_LAUNCH_BLOCKING must not be; Unsupported for a fidelity without its helpers. `where`: as NPU_DEVICE, which it defaults to:
    "unix:PATH" is npud's device at PATH, nothing is one in this process. `profile` None: npud's, or npu-37xx. `faults` are armed before it
    boots, which npud's has done.
    """
    rules = semantics_of(semantics)
    compute, trace = truth(compute, "compute"), truth(trace, "trace")
    if profile is not None:
        profile = path_of(profile, "profile")
    if launch_blocking is None:
        launch_blocking = environment_switch("NPU_LAUNCH_BLOCKING", os.environ.get)
    launch_blocking = truth(launch_blocking, "launch_blocking")
    if module_params is None:
        module_params = os.environ.get("NPU_KMD_PARAMS", "")
    instance_of(module_params, str, "module_params")
    chosen = schedule_of(os.environ.get("NPU_SCHEDULE") or None)
    if instance_of(numerics, str, "numerics") not in ("exact", "fast"):
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"numerics {numerics!r}; there are 'exact' and 'fast'")
    if instance_of(fidelity, str, "fidelity") not in ("fast", "full"):
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"fidelity {fidelity!r}; there are 'fast' and 'full'")
    where = os.environ.get("NPU_DEVICE", "") if where is None else instance_of(where, str, "where")
    try:
        if where:
            path = syscalls.remote_path(where)
            if module_params:
                raise NpuError(
                    C.NPU_ERROR_INVALID_VALUE, f"module parameters {module_params!r}: npud's are given to npud"
                )
            if faults:
                raise NpuError(
                    C.NPU_ERROR_INVALID_VALUE, f"{len(faults)} faults to arm before the boot: npud's device has booted"
                )
            node = syscalls.open_remote(
                path, profile, compute=compute, numerics=numerics, fidelity=fidelity, trace=trace
            )
        else:
            node = syscalls.open_device(
                profile or DEFAULT_PROFILE, compute=compute, numerics=numerics, fidelity=fidelity, trace=trace,
                module_params=module_params, faults=faults,
            )  # fmt: skip
    except ProfileError as error:
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, str(error)) from None
    except MemoryUnsupported as error:
        raise Unsupported(str(error)) from None
    device = Device(node, compute=compute, semantics=rules, launch_blocking=launch_blocking)
    if chosen is not TIMED:
        device.set_schedule(chosen.name)
    host_team.obey_environment()
    return device
