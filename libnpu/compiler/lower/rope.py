"""RoPE as SHAVE tasks: boxes of rows, each with its pairs."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from npu_model.dtypes import code_of_numpy

from libnpu.compiler import kernels
from libnpu.compiler.lower.boxes import in_place, tile_boxes
from libnpu.compiler.lower.shave_tiler import constant_in_order, launch
from libnpu.compiler.lower.view import View, merge_dims

if TYPE_CHECKING:
    from libnpu.compiler.ir import Node, Value
    from libnpu.compiler.lower.builder import Builder


def lower_rope(builder: Builder, node: Node) -> None:
    """Append the tasks of a RoPE node."""
    x, cos, sin = (value for value in node.inputs if value is not None)
    value, interleaved = node.outputs[0], bool(node.attrs["interleaved"])
    half = x.shape[-1] // 2
    out = _pairs(builder.place(value, tuple(range(len(value.shape)))), half, interleaved)
    inputs = [_pairs(_placed(builder, v, len(x.shape)), half, interleaved) for v in (x, cos, sin)]
    order = tuple(range(len(out.shape)))
    codes = tuple(code_of_numpy(view.dtype) for view in inputs)
    program = kernels.rope((codes[0], codes[1], codes[2]), code_of_numpy(out.dtype))

    def emit(tiles: list[View], tile: View) -> None:
        _launch(builder, node, program, [*(t.broadcast(tile.shape) for t in tiles), tile], interleaved)

    usable = [in_place(view, order) for view in inputs]
    tile_boxes(builder, node, inputs, out, out.shape, [order] * 4, order[:-2], usable, builder.shaves, emit)


def _placed(builder: Builder, value: Value, rank: int) -> View:
    """Return where an operand is, with `rank` axes."""
    if value.const is not None:
        return constant_in_order(builder, value, rank, tuple(range(rank)))
    view, extra = builder.home(value), rank - len(value.shape)
    return View(view.target, view.offset, (1,) * extra + view.shape, (0,) * extra + view.strides, view.dtype)


def _pairs(view: View, half: int, interleaved: bool) -> View:
    """Return a view whose last axis is [pair, half], or [half, pair]; angles that both of a pair share have one of it."""
    count, step = view.shape[-1] // half, view.strides[-1]
    shape, strides = (count, half), (step * half, step)
    if interleaved:
        shape, strides = (half, count), (step * count, step)
    return View(view.target, view.offset, (*view.shape[:-1], *shape), (*view.strides[:-1], *strides), view.dtype)


def _launch(builder: Builder, node: Node, program: kernels.Program, views: list[View], interleaved: bool) -> None:
    """Append the task of one box, or several where its leading axes are more than two."""
    pair, inner = (-1, -2) if interleaved else (-2, -1)
    dims, steps = merge_dims(views[-1].shape[:-2], [view.strides[:-2] for view in views])
    dims, steps = [1] * (2 - len(dims)) + dims, [[0] * (2 - len(step)) + step for step in steps]
    for index in product(*(range(n) for n in dims[:-2])):
        operands = [
            View(
                view.target,
                view.offset + sum(i * s for i, s in zip(index, step, strict=False)),
                (*dims[-2:], 2, view.shape[inner]),
                (*step[-2:], view.strides[pair], view.strides[inner]),
                view.dtype,
            )
            for view, step in zip(views, steps, strict=True)
        ]
        launch(builder, node, program, operands, [operand.shape for operand in operands])
