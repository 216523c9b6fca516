"""Simplify: scalar constants move into expressions, data movement that moves nothing disappears, reshapes merge, channels without use too."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.compiler.frontend.cut_channels import cut_inputs, cut_outputs
from libnpu.compiler.frontend.expr import leaves, rewrite, substitute
from libnpu.compiler.frontend.infer import ShapeMismatch, broadcast, infer_shape
from libnpu.compiler.frontend.rewriting import Rewriter
from libnpu.compiler.ir import Expr, Node, Value

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.compiler.frontend.infer import Shape
    from libnpu.compiler.ir import Graph

MAX_ROUNDS = 16  # chosen: each round shortens a chain of movements; real models need two or three
_MOVES = ("Reshape", "Transpose")
_FUSED = ("add", "sub", "mul", "div", "relu", "clip", "leaky_relu")  # what a convolution can take
_MOST_REPEATED = 1 << 14  # elements of a constant that is repeated to be moved; chosen
_REDUCED = {"max": "max", "min": "min", "sum": "add"}  # kinds of Reduce, and the operators of two
_MOST_STACKED = 8  # values that one expression takes instead of a reduction; chosen
INT32 = np.iinfo(np.int32)


def simplify(graph: Graph) -> Graph:
    """Return an equal graph with fewer nodes. Dead nodes stay for the dead code pass."""
    for _ in range(MAX_ROUNDS):
        edit = Rewriter(graph)
        changed = [_simplify_node(edit, node) for node in edit.nodes()]
        graph = edit.done()
        if not any(changed):
            break
    return graph


def _simplify_node(edit: Rewriter, node: Node) -> bool:
    if node.op == "Elementwise":
        return (
            _inline_scalars(edit, node) | _bypass_expands(edit, node) or _hoist(edit, node) or _drop_no_op(edit, node)
        )
    return (
        _drop_no_op(edit, node)
        or _merge_movement(edit, node)
        or _reduce_of_stack(edit, node)
        or _absorb_pad(edit, node)
        or cut_outputs(edit, node)
        or cut_inputs(edit, node)
    )


def _inline_scalars(edit: Rewriter, node: Node) -> bool:
    """One-element constants become ("const", v), equal operands one input; then the expression is rewritten."""
    leaf: list[Expr] = []
    kept: list[Value | None] = []
    for index, value in enumerate(node.inputs):
        assert value is not None
        others = [other.shape for i, other in enumerate(node.inputs) if i != index and other is not None]
        inlined = value.const is not None and others and broadcast(others) == node.outputs[0].shape
        if inlined and _is_scalar(value.const):
            assert value.const is not None
            leaf.append(("const", scalar_of(value.const)))
        else:
            if value not in kept:
                kept.append(value)
            leaf.append(("in", kept.index(value)))
    # All operands may be one-element constants that broadcast each other: one must stay.
    if not kept:
        return False
    expr = rewrite(substitute(node.attrs["expr"], lambda index: leaf[index]))
    expr, inputs = compact(expr, kept)
    if expr == node.attrs["expr"] or not inputs or broadcast([v.shape for v in inputs]) != node.outputs[0].shape:
        return False
    edit.set_inputs(node, list(inputs))
    node.attrs["expr"] = expr
    return True


def _is_scalar(array: NDArray[Any] | None) -> bool:
    """True for one number that an expression can hold; an integer beyond the engine's 32 bits is none."""
    if array is None or array.size != 1:
        return False
    return array.dtype.kind not in "iu" or INT32.min <= int(array.reshape(-1)[0]) <= INT32.max


def scalar_of(array: NDArray[Any]) -> float | int:
    """Return a one-element array as an expression's constant."""
    item = array.reshape(-1)[0]
    return int(item) if array.dtype.kind in "iub" else float(item)


def compact(expr: Expr, inputs: list[Value | None]) -> tuple[Expr, list[Value]]:
    """Return the expression over only those inputs that it reads, numbered anew."""
    used = sorted(set(leaves(expr)))
    values = [value for value in (inputs[index] for index in used) if value is not None]
    return substitute(expr, lambda index: ("in", used.index(index))), values


def _bypass_expands(edit: Rewriter, node: Node) -> bool:
    """An Elementwise node broadcasts by itself."""
    changed = False
    for index, value in enumerate(node.inputs):
        maker = edit.maker(value)
        if maker is None or maker.op != "Expand":
            continue
        shapes = [other.shape for i, other in enumerate(node.inputs) if i != index and other is not None]
        source = maker.inputs[0]
        assert source is not None
        if broadcast([*shapes, source.shape]) == node.outputs[0].shape:
            edit.set_input(node, index, source)
            changed = True
    return changed


def _hoist(edit: Rewriter, node: Node) -> bool:
    """Elementwise(move(x), constants) becomes move(Elementwise(x, constants)), so that it can fuse into x's maker.

    A move is a Reshape; and a chain of Reshapes and Transposes behind a convolution, whose post-processing has the expression.
    """
    moving = [value for value in node.inputs if value is not None and value.const is None]
    if len(moving) != 1 or node.outputs[0].shape != moving[0].shape:
        return False
    moves, source = _moves_before(edit, moving[0])
    above = edit.maker(source)
    if not moves or above is None:
        return False
    one_reshape = len(moves) == 1 and moves[0].op == "Reshape" and above.op in ("Conv", "MatMul", "Elementwise")
    if not one_reshape and (node.attrs["expr"][0] not in _FUSED or not _is_of_convolution(edit, above)):
        return False
    inputs: list[Value | None] = []
    for value in node.inputs:
        assert value is not None
        moved = source if value.const is None else _constant_before(value, moves)
        if moved is None:
            return False
        inputs.append(moved)
    # Each takes the place of the one before, so that the order of execution stays right.
    places = [*moves, node]
    kept = [(move.op, move.attrs, move.name, move.layers, move.outputs[0].shape) for move in moves]
    first = ("Elementwise", {"expr": node.attrs["expr"]}, node.name, node.layers, source.shape)
    dtype = node.outputs[0].dtype
    for place, (op, attrs, name, layers, shape) in zip(places, [first, *kept], strict=True):
        place.op, place.attrs, place.name, place.layers = op, attrs, name, layers
        place.outputs[0].shape, place.outputs[0].dtype = shape, dtype
        edit.set_inputs(place, inputs)
        inputs = [place.outputs[0]]
    moves[0].outputs[0].name = f"{node.outputs[0].name}.unshaped"
    return True


def _moves_before(edit: Rewriter, value: Value) -> tuple[list[Node], Value]:
    """Return the chain of moves that makes a value for one reader, in order, and what they move."""
    moves: list[Node] = []
    while (move := edit.maker(value)) is not None and move.op in _MOVES and edit.only_user(value) is not None:
        source = move.inputs[0]
        assert source is not None
        moves.insert(0, move)
        value = source
    return moves, value


def _is_of_convolution(edit: Rewriter, node: Node) -> bool:
    """Whether a node is a convolution, or one of its result's readers that can fuse into it."""
    while node.op == "Elementwise" and node.attrs["expr"][0] in _FUSED:
        computed = [value for value in node.inputs if value is not None and value.const is None]
        maker = edit.maker(computed[0]) if len(computed) == 1 else None
        if maker is None:
            return False
        node = maker
    return node.op == "Conv" and edit.only_user(node.outputs[0]) is not None


def _constant_before(value: Value, moves: list[Node]) -> Value | None:
    """Return a constant that broadcasts to what `moves` make so that it does to what they move; None if there is none."""
    array = value.const
    assert array is not None
    for move in reversed(moves):
        source = move.inputs[0]
        assert source is not None
        moved = _constant_before_move(array, move, move.outputs[0].shape, source.shape)
        if moved is None:
            return None
        array = moved
    return Value(value.name, array.shape, array.dtype, array)


def _constant_before_move(array: NDArray[Any], move: Node, after: Shape, before: Shape) -> NDArray[Any] | None:
    """Return `array`, which broadcasts to the result of a move, in a shape that broadcasts to its operand; None if there is none."""
    if array.size == 1:
        return array.reshape(())
    aligned = array.reshape((1,) * (len(after) - array.ndim) + array.shape)
    if move.op == "Transpose":
        return aligned.transpose(np.argsort(move.attrs["perm"]))
    shape: list[int] = []
    parts: list[int] = []
    i = j = 0
    while i < len(after) or j < len(before):  # axes that have as many elements together on both sides
        start, first, left, right = i, j, 1, 1
        while left != right or (i, j) == (start, first):
            if j < len(before) and (left >= right or i == len(after)):
                right, j = right * before[j], j + 1
            elif i < len(after):
                left, i = left * after[i], i + 1
            else:
                return None
        varies = any(n != 1 for n in aligned.shape[start:i])
        parts += after[start:i] if varies else (1,) * (i - start)
        shape += before[first:j] if varies else (1,) * (j - first)
    if math.prod(parts) > max(_MOST_REPEATED, array.size):
        return None
    return np.ascontiguousarray(np.broadcast_to(aligned, parts)).reshape(shape)


def _is_no_op(node: Node) -> bool:
    source, output = node.inputs[0], node.outputs[0]
    assert source is not None
    if source.shape != output.shape or source.dtype != output.dtype:
        return False
    match node.op:
        case "Elementwise":
            return bool(node.attrs["expr"] == ("in", 0))
        case "Reshape" | "Expand" | "Pad":
            return True
        case "Slice":
            return True  # equal shapes: every axis is whole, as steps are positive
        case "Transpose":
            return list(node.attrs["perm"]) == sorted(node.attrs["perm"])
        case "Concat":
            return len(node.inputs) == 1
        case "MaxPool" | "AvgPool":
            return node.attrs["kernel"] == [1, 1] and node.attrs["strides"] == [1, 1] and not any(node.attrs["pads"])
    return False


def _drop_no_op(edit: Rewriter, node: Node) -> bool:
    if not _is_no_op(node):
        return False
    source = node.inputs[0]
    assert source is not None
    if not edit.replace(node.outputs[0], source):
        return False
    edit.remove(node)
    return True


def _merge_movement(edit: Rewriter, node: Node) -> bool:
    """Merge chains: Reshape of Reshape, Transpose of Transpose; a Transpose of unit axes and a Reduce of them is a Reshape."""
    source = node.inputs[0]
    before = edit.maker(source)
    if node.op == "Reshape" and before is not None and before.op == "Reshape":
        edit.set_input(node, 0, before.inputs[0])
        return True
    if node.op == "Transpose":
        assert source is not None
        if before is not None and before.op == "Transpose":
            node.attrs["perm"] = [before.attrs["perm"][axis] for axis in node.attrs["perm"]]
            edit.set_input(node, 0, before.inputs[0])
            return True
        moved = [axis for axis in node.attrs["perm"] if source.shape[axis] != 1]
        if moved == sorted(moved):
            node.op, node.attrs = "Reshape", {}
            return True
    if node.op == "Reduce" and source is not None and all(source.shape[axis] == 1 for axis in node.attrs["axes"]):
        node.op, node.attrs = "Reshape", {}
        return True
    return False


def _reduce_of_stack(edit: Rewriter, node: Node) -> bool:
    """A Reduce over the axis on which a few values are stacked is an expression of these."""
    operator = _REDUCED.get(node.attrs["kind"]) if node.op == "Reduce" else None
    stack, source = edit.maker(node.inputs[0]), node.inputs[0]
    if operator is None or stack is None or stack.op != "Concat" or source is None or edit.only_user(source) is None:
        return False
    axis, pieces = stack.attrs["axis"], [value for value in stack.inputs if value is not None]
    if node.attrs["axes"] != [axis] or len(pieces) > _MOST_STACKED or any(value.shape[axis] != 1 for value in pieces):
        return False
    expr: Expr = ("in", 0)
    for index in range(1, len(pieces)):
        expr = (operator, expr, ("in", index))
    stack.op, stack.attrs = "Elementwise", {"expr": expr}
    source.shape = pieces[0].shape
    node.op, node.attrs = "Reshape", {}
    return True


def _absorb_pad(edit: Rewriter, node: Node) -> bool:
    """A Pad of zeros around the image becomes the convolution's own padding."""
    before = edit.maker(node.inputs[0])
    if node.op != "Conv" or before is None or before.op != "Pad" or before.attrs["value"] != 0:
        return False
    batch, channel, (top, bottom), (left, right) = before.attrs["pads"]
    if any((*batch, *channel)):
        return False
    pads = [a + b for a, b in zip(node.attrs["pads"], (top, left, bottom, right), strict=True)]
    inner, weights = before.inputs[0], node.inputs[1]
    assert inner is not None and weights is not None
    try:
        shape = infer_shape("Conv", [inner.shape, weights.shape], node.attrs | {"pads": pads})
    except ShapeMismatch:
        return False
    assert shape == node.outputs[0].shape
    node.attrs["pads"] = pads
    edit.set_input(node, 0, inner)
    return True
