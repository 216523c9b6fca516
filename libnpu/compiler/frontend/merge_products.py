"""Merge products: many rows that are multiplied by one matrix, each in a node of its own, become one product.

A recurrence that a model writes out, or a loop that is unrolled, multiplies the input of each step by the same weights: these
would come from memory for every step, and a row alone leaves most of the matrix engine idle. Where the pieces of the one result
are put together again, they are the whole.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from libnpu.compiler.frontend.rewriting import copy_graph
from libnpu.compiler.ir import Node, Value

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from libnpu.compiler.ir import Graph

MANY = 4  # products that are worth it; chosen: two or three may as well run where their operands are
FEW = 16  # rows of each at most; what has more fills the matrix engine alone
_MOVES = ("Reshape", "Slice", "Transpose")
_Part = tuple[Value, int, int]  # elements, or rows, [first, behind the last) of a value


def merge_products(graph: Graph) -> Graph:
    """Return `graph` with one product for all with the same constant matrix whose left operands are there before the first of them.

    What only moves elements of such an operand may come later.
    """
    graph = copy_graph(graph)
    made = _Made(graph)
    before: dict[Node, list[Node]] = {}
    instead: dict[Node, Sequence[Node]] = {}
    for members in _groups(graph):
        while members:
            head = members[0]
            moves = {node: made.moves_behind(node.inputs[0], head) for node in members}
            batch = [node for node in members if moves[node] is not None]
            if len(batch) >= MANY:
                early = list(dict.fromkeys(move for node in batch for move in moves[node] or ()))
                for others in before.values():
                    others[:] = [node for node in others if node not in early]
                made.move(early, head)
                product, parts = _merged([(node, made.rows(node)) for node in batch])
                before[head] = [*early, *product]
                instead.update(dict.fromkeys(early, ()))
                instead.update(parts)
            members = [node for node in members if moves[node] is None]
    graph.nodes = [new for node in graph.nodes for new in (*before.get(node, ()), *instead.get(node, (node,)))]
    return _joined(graph)


def _joined(graph: Graph) -> Graph:
    """Return `graph` without concatenations of all pieces of one value, in their order: these are a change of its shape, and of order."""
    made = _Made(graph)
    instead = {node: found for node in graph.nodes if node.op == "Concat" and (found := _whole(node, made))}
    graph.nodes = [new for node in graph.nodes for new in instead.get(node, [node])]
    return graph


def _whole(node: Node, made: _Made) -> list[Node] | None:
    """Return what makes the result of a concatenation of the value of which its operands are the pieces, one behind the other; or None."""
    pieces = [value for value in node.inputs if value is not None]
    (source, first, behind), *others = (made.elements(value) for value in pieces)
    shape, axis = pieces[0].shape, node.attrs["axis"]
    size, count = prod(shape), len(pieces)
    follow = [(source, first + size * k, behind + size * k) for k in range(1, count)]
    if count < MANY or first != 0 or size * count != prod(source.shape) or others != follow:
        return None
    if any(piece.shape != shape for piece in pieces):
        return None
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1)]
    apart = Value(f"{node.name}.apart", (count, *shape), source.dtype)
    turned = Value(f"{node.name}.turned", tuple(apart.shape[k] for k in order), source.dtype)
    return [
        Node("Reshape", apart.name, [source], [apart], {}, node.layers),
        Node("Transpose", turned.name, [apart], [turned], {"perm": order}, node.layers),
        Node("Reshape", node.name, [turned], [node.outputs[0]], {}, node.layers),
    ]


class _Made:
    """Where values are made, in the order of execution."""

    def __init__(self, graph: Graph) -> None:
        self._makers = {value: node for node in graph.nodes for value in node.outputs}
        self._place: dict[Node, float] = {node: index for index, node in enumerate(graph.nodes)}

    def moves_behind(self, value: Value | None, head: Node) -> list[Node] | None:
        """Return the nodes behind `head` that move elements to make `value`, in order; None where others are behind it too."""
        moves: list[Node] = []
        while value is not None and (maker := self._makers.get(value)) is not None:
            if self._place[maker] < self._place[head]:
                break
            if maker.op not in _MOVES:
                return None
            moves.insert(0, maker)
            value = maker.inputs[0]
        return moves

    def move(self, nodes: Sequence[Node], head: Node) -> None:
        """Note that nodes come right before `head`."""
        self._place.update(dict.fromkeys(nodes, self._place[head] - 0.5))

    def rows(self, node: Node) -> _Part:
        """Return the left operand of a product as rows of a value, the first one in which they lie together."""
        value = node.inputs[0]
        assert value is not None
        columns = value.shape[-1]
        source, first, behind = self.elements(value, columns)
        return source, first // columns, behind // columns

    def elements(self, value: Value, unit: int = 1) -> _Part:
        """Return a value as elements of the first one in which they lie together, in runs of `unit`."""
        first, size = 0, prod(value.shape)
        while (maker := self._makers.get(value)) is not None:
            skipped, source = _elements_before(maker), maker.inputs[0] if maker.inputs else None
            if skipped is None or source is None or (first + skipped) % unit or prod(source.shape) % unit:
                break
            value, first = source, first + skipped
        return value, first, first + size


def _groups(graph: Graph) -> Iterator[list[Node]]:
    """Yield products of FEW rows that differ in their left operand alone, MANY or more, in order."""
    groups: dict[Hashable, list[Node]] = {}
    for node in graph.nodes:
        left, right, *rest = node.inputs if node.op == "MatMul" else (None, None)
        if left is None or right is None or right.const is None or len(right.shape) != 2 or left.const is not None:
            continue
        if 0 < prod(left.shape[:-1]) <= FEW and left.shape[-1]:
            key = (right, *rest, left.dtype, node.outputs[0].dtype, repr(sorted(node.attrs.items())))
            groups.setdefault(key, []).append(node)
    yield from (members for members in groups.values() if len(members) >= MANY)


def _elements_before(node: Node) -> int | None:
    """Return how many elements of its operand lie before those that a node passes on, when these lie together; else None."""
    if node.op == "Reshape":
        return 0
    source = node.inputs[0] if node.op == "Slice" else None
    if source is None or any(step != 1 for step in node.attrs["steps"]):
        return None
    taken = node.outputs[0].shape
    cut = next((axis for axis, count in enumerate(taken) if count != 1), len(taken))
    if taken[cut + 1 :] != source.shape[cut + 1 :]:
        return None
    return sum(int(start) * prod(source.shape[axis + 1 :]) for axis, start in enumerate(node.attrs["starts"]))


def _merged(batch: Sequence[tuple[Node, _Part]]) -> tuple[list[Node], dict[Node, list[Node]]]:
    """Return the nodes of the one product of a batch, and what makes the result of each node of it from that."""
    made: list[Node] = []
    head = batch[0][0]
    left, right, *rest = head.inputs
    assert left is not None and right is not None
    dtypes = {"MatMul": head.outputs[0].dtype}

    def emit(op: str, inputs: list[Value | None], shape: tuple[int, ...], **attrs: Any) -> Value:
        value = Value(f"{head.name}.rows.{len(made)}", shape, dtypes.get(op, left.dtype))
        made.append(Node(op, value.name, inputs, [value], attrs, layers))
        return value

    layers = list(dict.fromkeys(layer for node, _ in batch for layer in node.layers))
    columns, results = right.shape
    sources = list(dict.fromkeys(value for _, (value, _, _) in batch))
    ordered = sorted(batch, key=lambda one: (sources.index(one[1][0]), one[1][1:]))
    parts: list[_Part] = []
    for _, (value, first, behind) in ordered:
        if parts and parts[-1][0] is value and parts[-1][2] == first:
            parts[-1] = (value, parts[-1][1], behind)
        else:
            parts.append((value, first, behind))
    operands: list[Value | None] = []
    for value, first, behind in parts:
        rows = prod(value.shape) // columns
        flat = value if value.shape == (rows, columns) else emit("Reshape", [value], (rows, columns))
        if behind - first < rows:
            bounds = {"starts": [first, 0], "stops": [behind, columns], "steps": [1, 1]}
            flat = emit("Slice", [flat], (behind - first, columns), **bounds)
        operands.append(flat)
    total = sum(behind - first for _, first, behind in parts)
    whole = operands[0] if len(operands) == 1 else emit("Concat", operands, (total, columns), axis=0)
    product = emit("MatMul", [whole, right, *rest], (total, results), **head.attrs)
    instead: dict[Node, list[Node]] = {}
    done = 0
    for node, (_, first, behind) in ordered:
        count, out = behind - first, node.outputs[0]
        attrs = {"starts": [done, 0], "stops": [done + count, results], "steps": [1, 1]}
        piece = Value(f"{node.name}.piece", (count, results), out.dtype)
        cut = Node("Slice", piece.name, [product], [piece], attrs, node.layers)
        instead[node] = [cut, Node("Reshape", node.name, [piece], [out], {}, node.layers)]
        done += count
    return made, instead
