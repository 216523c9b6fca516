"""Executable graphs. A launch enqueues one job for each branch: the origin's in the stream that it is launched in, the
others in streams of the executable graph's own.

Edges between branches are fences: a cell for each, and the values count the launches. The jobs of the other branches
begin with the wait by which their stream joined, and the origin's ends behind everything; so a launch begins and ends
with the origin's job, and its job is waited for. A host function splits a branch into several jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.command_list import check_fits, common_culprit, measure
from libnpu.runtime.fences import Signal
from libnpu.runtime.graph_nodes import EventRecord, HostCall, Node, bind, hold_modules, module_of, release_modules
from libnpu.runtime.guard import public
from libnpu.runtime.operation import Operation

if TYPE_CHECKING:
    from libnpu.runtime.commands import CommandWriter
    from libnpu.runtime.fences import Cell
    from libnpu.runtime.graph import Graph
    from libnpu.runtime.job import Job
    from libnpu.runtime.stream import Stream

FOR_EVER_PS = (1 << 63) - 1


class Part(Operation):
    """The nodes of a branch up to the next host function, `call`, in one launch.

    `signals`: of the launch's edges, by the index of the node that gives them. `first`: what the launch waits for.
    """

    __slots__ = ("branch", "call", "first", "indices", "nodes", "others", "signals")
    kind = "graph"

    def __init__(self, branch: int, nodes: tuple[Node, ...], indices: list[int], signals: dict[int, Signal]) -> None:
        self.name = f"graph branch {branch}" if branch else "graph"
        self.branch = branch
        self.nodes = nodes
        self.indices = indices
        self.signals = signals
        self.call: HostCall | None = None
        self.first: Signal | None = None
        self.others: list[Job] = []  # of the part that ends the launch: the jobs of other branches

    @property
    def size_bytes(self) -> int:
        """Bytes that its operations move."""
        return sum(self.nodes[index].operation.size_bytes for index in self.indices)

    def encode(self, writer: CommandWriter) -> None:
        """Write the nodes, with fences for the edges."""
        if self.first is not None:
            writer.wait(self.first)
        for index in self.indices:
            node = self.nodes[index]
            if node.source is not None:
                writer.wait(self.signals[node.source])
            else:
                node.operation.encode(writer)
            if index in self.signals:
                writer.signal(self.signals[index])
        writer.at_end(self._collect_errors)

    def culprit(self, status: int, detail: int, info: int) -> tuple[str, str | None]:
        """What the operations say, if they agree."""
        return common_culprit([self.nodes[index].operation for index in self.indices], status, detail, info)

    def _collect_errors(self, job: Job) -> None:
        """Let the launch fail when a branch has failed: nobody waits for the streams of the executable graph."""
        if job.bo is None:  # it was not enqueued
            return
        for other in self.others:
            if job.error is not None:
                return
            while not other.done and other.stream.finish(other.stream.jobs[0], FOR_EVER_PS):
                pass
            job.error = other.stream.take_error(other)
            if job.error is not None:
                job.stream.keep_error(job)


class GraphExec:
    """Made by `Graph.instantiate`; a context manager. Its launches run one after the other."""

    def __init__(self, graph: Graph) -> None:
        self._open = False
        self.context = graph.context
        self.guard = graph.guard
        self.nodes = tuple(Node(n.branch, bind(n.operation), n.source) for n in graph.nodes)
        self._cells: dict[int, Cell] = {}  # by the node that gives the signal
        self._streams: list[Stream] = []  # of the branches behind the first
        self._last: Job | None = None  # of the last launch
        try:
            for node in self.nodes:
                if node.source is not None and node.source not in self._cells:
                    self._cells[node.source] = self.context.fences.alloc()
            for part in split(self.nodes, self._no_signals()):
                check_fits(*measure(self.context, part))
            for _ in range(1, graph.branches):
                self._streams.append(self.context.create_stream(blocking=False))
        except BaseException:
            self._release()
            raise
        self._open = True
        hold_modules(self, self.nodes)

    @public
    def launch(self, stream: Stream | None = None) -> Job:
        """Enqueue all of it in `stream` (default: the default stream) and return at once. It begins when the launch
        before has ended. The job ends when everything has ended, with the first error.

        Raises WRONG_CONTEXT, STALE_HANDLE when memory or a module that it uses is gone, CAPTURE_UNSUPPORTED in a stream
        that is being captured.
        """
        self.check_open()
        stream = self.context.default_stream if stream is None else stream
        stream.check_open()
        stream.check_context(self.context, "the graph")
        if stream.capturing is not None:
            raise stream.capturing.refusal("the launch of a graph")
        signals = {
            index: Signal(cell, cell.last + 1, f"{self.nodes[index].name!r} of a graph")
            for index, cell in self._cells.items()
        }
        parts = split(self.nodes, signals)
        if len(parts) > 1:  # all or nothing: what is stale shows before the first is enqueued
            for part in parts:
                check_fits(*measure(self.context, part))
        if self._last is not None and not self._last.done and self._last.stream is not stream:
            parts[0].first = self._last.stream.signal_of(self._last)
        return self._enqueue(stream, parts, signals)

    def _enqueue(self, stream: Stream, parts: list[Part], signals: dict[int, Signal]) -> Job:
        for cell in self._cells.values():
            cell.last += 1
        jobs: list[Job] = []
        others: list[Job] = []  # of other branches
        ending = max(number for number, part in enumerate(parts) if not part.branch)
        parts[ending].others = others
        try:
            for number, part in enumerate(parts):
                queue = self._streams[part.branch - 1] if part.branch else stream
                job = queue.enqueue(part)
                jobs.append(job)
                if part.branch:
                    others.append(job)
                elif number == ending:
                    self._last = job
                for index in part.indices:
                    if index in signals:
                        signals[index].job = job
                    operation = self.nodes[index].operation
                    if isinstance(operation, EventRecord):
                        operation.event.note_record(job)
                if part.call is not None:
                    queue.add_host_function(part.call.function, *part.call.arguments)
        except BaseException:
            for signal in signals.values():  # what was enqueued must not wait for what was not
                if signal.job is None:
                    self.context.fences.write(signal.cell, signal.value)
            if jobs:
                self.context.ring_waiting()
            raise
        return jobs[ending]

    @public
    def update(self, graph: Graph) -> None:
        """Take the memory addresses and arguments of another graph of the same operations in the same order.

        Raises INVALID_VALUE when they are not the same, IN_USE while a launch has not ended, as `instantiate`; then
        nothing has changed.
        """
        self.check_open()
        graph.check_open()
        self.context.enter()
        if graph.context is not self.context:
            raise NpuError(C.NPU_ERROR_WRONG_CONTEXT, "the graph is another context's")
        if self._in_flight:
            raise NpuError(C.NPU_ERROR_IN_USE, "a launch of the graph has not ended")
        mine, others = [_shape(node) for node in self.nodes], [_shape(node) for node in graph.nodes]
        if mine != others:
            pairs = zip(mine, others, strict=False)
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(others)))
            raise NpuError(
                C.NPU_ERROR_INVALID_VALUE, f"the graphs differ from node {at} on: {_at(mine, at)}, {_at(others, at)}"
            )
        nodes = tuple(Node(n.branch, bind(n.operation), n.source) for n in graph.nodes)
        for part in split(nodes, self._no_signals()):
            check_fits(*measure(self.context, part))
        release_modules(self, self.nodes)
        self.nodes = nodes
        hold_modules(self, nodes)

    @public
    def destroy(self) -> None:
        """End it; launches in flight go on. Twice is allowed."""
        if not self._open:
            return
        self._open = False
        release_modules(self, self.nodes)
        self._release()

    def __del__(self) -> None:
        """Leave the streams to the context; nothing else may be done from here."""
        if self._open:
            self.context.orphans += self._streams
            self._release_cells(in_flight=self._last is not None and not self._last.done)

    @property
    def _in_flight(self) -> bool:
        last = self._last
        if last is None or last.done:
            return False
        last.stream.drained()  # looks
        return not last.done

    def _release(self) -> None:
        """Give back streams and fences, when nothing needs them any more."""
        if not self.context.is_alive or not self.context.node.is_usable:  # all went with the context
            return
        for stream in self._streams:
            stream.close_later()
        self._release_cells(in_flight=self._in_flight)

    def _release_cells(self, *, in_flight: bool) -> None:
        cells, self._cells = tuple(self._cells.values()), {}
        fences = self.context.fences

        def give_back(_: Job | None = None) -> None:
            for cell in cells:
                fences.release(cell)

        if in_flight:
            assert self._last is not None
            self._last.ends.append(give_back)
        else:
            give_back()

    def _no_signals(self) -> dict[int, Signal]:
        return {index: Signal(cell, cell.last, "") for index, cell in self._cells.items()}

    def check_open(self) -> None:
        """Raise STALE_HANDLE after `destroy` and after the context's end."""
        if not self._open:
            raise NpuError(C.NPU_ERROR_STALE_HANDLE, "the executable graph was destroyed")
        self.context.check()

    def __enter__(self) -> GraphExec:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()


def split(nodes: tuple[Node, ...], signals: dict[int, Signal]) -> list[Part]:
    """Return the parts of a launch in the order in which they are enqueued. The first is the origin's, and the origin
    has a last one behind its last host function.
    """
    parts = [Part(0, nodes, [], signals)]
    current = {0: parts[0]}
    for index, node in enumerate(nodes):
        part = current.get(node.branch)
        if part is None or part.call is not None:
            part = current[node.branch] = Part(node.branch, nodes, [], signals)
            parts.append(part)
        if isinstance(node.operation, HostCall):
            part.call = node.operation
        else:
            part.indices.append(index)
    if current[0].call is not None:
        parts.append(Part(0, nodes, [], signals))
    return parts


def _shape(node: Node) -> tuple[int, str, int | None, object]:
    operation = node.operation
    launched = module_of(operation), operation.name
    return node.branch, node.kind, node.source, launched if launched[0] is not None else None


def _at(shapes: list[tuple[int, str, int | None, object]], index: int) -> str:
    return shapes[index][1].replace("_", " ") if index < len(shapes) else "none"
