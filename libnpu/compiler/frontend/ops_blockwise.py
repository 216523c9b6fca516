"""Handlers of com.microsoft's operators of constant weights of few bits with a scale for each block: MatMulNBits and GatherBlockQuantized.

The weights become floats when the model is compiled.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler.frontend.call import is_float
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from numpy.typing import NDArray

    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Expr, Value

X: Expr = ("in", 0)
BITS = (2, 4, 8)  # of a weight, as onnxruntime has them


def matmul_nbits(call: Call) -> Value:
    """MatMulNBits: A [..., K] by weights [K, N] that become floats of A's type, plus a bias [N]."""
    a, bias, build = call.input(0), call.optional(5), call.build
    if not is_float(a):
        raise call.unimplemented(f"input type {a.dtype}")
    weights = build.const(_weights(call).astype(a.dtype), call.input(1).name)
    call.expect(5, weights.shape[1:])
    left = build.reshape(a, (1, *a.shape)) if len(a.shape) == 1 else a
    known = bias if bias is not None and bias.const is not None else None
    product = build.emit("MatMul", [left, weights, known], {"act": None, "scale": 1.0})
    if bias is not None and known is None:
        total: Expr = ("add", ("in", 0), ("in", 1))
        product = build.elementwise(total, [product, bias])
    return build.reshape(product, (*a.shape[:-1], weights.shape[1]))


def _weights(call: Call) -> NDArray[np.float32]:
    """Return (q - zero point) · scale in float32 [K, N], rounded as onnxruntime does.

    By zero points that are floats, and by g_idx, it is q · scale - zero point · scale there. Raises ModelError, Unsupported of what is
    computed, Unimplemented of what onnxruntime does not have, or reads other than the operator's text says: g_idx with packed zero points.
    """
    depth, columns, block = (int(call.attrs[name]) for name in ("K", "N", "block_size"))
    bits, layout = int(call.attrs.get("bits", 4)), int(call.attrs.get("weight_prepacked", 0))
    if min(depth, columns, block) < 1:
        raise ModelError(f"node {call.name}: {call.op} of K {depth}, N {columns}, block_size {block}, each 1 or more")
    if bits not in BITS or layout:
        raise call.unimplemented(f"weights of {bits} bits in layout {layout}; {BITS} bits in layout 0 are there")
    packed, scales = call.array(1, "the weights"), call.array(2, "the weights' scales")
    zeros, group = call.array(3, "the weights' zero points"), call.array(4, "g_idx")
    if packed is None or scales is None:
        raise ModelError(f"node {call.name}: {call.op} lacks weights or scales")
    if packed.size == 0:
        raise call.unimplemented("weights that are left out")
    if group is not None and (bits != 4 or (zeros is not None and zeros.dtype == np.uint8)):
        raise call.unimplemented("g_idx, unless for 4 bits without packed zero points")
    blocks, apart = math.ceil(depth / block), group is not None or (zeros is not None and zeros.dtype != np.uint8)
    whole = _unpacked(call, packed, "weights", (columns, blocks * block), bits)
    scales = _table(call, scales, "scales", (columns, blocks)).astype(np.float32)
    if zeros is None:
        zeros = np.full((columns, blocks), 1 << (bits - 1), np.uint8)
    elif zeros.dtype == np.uint8:
        zeros = _unpacked(call, zeros, "zero points", (columns, blocks), bits)
    else:
        zeros = _table(call, zeros, "zero points", (columns, blocks))
    places = np.arange(depth) // block if group is None else group.reshape(-1)[:depth]
    if len(places) != depth or places.min(initial=0) < 0 or places.max(initial=0) >= blocks:
        raise ModelError(f"node {call.name}: g_idx of {call.op} names blocks for {depth} rows, of 0 to {blocks - 1}")
    q, scale, zero = whole[:, :depth].astype(np.float32), scales[:, places], zeros.astype(np.float32)[:, places]
    return np.ascontiguousarray((q * scale - zero * scale if apart else (q - zero) * scale).T)


def gather_block_quantized(call: Call) -> Value:
    """GatherBlockQuantized: rows of a table; an index outside of it gives zeros, which are one row more."""
    data, scales = call.array(0, "the table"), call.array(2, "the table's scales")
    zeros, indices, build = call.array(3, "the table's zero points"), call.input(1), call.build
    if data is None or scales is None:
        raise ModelError(f"node {call.name}: {call.op} lacks table or scales")
    rank = data.ndim
    axis, along = (
        call.axis(int(call.attrs.get(f"{name}_axis", default)), rank)
        for name, default in (("gather", 0), ("quantize", 1))
    )
    if data.dtype == np.uint8:
        bits = int(call.attrs.get("bits", 4))
        if bits not in BITS:
            raise call.unimplemented(f"weights of {bits} bits; {BITS} bits are there")
        data, zeros = _spread(data, bits), None if zeros is None else _spread(zeros, bits)[..., : scales.shape[-1]]
        zeros = np.full(scales.shape, 1 << (bits - 1)) if zeros is None else zeros
    block = int(call.attrs.get("block_size", 128)) or data.shape[along]
    shape = [math.ceil(size / block) if place == along else size for place, size in enumerate(data.shape)]
    for each, what in ((scales, "scales"), (zeros, "zero points")):
        if each is not None and any(have not in (1, want) for have, want in zip(each.shape, shape, strict=True)):
            raise ModelError(f"node {call.name}: {what} of {call.op} have shape {each.shape}, expected {shape}")

    def each_element(array: NDArray[Any]) -> NDArray[np.float32]:
        wide = array.astype(np.float32)
        return wide if wide.shape[along] == 1 else np.repeat(wide, block, along).take(range(data.shape[along]), along)

    whole = data.astype(np.float32) - (0 if zeros is None else each_element(zeros))
    table = (whole * each_element(scales)).astype(scales.dtype)
    count = data.shape[axis]
    table = np.concatenate([table, np.zeros_like(table.take([0], axis))], axis)
    inside: Expr = ("and", ("ge", X, ("const", -count)), ("lt", X, ("const", count)))
    place: Expr = (
        "where",
        inside,
        ("where", ("lt", X, ("const", 0)), ("add", X, ("const", count)), X),
        ("const", count),
    )
    return build.emit(
        "Gather", [build.const(table, f"{call.name}.table"), build.elementwise(place, [indices])], {"axis": axis}
    )


def _spread(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return the numbers of `bits` bits that lie in bytes along the last axis, the lowest bits first."""
    numbers = packed[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8((1 << bits) - 1)
    return numbers.reshape(*packed.shape[:-1], packed.shape[-1] * 8 // bits)


def _unpacked(call: Call, packed: NDArray[Any], what: str, shape: tuple[int, int], bits: int) -> NDArray[np.uint8]:
    """Return rows of `shape` whose numbers lie in bytes, the lowest bits first; a row begins with a byte."""
    rows = _table(call, packed, what, (shape[0], math.ceil(shape[1] * bits / 8)))
    return _spread(rows, bits)[:, : shape[1]]


def _table(call: Call, array: NDArray[Any], what: str, shape: tuple[int, int]) -> NDArray[Any]:
    """Return `array`, of any rank, as rows of `shape`. Raises ModelError."""
    if array.size != math.prod(shape):
        raise ModelError(f"node {call.name}: {what} of {call.op} have shape {array.shape}, expected {shape} in rows")
    return array.reshape(shape)


BLOCKWISE: dict[str, Callable[[Call], Value]] = {
    "MatMulNBits": matmul_nbits,
    "GatherBlockQuantized": gather_block_quantized,
}
