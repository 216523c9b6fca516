"""Operations: what can be enqueued in a stream, independent of where and how often.

An operation writes commands, the data that they need and the memory that they touch to a `CommandWriter`. Several can
write to one, and one may be enqueued again, so what belongs to a single run goes into the job by `writer.at_end`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from struct import Struct
from typing import TYPE_CHECKING, ClassVar

from npu_abi import C, codec, sizeof

from libnpu.runtime.command_formats import (
    ALONE,
    ALONE_BYTES,
    EXECUTE,
    EXECUTE_BYTES,
    FENCE_BYTES,
    HEADER_BYTES,
    SIGNAL,
    VERSION,
)
from libnpu.runtime.commands import PREEMPT_INDEX
from libnpu.runtime.job import Block

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from libnpu.runtime.buffer import Buffer
    from libnpu.runtime.commands import CommandWriter
    from libnpu.runtime.fences import Cell, Signal
    from libnpu.runtime.instance import Instance
    from libnpu.runtime.job import Job
    from libnpu.runtime.kernel import LibraryKernel
    from libnpu.runtime.module import Module
    from libnpu.runtime.spans import DeviceSpan
    from libnpu.runtime.stream import Stream

TWO_HANDLES, THREE_HANDLES = Struct("<2I"), Struct("<3I")
INFERENCE_EXECUTE, INFERENCE_DYNAMIC = int(C.NPU_CMD_INFERENCE_EXECUTE), int(C.NPU_CMD_INFERENCE_DYNAMIC)
TIMESTAMP = codec("npu_cmd_timestamp", "h.type", "h.size", "va")
LAUNCH = codec(
    "npu_cmd_kernel", "h.type", "h.size", "text_va", "args_va", "record_va", "code_bytes", "args_bytes", "grid", "flags"
)
RECORD = codec(
    "npu_kernel_record", "taken_ps", "picked_ps", "load_ps", "start_ps", "end_ps", "unit", "loaded_bytes", "cached_bytes"
)  # fmt: skip
assert RECORD.size == sizeof("npu_kernel_record")
# Failures whose error_info is a task; of a refused inference, an entry of the list that the error is about.
_NAMES_A_TASK = frozenset(
    {
        C.NPU_JOB_DEADLOCK,
        C.NPU_JOB_BARRIER_UNDERFLOW,
        C.NPU_JOB_CTX_VIOLATION,
        C.NPU_JOB_SHAVE_FAULT,
        C.NPU_JOB_PROCESSING_ERR,
    }
)
_NAMES_AN_ENTRY = frozenset({C.NPU_PARSE_BAD_BARRIER, C.NPU_PARSE_BAD_DMA, C.NPU_PARSE_BAD_DPU, C.NPU_PARSE_BAD_SHAVE})


class Operation(ABC):
    """`kind` is the word of enum npu_op_kind, `name` what people call this one. `record`: the job, of any context of this process,
    that it waits for and no signal of its own context says.
    """

    __slots__ = ("name",)
    kind: ClassVar[str]
    capturable: ClassVar[bool] = True  # it can be a node of a graph
    name: str
    record: Job | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes that it moves, or of a kernel's arguments."""
        return 0

    @abstractmethod
    def encode(self, writer: CommandWriter) -> None:
        """Write the operation. Raises STALE_HANDLE when something that it uses is gone. May be called again for the
        same job, into another writer, when the first one's buffer was too small.
        """

    def culprit(self, status: int, detail: int, info: int) -> tuple[str, str | None]:
        """Return the refused entry, for the message, and the name of the task that a failure is about, if known."""
        return "", None


class Marker(Operation):
    """Nothing: it ends when everything before it in its stream has ended."""

    __slots__ = ()
    kind = "event_record"

    def __init__(self, name: str = "event record") -> None:
        self.name = name

    def encode(self, writer: CommandWriter) -> None:
        """Write no command."""


class Passed(Marker):
    """A wait for what is over, or for nothing."""

    __slots__ = ()
    kind = "event_wait"


class FenceWait(Operation):
    """Let the stream wait for a signal."""

    __slots__ = ("signal",)
    kind = "event_wait"
    capturable = False

    def __init__(self, signal: Signal) -> None:
        self.name = f"wait for {signal.what}"
        self.signal = signal

    def encode(self, writer: CommandWriter) -> None:
        """Write a FENCE_WAIT."""
        writer.wait(self.signal)


class NotifyWait(FenceWait):
    """Let the stream wait for a record of a notify."""

    __slots__ = ()
    kind = "notify_wait"


class FenceSignal(Operation):
    """Give a signal, a notify's, when everything before it in its stream has ended."""

    __slots__ = ("signal",)
    kind = "notify_record"
    capturable = False

    def __init__(self, signal: Signal) -> None:
        self.name = signal.what
        self.signal = signal

    def encode(self, writer: CommandWriter) -> None:
        """Write a FENCE_SIGNAL."""
        writer.signal(self.signal)


class Timestamp(Operation):
    """Take the device's time and hand it, in ps, to `take` when the job has ended."""

    __slots__ = ("_take",)
    kind = "event_record"

    def __init__(self, name: str, take: Callable[[Job, int], None]) -> None:
        self.name = name
        self._take = take

    def encode(self, writer: CommandWriter) -> None:
        """Write a TIMESTAMP."""
        address, take = writer.reserve(8), self._take
        writer.command(TIMESTAMP.pack(C.NPU_CMD_TIMESTAMP, TIMESTAMP.size, address))
        writer.at_end(lambda job: take(job, int.from_bytes(job.data(address, 8), "little")))


class ModuleLaunch(Operation):
    """Run a compiled model on memory: `spans` are its inputs and then its outputs, checked. `command` is the walk through
    its lists or the run-time scheduler, INFERENCE_DYNAMIC.
    """

    __slots__ = ("_command", "_key", "_spans", "module")
    kind = "model"

    def __init__(
        self,
        module: Module,
        spans: Sequence[Buffer | DeviceSpan],
        key: tuple[int, ...],
        command: int = INFERENCE_EXECUTE,
    ) -> None:
        self.name: str = module.name
        self.module = module
        self._command = command
        self._spans = spans
        self._key = key

    def encode(self, writer: CommandWriter) -> None:
        """Bind an instance of the task lists and write the inference."""
        job = writer.job
        instance = self._instance(job.stream)
        instance.jobs.append(job)
        job.ends.append(instance.jobs.remove)
        writer.handles.update(instance.bound_handles)
        writer.has_inference = True
        writer.command(EXECUTE.pack(self._command, EXECUTE.size, job.number, instance.mapped_va))

    def encode_alone(self, job: Job, cell: Cell) -> None:
        """Write the command buffer of a job that is this launch and waits for nothing, and signals `cell`: what a
        CommandWriter would write, several times faster.
        """
        context = job.stream.context
        preempt = job.stream.preemption_buffer()
        bo, fences = context.commands.take(), context.fences
        try:
            instance = self._instance(job.stream)
        except BaseException:
            context.commands.give(bo)
            raise
        instance.jobs.append(job)
        job.ends.append(instance.jobs.remove)
        number, offset = job.number, cell.offset
        assert bo.view is not None
        ALONE.pack_into(
            bo.view, 0,
            ALONE_BYTES, HEADER_BYTES, VERSION, bo.va, fences.va,
            self._command, EXECUTE_BYTES, number, instance.mapped_va,
            SIGNAL, FENCE_BYTES, offset, number,
        )  # fmt: skip
        job.bo = bo
        if preempt:
            job.preempt_index = PREEMPT_INDEX
            job.segment = THREE_HANDLES.pack(bo.handle, preempt, fences.handle) + instance.segment
        else:
            job.segment = TWO_HANDLES.pack(bo.handle, fences.handle) + instance.segment

    def _instance(self, stream: Stream) -> Instance:
        handles = [span.buffer.handle for span in self._spans]
        return self.module.instance_for(stream, self._key, handles)

    def bound(self) -> BoundModuleLaunch:
        """Return the same launch with an instance of its own, for command lists and graphs."""
        return BoundModuleLaunch(self.module, self._spans, self._key, self._command)

    def culprit(self, status: int, detail: int, info: int) -> tuple[str, str | None]:
        """Look the task up in the module's lists."""
        of_entry = status == C.NPU_JOB_PARSING_ERR and detail in _NAMES_AN_ENTRY
        task = self.module.tasks.failed(info) if status in _NAMES_A_TASK or of_entry else None
        return self.module.tasks.refused(info) if of_entry else "", task


class BoundModuleLaunch(ModuleLaunch):
    """A launch that is enqueued again and again: its instance stays bound to its memory as long as it lives. Jobs of it
    must not run at the same time.
    """

    __slots__ = ("__weakref__", "_own")

    def __init__(
        self, module: Module, spans: Sequence[Buffer | DeviceSpan], key: tuple[int, ...], command: int
    ) -> None:
        super().__init__(module, spans, key, command)
        self._own = module.own_instance(self, key, [span.buffer.handle for span in spans])

    def _instance(self, stream: Stream) -> Instance:
        self.module.check_loaded()
        for span in self._spans:
            _ = span.buffer.handle  # raises STALE_HANDLE
        return self._own


class KernelLaunch(Operation):
    """Run `grid` blocks of a kernel with a packed argument block on the memory of `spans`."""

    __slots__ = ("_arguments", "_spans", "grid", "kernel")
    kind = "kernel"

    def __init__(
        self, kernel: LibraryKernel, arguments: bytes, spans: Sequence[Buffer | DeviceSpan], grid: int
    ) -> None:
        self.name: str = kernel.name
        self.kernel = kernel
        self.grid = grid
        self._arguments = arguments
        self._spans = spans

    @property
    def size_bytes(self) -> int:
        """Bytes of the arguments."""
        return len(self._arguments)

    def encode(self, writer: CommandWriter) -> None:
        """Place arguments and records and write a KERNEL_LAUNCH."""
        kernel, grid = self.kernel, self.grid
        text_va, handles = kernel.text()
        arguments = self._arguments
        args_va = writer.place(arguments) if arguments else 0
        records = writer.reserve(grid * RECORD.size)
        writer.touch(handles)
        writer.touch([span.buffer.handle for span in self._spans])
        writer.command(
            LAUNCH.pack(
                C.NPU_CMD_KERNEL_LAUNCH,
                LAUNCH.size,
                text_va,
                args_va,
                records,
                kernel.code_bytes,
                len(arguments),
                grid,
                kernel.flags,
            )
        )
        writer.at_end(lambda job: _note_blocks(job, records, grid))
        kernel.module.launches.append(writer.job)
        writer.at_end(kernel.module.launches.remove)

    def culprit(self, status: int, detail: int, info: int) -> tuple[str, str | None]:
        """Name the block that failed, or that waits at `bar` for blocks that have ended."""
        if status == C.NPU_JOB_DEADLOCK:
            return f"block {info} waits at `bar` for a block that has ended", None
        return (f"block {info}" if status in (C.NPU_JOB_SHAVE_FAULT, C.NPU_JOB_CTX_VIOLATION) else "", None)


def _note_blocks(job: Job, address: int, grid: int) -> None:
    records = RECORD.iter_unpack(job.data(address, grid * RECORD.size))
    job.blocks += tuple(Block(*record) for record in records if record[4])  # a block without an end did not run
