"""Handlers of the operators that the matrix engine computes: convolution, pooling, matrix product."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.compiler.frontend.call import is_float
from libnpu.compiler.frontend.infer import window_count
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Value

MAX_KERNEL = 255  # npu_dpu_invariant.kernel_x and kernel_y are 8 bits wide


def conv(call: Call) -> Value:
    x, w, bias = call.input(0), call.input(1), call.optional(2)
    if not is_float(x):
        raise call.unimplemented(f"input type {x.dtype}")
    weights, shift = call.array(1, "weights"), call.array(2, "bias")
    assert weights is not None
    kernel = w.shape[2:]
    call.expect(2, w.shape[:1])
    if list(call.attrs.get("kernel_shape", kernel)) != list(kernel):
        raise ModelError(f"node {call.name}: kernel_shape {call.attrs['kernel_shape']} of Conv, weights are {w.shape}")
    window = _window(call, x, kernel)
    attrs = {name: window[name] for name in ("strides", "pads", "dilations")}
    attrs |= {"group": int(call.attrs.get("group", 1)), "act": None}
    if len(x.shape) == 3:
        w = call.build.const(weights.reshape(*w.shape[:2], 1, *kernel), w.name)
    if bias is not None and shift is not None and not np.any(shift):
        bias = None
    return _drop_height(call, x, call.build.emit("Conv", [_with_height(call, x), w, bias], attrs))


def max_pool(call: Call) -> Value:
    if call.output_count > 1:
        raise call.unimplemented("indices as a second output")
    if call.attrs.get("storage_order", 0):
        raise call.unsupported("storage_order 1")
    x = call.input(0)
    attrs = _window(call, x, call.attrs["kernel_shape"])
    return _drop_height(call, x, call.build.emit("MaxPool", [_with_height(call, x)], attrs))


def average_pool(call: Call) -> Value:
    x = call.input(0)
    attrs = _window(call, x, call.attrs["kernel_shape"])
    if attrs.pop("dilations") != [1, 1]:
        raise call.unimplemented("dilations")
    extended = attrs.pop("extended")
    counted = bool(call.attrs.get("count_include_pad", 0)) and any(attrs["pads"])
    if counted and extended:
        raise call.unimplemented("count_include_pad and a last window that ceil_mode adds")
    attrs["count_include_pad"] = counted
    return _drop_height(call, x, call.build.emit("AvgPool", [_with_height(call, x)], attrs))


def global_pool(call: Call) -> Value:
    """GlobalAveragePool and GlobalMaxPool: one window over the image if the engine's kernel reaches, else a reduction."""
    x = call.input(0)
    average = call.op == "GlobalAveragePool"
    if len(x.shape) == 4 and min(x.shape[2:]) > 0 and max(x.shape[2:]) <= MAX_KERNEL:
        attrs: dict[str, Any] = {"kernel": list(x.shape[2:]), "strides": [1, 1], "pads": [0, 0, 0, 0]}
        attrs |= {"count_include_pad": False} if average else {"dilations": [1, 1]}
        return call.build.emit("AvgPool" if average else "MaxPool", [x], attrs)
    return call.build.reduce(x, "mean" if average else "max", range(2, len(x.shape)), keepdims=True)


def matmul(call: Call) -> Value:
    a, b = call.input(0), call.input(1)
    if not is_float(a):
        raise call.unimplemented(f"input type {a.dtype}")
    build = call.build
    left = build.reshape(a, (1, *a.shape)) if len(a.shape) == 1 else a
    right = build.reshape(b, (*b.shape, 1)) if len(b.shape) == 1 else b
    product = build.emit("MatMul", [left, right, None], {"act": None, "scale": 1.0})
    shape = list(product.shape)
    if len(b.shape) == 1:
        del shape[-1]
    if len(a.shape) == 1:
        del shape[-2 if len(b.shape) > 1 else -1]
    return build.reshape(product, shape)


def gemm(call: Call) -> Value:
    """alpha · A' · B' + beta · C. A constant C of one row becomes the bias, anything else an addition."""
    a, b, c = call.input(0), call.input(1), call.optional(2)
    if not is_float(a):
        raise call.unimplemented(f"input type {a.dtype}")
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise ModelError(f"node {call.name}: Gemm of {a.name} {a.shape} and {b.name} {b.shape}, rank 2 expected")
    build = call.build
    alpha, beta = float(call.attrs.get("alpha", 1.0)), float(call.attrs.get("beta", 1.0))
    if call.attrs.get("transA", 0):
        a = build.transpose(a, [1, 0])
    if call.attrs.get("transB", 0):
        b = build.transpose(b, [1, 0]) if b.const is None else build.const(np.ascontiguousarray(b.const.T), b.name)
    columns = b.shape[1]
    call.expect_broadcast(2, (a.shape[0], columns))
    bias: Value | None = None
    if c is not None and c.const is not None and (c.const.size == 1 or c.shape in ((columns,), (1, columns))):
        row = np.broadcast_to(c.const.reshape(-1), (columns,))
        bias = build.const((row.astype(np.float64) * beta).astype(row.dtype), c.name)
    product = build.emit("MatMul", [a, b, bias], {"act": None, "scale": alpha})
    if c is None or bias is not None:
        return product
    addend = build.elementwise(("mul", ("in", 0), ("const", beta)), [c]) if beta != 1.0 else c
    return build.elementwise(("add", ("in", 0), ("in", 1)), [product, addend])


def _with_height(call: Call, x: Value) -> Value:
    return call.build.reshape(x, (*x.shape[:2], 1, x.shape[2])) if len(x.shape) == 3 else x


def _drop_height(call: Call, source: Value, y: Value) -> Value:
    return call.build.reshape(y, (*y.shape[:2], y.shape[3])) if len(source.shape) == 3 else y


def _window(call: Call, x: Value, kernel: Any) -> dict[str, Any]:
    """Return kernel, strides, pads and dilations in two dimensions; `auto_pad` and `ceil_mode` become pads.

    For pooling, `extended` tells whether ceil_mode added a window that reaches behind the padding.
    """
    rank = len(x.shape) - 2
    if rank not in (1, 2):
        raise call.unimplemented(f"{rank} spatial dimensions")
    kernel = [int(size) for size in kernel]
    strides = [int(step) for step in call.attrs.get("strides", [1] * rank)]
    dilations = [int(step) for step in call.attrs.get("dilations", [1] * rank)]
    pads = [int(pad) for pad in call.attrs.get("pads", [0] * 2 * rank)]
    if min(kernel + strides + dilations) < 1 or min(pads) < 0 or len(pads) != 2 * rank:
        raise ModelError(f"node {call.name}: {call.op} with {kernel=}, {strides=}, {dilations=}, {pads=}")
    auto_pad = call.attrs.get("auto_pad", b"NOTSET").decode()
    extended = False
    if auto_pad != "NOTSET":
        pads = [0] * 2 * rank
    for i in range(rank):
        size, reach = x.shape[2 + i], dilations[i] * (kernel[i] - 1) + 1
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            total = max(0, (-(-size // strides[i]) - 1) * strides[i] + reach - size)
            small, large = total // 2, total - total // 2
            pads[i], pads[rank + i] = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
        elif call.attrs.get("ceil_mode", 0):
            before, after = pads[i], pads[rank + i]
            count = -(-(size + before + after - reach) // strides[i]) + 1
            if (count - 1) * strides[i] >= size + before:
                count -= 1  # a window must begin inside of the input or the padding before it
            if count > window_count(size, kernel[i], strides[i], (before, after), dilations[i]):
                pads[rank + i] = (count - 1) * strides[i] + reach - size - before
                extended = True
    window: dict[str, Any] = {
        "kernel": [1] * (2 - rank) + kernel,
        "strides": [1] * (2 - rank) + strides,
        "dilations": [1] * (2 - rank) + dilations,
        "pads": pads if rank == 2 else [0, pads[0], 0, pads[1]],
    }
    if call.op == "AveragePool":
        window["extended"] = extended
    return window
