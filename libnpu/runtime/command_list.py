"""Command lists: operations that are put together once and enqueued as one job, any number of times.

A submit writes one command buffer with the commands of all operations, so it costs one call, one ioctl and one
doorbell, and runs whole or not at all. Arguments were packed when they were appended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime import copies
from libnpu.runtime.arguments import instance_of, wrong
from libnpu.runtime.command_formats import FENCE, HEADER
from libnpu.runtime.commands import CommandWriter
from libnpu.runtime.graph_nodes import bind, module_of
from libnpu.runtime.guard import public
from libnpu.runtime.job import Job
from libnpu.runtime.kernel import Kernel
from libnpu.runtime.module import Module
from libnpu.runtime.operation import Operation
from libnpu.runtime.tensor import check_names

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from libnpu.runtime.buffer import Buffer
    from libnpu.runtime.context import Context
    from libnpu.runtime.spans import DeviceSpan
    from libnpu.runtime.stream import Stream

MAX_BUFFER_BYTES = int(C.NPU_MAX_CMD_BUFFER_BYTES)  # of header and commands
SUBMIT_FENCES = 256  # room for what a submit adds: its stream's fence, and waits for all other queues


class Batch(Operation):
    """Operations one after the other, as one."""

    __slots__ = ("_jobs", "operations")
    kind = "cmdlist"

    def __init__(self, name: str, operations: Sequence[Operation], jobs: list[Job]) -> None:
        """`jobs` gets the jobs that may not have ended."""
        self.name = name
        self.operations = operations
        self._jobs = jobs

    @property
    def size_bytes(self) -> int:
        """Bytes that its operations move."""
        return sum(operation.size_bytes for operation in self.operations)

    def encode(self, writer: CommandWriter) -> None:
        """Write all operations."""
        self._jobs.append(writer.job)
        writer.at_end(self._jobs.remove)
        for operation in self.operations:
            operation.encode(writer)

    def culprit(self, status: int, detail: int, info: int) -> tuple[str, str | None]:
        """What the operations say, if they agree: the firmware tells the task or block, not the command."""
        return common_culprit(self.operations, status, detail, info)


def common_culprit(operations: Sequence[Operation], status: int, detail: int, info: int) -> tuple[str, str | None]:
    """Return what all operations that know something say about a failure."""
    found = {operation.culprit(status, detail, info) for operation in operations} - {("", None)}
    return found.pop() if len(found) == 1 else ("", None)


def measure(context: Context, operation: Operation) -> tuple[int, set[int], int]:
    """Return the bytes of an operation's commands, the buffer objects that it uses, and the bytes of a command buffer for
    it alone. Raises what `encode` raises.
    """
    bo = context.commands.take()
    job = Job(None, operation, 0, 0, "")  # type: ignore[arg-type]
    writer = CommandWriter(context, job, bo)
    try:
        operation.encode(writer)
        size = len(writer.pack())
        return size - writer.commands_offset - HEADER.size, writer.handles.keys() - {bo.handle}, size
    finally:
        job.end()
        context.commands.give(bo)


def check_fits(size: int, handles: Collection[int]) -> None:
    """Raise OUT_OF_RESOURCES when one job cannot hold `size` bytes of commands or use that many buffer objects."""
    limit = MAX_BUFFER_BYTES - HEADER.size - SUBMIT_FENCES * FENCE.size
    if size > limit:
        raise NpuError(C.NPU_ERROR_OUT_OF_RESOURCES, f"{size} bytes of commands in one job; {limit} are allowed")
    most = int(C.NPU_MAX_SUBMIT_BUFFERS) - 2  # and the command buffer, and a preemption buffer
    if len(handles) > most:
        raise NpuError(C.NPU_ERROR_OUT_OF_RESOURCES, f"one job uses {len(handles)} buffer objects; {most} are allowed")


class CommandList:
    """Made by `Context.create_command_list`; open until `close`, then it can be submitted. A context manager.

    >>> memory, result = device.alloc(64), device.alloc(64)
    >>> with device.primary.create_command_list() as commands:
    ...     commands.append_fill(memory, 5)
    ...     commands.append_copy(result, memory)
    ...     commands.close()
    ...     commands.submit().wait()  # one job
    >>> int(result.read()[63])
    5
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.guard = context.guard
        self.is_closed = False
        self._operations: list[Operation] = []
        self._size = 0  # of the commands
        self._handles: set[int] = set()
        self._jobs: list[Job] = []  # of submits, that may not have ended
        self._open = True

    def __len__(self) -> int:
        return len(self._operations)

    @public
    def append(self, kernel: Kernel, *arguments: Any, grid: int | None = None) -> None:
        """Append a kernel or a compiled model; as `Kernel.launch`. Raises BAD_STATE when the list is closed,
        OUT_OF_RESOURCES when it is full.
        """
        if not isinstance(kernel, Kernel):
            raise wrong(kernel, "kernel", "a Kernel")
        self._enter_open()
        if kernel.module.context is not self.context:
            raise NpuError(C.NPU_ERROR_WRONG_CONTEXT, f"kernel {kernel.name!r} is another context's")
        self._add(kernel.operation(arguments, grid))

    @public
    def append_launch(
        self, module: Module, inputs: Mapping[str, Buffer | DeviceSpan], outputs: Mapping[str, Buffer | DeviceSpan]
    ) -> None:
        """Append a compiled model with memory by tensor name; as `Stream.launch`, and as `append`."""
        instance_of(module, Module, "module")
        check_names(inputs, [t.name for t in module.inputs], "inputs")
        check_names(outputs, [t.name for t in module.outputs], "outputs")
        spans = [inputs[t.name] for t in module.inputs] + [outputs[t.name] for t in module.outputs]
        self.append(module[module.name], *spans)

    @public
    def append_copy(self, dst: Any, src: Any, size: int | None = None) -> None:
        """Append a copy of memory that the device sees; as `Stream.copy` and `append`. Raises Unsupported for pageable
        memory.
        """
        self._enter_open()
        operation = copies.copy_operation(self.context, dst, src, size)
        if operation is not None:
            self._add(operation)

    @public
    def append_fill(self, dst: Any, value: int) -> None:
        """Append a fill; as `Stream.fill` and `append`."""
        self._enter_open()
        operation = copies.fill_operation(self.context, dst, value)
        if operation is not None:
            self._add(operation)

    def _add(self, operation: Operation) -> None:
        """Take an operation into the open list, or raise and take nothing."""
        bound = bind(operation)
        size, handles, _ = measure(self.context, bound)
        check_fits(self._size + size, self._handles | handles)
        self._size += size
        self._handles |= handles
        self._operations.append(bound)
        module = module_of(bound)
        if module is not None:
            module.users.add(self)

    @public
    def close(self) -> None:
        """End appending. Raises BAD_STATE when it is closed."""
        self._enter_open()
        self.is_closed = True

    @public
    def reset(self) -> None:
        """Empty and open it. Raises IN_USE while a submit of it has not been waited for."""
        self._enter()
        if self._jobs:
            raise NpuError(C.NPU_ERROR_IN_USE, f"{len(self._jobs)} submits of the list have not been waited for")
        self._forget()
        self.is_closed = False

    @public
    def submit(self, stream: Stream | None = None) -> Job:
        """Enqueue it in `stream` (default: the default stream) as one job, and return at once.

        Raises BAD_STATE when it is open, WRONG_CONTEXT, STALE_HANDLE when memory or a module that it uses is gone,
        IN_USE while an earlier submit has not ended in another stream.
        """
        self.check_open()
        if not self.is_closed:
            raise NpuError(C.NPU_ERROR_BAD_STATE, "the list is not closed")
        stream = self.context.stream_of(stream, "the command list")
        stream.check_open()
        for other in {job.stream for job in self._jobs} - {stream}:
            if not other.drained() and any(job.stream is other for job in self._jobs):
                raise NpuError(C.NPU_ERROR_IN_USE, f"a submit of the list has not ended in stream {other.id}")
        return stream.enqueue(Batch("command list", tuple(self._operations), self._jobs))

    @public
    def destroy(self) -> None:
        """End it; work in flight goes on. Twice is allowed."""
        self._open = False
        self._forget()

    def _forget(self) -> None:
        for operation in self._operations:
            module = module_of(operation)
            if module is not None:
                module.users.discard(self)
        self._operations.clear()
        self._handles.clear()
        self._size = 0

    def check_open(self) -> None:
        """Raise STALE_HANDLE after `destroy` and after the context's end."""
        if not self._open:
            raise NpuError(C.NPU_ERROR_STALE_HANDLE, "the command list was destroyed")
        self.context.check()

    def _enter(self) -> None:
        self.check_open()
        self.context.enter()

    def _enter_open(self) -> None:
        self._enter()
        if self.is_closed:
            raise NpuError(C.NPU_ERROR_BAD_STATE, "the list is closed")

    def __enter__(self) -> CommandList:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()
