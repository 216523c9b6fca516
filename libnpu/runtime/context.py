"""A context: one open file of the device's node, with everything made in it. Contexts share the machine and its clock,
and nothing else: a fault ends one and does not touch its siblings.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import npu_abi
from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime import observer
from libnpu.runtime.arguments import instance_of, truth
from libnpu.runtime.blob_file import PARTS_MAGIC, read_blob, read_source
from libnpu.runtime.buffer_object import BufferObject
from libnpu.runtime.builtin import BuiltinKernel
from libnpu.runtime.command_list import CommandList
from libnpu.runtime.commands import CommandPool
from libnpu.runtime.context_streams import ContextStreams
from libnpu.runtime.event import Event, Notify
from libnpu.runtime.fences import FenceHeap
from libnpu.runtime.guard import failures_yield_to, public
from libnpu.runtime.memory import ContextMemory
from libnpu.runtime.module import Module
from libnpu.runtime.operation import ModuleLaunch
from libnpu.runtime.profiler import Profiler
from libnpu.runtime.records import read_records
from libnpu.syscalls import Request

if TYPE_CHECKING:
    import os

    from libnpu.runtime.device import Device
    from libnpu.runtime.dispatch import Dispatcher
    from libnpu.runtime.graph import Capture
    from libnpu.runtime.guard import Guard
    from libnpu.runtime.ipc_event import IpcEvent
    from libnpu.runtime.job import Job
    from libnpu.runtime.kernel import Kernel
    from libnpu.runtime.observer import Observer
    from libnpu.syscalls import Node

MAY_BE_LOST = (C.NPU_JOB_CTX_VIOLATION, C.NPU_JOB_ABORTED)  # statuses of jobs whose context may be gone
FILE_FACTOR = 2  # chosen: a file has names and relocations beside what it places in memory


class Context(ContextStreams, ContextMemory):
    """Made by `Device.create_context`; a context manager. Everything made from it ends with it.

    >>> with device.create_context() as mine, device.alloc(64) as memory:
    ...     mine.create_stream().fill(memory, 0)
    Traceback (most recent call last):
    libnpu.errors.NpuError: NPU_ERROR_WRONG_CONTEXT: ...
    """

    def __init__(self, device: Device, node: Node) -> None:
        ContextMemory.__init__(self)
        ContextStreams.__init__(self)
        host = node.profile.host
        self.device = device
        self.number = device.next_context_number()
        self.guard: Guard = device.guard
        self.node = node
        self.profile = node.profile
        self.compute = device.compute
        self.semantics = device.semantics
        self.api_ps = round(host.api_call_ns * 1000)
        self._copy_ps = 1000 / host.copy_bytes_per_ns
        self.fences = FenceHeap(node)
        self.commands = CommandPool(node)
        self.dispatcher: Dispatcher = device.schedule.dispatcher(self)
        self.events: weakref.WeakSet[Event] = weakref.WeakSet()
        self.notifies: weakref.WeakSet[Notify] = weakref.WeakSet()
        self.captures: list[Capture] = []  # under way
        self.operation_count = 0  # that were enqueued
        self.profiler = Profiler(self)
        self.is_alive = True
        self.has_failed = False  # an error sticks to it
        self.can_stop = False  # a stream of it stops the context's work on failure
        self._sticky: NpuError | None = None
        self._modules: list[Module] = []
        self._ran: dict[int, Job] = {}  # by job id: the last job of that id
        self._builtin: Module | None = None
        self.observer: Observer | None = None
        if observer.current is not None:
            observer.current.attach(self)

    @public
    def load(self, source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> Module:
        """Load a compiled model, in one blob or in parts, or a kernel library from a file or bytes.

        Raises INVALID_BLOB, FILE, OUT_OF_DEVICE_MEMORY; then nothing stays allocated.
        """
        self.enter()
        content = read_source(source, FILE_FACTOR * self.profile.ddr.capacity_bytes)
        module: Module
        if content.startswith(PARTS_MAGIC):
            from libnpu.runtime.parted_module import PartedModule

            module = PartedModule(self, content)
        else:
            module = Module(self, read_blob(content))
        self._modules.append(module)
        return module

    @public
    def kernel(self, name: str) -> Kernel:
        """Return the built-in kernel `name`; the library is loaded on first use. Raises INVALID_VALUE when there is none."""
        instance_of(name, str, "name")
        self.enter()
        if self._builtin is None:
            from libnpu.kernels import builtin_library

            self._builtin = Module(self, read_blob(read_source(builtin_library())), BuiltinKernel)
        return self._builtin[name]

    @public
    def create_event(self, *, timing: bool = True, interprocess: bool = False) -> Event:
        """Create an event, which keeps the time unless `timing` is False. `interprocess`: other processes can open it
        (`IpcEvent`); raises INVALID_VALUE with `timing`.
        """
        timing, interprocess = truth(timing, "timing"), truth(interprocess, "interprocess")
        self.enter()
        event: Event
        if interprocess:
            from libnpu.runtime.ipc_event import IpcEvent

            if timing:
                raise NpuError(C.NPU_ERROR_INVALID_VALUE, "an event of several processes keeps no time: timing=False")
            event = IpcEvent(self)
        else:
            event = Event(self, timing=timing)
        self.events.add(event)
        if self.observer is not None:
            self.observer.created(self, event, "an event")
        return event

    @public
    def open_ipc_event(self, handle: bytes) -> IpcEvent:
        """Return the event of an `IpcEvent.ipc_handle` of another context or process.

        Raises INVALID_VALUE for what is no such handle, INVALID_HANDLE when the event was destroyed, or is on another device.
        """
        from libnpu.runtime.ipc_event import IpcEvent

        self.enter()
        event = IpcEvent(self, handle)
        self.events.add(event)
        return event

    @public
    def create_notify(self) -> Notify:
        """Create a notify."""
        self.enter()
        notify = Notify(self)
        self.notifies.add(notify)
        if self.observer is not None:
            self.observer.created(self, notify, "a notify")
        return notify

    @public
    def create_command_list(self) -> CommandList:
        """Create an open command list."""
        self.enter()
        return CommandList(self)

    @public
    def overflows(self) -> list[tuple[str, int]]:
        """Return and forget which layers rounded finite values to infinity in fp16, and how many, in order of their first one.

        Of launches that a wait has seen the end of. Jobs have 256 ids: after so many launches a layer may bear another
        model's name, so ask before.
        """
        request = Request(C.NPU_IOCTL_EMU_OVERFLOWS, "npu_emu_overflows", "EMU_OVERFLOWS")
        found: dict[str, int] = {}
        for job_id, task_id, count in read_records(self.node, request, npu_abi.dtype("npu_overflow_record")).tolist():
            job = self._ran.get(job_id)
            known = job is not None and isinstance(job.operation, ModuleLaunch)
            layer = job.operation.module.tasks.layer(task_id) if known else f"task {task_id}"  # type: ignore[union-attr]
            found[layer] = found.get(layer, 0) + count
        return list(found.items())

    @public
    def destroy(self, *, force: bool = False) -> None:
        """End the context. Raises IN_USE while memory, modules, streams, events or notifies of it are left, unless
        `force`: then they become stale, and work in flight is waited for or aborted. Twice is allowed.
        """
        force = truth(force, "force")
        if not self.is_alive:
            return
        if not force:
            counts = {
                "buffers": len(list(self.device_memory)),
                "modules": len(self._modules),
                "streams": self.created_streams,
                "events": len(self.events),
                "notifies": len(self.notifies),
            }
            left = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
            if left:
                raise NpuError(C.NPU_ERROR_IN_USE, f"the context still has {left}")
        try:
            self.close_node()
        finally:
            self.end()
            self.device.forget_context(self)

    def close_node(self) -> None:
        """Give the open file back; `end` comes next."""
        if self.observer is not None:
            self.observer.ends(self)
        self.node.close()

    def end(self) -> None:
        """Make everything stale: the open file is closed."""
        self.is_alive = False
        self.profiler.end()
        for capture in tuple(self.captures):
            capture.abandon()
        for stream in (*self.streams, *self.waiting_streams):
            stream.abandon()
        for module in (*self._modules, *([self._builtin] if self._builtin else [])):
            module.release()
        self.end_memory()
        for event in tuple(self.events):
            event.destroy()
        for notify in tuple(self.notifies):
            notify.destroy()
        self.commands.free()
        self.fences.free()
        self._builtin = None
        self.forget_streams()
        self._modules.clear()
        self._ran.clear()

    def __enter__(self) -> Context:
        return self

    @public
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with failures_yield_to(kind):
            self.destroy(force=True)

    # ---- for the other modules of the runtime ----

    def refuse_while_capturing(self, what: str) -> None:
        """Raise CAPTURE_UNSUPPORTED, which invalidates the capture, when a stream is being captured."""
        for capture in self.captures:
            raise capture.refusal(what)

    def check(self) -> None:
        """Raise STALE_HANDLE after its end, DEVICE_LOST of a lost machine, and the error that sticks to the context."""
        if not self.is_alive:
            raise NpuError(C.NPU_ERROR_STALE_HANDLE, "the context has ended")
        self.node.check_usable()
        if self._sticky is not None:
            raise self._sticky

    def enter(self) -> None:
        """Let the host make a call."""
        self.check()
        self.node.advance(self.api_ps)

    def charge_copy(self, size: int) -> None:
        """Let the host spend the time of a copy of `size` bytes."""
        self.node.advance(round(size * self._copy_ps))

    def job_of(self, job_id: int) -> Job | None:
        """Return the last job of that id whose end was seen."""
        return self._ran.get(job_id)

    def note_job(self, job_id: int, job: Job) -> None:
        """Remember what a job ran."""
        self._ran[job_id] = job

    def note_failure(self, error: NpuError) -> None:
        """The device has ended a job with an error: under some semantics it sticks; a fault may have ended the context under all.

        What leaves the context whole is none: an error of a host function, an abort, a wait for what nothing will signal.
        """
        if self._sticky is None:
            if self.semantics.sticky_errors:
                self._sticky = error
            elif error.job_status in MAY_BE_LOST:
                self._sticky = self._loss(error)
            self.has_failed = self._sticky is not None
            if self._sticky is not None:
                for capture in tuple(self.captures):
                    capture.abandon()  # no call could end it any more

    def _loss(self, failure: NpuError) -> NpuError | None:
        """Return DEVICE_LOST when a fault has ended the context: the driver gives it no memory any more. The message is
        what the driver says of the fault, and the job that failed.
        """
        try:
            BufferObject(self.node, 1, 0).free()
        except NpuError as error:
            if error.result == C.NPU_ERROR_DEVICE_LOST:
                fault = error.message.partition(": ")[2]  # without the call that asked
                return NpuError(error.result, f"{fault}; seen when {failure.message}")
        return None

    def forget_module(self, module: Module) -> None:
        """Drop an unloaded module."""
        if module in self._modules:
            self._modules.remove(module)
