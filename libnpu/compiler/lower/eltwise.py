"""Sums and products of two tensors on the matrix engine: as operations of their own, or on the tiles of the one before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C
from npu_model.dpu_walk import BLOCK_PIXELS, LINE_BYTES
from npu_model.dtypes import code_of_numpy

from libnpu.compiler.lower.boxes import in_place, tile_boxes
from libnpu.compiler.lower.byte_sums import byte_sum
from libnpu.compiler.lower.invariant import ppe_fields, variants
from libnpu.compiler.lower.shave_tiler import elementwise_operands
from libnpu.compiler.lower.view import View, merge_dims
from libnpu.compiler.program import DpuPayload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from libnpu.compiler.ir import Graph, Node, Value
    from libnpu.compiler.lower.builder import Builder
    from libnpu.compiler.lower.view import Order

_FLOATS = (np.dtype(np.float16), np.dtype(np.float32))
_NHWC = (0, 2, 3, 1)
_CONTEXT_CHANNELS = 64  # of an element-wise operation
_ELTWISE = {"add": C.NPU_DPU_ELTWISE_ADD, "mul": C.NPU_DPU_ELTWISE_MUL}


@dataclass(slots=True, frozen=True)
class Follower:
    """A sum or product of an operation's result with `other`, computed on each tile of the result before it leaves CMX."""

    node: Node
    other: View  # of the shape of the operation's output
    fields: dict[str, Any]  # PPE and operation of the invariant

    def emit(self, builder: Builder, tile: View, other: View, out: View) -> None:
        """Append the task of one box; `out` may be `tile` or `other`."""
        eltwise_task(builder, self.node, [tile, other], out, self.fields)


def following(
    builder: Builder, node: Node, order: Order, usable: Callable[[View], bool] = lambda view: True
) -> tuple[Follower, View] | None:
    """Return the sum or product that can follow `node` tile by tile, and the home of its result; None when there is none.

    Its other operand must exist by now, and nothing else may read the result of `node`. `order` is that in which `node` writes,
    `usable` says of the two homes whether it can work there. The node of the follower counts as lowered.
    """
    value = node.outputs[0]
    reader = builder.only_consumer(value)
    if (
        not builder.keeps_values
        or reader is None
        or reader.op != "Elementwise"
        or any(v is None for v in reader.inputs)
    ):
        return None
    others = [v for v in reader.inputs if v is not None and v is not value]
    if len(others) != 1 or others[0].shape != value.shape or others[0] not in builder.homes:
        return None
    found = _eltwise_operation(builder, reader)
    if found is None:
        return None
    op, _, act = found
    result = reader.outputs[0]
    out = builder.place_over(result, others[0]) or builder.place(result, order)
    other = builder.home(others[0])
    if not (usable(other) and usable(out)):
        return None
    builder.done(reader)
    return Follower(reader, other, ppe_fields(act) | {"op": op}), out


def lower_eltwise(builder: Builder, node: Node) -> bool:
    """Emit a sum or product of two equal-shaped tensors on the matrix engine; False when it has to go to the SHAVEs."""
    found = byte_sum(node)
    if found is not None:
        values, fields = found
    else:
        known = _eltwise_operation(builder, node)
        if known is None:
            return False
        op, values, act = known
        fields = ppe_fields(act) | {"op": op}
    order, inputs, out = elementwise_operands(builder, node, values)
    shape = node.outputs[0].shape

    def emit(tiles: list[View], tile: View) -> None:
        eltwise_task(
            builder, node, [t.broadcast(tile.shape).permuted(order) for t in tiles], tile.permuted(order), fields
        )

    usable = [in_place(v, order) for v in inputs]
    tile_boxes(builder, node, inputs, out, shape, [order] * 3, order, usable, builder.tiles, emit)
    return True


def _eltwise_operation(builder: Builder, node: Node) -> tuple[int, list[Value], tuple[Any, ...] | None] | None:
    """Return (operation, operands, activation) when the node is one that the engine has, as its operands lie."""
    found = engine_operation(builder.graph, node)
    if found is None:
        return None
    value, (first, second) = node.outputs[0], found[1]
    if second.shape == value.shape or builder.order_for(value, builder.home(first)) == _NHWC:
        return found
    return None


def engine_operation(graph: Graph, node: Node) -> tuple[int, list[Value], tuple[Any, ...] | None] | None:
    """Return (operation, operands, activation) when the node is one that the engine has.

    The second operand may be one vector of channels for every pixel; then the first has to lie channels last.
    """
    expr, act = node.attrs["expr"], None
    if expr[0] == "relu":
        expr, act = expr[1], ("relu",)
    if expr[0] not in _ELTWISE or any(part[0] != "in" for part in expr[1:]):
        return None
    operands = [node.inputs[part[1]] for part in expr[1:]]
    values = [v for v in operands if v is not None and v.const is None]
    value = node.outputs[0]
    values.sort(key=lambda v: v.shape != value.shape)
    is_engine_type = value.dtype in _FLOATS or graph.is_quantised(value)
    if len(values) != 2 or not value.shape or not is_engine_type or any(v.dtype != value.dtype for v in values):
        return None
    first, second = values
    per_channel = len(value.shape) == 4 and second.shape[-3:] == (value.shape[1], 1, 1)
    fits = first.shape == value.shape and (second.shape == value.shape or per_channel)
    return (_ELTWISE[expr[0]], values, act) if fits else None


def eltwise_task(builder: Builder, node: Node, tiles: list[View], tile: View, fields: dict[str, Any]) -> None:
    """Append the tasks of one box of a sum or product, of which only the second operand of a task may repeat elements."""
    engine_tasks(builder, node, sorted(tiles, key=repeats), tile, fields)


def engine_tasks(
    builder: Builder, node: Node, tiles: Sequence[View], tile: View, fields: dict[str, Any], table: View | None = None
) -> None:
    """Append the tasks of one box: [y][x][z] with dense z, element by element from one or two operands to `tile`.

    Boxes of more than three axes are several tasks, and so are those of which all operands repeat an axis. With a `table` of
    weight entries the last axis is that of its channels.
    """
    views = [*tiles, tile]
    sizes = [view.dtype.itemsize for view in views]
    kept = len(tile.shape) - 1 if table is not None else len(tile.shape)
    merged, rows = merge_dims(tile.shape[:kept], [v.strides[:kept] for v in views])
    repeated = [axis for axis, step in enumerate(rows[0]) if not step]
    walked = [axis for axis in range(len(merged)) if axis not in repeated]
    dims, steps = [1], [[size] for size in sizes]
    if walked:
        dims, steps = [merged[axis] for axis in walked], [[row[axis] for axis in walked] for row in rows]
    if table is not None:
        dims, steps = [*dims, tile.shape[-1]], [[*step, size] for step, size in zip(steps, sizes, strict=True)]
    dims, steps = _three_dims(dims, steps, sizes, table is not None)
    dims = [merged[axis] for axis in repeated] + dims
    steps = [[row[axis] for axis in repeated] + step for row, step in zip(rows, steps, strict=True)]
    for index in np.ndindex(*dims[:-3]):
        moved = [
            View(
                v.target,
                v.offset + sum(i * s for i, s in zip(index, step, strict=False)),
                tuple(dims[-3:]),
                tuple(step[-3:]),
                v.dtype,
            )
            for v, step in zip(views, steps, strict=True)
        ]
        act, *_, out = moved
        y, x, z = act.shape
        names = ("act", "act2", "out") if len(moved) == 3 else ("act", "out")
        strides = {
            f"{name}_stride_{axis}": v.strides[k]
            for name, v in zip(names, moved, strict=True)
            for axis, k in (("x", 1), ("y", 0))
        }
        code = code_of_numpy(act.dtype)
        described = {
            "in_x": x, "in_y": y, "in_z": z, "out_x": x, "out_y": y, "out_z": z, **strides,
            "groups": 1, "kernel_x": 1, "kernel_y": 1, "stride_x": 1, "stride_y": 1, "dilation_x": 1, "dilation_y": 1,
            "act_dtype": code, "wt_dtype": code, "out_dtype": code_of_numpy(out.dtype), **fields,
        }  # fmt: skip
        refs = {f"{name}_addr": view.ref for name, view in zip(names, moved, strict=True)}
        reads = [view.access() for view in moved[:-1]]
        if table is not None:
            refs["wt_table_addr"] = table.ref
            reads.append(table.access())
        builder.dpu(node, DpuPayload(refs, described, list(variants(out.shape, {}))), reads, [out.access()])


def repeats(view: View) -> bool:
    """Whether it has elements at several places of an axis."""
    return any(not step and n > 1 for n, step in zip(view.shape, view.strides, strict=True))


def _three_dims(
    dims: list[int], steps: list[list[int]], sizes: list[int], has_table: bool
) -> tuple[list[int], list[list[int]]]:
    """Return at least three axes, the last of them dense: where there are fewer, those that fill blocks best.

    `steps` has a row per operand, in bytes; `sizes` are those of its elements. With a table the last axis stays that of its channels.
    """
    if any(step[-1] != size for step, size in zip(steps, sizes, strict=True)) and dims[-1] > 1:
        dims, steps = [*dims, 1], [[*step, size] for step, size in zip(steps, sizes, strict=True)]
    if len(dims) == 1:  # all dense: any channels
        whole, dims, size = dims[0], [dims[0], 1], max(sizes)
        deep = [z for z in range(1, min(whole, _CONTEXT_CHANNELS) + 1) if whole % z == 0]
        z = min(deep, key=lambda z: (_blocks(whole // z, block_rows(whole // z)) * -(-z * size // LINE_BYTES), -z))
        dims, steps = [whole // z, z], [[z * own, own] for own in sizes]
    if len(dims) == 2 and dims[1] > _CONTEXT_CHANNELS and not has_table:
        (y, whole), size = dims, max(sizes)

        def lines(rows: int, pixels: int, z: int) -> int:
            return _blocks(pixels, rows) * -(-z * size // LINE_BYTES)

        deep = [z for z in range(1, _CONTEXT_CHANNELS + 1) if whole % z == 0]
        z = min(deep, key=lambda z: (lines(y, y * (whole // z), z), -z))
        if lines(y, y * (whole // z), z) <= lines(block_rows(y), y, whole):
            dims, steps = [y, whole // z, z], [[step[0], z * own, own] for step, own in zip(steps, sizes, strict=True)]
    if len(dims) == 2:
        y = block_rows(dims[0])
        x = dims[0] // y
        dims, steps = [y, x, dims[1]], [[step[0] * x, *step] for step in steps]
    return dims, steps


def block_rows(pixels: int) -> int:
    """Return the rows of the rectangle of so many pixels that has the fewest blocks: of equals the fewest."""
    return min(
        (y for y in range(1, min(pixels, 2 * BLOCK_PIXELS) + 1) if pixels % y == 0),
        key=lambda y: (_blocks(pixels, y), y),
    )


def _blocks(pixels: int, rows: int) -> int:
    return -(-rows // BLOCK_PIXELS) * -(-pixels // rows // BLOCK_PIXELS)
