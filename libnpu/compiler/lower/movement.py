"""Data movement: views where strides can say it, DMA descriptors where bytes must move.

SHAVEs work only where a change of order would have DMA move single elements, many of them (`relayout.py`).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler.lower.builder import CHANNELS_LAST
from libnpu.compiler.lower.view import Order, View, dense
from libnpu.compiler.program import Buffer

if TYPE_CHECKING:
    from libnpu.compiler.ir import Node, Value
    from libnpu.compiler.lower.builder import Builder

_FILL_BYTES = 4096  # length of the constant row that padding is copied from; chosen


def _input(node: Node) -> Value:
    value = node.inputs[0]
    assert value is not None
    return value


def lower_reshape(builder: Builder, node: Node) -> None:
    """Make the output a view of the same bytes, after a copy to row-major order when the layout demands it."""
    source, value = builder.home(_input(node)), node.outputs[0]
    view = source.reshaped(value.shape)
    if view is None and builder.is_inside(value):
        part = builder.place(value, CHANNELS_LAST).reshaped(source.shape)
        if part is not None:
            builder.copy(part, source, node, "relayout")
            return
    if view is None:
        view = builder.dense_home(source, _reshape_order(builder, source, value), node).reshaped(value.shape)
    assert view is not None
    builder.bind(value, view, node)


def _reshape_order(builder: Builder, source: View, value: Value) -> Order:
    """Return the order for a copy of `source` that can be seen as `value`: channels last where they are, or are wanted there."""
    axes = tuple(range(len(source.shape)))
    if len(value.shape) < 3:
        return axes
    moving = [k for k in axes if source.shape[k] > 1 and source.strides[k]]
    innermost = min(moving, key=lambda k: abs(source.strides[k]), default=None)
    for first in axes:
        for last in range(first + 1, len(axes)):
            if prod(source.shape[:first]) == value.shape[0] and prod(source.shape[first:last]) == value.shape[1]:
                order = (*axes[:first], *axes[last:], *axes[first:last])
                seen = dense(source.target, source.shape, source.dtype, order).reshaped(value.shape)
                if seen is not None and (builder.wants_channels_last(value) or innermost in axes[first:last]):
                    return order
    return axes


def order_in_views(builder: Builder, value: Value) -> Order | None:
    """Return the order of `value` in which what it is read as, through views alone, is dense in row-major order.

    None where nothing is, or its last axis would not be the innermost one.
    """
    chain: list[Node] = []
    reader = builder.only_consumer(value)
    while reader is not None and reader.op in ("Reshape", "Transpose"):
        chain.append(reader)
        reader = builder.only_consumer(reader.outputs[0])
    while chain:
        read = chain[-1].outputs[0]
        view: View | None = dense(Buffer(read.name, 0), read.shape, read.dtype)
        for node in reversed(chain):
            if view is not None and node.op == "Reshape":
                view = view.reshaped(_input(node).shape)
            elif view is not None:
                view = view.permuted([node.attrs["perm"].index(axis) for axis in range(len(view.shape))])
        if view is not None and view.strides[-1] in (0, view.dtype.itemsize):
            return view.order()
        chain.pop()
    return None


def lower_transpose(builder: Builder, node: Node) -> None:
    """Make the output a view with permuted axes."""
    builder.bind(node.outputs[0], builder.home(_input(node)).permuted(node.attrs["perm"]), node)


def lower_slice(builder: Builder, node: Node) -> None:
    """Make the output a view of the box."""
    starts, steps = node.attrs["starts"], node.attrs["steps"]
    builder.bind(node.outputs[0], builder.home(_input(node)).sliced(starts, node.outputs[0].shape, steps), node)


def lower_expand(builder: Builder, node: Node) -> None:
    """Make the output a view that repeats its elements."""
    builder.bind(node.outputs[0], builder.home(_input(node)).broadcast(node.outputs[0].shape), node)


def lower_concat(builder: Builder, node: Node) -> None:
    """Copy the inputs that their producers could not write in place (see `plan_concats`)."""
    value, axis = node.outputs[0], node.attrs["axis"]
    inputs = [v for v in node.inputs if v is not None]
    largest = max(inputs, key=lambda v: prod(v.shape))
    order = builder.order_for(value, builder.home(largest))
    whole = builder.place(value, order)
    start = 0
    for source in inputs:
        part = whole.sliced([start if k == axis else 0 for k in range(len(value.shape))], source.shape)
        if builder.home(source) != part:
            builder.copy(part, builder.home(source), node, "concat")
        start += source.shape[axis]


def plan_concats(builder: Builder) -> None:
    """Let producers of concatenated values write into the concatenation, where each value is used in one place of one of them."""
    made_by = {value: node for node in builder.graph.nodes for value in node.outputs}
    for node in builder.graph.nodes:
        if node.op != "Concat":
            continue
        start = 0
        inputs = [v for v in node.inputs if v is not None]
        for value in inputs:
            maker = made_by.get(value)
            makes_bytes = maker is not None and (maker.op in _COMPUTED or _repeats(builder, maker, made_by, node))
            if makes_bytes and inputs.count(value) == 1:
                builder.set_inside(value, node.outputs[0], node.attrs["axis"], start)
            start += value.shape[node.attrs["axis"]]


def _repeats(builder: Builder, node: Node, made_by: dict[Value, Node], whole: Node) -> bool:
    """Whether a node makes a concatenation's operand, channels last, of elements that lie once in memory: as Resize is read."""
    before = made_by.get(_input(node)) if node.op == "Reshape" else None
    return before is not None and before.op == "Expand" and builder.wants_channels_last(whole.outputs[0])


_COMPUTED = frozenset(
    {"Conv", "MatMul", "ConvInteger", "MatMulInteger", "MaxPool", "AvgPool", "Elementwise", "Softmax", "Concat"}
)


def lower_pad(builder: Builder, node: Node) -> None:
    """Copy the input into the middle of the output and a constant around it."""
    source, value = builder.home(_input(node)), node.outputs[0]
    order = _grown_order(builder.order_for(value, source), source.shape)
    whole = builder.place(value, order)
    pads = [(int(a), int(b)) for a, b in node.attrs["pads"]]
    builder.copy(whole.sliced([a for a, _ in pads], source.shape), source, node, "pad")
    low, size = [0] * len(pads), list(value.shape)
    for axis in whole.order():
        before, after = pads[axis]
        for start, count in ((0, before), (value.shape[axis] - after, after)):
            if count:
                slab = whole.sliced(
                    [start if k == axis else low[k] for k in range(len(pads))],
                    [count if k == axis else size[k] for k in range(len(pads))],
                )
                _fill(builder, slab, node.attrs.get("value", 0.0), node, whole.order())
        low[axis], size[axis] = before, value.shape[axis] - before - after


def _grown_order(order: Order, shape: tuple[int, ...]) -> Order:
    """Return `order` with each axis of one element right inside the one that it follows in the shape.

    Padding makes such axes longer; a reshape that merges them with those then stays a view.
    """
    found = [axis for axis in order if shape[axis] > 1 or axis == 0]
    for axis in range(1, len(shape)):
        if shape[axis] == 1:
            found.insert(found.index(axis - 1) + 1, axis)
    return tuple(found)


def _fill(builder: Builder, box: View, number: float, node: Node, order: Order) -> None:
    """Copy a constant row over every row of `box`; rows longer than the constant are cut."""
    inner = order[-1]
    length = min(box.shape[inner], _FILL_BYTES // box.dtype.itemsize)
    row = builder.constant(np.full(length, number, box.dtype), f"{node.name}.fill")
    for start in range(0, box.shape[inner], length):
        count = min(length, box.shape[inner] - start)
        part = box.sliced(
            [start if k == inner else 0 for k in range(len(box.shape))],
            [count if k == inner else n for k, n in enumerate(box.shape)],
        )
        strides = tuple(box.dtype.itemsize if k == inner else 0 for k in range(len(box.shape)))
        builder.copy(part, View(row.target, row.offset, part.shape, strides, box.dtype), node, "fill")
