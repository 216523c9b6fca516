"""What one launch of an executable graph consists of: jobs, each a part of a branch, and fences for the edges between
branches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.errors import NpuError
from libnpu.runtime.command_list import common_culprit
from libnpu.runtime.fences import Signal
from libnpu.runtime.graph_nodes import HostCall
from libnpu.runtime.operation import Operation
from libnpu.runtime.time import FOR_EVER_PS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libnpu.runtime.commands import CommandWriter
    from libnpu.runtime.context import Context
    from libnpu.runtime.graph_nodes import Node
    from libnpu.runtime.job import Job


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
    def alone(self) -> Node | None:
        """The node, when there is one and nothing else."""
        return self.nodes[self.indices[0]] if len(self.indices) == 1 else None

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


class Edges:
    """The fences of one launch, by the index of the node that gives each. They are given back when the launch has been
    enqueued and all its jobs have ended.
    """

    __slots__ = ("_fences", "_users", "signals")

    def __init__(self, context: Context, nodes: tuple[Node, ...], sources: Iterable[int]) -> None:
        self._fences = context.fences
        self._users = 1  # the call that enqueues, and jobs
        self.signals: dict[int, Signal] = {}
        try:
            for source in sources:
                cell = self._fences.alloc()
                cell.last += 1
                self.signals[source] = Signal(cell, cell.last, f"{nodes[source].name!r} of a graph")
        except NpuError:
            self.leave()
            raise

    def join(self, job: Job) -> None:
        """Keep them until `job`, which was just enqueued, has ended."""
        self._users += 1
        job.ends.append(self.leave)

    def leave(self, _: Job | None = None) -> None:
        """Note that a job has ended, or the call."""
        self._users -= 1
        if not self._users:
            for signal in self.signals.values():
                self._fences.release(signal.cell)

    def give_up(self) -> None:
        """Give what nobody will give, so that what was enqueued does not wait for what was not."""
        for signal in self.signals.values():
            if signal.job is None:
                self._fences.write(signal.cell, signal.value)


def split(nodes: tuple[Node, ...], signals: dict[int, Signal], *, apart: bool) -> list[Part]:
    """Return the parts of a launch in the order in which they are enqueued. The first is the origin's, and the origin
    has a last one behind its last host function. `apart`: each node is one of its own, for who watches what each does.
    """
    parts = [Part(0, nodes, [], signals)]
    current = {0: parts[0]}
    for index, node in enumerate(nodes):
        part = current.get(node.branch)
        if part is None or part.call is not None or (apart and part.indices):
            part = current[node.branch] = Part(node.branch, nodes, [], signals)
            parts.append(part)
        if isinstance(node.operation, HostCall):
            part.call = node.operation
        else:
            part.indices.append(index)
    if current[0].call is not None:
        parts.append(Part(0, nodes, [], signals))
    return parts
