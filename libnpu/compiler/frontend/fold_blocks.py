"""Fold depth to space: a convolution whose channels become blocks of pixels writes each row of the blocks by itself, in place.

Its channels, reshaped to the rows and columns of a block and turned between those of the image, are the pixels of a wider image.
The channels of one row of the blocks, with channels innermost, are a run of pixels of that row already: the rows of all blocks
side by side are a concatenation, and what follows are views.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler.frontend.rewriting import Rewriter, rewritten
from libnpu.compiler.hollow import hollow, is_hollow
from libnpu.compiler.ir import Node, Value

if TYPE_CHECKING:
    from libnpu.compiler.ir import Graph

_ORDERS = {(0, 3, 4, 1, 5, 2): (1, 2, 3), (0, 1, 4, 2, 5, 3): (2, 3, 1)}  # perm -> axes of rows, columns, channels


def fold_blocks(graph: Graph) -> Graph:
    """Return `graph` with convolutions that write rows of blocks of pixels."""
    return rewritten(graph, "Transpose", _fold)


def _fold(edit: Rewriter, turn: Node) -> None:
    axes = _ORDERS.get(tuple(turn.attrs["perm"]))
    parts, merge = turn.inputs[0], edit.only_user(turn.outputs[0])
    split = edit.maker(parts)
    if axes is None or parts is None or merge is None or split is None or {split.op, merge.op} != {"Reshape"}:
        return
    made = split.inputs[0]
    conv = edit.maker(made)
    if made is None or conv is None or conv.op != "Conv" or conv.attrs["group"] != 1:
        return
    if edit.only_user(made) is not split or edit.only_user(parts) is not turn or len(made.shape) != 4:
        return
    weights = conv.inputs[1]
    rows, columns, channels = (parts.shape[axis] for axis in axes)
    images, _, height, width = made.shape
    blocks = (images, channels, height * rows, width * columns)
    if weights is None or weights.const is None or rows == 1 or merge.outputs[0].shape != blocks:
        return
    index = np.arange(rows * columns * channels).reshape(parts.shape[1:4]).transpose([axis - 1 for axis in axes])
    bands = [_band(edit, conv, row, taken.reshape(-1)) for row, taken in enumerate(index)]
    whole = Value(f"{made.name}.rows", (images, columns * channels, height, rows * width), made.dtype)
    together = Node("Concat", f"{conv.name}.rows", [], [whole], {"axis": 3}, list(conv.layers))
    edit.put_before(split, [*bands, together])
    edit.set_inputs(together, [band.outputs[0] for band in bands])
    edit.set_output(together, whole)
    edit.set_inputs(split, [whole])
    parts.shape = (images, columns, channels, height, rows, width)
    turn.attrs["perm"] = [0, 2, 3, 4, 5, 1]
    turn.outputs[0].shape = (images, channels, height, rows, width, columns)
    edit.remove(conv)


def _band(edit: Rewriter, conv: Node, row: int, taken: np.ndarray) -> Node:
    """Return the convolution that makes the channels `taken`."""
    source, weights, bias = conv.inputs[0], conv.inputs[1], conv.inputs[2] if len(conv.inputs) > 2 else None
    assert weights is not None and weights.const is not None
    shape = (len(taken), *weights.shape[1:])
    array = hollow(shape, weights.dtype) if is_hollow(weights.const) else weights.const[taken]
    inputs: list[Value | None] = [source, Value(f"{weights.name}.row{row}", shape, weights.dtype, array), None]
    if bias is not None:
        assert bias.const is not None
        part = bias.const.reshape(-1)
        part = hollow((len(taken),), bias.dtype) if is_hollow(part) else part[taken]
        inputs[2] = Value(f"{bias.name}.row{row}", (len(taken),), bias.dtype, part)
    made = conv.outputs[0]
    out = Value(f"{made.name}.row{row}", (made.shape[0], len(taken), *made.shape[2:]), made.dtype)
    band = Node("Conv", f"{conv.name}.row{row}", [], [out], dict(conv.attrs), list(conv.layers))
    edit.set_inputs(band, inputs)
    edit.set_output(band, out)
    return band
