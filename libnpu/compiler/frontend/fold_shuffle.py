"""Fold channel shuffles: groups of channels that are interleaved go into the weights of the convolution that reads them.

A shuffle reshapes [N, groups · each, H, W] to groups and exchanges the two axes. What works channel by channel behind it may as
well work on the channels as they were, with its own weights in that order. Of the reader, a convolution of one group takes its
weights in that order too. A pointwise one of several groups reads from every group of the shuffle a run of channels: they are
the columns of a kernel as wide as the shuffle has groups, on pixels that have so many parts. Runs of different lengths are
padded by channels of zeros, which the convolution before the shuffle makes.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.compiler.frontend.rewriting import Rewriter, rewritten
from libnpu.compiler.hollow import hollow, is_hollow
from libnpu.compiler.ir import Value

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.compiler.ir import Graph, Node

_PAD = -1  # a channel of zeros


def fold_shuffles(graph: Graph) -> Graph:
    """Return `graph` without the shuffles that a convolution can take."""
    return rewritten(graph, "Transpose", _fold)


def _fold(edit: Rewriter, turn: Node) -> None:
    split, merge = edit.maker(turn.inputs[0]), edit.only_user(turn.outputs[0])
    if split is None or merge is None or split.op != "Reshape" or merge.op != "Reshape":
        return
    source, result = split.inputs[0], merge.outputs[0]
    assert source is not None
    groups = _groups(source, turn, result)
    if groups is None or edit.only_user(split.outputs[0]) is not turn:
        return
    chain, reader = _readers(edit, result)
    if reader is None:
        return
    channels, taken = source.shape[1], int(reader.attrs["group"])
    slots = _slots(groups, channels // groups, taken)
    maker = edit.maker(source)
    if slots.size > channels and (maker is None or not _can_pad(maker, groups) or edit.only_user(source) is not split):
        return
    if not edit.replace(result, source):
        return
    flat = slots.ravel()
    if slots.size > channels:
        assert maker is not None
        _reorder(edit, maker, np.where(flat == _PAD, _PAD, flat % groups * (channels // groups) + flat // groups))
        source.shape = (source.shape[0], slots.size, *source.shape[2:])
    for node in chain:
        if node.op == "Conv":
            _reorder(edit, node, flat)
            node.attrs["group"] = slots.size
        value = node.outputs[0]
        value.shape = (value.shape[0], slots.size, *value.shape[2:])
    for node in (split, turn, merge):
        edit.remove(node)
    last = chain[-1].outputs[0] if chain else source
    if taken == 1:
        _set_weights(edit, reader, _taken(_weights(reader), flat, 1))
    else:
        _read_runs(edit, reader, last, slots, (split, turn, merge))


def _groups(source: Value, turn: Node, result: Value) -> int | None:
    """Return how many groups of channels a transpose of a reshape interleaves; None when it does something else."""
    parts = turn.inputs[0]
    assert parts is not None
    if len(source.shape) != 4 or source.shape != result.shape or len(parts.shape) < 4:
        return None
    batch, groups, each, *image = parts.shape
    swapped = [0, 2, 1, *range(3, len(parts.shape))]
    fits = (batch, groups * each) == source.shape[:2] and prod(image) == prod(source.shape[2:])
    return groups if fits and list(turn.attrs["perm"]) == swapped else None


def _readers(edit: Rewriter, value: Value) -> tuple[list[Node], Node | None]:
    """Return the nodes that work channel by channel, one behind the other, and the convolution that can take the shuffle, or None."""
    chain: list[Node] = []
    channels = value.shape[1]
    while True:
        node = edit.only_user(value)
        if (
            node is None
            or node.inputs[0] is not value
            or any(v is not None and v.const is None for v in node.inputs[1:])
        ):
            return chain, None
        if node.op == "Conv":
            group, weights = int(node.attrs["group"]), _weights(node)
            if group != channels or len(weights) != channels:
                pointwise = max(weights.shape[2:]) == 1 and not any(node.attrs["pads"])
                return chain, node if group == 1 or pointwise else None
        elif node.op not in ("MaxPool", "AvgPool") and not (node.op == "Elementwise" and len(node.inputs) == 1):
            return chain, None
        chain.append(node)
        value = node.outputs[0]


def _slots(groups: int, each: int, taken: int) -> NDArray[Any]:
    """Return [groups, run · taken] shuffled channels by where they lie before the shuffle, _PAD where a run is shorter than the longest.

    `taken` are the groups of the reader: of each group of the shuffle it takes a run.
    """
    shuffled = np.arange(groups * each).reshape(each, groups).T
    owner = shuffled // (groups * each // taken)
    runs = [[row[owner[g] == h] for h in range(taken)] for g, row in enumerate(shuffled)]
    longest = max(len(run) for row in runs for run in row)
    return np.array([[[*run, *[_PAD] * (longest - len(run))] for run in row] for row in runs]).reshape(groups, -1)


def _can_pad(node: Node, groups: int) -> bool:
    """Whether a node can make channels of zeros at the end of runs in each of `groups`."""
    return (
        node.op == "Conv"
        and node.attrs["group"] in (1, groups)
        and all(v is None or v.const is not None for v in node.inputs[1:])
    )


def _weights(node: Node) -> NDArray[Any]:
    weights = node.inputs[1]
    assert weights is not None and weights.const is not None
    return weights.const


def _taken(array: NDArray[Any], index: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return the elements at `index` along `axis`, zeros for _PAD."""
    if is_hollow(array):
        return hollow((*array.shape[:axis], len(index), *array.shape[axis + 1 :]), array.dtype)
    found: NDArray[Any] = np.take(array, np.maximum(index, 0), axis)
    found[(slice(None),) * axis + (index == _PAD,)] = 0
    return found


def _reorder(edit: Rewriter, node: Node, index: NDArray[Any]) -> None:
    """Give a convolution the output channels `index` of its own."""
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    _set_weights(edit, node, _taken(_weights(node), index, 0))
    if bias is not None:
        assert bias.const is not None
        edit.set_input(node, 2, Value(bias.name, (len(index),), bias.dtype, _taken(bias.const.reshape(-1), index, 0)))


def _set_weights(edit: Rewriter, node: Node, array: NDArray[Any]) -> None:
    old = node.inputs[1]
    assert old is not None
    edit.set_input(node, 1, Value(old.name, array.shape, old.dtype, array))


def _read_runs(edit: Rewriter, reader: Node, last: Value, slots: NDArray[Any], moves: tuple[Node, Node, Node]) -> None:
    """Let a pointwise convolution read `last` as pixels of several parts; `moves` become the views that make them."""
    groups, depth = slots.shape
    taken, weights = int(reader.attrs["group"]), _weights(reader)
    outputs, run = len(weights), depth // taken
    of = np.arange(outputs) // (outputs // taken)  # the reader's group of an output
    local = np.where(slots == _PAD, _PAD, slots % weights.shape[1]).reshape(groups, taken, run)
    if is_hollow(weights):
        array = hollow((outputs, run, 1, groups), weights.dtype)
    else:
        index = local[:, of].transpose(1, 2, 0)  # [output, channel of the run, part]
        array = np.take_along_axis(weights[:, :, 0], np.maximum(index, 0), 1)
        array = np.where(index == _PAD, 0, array).astype(weights.dtype)[:, :, None]
    _set_weights(edit, reader, array)
    batch, _, height, width = last.shape
    split, turn, merge = moves
    split.outputs[0].shape = (batch, groups, depth, height, width)
    turn.outputs[0].shape = (batch, depth, height, width, groups)
    turn.attrs["perm"] = [0, 2, 3, 4, 1]
    merge.outputs[0].shape = (batch, depth, height, width * groups)
    edit.put_before(reader, moves)
    edit.set_inputs(split, [last])
    edit.set_inputs(turn, [split.outputs[0]])
    edit.set_inputs(merge, [turn.outputs[0]])
    edit.set_input(reader, 0, merge.outputs[0])
    rows, columns = reader.attrs["strides"]
    reader.attrs["strides"] = [rows, columns * groups]
