"""Clusters: the nodes of a surveyed model in parts that take turns, on the NPU and on the host.

1. Each node gets a level: as many changes of side as the longest path to it has. Edges never lead to a lower level, so the levels
   in their order are parts without a cycle, and as few as there can be.
2. A node moves to a later level of its side when fewer bytes cross then: what it makes from little is made where it is used.
3. The sides may begin with either; the one with fewer parts is taken, then with fewer bytes that cross.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from libnpu.compiler.partition.survey import SourceNode, Survey


def clusters(survey: Survey) -> list[list[SourceNode]]:
    """Return the parts in the order in which they run; the nodes of a part keep their order, and are all of one side."""
    best: tuple[int, int, list[int]] | None = None
    for first_on_host in (False, True):
        levels = _Levels(survey, first_on_host)
        levels.sink()
        found = len(set(levels.of)), levels.crossing_bytes(), levels.of
        if best is None or found[:2] < best[:2]:
            best = found
    assert best is not None
    parts: dict[int, list[SourceNode]] = {}
    for node, level in zip(survey.nodes, best[2], strict=True):
        parts.setdefault(level, []).append(node)
    return [parts[level] for level in sorted(parts)]


class _Levels:
    """The levels of all nodes, `of`, by index; those of one parity are the host's."""

    def __init__(self, survey: Survey, first_on_host: bool) -> None:
        self._survey = survey
        nodes = survey.nodes
        self._makers = {name: index for index, node in enumerate(nodes) for name in node.outputs}
        self._reads = [[n for n in node.reads if n not in survey.constants] for node in nodes]
        self._readers: dict[str, list[int]] = {}
        for index, names in enumerate(self._reads):
            for name in names:
                self._readers.setdefault(name, []).append(index)
        self.of: list[int] = []
        for index, node in enumerate(nodes):
            side = bool(node.reason)
            before = [self._makers[name] for name in self._reads[index] if name in self._makers]
            level = int(side != first_on_host)
            for maker in before:
                level = max(level, self.of[maker] + (bool(nodes[maker].reason) != side))
            self.of.append(level)

    def sink(self) -> None:
        """Move nodes to later levels, consumers first, where that saves bytes."""
        for index in reversed(range(len(self.of))):
            node, level = self._survey.nodes[index], self.of[index]
            readers = [reader for name in node.outputs for reader in self._readers.get(name, ())]
            latest = min((self.of[reader] for reader in readers), default=level)
            latest -= (latest - level) % 2  # a level of the node's own side
            if latest <= level:
                continue
            touched = [*self._reads[index], *node.outputs]
            before = sum(map(self._crossing, touched))
            self.of[index] = latest
            if sum(map(self._crossing, touched)) > before:
                self.of[index] = level

    def crossing_bytes(self) -> int:
        """Return the bytes of all values that go from one part to another, once for each part that takes them."""
        return sum(map(self._crossing, self._readers))

    def _crossing(self, name: str) -> int:
        maker = self._makers.get(name)
        levels = {self.of[reader] for reader in self._readers.get(name, ())}
        if maker is not None:
            levels.discard(self.of[maker])
        return self._bytes(name) * len(levels)

    def _bytes(self, name: str) -> int:
        known = self._survey.types[name]
        if known.dtype is None or known.shape is None:
            return 0
        return prod(max(dim, 1) for dim in known.shape) * known.dtype.itemsize
