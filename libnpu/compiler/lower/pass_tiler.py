"""The passes of an expression (`passes.py`) as tasks: box by box, what lies between two of them in CMX."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import dtype as record_dtype

from libnpu.compiler.lower.boxes import in_place, tile_boxes
from libnpu.compiler.lower.eltwise import engine_tasks, repeats
from libnpu.compiler.lower.invariant import ppe_fields
from libnpu.compiler.lower.passes import passes_of
from libnpu.compiler.lower.shave_tiler import elementwise_operands
from libnpu.compiler.lower.view import dense
from libnpu.compiler.program import Buffer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from libnpu.compiler.ir import Node
    from libnpu.compiler.lower.builder import Builder
    from libnpu.compiler.lower.passes import Pass
    from libnpu.compiler.lower.view import Order, View

_SINGLE = np.dtype(np.float32)
_CHANNEL = 1  # the axis


def lower_passes(builder: Builder, node: Node) -> bool:
    """Append the passes of an Elementwise node; False when it has to go to the vector cores."""
    passes = passes_of(node, builder.profile, builder.tiles)
    if passes is None:
        return False
    taken = sorted({index for one in passes for kind, index in one.sources if kind == "in"})
    values = [value for value in (node.inputs[index] for index in taken) if value is not None]
    computed = [value for value in values if value.const is None]
    by_channel = any(one.per_channel for one in passes)
    if any(repeats(builder.home(value)) for value in computed) or (
        by_channel and builder.order_for(node.outputs[0], builder.home(computed[0]))[-1] != _CHANNEL
    ):
        return False
    order, inputs, out = elementwise_operands(builder, node, values)
    tables = [_table(builder, node, one) for one in passes]

    def emit(tiles: list[View], tile: View) -> None:
        emit_passes(builder, node, passes, dict(zip(taken, tiles, strict=True)), tile, order, tables)

    usable = [in_place(view, order) for view in inputs]
    axes = order[:-1] if by_channel and len(order) > 1 else order
    between = _SINGLE.itemsize * (len(passes) - 1)
    orders = [order] * (len(inputs) + 1)
    tile_boxes(
        builder, node, inputs, out, node.outputs[0].shape, orders, axes, usable, builder.tiles, emit, between=between
    )
    return True


def emit_passes(
    builder: Builder,
    node: Node,
    passes: Sequence[Pass],
    operands: Mapping[int, View],
    out: View,
    order: Order,
    tables: Sequence[View | None] | None = None,
) -> None:
    """Append the tasks of one box in CMX: `operands` of the node by their number, `out` may lie over one of them; all are
    walked in `order`.
    """
    made: list[View] = []
    for number, (one, table) in enumerate(zip(passes, tables or [None] * len(passes), strict=True)):
        sources = [operands[k].broadcast(out.shape) if kind == "in" else made[k] for kind, k in one.sources]
        target = out if number == len(passes) - 1 else _between(builder, node, out, order)
        views = [view.permuted(order) for view in (*sorted(sources, key=repeats), target)]
        engine_tasks(builder, node, views[:-1], views[-1], _fields(one, table), table)
        made.append(target)


def _fields(one: Pass, table: View | None) -> dict[str, Any]:
    fields = ppe_fields(one.act)
    if table is None:
        fields["ppe_scale"], fields["ppe_bias"] = float(one.scale[0]), float(one.bias[0])
    return fields | {"op": one.op}


def _between(builder: Builder, node: Node, tile: View, order: Order) -> View:
    buffer = Buffer(f"{node.name}.pass.{len(builder.ops)}", prod(tile.shape) * _SINGLE.itemsize)
    return dense(buffer, tile.shape, _SINGLE, order)


def _table(builder: Builder, node: Node, one: Pass) -> View | None:
    """Return the weight table with scale and bias of each channel, in CMX; None where they are the same."""
    if not one.per_channel:
        return None
    count = max(one.scale.size, one.bias.size)
    entries = np.zeros(count, record_dtype("npu_dpu_weight_entry"))
    entries["scale"], entries["bias"] = one.scale, one.bias
    tensor = builder.constant_bytes(entries.nbytes, f"{node.name}.table.{len(builder.ops)}", partial(_bytes, entries))
    return builder.fetch(dense(tensor, (entries.nbytes,), np.dtype(np.uint8)), (0,), node, "table")


def _bytes(entries: Any) -> bytes:
    return bytes(entries.tobytes())
