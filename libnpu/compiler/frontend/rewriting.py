"""Rewriter: edits a copy of a graph, keeping who makes and who uses each value up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.compiler.ir import Graph, Node, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def copy_graph(graph: Graph) -> Graph:
    """Return a graph with nodes and values of its own; constants share their data."""
    values: dict[Value, Value] = {}

    def copied(value: Value) -> Value:
        if value not in values:
            values[value] = Value(value.name, value.shape, value.dtype, value.const)
        return values[value]

    inputs = [copied(value) for value in graph.inputs]
    nodes = [
        Node(
            node.op,
            node.name,
            [None if value is None else copied(value) for value in node.inputs],
            [copied(value) for value in node.outputs],
            dict(node.attrs),
            list(node.layers),
        )
        for node in graph.nodes
    ]
    return Graph(
        graph.name, inputs, [copied(value) for value in graph.outputs], nodes, list(graph.notes), graph.is_plan
    )


class Rewriter:
    """Edits a copy of `graph`; `done()` returns it. Nodes keep their order; passes change and remove them in place."""

    def __init__(self, graph: Graph) -> None:
        self.graph = copy_graph(graph)
        self._users: dict[Value, list[Node]] = {}
        self._makers: dict[Value, Node] = {}
        self._removed: set[Node] = set()
        for node in self.graph.nodes:
            self._register(node)

    def nodes(self) -> Iterator[Node]:
        """Yield the nodes that are left, in order; those that are removed meanwhile are skipped."""
        for node in self.graph.nodes:
            if node not in self._removed:
                yield node

    def users(self, value: Value) -> list[Node]:
        """Return the nodes that read `value`, once for each operand."""
        return self._users.get(value, [])

    def maker(self, value: Value | None) -> Node | None:
        return self._makers.get(value) if value is not None else None

    def is_output(self, value: Value) -> bool:
        return any(value is output for output in self.graph.outputs)

    def only_user(self, value: Value) -> Node | None:
        """Return the node that alone reads `value` (perhaps as several operands); None if it is an output too."""
        users = self.users(value)
        if not users or self.is_output(value) or any(user is not users[0] for user in users):
            return None
        return users[0]

    def set_input(self, node: Node, index: int, value: Value | None) -> None:
        old = node.inputs[index]
        if old is not None:
            self._users[old].remove(node)
        node.inputs[index] = value
        if value is not None:
            self._users.setdefault(value, []).append(node)

    def set_inputs(self, node: Node, values: list[Value | None]) -> None:
        for old in node.inputs:
            if old is not None:
                self._users[old].remove(node)
        node.inputs = list(values)
        for value in values:
            if value is not None:
                self._users.setdefault(value, []).append(node)

    def set_output(self, node: Node, value: Value) -> None:
        """Let `node` make `value` from now on (whose maker must be removed)."""
        self._makers.pop(node.outputs[0], None)
        node.outputs = [value]
        self._makers[value] = node

    def replace(self, old: Value, new: Value) -> bool:
        """Let every reader of `old` read `new`. False, and nothing happens, when `old` is an output that `new` cannot be."""
        if self.is_output(old):
            if self.is_output(new) or new not in self._makers or new.shape != old.shape or new.dtype != old.dtype:
                return False
            new.name = old.name
            self.graph.outputs = [new if output is old else output for output in self.graph.outputs]
        for user in list(self.users(old)):
            for index, value in enumerate(user.inputs):
                if value is old:
                    self.set_input(user, index, new)
        return True

    def remove(self, node: Node) -> None:
        self.set_inputs(node, [])
        self._removed.add(node)

    def put_before(self, node: Node, moved: Sequence[Node]) -> None:
        """Put nodes, removed or not, right before `node` in the order of execution; their operands are to be set."""
        nodes = [other for other in self.graph.nodes if other not in moved]
        at = nodes.index(node)
        self.graph.nodes = [*nodes[:at], *moved, *nodes[at:]]
        self._removed.difference_update(moved)

    def done(self) -> Graph:
        """Return the graph as edited."""
        self.graph.nodes = [node for node in self.graph.nodes if node not in self._removed]
        return self.graph

    def _register(self, node: Node) -> None:
        for value in node.inputs:
            if value is not None:
                self._users.setdefault(value, []).append(node)
        for value in node.outputs:
            self._makers[value] = node


def rewritten(graph: Graph, op: str, fold: Callable[[Rewriter, Node], None]) -> Graph:
    """Return `graph` with `fold` tried on each of its nodes of type `op`."""
    edit = Rewriter(graph)
    for node in list(edit.nodes()):
        if node.op == op:
            fold(edit, node)
    return edit.done()
