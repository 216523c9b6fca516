"""Graphs: what was enqueued while streams were captured, to be launched as a whole.

1. A `Capture` begins on one stream, its origin. Another stream joins when it waits for an event that was recorded in
   the capture. Operations of these streams become nodes; nothing runs.
2. The capture ends on its origin, which must have waited for everything that the others did. The result is a `Graph`.
3. `Graph.instantiate` makes a `GraphExec` (graph_exec.py), which can be launched any number of times.

Each captured stream is a branch of the graph, in order. A wait for an event that another branch recorded is an edge.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.graph_nodes import EventRecord, EventWait, HostCall, Node, hold_modules, release_modules
from libnpu.runtime.guard import public
from libnpu.runtime.job import Job

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from libnpu.runtime.event import Event
    from libnpu.runtime.graph_exec import GraphExec
    from libnpu.runtime.operation import Operation
    from libnpu.runtime.stream import Stream


class CaptureStatus(enum.Enum):
    """What a stream knows of a capture: enum npu_capture_status."""

    NONE = int(C.NPU_CAPTURE_NONE)
    ACTIVE = int(C.NPU_CAPTURE_ACTIVE)
    INVALID = int(C.NPU_CAPTURE_INVALID)


class Capture:
    """A capture under way; a context manager, made by `Stream.capture`. `graph` is its result.

    `problem`: why it cannot become a graph, "" while it can.
    """

    def __init__(self, origin: Stream) -> None:
        self.origin = origin
        self.context = origin.context
        self.guard = origin.guard
        self.problem = ""
        self._nodes: list[Node] = []
        self._branches: dict[Stream, int] = {}
        self._seen: list[dict[int, int]] = []  # by branch: the last node of each branch that is surely before the next
        self._records: dict[Event, tuple[int, dict[int, int]]] = {}  # the node, and what is before it
        self._result: Graph | None = None
        self._is_open = True
        self._join(origin)
        self.context.captures.append(self)

    @property
    def graph(self) -> Graph:
        """What was captured. Raises BAD_STATE while the capture goes on, CAPTURE_INVALIDATED when it failed."""
        if self._is_open:
            raise NpuError(C.NPU_ERROR_BAD_STATE, "the capture has not ended")
        if self._result is None:
            raise self._invalidated()
        return self._result

    def __enter__(self) -> Capture:
        return self

    @public
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it. Raises as `Stream.end_capture`, unless an exception ends the block."""
        if not self._is_open:
            return
        if kind is None:
            self.end()
        else:
            self.problem = self.problem or f"{kind.__name__} ended it"
            self._close()

    def add(self, stream: Stream, operation: Operation) -> Job:
        """Take an operation that was enqueued in a captured stream. What is returned is no job that runs."""
        self._enter()
        if not operation.capturable:
            raise self.refusal(f"{operation.kind.replace('_', ' ')}")
        self._append(stream, operation)
        job = Job(stream, operation, 0, self.context.node.now_ps, self.context.device.call_site())
        why = f"{operation.name!r} was captured: it is a node of a graph and no job of its own"
        job.end(job.failure(C.NPU_ERROR_CAPTURE_UNSUPPORTED, why))
        job.reported = True
        return job

    def add_host_function(self, stream: Stream, function: Callable[..., object], arguments: tuple[Any, ...]) -> Job:
        """Take a host function that was added to a captured stream."""
        return self.add(stream, HostCall(function, arguments))

    def record_event(self, stream: Stream, event: Event) -> None:
        """Take the record of an event in a captured stream."""
        self._enter()
        node = self._append(stream, EventRecord(event))
        self._records[event] = (node, dict(self._seen[self._branches[stream]]))
        event.captured = self

    def wait_event(self, stream: Stream, event: Event) -> None:
        """Take a wait: of a captured stream, or for an event that was recorded here, by which `stream` joins."""
        self._enter()
        known = self._records.get(event) if event.captured is self else None
        if stream.capturing not in (None, self) or event.captured not in (None, self):
            raise self.refusal("a wait for an event of another capture")
        if known is None:
            event.recorded()
            self._append(stream, EventWait(event))
            return
        if stream not in self._branches:
            if stream.context.is_default(stream):
                raise self.refusal("the default stream")
            self._join(stream)
        node, before = known
        branch = self._branches[stream]
        seen = self._seen[branch]
        for other, last in before.items():
            seen[other] = max(seen.get(other, -1), last)
        self._append(stream, EventWait(None), node if self._nodes[node].branch != branch else None)

    def refusal(self, what: str) -> NpuError:
        """Return the error of something that cannot be captured; the capture is invalid from now on."""
        self.problem = self.problem or what
        return NpuError(C.NPU_ERROR_CAPTURE_UNSUPPORTED, f"not in a capture: {what}")

    def end(self) -> Graph:
        """End it and return the graph. Raises CAPTURE_INVALIDATED."""
        for stream, branch in self._branches.items():
            last = max((i for i, node in enumerate(self._nodes) if node.branch == branch), default=-1)
            if branch and self._seen[0].get(branch, -1) < last:
                name = self._nodes[last].name
                self.problem = self.problem or f"{name!r} in stream {stream.id} was not joined back"
        self._close()
        if self.problem:
            raise self._invalidated()
        self._result = Graph(self)
        return self._result

    def abandon(self) -> None:
        """End it without a result: its context has ended, or an error of the device sticks to it."""
        self.problem = self.problem or "the context has ended or is lost"
        self._close()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What was captured so far."""
        return tuple(self._nodes)

    def _enter(self) -> None:
        self.context.enter()
        if self.problem:
            raise self._invalidated()

    def _invalidated(self) -> NpuError:
        return NpuError(C.NPU_ERROR_CAPTURE_INVALIDATED, f"the capture has failed: {self.problem}")

    def _join(self, stream: Stream) -> None:
        stream.check_open()
        self._branches[stream] = len(self._branches)
        self._seen.append({})
        stream.capturing = self

    def _append(self, stream: Stream, operation: Operation, source: int | None = None) -> int:
        branch, index = self._branches[stream], len(self._nodes)
        self._nodes.append(Node(branch, operation, source, self.context.device.call_site()))
        self._seen[branch][branch] = index
        return index

    def _close(self) -> None:
        self._is_open = False
        self.context.captures.remove(self)
        for stream in self._branches:
            stream.capturing = None
        for event in self._records:
            if event.captured is self:
                event.captured = None


class Graph:
    """What was captured. `nodes` keep the memory addresses and the arguments that they were enqueued with.

    >>> stream, memory, total = device.create_stream(), device.alloc(4), device.to_device(np.zeros(1, np.float32))
    >>> with stream.capture() as capture:
    ...     job = stream.copy(memory, total)
    ...     job = device.kernel("scale_add").launch(stream, memory, total, 1.0, 1, grid=1)  # total += memory
    >>> [node.name for node in capture.graph.nodes]
    ['copy device to device', 'scale_add']
    >>> total.write(np.ones(1, np.float32))
    >>> with capture.graph.instantiate() as executable:
    ...     jobs = [executable.launch(stream) for _ in range(4)]
    ...     stream.synchronize()
    >>> total.read(np.float32).tolist()
    [16.0]
    """

    def __init__(self, capture: Capture) -> None:
        self.context = capture.context
        self.guard = capture.guard
        self.nodes: tuple[Node, ...] = capture.nodes
        self.branches = 1 + max((node.branch for node in self.nodes), default=0)
        self._open = True
        hold_modules(self, self.nodes)

    @public
    def instantiate(self) -> GraphExec:
        """Make it ready to launch; it is not needed afterwards. Raises STALE_HANDLE when memory or a module that it
        uses is gone, OUT_OF_RESOURCES, OUT_OF_DEVICE_MEMORY.
        """
        from libnpu.runtime.graph_exec import GraphExec

        self.check_open()
        self.context.enter()
        return GraphExec(self)

    @public
    def destroy(self) -> None:
        """Forget it; what was instantiated lives on. Twice is allowed."""
        self._open = False
        release_modules(self, self.nodes)

    def check_open(self) -> None:
        """Raise STALE_HANDLE after `destroy`."""
        if not self._open:
            raise NpuError(C.NPU_ERROR_STALE_HANDLE, "the graph was destroyed")

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()
