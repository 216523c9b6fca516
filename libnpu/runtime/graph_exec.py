"""Executable graphs. A launch enqueues one job for each branch: the origin's in the stream that it is launched in, the
others in streams of the executable graph's own.

Edges between branches are fences, of each launch's own (`graph_parts.py`). The jobs of the other branches begin with the wait by
which their stream joined, and the origin's ends behind everything; so a launch begins and ends with the origin's job,
and its job is waited for. A host function splits a branch into several jobs. Room for all jobs of a launch is made
before the first is enqueued.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime import host_functions
from libnpu.runtime.arguments import instance_of
from libnpu.runtime.command_formats import FENCE
from libnpu.runtime.command_list import check_fits, measure
from libnpu.runtime.commands import POOLED_BYTES
from libnpu.runtime.fences import Cell, Signal
from libnpu.runtime.graph import Graph
from libnpu.runtime.graph_nodes import EventRecord, Node, hold_modules, module_of, release_modules
from libnpu.runtime.graph_parts import Edges, Part, split
from libnpu.runtime.guard import public
from libnpu.runtime.room import make_room

if TYPE_CHECKING:
    from libnpu.runtime.event import Event
    from libnpu.runtime.job import Job
    from libnpu.runtime.stream import Stream


class GraphExec:
    """Made by `Graph.instantiate`; a context manager. Its launches run one after the other."""

    def __init__(self, graph: Graph) -> None:
        self._open = False
        self.context = graph.context
        self.guard = graph.guard
        self.nodes = tuple(node.bound() for node in graph.nodes)
        self._sources = sorted({node.source for node in self.nodes if node.source is not None})
        self._streams: list[Stream] = []  # of the branches behind the first
        self._last: Job | None = None  # of the last launch
        try:
            self._check(self._split(self.nodes, self._no_signals()))
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
        that is being captured, OUT_OF_RESOURCES when a queue has no room for its jobs and cannot get any,
        OUT_OF_DEVICE_MEMORY; then nothing has changed. (When it has more jobs than a queue takes at all, some of them
        may have been enqueued.)
        """
        self.check_open()
        stream = self.context.stream_of(stream, "the graph")
        self._check_launch(stream)
        nodes = self.nodes
        edges = Edges(self.context, nodes, self._sources)
        try:
            parts = self._split(nodes, edges.signals)
            self._make_room(stream, parts)
            if self.nodes is not nodes:
                raise NpuError(
                    C.NPU_ERROR_BAD_STATE, "another thread updated the graph while this launch waited for room"
                )
            if self._last is not None and not self._last.done and self._last.stream is not stream:
                parts[0].first = self._last.stream.signal_of(self._last)
            job = self._enqueue(stream, parts, edges)
        finally:
            edges.leave()
        stream.settle(job)
        return job

    def _check_launch(self, stream: Stream) -> None:
        stream.check_open()
        if stream.capturing is not None:
            raise stream.capturing.refusal("the launch of a graph")

    def _make_room(self, stream: Stream, parts: list[Part]) -> None:
        """Raise what the jobs would raise when they are enqueued, before the first one is. Nobody waits behind this."""
        context = self.context
        if len(parts) == 1 and parts[0].call is None:
            stream.make_room()
            self.check_open()
            self._check_launch(stream)
            return
        sizes = self._check(parts)
        jobs: Counter[Stream] = Counter()
        for part in parts:
            queue = self._queue(part, stream)
            jobs[queue] += 1
            if part.call is not None:
                jobs[queue] += host_functions.JOBS
                sizes += [POOLED_BYTES] * host_functions.JOBS
        make_room(context, jobs)
        self.check_open()  # another thread may have ended it or the stream meanwhile
        self._check_launch(stream)
        context.commands.check_available(sizes)

    def _check(self, parts: list[Part]) -> list[int]:
        """Return the bytes of the parts' command buffers, with what their streams add. Raises STALE_HANDLE,
        OUT_OF_RESOURCES.
        """
        fences = 2 + (len(self.context.streams) if self.context.semantics.legacy_default_stream else 0)
        sizes: list[int] = []
        for part in parts:
            size, handles, buffer_bytes = measure(self.context, part)
            check_fits(size, handles)
            sizes.append(buffer_bytes + fences * FENCE.size)
        return sizes

    def _split(self, nodes: tuple[Node, ...], signals: dict[int, Signal]) -> list[Part]:
        apart = self.context.observer is not None or self.context.dispatcher.runs_alone
        return split(nodes, signals, apart=apart)

    def _queue(self, part: Part, stream: Stream) -> Stream:
        return self._streams[part.branch - 1] if part.branch else stream

    def _enqueue(self, stream: Stream, parts: list[Part], edges: Edges) -> Job:
        jobs: list[Job] = []
        others: list[Job] = []  # of other branches
        ending = max(number for number, part in enumerate(parts) if not part.branch)
        parts[ending].others = others
        events: dict[Event, tuple[Job | None, int]] = {}  # with what they had recorded
        try:
            for part in parts:
                queue = self._queue(part, stream)
                job = queue.enqueue(part, settle=False)
                edges.join(job)
                jobs.append(job)
                if part.branch:
                    others.append(job)
                for index in part.indices:
                    if index in edges.signals:
                        edges.signals[index].job = job
                    operation = self.nodes[index].operation
                    if isinstance(operation, EventRecord):
                        events.setdefault(operation.event, operation.event.snapshot)
                        operation.event.note_record(job)
                if part.call is not None:
                    host_functions.enqueue(queue, part.call.function, part.call.arguments)
        except BaseException:
            for event, before in events.items():
                event.take_back(before)
            if jobs:
                edges.give_up()
                self.context.ring_waiting()
            raise
        self._last = jobs[ending]
        return jobs[ending]

    @public
    def update(self, graph: Graph) -> None:
        """Take the memory addresses and arguments of another graph of the same operations in the same order.

        Raises INVALID_VALUE when they are not the same, IN_USE while a launch has not ended, as `instantiate`; then
        nothing has changed.
        """
        self.check_open()
        instance_of(graph, Graph, "graph").check_open()
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
        nodes = tuple(node.bound() for node in graph.nodes)
        self._check(self._split(nodes, self._no_signals()))
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

    @property
    def _in_flight(self) -> bool:
        last = self._last
        if last is None or last.done:
            return False
        last.stream.drained()  # looks
        return not last.done

    def _release(self) -> None:
        """Give back the streams, when nothing needs them any more."""
        if not self.context.is_alive or not self.context.node.is_usable:  # all went with the context
            return
        for stream in self._streams:
            stream.close_later()

    def _no_signals(self) -> dict[int, Signal]:
        return {index: Signal(Cell(0, 0), 0, "") for index in self._sources}

    def check_open(self) -> None:
        """Raise STALE_HANDLE after `destroy` and after the context's end."""
        if not self._open:
            raise NpuError(C.NPU_ERROR_STALE_HANDLE, "the executable graph was destroyed")
        self.context.check()

    def __enter__(self) -> GraphExec:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()


def _shape(node: Node) -> tuple[int, str, int | None, object]:
    operation = node.operation
    launched = module_of(operation), operation.name
    return node.branch, node.kind, node.source, launched if launched[0] is not None else None


def _at(shapes: list[tuple[int, str, int | None, object]], index: int) -> str:
    return shapes[index][1].replace("_", " ") if index < len(shapes) else "none"
