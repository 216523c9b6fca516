"""Handlers of the domain com.microsoft.nchwc, in which onnxruntime's optimiser writes convolutions for the vectors of one machine.

A value [N, C, H, W] of it has its channels filled up to whole blocks of b, and holds its elements in the order [N, C / b, H, W, b], as operators
of other domains see it. Blocked operators here work on the order [N, C, H, W], which `Builder.blocked` hands from one to the next.
Weights are put back in theirs. b stands nowhere in a file; `channel_blocks` finds it for the whole model, and each node gets it as an attribute.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler.frontend import ops_matrix as matrix
from libnpu.compiler.frontend.ops_fused import fused_conv
from libnpu.compiler.frontend.ops_resample import resize
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from numpy.typing import NDArray

    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Value


def conv(call: Call) -> Value:
    """Conv: of a blocked image or, with fewer channels than a block, of a plain one; weights in blocks of outputs, and of inputs."""
    x, block = call.input(0), int(call.attrs["block"])
    w = call.array(1, "the weights")
    if w is None or w.ndim != 4 or w.shape[0] % block:
        raise ModelError(f"node {call.name}: {call.op} with weights in blocks of {block}")
    with_inputs = w.shape[1] % block == 0
    plain = call.build.const(_plain(w, block, with_inputs), call.input(1).name)
    image = _in_order(call, x) if with_inputs or call.groups() > 1 else x
    addend = call.optional(3)
    inputs = [image, plain, call.optional(2), None if addend is None else _in_order(call, addend)]
    return _in_blocks(call, fused_conv(replace(call, inputs=inputs)))


def _plain(w: NDArray[np.float32], block: int, with_inputs: bool) -> NDArray[np.float32]:
    """Return weights [O, I, ky, kx] from [O / b, I / b, ky, kx, b of I, b of O], or from [O / b, I, ky, kx, b]."""
    outputs, inputs, *kernel = w.shape
    if with_inputs:
        blocks = w.reshape(outputs // block, inputs // block, *kernel, block, block).transpose(0, 5, 1, 4, 2, 3)
    else:
        blocks = w.reshape(outputs // block, inputs, *kernel, block).transpose(0, 4, 1, 2, 3)
    return np.ascontiguousarray(blocks.reshape(w.shape))


def reorder_input(call: Call) -> Value:
    """ReorderInput: channels up to whole blocks; `channels_last`: of [N, H, W, C]."""
    x, build, block = call.input(0), call.build, int(call.attrs["block"])
    if call.attrs.get("channels_last", 0):
        x = build.transpose(x, [0, len(x.shape) - 1, *range(1, len(x.shape) - 1)])
    missing = -x.shape[1] % block
    pads = [(0, missing if axis == 1 else 0) for axis in range(len(x.shape))]
    return _in_blocks(call, build.emit("Pad", [x], {"pads": pads, "value": 0.0}) if missing else x)


def reorder_output(call: Call) -> Value:
    """ReorderOutput: the channels that count; `channels_last`: as [N, H, W, C]."""
    x, build = _in_order(call, call.input(0)), call.build
    result = build.slice(x, {1: (0, int(call.attrs["channels"]), 1)})
    if not call.attrs.get("channels_last", 0):
        return result
    return build.transpose(result, [0, *range(2, len(x.shape)), 1])


def upsample(call: Call) -> Value:
    """Upsample, by whole factors."""
    factors = call.build.const(np.asarray(call.attrs["scales"], np.float32), f"{call.name}.scales")
    attrs: dict[str, Any] = {
        name: call.attrs[name] for name in ("mode", "coordinate_transformation_mode") if name in call.attrs
    }
    if attrs.get("mode", b"nearest") == b"nearest":
        attrs = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
    image = _in_order(call, call.input(0))
    return _in_blocks(call, resize(replace(call, op="Resize", opset=13, inputs=[image, None, factors], attrs=attrs)))


def pool(call: Call) -> Value:
    """MaxPool, AveragePool and both over the whole image."""
    result = _POOLS[call.op](replace(call, inputs=[_in_order(call, call.input(0))]))
    return _in_blocks(call, result[0] if isinstance(result, list) else result)


def _in_order(call: Call, x: Value) -> Value:
    """Return a blocked value in the order [N, C, H, W]."""
    known, build, block = call.build.blocked.get(x), call.build, int(call.attrs["block"])
    if known is not None:
        return known
    n, c, *sizes = x.shape
    apart = build.reshape(x, (n, c // block, *sizes, block))
    return build.reshape(build.transpose(apart, [0, 1, len(sizes) + 2, *range(2, len(sizes) + 2)]), x.shape)


def _in_blocks(call: Call, x: Value) -> Value:
    """Return a value in order as the blocked one that it stands for."""
    build, block = call.build, int(call.attrs["block"])
    n, c, *sizes = x.shape
    apart = build.reshape(x, (n, c // block, block, *sizes))
    blocked = build.reshape(build.transpose(apart, [0, 1, *range(3, len(sizes) + 3), 2]), x.shape)
    build.blocked[blocked] = x
    return blocked


_POOLS: dict[str, Callable[[Call], Value | list[Value]]] = {
    "MaxPool": matrix.max_pool,
    "AveragePool": matrix.average_pool,
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), matrix.global_pool),
}
BLOCKED: dict[str, Callable[[Call], Value]] = {
    "Conv": conv,
    **dict.fromkeys(_POOLS, pool),
    "ReorderInput": reorder_input,
    "ReorderOutput": reorder_output,
    "Upsample": upsample,
}
