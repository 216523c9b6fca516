"""Simplify: scalar constants move into expressions, data movement that moves nothing disappears, reshapes merge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.compiler.frontend.expr import leaves, rewrite, substitute
from libnpu.compiler.frontend.infer import ShapeMismatch, broadcast, infer_shape
from libnpu.compiler.frontend.rewriting import Rewriter
from libnpu.compiler.ir import Expr, Node, Value

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.compiler.frontend.infer import Shape
    from libnpu.compiler.ir import Graph

MAX_ROUNDS = 16  # chosen: each round shortens a chain of movements; real models need two or three
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
    return _drop_no_op(edit, node) or _merge_movement(edit, node) or _absorb_pad(edit, node)


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
    """Elementwise(Reshape(x), constants) becomes Reshape(Elementwise(x, constants)), so that it can fuse into x's maker."""
    moving = [value for value in node.inputs if value is not None and value.const is None]
    reshape = edit.maker(moving[0]) if len(moving) == 1 else None
    if reshape is None or reshape.op != "Reshape" or edit.only_user(moving[0]) is not node:
        return False
    source = reshape.inputs[0]
    assert source is not None
    above = edit.maker(source)
    shape = moving[0].shape
    if above is None or above.op not in ("Conv", "MatMul", "Elementwise") or node.outputs[0].shape != shape:
        return False
    inputs: list[Value | None] = []
    for value in node.inputs:
        assert value is not None
        if value.const is None:
            inputs.append(source)
            continue
        moved = _constant_before_reshape(value.const, shape, source.shape)
        if moved is None:
            return False
        inputs.append(Value(value.name, moved.shape, moved.dtype, moved))
    # The two nodes change places, so that the order of execution stays right.
    expr, wide = node.attrs["expr"], moving[0]
    wide.shape, wide.dtype, wide.name = source.shape, node.outputs[0].dtype, f"{node.outputs[0].name}.unshaped"
    edit.set_inputs(reshape, inputs)
    reshape.op, reshape.attrs, node.op, node.attrs = "Elementwise", {"expr": expr}, "Reshape", {}
    edit.set_inputs(node, [wide])
    reshape.name, node.name = node.name, reshape.name
    reshape.layers, node.layers = node.layers, reshape.layers
    return True


def _constant_before_reshape(array: NDArray[Any], after: Shape, before: Shape) -> NDArray[Any] | None:
    """Return `array`, which broadcasts to `after`, in a shape that broadcasts to `before`; None if there is none."""
    if array.size == 1:
        return array.reshape(())
    if [dim for dim in after if dim != 1] != [dim for dim in before if dim != 1]:
        return None
    aligned = (1,) * (len(after) - array.ndim) + array.shape
    sizes = iter(size for size, dim in zip(aligned, after, strict=True) if dim != 1)
    return array.reshape([next(sizes) if dim != 1 else 1 for dim in before])


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
