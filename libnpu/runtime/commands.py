"""Command buffers as the runtime writes them: what the operations of a job put in, packed into one buffer object.

Layout: the data of the operations (argument blocks, descriptors, results), then, 64-byte aligned, the header of
npu_fw.h with the commands behind it; CMDQ_SUBMIT says where the header is. Buffers live below 4 GiB, where argument
blocks must be, and serve one job at a time.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.runtime.buffer_object import BufferObject
from libnpu.runtime.command_formats import FENCE, HEADER, SIGNAL, VERSION, WAIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from libnpu.runtime.context import Context
    from libnpu.runtime.fences import Cell, Signal
    from libnpu.runtime.job import Job
    from libnpu.syscalls import Node

HEADER_ALIGNMENT = 64
POOLED_BYTES = 4096  # chosen: one page holds what all but graphs need
PREEMPT_INDEX = 1  # chosen: place of the preemption buffer among the handles of a submit that has one


class CommandPool:
    """The command buffers of a context that no job uses."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._idle: list[BufferObject] = []

    def take(self, size: int = POOLED_BYTES) -> BufferObject:
        """Return a buffer of at least `size` bytes."""
        if size <= POOLED_BYTES and self._idle:
            return self._idle.pop()
        return BufferObject(self._node, max(size, POOLED_BYTES), C.NPU_BO_MAPPABLE | C.NPU_BO_SHAVE_MEM)

    def give(self, bo: BufferObject) -> None:
        """Take a buffer back; its job has ended."""
        if bo.size == POOLED_BYTES:
            self._idle.append(bo)
        else:
            bo.free()

    def check_available(self, sizes: Iterable[int]) -> None:
        """Raise OUT_OF_DEVICE_MEMORY unless buffers of all these sizes could be taken now."""
        taken: list[BufferObject] = []
        try:
            for size in sizes:
                bo = self.take(size)
                taken.append(bo)
        finally:
            for bo in taken:
                self.give(bo)

    def free(self) -> None:
        """Free the idle buffers."""
        for bo in self._idle:
            bo.free()
        self._idle.clear()


class CommandWriter:
    """What an operation writes its part of a job to (`Operation.encode`). Several may write one after the other."""

    __slots__ = (
        "_commands",
        "_data",
        "bo",
        "commands_offset",
        "context",
        "copied_bytes",
        "handles",
        "has_inference",
        "job",
    )

    def __init__(self, context: Context, job: Job, bo: BufferObject) -> None:
        self.context = context
        self.job = job
        self.bo = bo
        self._data = bytearray()
        self._commands: list[bytes] = []
        self.handles: dict[int, None] = {bo.handle: None, context.fences.handle: None}
        self.has_inference = False  # which can be preempted
        self.copied_bytes = 0
        self.commands_offset = 0

    def place(self, content: bytes, alignment: int = 8) -> int:
        """Copy `content` into the command buffer and return its device address, below 4 GiB."""
        self.copied_bytes += len(content)
        self._data += bytes(-len(self._data) % alignment)
        address = self.bo.va + len(self._data)
        self._data += content
        return address

    def reserve(self, size: int, alignment: int = 8) -> int:
        """Make room for `size` bytes, zero at first, and return their device address, for `Job.data`."""
        self.copied_bytes -= size
        return self.place(bytes(size), alignment)

    def command(self, packed: bytes) -> None:
        """Append a command of npu_fw.h."""
        self._commands.append(packed)

    def wait(self, signal: Signal) -> None:
        """Let the job wait for a fence here, unless it is known to be over."""
        if not signal.over:
            self.job.signals = (*self.job.signals, signal)
            self._commands.append(FENCE.pack(WAIT, FENCE.size, signal.cell.offset, signal.value))
        elif self.context.observer is not None and signal.job is not None and self.job.number:  # 0: it is only measured
            self.context.observer.ordered(self.job.stream, signal.job)

    def signal(self, signal: Signal) -> None:
        """Let the job write a fence here, also when it fails."""
        self.job.written = (*self.job.written, signal)
        self._commands.append(FENCE.pack(SIGNAL, FENCE.size, signal.cell.offset, signal.value))

    def touch(self, handles: Iterable[int]) -> None:
        """Keep the memory of these buffer objects until the job has ended."""
        self.handles.update(dict.fromkeys(handles))

    def at_end(self, function: Callable[[Job], None]) -> None:
        """Call `function(job)` when the job has ended, however it ended; its data can still be read."""
        self.job.ends.append(function)

    def pack(self) -> bytes:
        """Return the content of the buffer; its header is at `commands_offset`."""
        data = self._data
        if data:
            data += bytes(-len(data) % HEADER_ALIGNMENT)
            self.commands_offset = len(data)
        commands = b"".join(self._commands)
        size = HEADER.size + len(commands)
        header = HEADER.pack(size, HEADER.size, VERSION, self.bo.va, self.context.fences.va)
        return b"".join((data, header, commands))

    def segment(self, preempt: int) -> bytes:
        """Return the handles of the submit. `preempt`: of the preemption buffer, 0 for none."""
        handles = array("I", self.handles)
        if preempt:
            handles.insert(PREEMPT_INDEX, preempt)
        return handles.tobytes()


def write_commands(job: Job, cell: Cell, implicit: Iterable[Signal]) -> None:
    """Write the command buffer of a job, which waits for the signals `implicit` first, does its operation and signals
    `cell`. When that fails, nothing is left of it.
    """
    context = job.stream.context
    bo, first = context.commands.take(), tuple(implicit)
    while True:
        writer = CommandWriter(context, job, bo)
        try:
            for signal in first:
                writer.wait(signal)
            job.operation.encode(writer)
            writer.command(FENCE.pack(SIGNAL, FENCE.size, cell.offset, job.number))
            content = writer.pack()
            preempt = job.stream.preemption_buffer() if writer.has_inference else 0
            if len(content) <= bo.size:
                break
            larger = context.commands.take(len(content))
        except BaseException:
            _undo(job)
            context.commands.give(bo)
            raise
        _undo(job)
        context.commands.give(bo)
        bo = larger
    assert bo.view is not None
    bo.view[: len(content)] = content
    job.bo, job.segment, job.commands_offset = bo, writer.segment(preempt), writer.commands_offset
    job.preempt_index = PREEMPT_INDEX if preempt else 0
    if writer.copied_bytes:
        context.charge_copy(writer.copied_bytes)


def _undo(job: Job) -> None:
    """Take back what operations noted about a job that will not run as they wrote it."""
    ends, job.ends, job.signals, job.written = job.ends, [], (), ()
    for function in ends:
        function(job)
