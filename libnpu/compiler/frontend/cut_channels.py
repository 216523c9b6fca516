"""Cut channels: those of a convolution that nobody reads are not computed, and those that are zeros not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler.hollow import hollow, is_hollow
from libnpu.compiler.ir import Value

if TYPE_CHECKING:
    from libnpu.compiler.frontend.rewriting import Rewriter
    from libnpu.compiler.ir import Node

CHANNELS = 1  # the axis
_PRODUCTS = ("Conv", "ConvInteger")


def cut_outputs(edit: Rewriter, node: Node) -> bool:
    """A Slice of channels moves up to the convolution that makes them, through what works channel by channel, and becomes part of its weights."""
    kept = _channels(node)
    if node.op != "Slice" or kept is None:
        return False
    chain: list[Node] = []
    value = node.inputs[0]
    while True:
        maker = edit.maker(value)
        if value is None or maker is None or edit.only_user(value) is None:
            return False
        chain.append(maker)
        if maker.op in _PRODUCTS and maker.attrs["group"] == 1:
            break
        value = _by_channel(maker)
    for one in chain:
        output = one.outputs[0]
        inner = one is not chain[-1]
        for index, operand in enumerate(one.inputs):
            if operand is not None and operand.const is not None:
                edit.set_input(one, index, _cut(operand, kept, _axis_of_channels(one, index, operand, output)))
        if one.op in _PRODUCTS and inner:
            one.attrs["group"] = len(range(output.shape[CHANNELS])[kept])
    for one in chain:
        shape = list(one.outputs[0].shape)
        shape[CHANNELS] = len(range(shape[CHANNELS])[kept])
        one.outputs[0].shape = tuple(shape)
    edit.replace(node.outputs[0], chain[0].outputs[0])  # which no output of the graph was
    edit.remove(node)
    return True


def cut_inputs(edit: Rewriter, node: Node) -> bool:
    """Zeros that are added as channels before a convolution disappear with the weights that they meet."""
    pad, weights = edit.maker(node.inputs[0]), node.inputs[1] if len(node.inputs) > 1 else None
    if node.op != "Conv" or node.attrs["group"] != 1 or pad is None or pad.op != "Pad" or pad.attrs["value"] != 0:
        return False
    before, after = pad.attrs["pads"][CHANNELS]
    others = [both for axis, both in enumerate(pad.attrs["pads"]) if axis != CHANNELS]
    inner = pad.inputs[0]
    if not (before or after) or np.any(others) or inner is None or weights is None or weights.const is None:
        return False
    edit.set_input(node, 1, _cut(weights, slice(before, weights.shape[1] - after), 1))
    edit.set_input(node, 0, inner)
    return True


def _channels(node: Node) -> slice | None:
    """Return the channels that a Slice keeps of a value of which it cuts nothing else."""
    source = node.inputs[0]
    if node.op != "Slice" or source is None or len(source.shape) < 2:
        return None
    bounds = zip(node.attrs["starts"], node.attrs["stops"], node.attrs["steps"], source.shape, strict=True)
    whole = [(start, stop, step) == (0, size, 1) for start, stop, step, size in bounds]
    if not all(whole[:CHANNELS] + whole[CHANNELS + 1 :]):
        return None
    return slice(*(node.attrs[name][CHANNELS] for name in ("starts", "stops", "steps")))


def _by_channel(node: Node) -> Value | None:
    """Return the one computed operand of a node that makes each channel of the same one of it, None of another node."""
    computed = [value for value in node.inputs if value is not None and value.const is None]
    if len(computed) != 1 or (node.op in _PRODUCTS and node.inputs[0] is not computed[0]):
        return None
    (source,), output = computed, node.outputs[0]
    match node.op:
        case "Elementwise" if source.shape == output.shape:
            return source
        case "MaxPool" | "AvgPool":
            return source
        case "Reshape" if source.shape[: CHANNELS + 1] == output.shape[: CHANNELS + 1]:
            return source
        case "Conv" | "ConvInteger" if node.attrs["group"] == source.shape[CHANNELS] == output.shape[CHANNELS]:
            return source
    return None


def _axis_of_channels(node: Node, index: int, operand: Value, output: Value) -> int | None:
    """Return the axis of a constant operand along which the channels of the output lie, None where it is the same for all."""
    if node.op in _PRODUCTS:
        return 0
    axis = CHANNELS - len(output.shape) + len(operand.shape)
    return axis if axis >= 0 and operand.shape[axis] == output.shape[CHANNELS] else None


def _cut(value: Value, kept: slice, axis: int | None) -> Value:
    if axis is None or value.const is None:
        return value
    array = value.const[(*[slice(None)] * axis, kept)]
    array = hollow(array.shape, array.dtype) if is_hollow(array) else np.ascontiguousarray(array)
    return Value(value.name, array.shape, array.dtype, array)
