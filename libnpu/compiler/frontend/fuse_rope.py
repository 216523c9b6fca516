"""fuse_rope: the rotation of pairs, spelled out in products and concatenations, becomes one RoPE node. Runs on fused expressions.

Two spellings, for pairs of halves and for pairs of neighbours:

    x · cos + turned · sin              # turned = Concat(-second, first), cosines and sines as wide as x
    Concat(first · cos - second · sin, first · sin + second · cos)      # cosines and sines of half the width
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.compiler.frontend.rewriting import Rewriter

if TYPE_CHECKING:
    from libnpu.compiler.ir import Expr, Graph, Node, Value


def fuse_rope(graph: Graph) -> Graph:
    """Return `graph` with RoPE nodes; what they were spelled in is dead where nothing else reads it."""
    edit = Rewriter(graph)
    for node in edit.nodes():
        found = None
        if node.op == "Elementwise":
            found = _whole(edit, node)
        elif node.op in ("Concat", "Reshape"):
            found = _pairwise(edit, node)
        if found is not None:
            x, cos, sin, interleaved = found
            node.op, node.attrs = "RoPE", {"interleaved": interleaved}
            edit.set_inputs(node, [x, cos, sin])
    return edit.done()


def _whole(edit: Rewriter, node: Node) -> tuple[Value, Value, Value, bool] | None:
    """Match x · cos + turned · sin."""
    match node.attrs["expr"]:
        case ("add", ("mul", ("in", a), ("in", b)), ("mul", ("in", c), ("in", d))):
            pairs = [[node.inputs[i] for i in pair] for pair in ((a, b), (c, d))]
        case _:
            return None
    for straight, across in (pairs, pairs[::-1]):
        for turned, sin in (across, across[::-1]):
            for x, cos in (straight, straight[::-1]):
                if x is None or cos is None or sin is None or turned is None or x.shape != node.outputs[0].shape:
                    continue
                layout = _turned(edit, turned, x)
                if layout is not None and _fits(cos, x, 1) and _fits(sin, x, 1):
                    return x, cos, sin, layout
    return None


def _turned(edit: Rewriter, turned: Value, x: Value) -> bool | None:
    """Return whether `turned` is x with neighbours exchanged, True, or its halves, False, the first of both negated; else None."""
    found = _joined(edit, turned)
    if found is None:
        return None
    (minus, first), interleaved = found
    negation = edit.maker(minus)
    if negation is None or negation.op != "Elementwise" or negation.attrs["expr"] not in _NEGATIONS:
        return None
    second = negation.inputs[0]
    fits = second is not None and _part(edit, first, x, interleaved, 0) and _part(edit, second, x, interleaved, 1)
    return interleaved if fits else None


_NEGATIONS = (("neg", ("in", 0)), ("mul", ("in", 0), ("const", -1.0)), ("mul", ("const", -1.0), ("in", 0)))


def _pairwise(edit: Rewriter, node: Node) -> tuple[Value, Value, Value, bool] | None:
    """Match the two rotated parts, joined."""
    found = _joined(edit, node.outputs[0], node)
    if found is None:
        return None
    (across, along), interleaved = found
    makers = [edit.maker(across), edit.maker(along)]
    if any(maker is None or maker.op != "Elementwise" for maker in makers):
        return None
    real, imaginary = (
        _products(maker, op) for maker, op in zip(makers, ("sub", "add"), strict=True) if maker is not None
    )
    if real is None or imaginary is None:
        return None
    for first, cos in (real[0], real[0][::-1]):
        for second, sin in (real[1], real[1][::-1]):
            crossed = [{second, cos}, {first, sin}]
            if [set(pair) for pair in imaginary] not in (crossed, crossed[::-1]):
                continue
            source = edit.maker(first)
            x = source.inputs[0] if source is not None and source.op == "Slice" else None
            if x is None or x.shape != node.outputs[0].shape or not _fits(cos, x, 2) or not _fits(sin, x, 2):
                continue
            if _part(edit, first, x, interleaved, 0) and _part(edit, second, x, interleaved, 1):
                return x, cos, sin, interleaved
    return None


def _products(node: Node, op: str) -> list[tuple[Value, Value]] | None:
    """Return the operands of two products that an expression combines by `op`."""
    expr: Expr = node.attrs["expr"]
    match expr:
        case (found, ("mul", ("in", a), ("in", b)), ("mul", ("in", c), ("in", d))) if found == op:
            values = [node.inputs[i] for i in (a, b, c, d)]
            if any(value is None for value in values):
                return None
            return [(values[0], values[1]), (values[2], values[3])]
    return None


def _joined(edit: Rewriter, value: Value, node: Node | None = None) -> tuple[tuple[Value, Value], bool] | None:
    """Return two values that lie one behind the other on the last axis, or by turns, and whether it is by turns."""
    node = edit.maker(value) if node is None else node
    if node is not None and node.op == "Reshape":
        concat = edit.maker(node.inputs[0])
        if (
            concat is None
            or concat.op != "Concat"
            or concat.outputs[0].shape != (*value.shape[:-1], value.shape[-1] // 2, 2)
        ):
            return None
        columns = [edit.maker(part) for part in concat.inputs]
        if concat.attrs["axis"] != len(value.shape) or len(columns) != 2:
            return None
        if any(column is None or column.op != "Reshape" for column in columns):
            return None
        first, second = (column.inputs[0] for column in columns if column is not None)
        half = (*value.shape[:-1], value.shape[-1] // 2)
        if first is None or second is None or first.shape != half or second.shape != half:
            return None
        return (first, second), True
    if node is None or node.op != "Concat" or node.attrs["axis"] != len(value.shape) - 1 or len(node.inputs) != 2:
        return None
    first, second = node.inputs
    if first is None or second is None or first.shape != second.shape:
        return None
    return (first, second), False


def _part(edit: Rewriter, value: Value, x: Value, interleaved: bool, number: int) -> bool:
    """Whether `value` is the first or second of the pairs of x."""
    node = edit.maker(value)
    if node is None or node.op != "Slice" or node.inputs[0] is not x:
        return False
    size = x.shape[-1]
    wanted = (number, 2) if interleaved else (number * size // 2, 1)
    starts, steps = node.attrs["starts"], node.attrs["steps"]
    whole = value.shape[:-1] == x.shape[:-1] and value.shape[-1] * 2 == size
    return whole and (starts[-1], steps[-1]) == wanted and not any(starts[:-1])


def _fits(angles: Value, x: Value, share: int) -> bool:
    """Whether cosines or sines have the width of x, or half of it, and broadcast to its other axes."""
    if len(angles.shape) > len(x.shape) or angles.shape[-1:] != (x.shape[-1] // share,):
        return False
    lead = x.shape[len(x.shape) - len(angles.shape) : -1]
    return angles.dtype == x.dtype and all(n in (1, m) for n, m in zip(angles.shape[:-1], lead, strict=True))
