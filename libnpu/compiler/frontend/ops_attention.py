"""Handlers of attention in the domain com.microsoft: as products, masks and softmax of [B, N, S, H], which `attention` recognises.

Lengths are static: of a cache all rows count. A length that is computed is tested when the program runs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler.frontend import ops_reduce as reduction
from libnpu.compiler.frontend.ops_quantised import product, scaled
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from libnpu.compiler.frontend.builder import Builder
    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Expr, Value

X: Expr = ("in", 0)
Y: Expr = ("in", 1)
NORM_EPSILON = 1e-6  # of heads of queries and keys, by default
REMOVED = -10000.0  # what the operators add to scores that do not count, by default
SEQUENCE = 2  # axis of [B, N, S, H]


def attention(call: Call) -> list[Value]:
    """Attention: queries, keys and values are one product of the input; outputs are the result and the cache [2, B, N, T, H]."""
    x, weights, bias, past, build = call.input(0), call.input(1), call.optional(2), call.optional(4), call.build
    if call.attrs.get("do_rotary", 0) or call.optional(6) is not None:
        raise call.unimplemented("rotary embedding or a shared cache")
    sizes = [int(n) for n in call.attrs.get("qkv_hidden_sizes", [])] or [weights.shape[1] // 3] * 3
    call.expect(1, (x.shape[-1], sum(sizes)))
    packed = build.emit("MatMul", [x, weights, bias], {"act": None, "scale": 1.0})
    return _of_one_product(call, packed, sizes, past, 3, call.optional(5))


def quantised_attention(call: Call) -> list[Value]:
    """QAttention: as Attention, of 8-bit inputs and weights whose product becomes float."""
    x, weights, bias, x_scale, scale = (call.input(index) for index in range(5))
    if call.attrs.get("do_rotary", 0):
        raise call.unimplemented("rotary embedding")
    total = product(call, x, weights, call.optional(6), call.optional(7))
    packed = scaled(call, total, x_scale, scale, bias)
    return _of_one_product(call, packed, [weights.shape[1] // 3] * 3, call.optional(8), 5, None)


def _of_one_product(
    call: Call, packed: Value, sizes: list[int], past: Value | None, mask: int, bias: Value | None
) -> list[Value]:
    """Return attention of queries, keys and values [B, S, sum of `sizes`], and the cache; `mask` is an operand's index."""
    build = call.build
    bounds = [0, *np.cumsum(sizes).tolist()]
    parts = [build.slice(packed, {2: (bounds[k], bounds[k + 1], 1)}) for k in range(3)]
    q, k, v = (_split(call, part) for part in parts)
    if past is not None:
        olds = [build.reshape(build.slice(past, {0: (i, i + 1, 1)}), past.shape[1:]) for i in (0, 1)]
        k, v = (_join(build, [old, new], SEQUENCE) for old, new in zip(olds, (k, v), strict=True))
    masks = [_key_mask(call, mask, k.shape[SEQUENCE], q), *_causal(call, q, k, "unidirectional"), bias]
    result = _attend(call, q, k, v, [each for each in masks if each is not None])
    if call.output_count < 2:
        return [result]
    return [result, _join(build, [build.reshape(part, (1, *part.shape)) for part in (k, v)], 0)]


def multi_head_attention(call: Call) -> list[Value]:
    """MultiHeadAttention: queries, keys and values [B, S, N * H], or keys and values [B, N, S, H], or all in one [B, S, N, 3, H]."""
    query, key, value, bias, build = call.input(0), call.optional(1), call.optional(2), call.optional(3), call.build
    if call.optional(8) is not None or call.optional(9) is not None or call.output_count > 3:
        raise call.unimplemented("a shared cache, beams or scores as an output")
    parts: list[Value]
    if len(query.shape) == 5:
        batch, count, heads, _, size = query.shape
        parts = [build.reshape(build.slice(query, {3: (i, i + 1, 1)}), (batch, count, heads * size)) for i in range(3)]
    elif key is None:
        raise call.unimplemented("queries alone")
    elif value is None:
        batch, count, heads, _, size = key.shape
        pair = [build.reshape(build.slice(key, {3: (i, i + 1, 1)}), (batch, count, heads * size)) for i in (0, 1)]
        parts = [query, *pair]
    else:
        parts = [query, key, value]
    if bias is not None:
        ends = [0, *np.cumsum([_hidden(part) for part in parts]).tolist()]
        offsets = [build.slice(bias, {0: (ends[i], ends[i + 1], 1)}) for i in range(3)]
        parts = [
            build.elementwise(("add", X, Y), [part, offset]) if len(part.shape) == 3 else part
            for part, offset in zip(parts, offsets, strict=True)
        ]
    q, k, v = (part if len(part.shape) == 4 else _split(call, part) for part in parts)
    for index in (6, 7):
        past = call.optional(index)
        if past is not None and index == 6:
            k = _join(build, [past, k], SEQUENCE)
        elif past is not None:
            v = _join(build, [past, v], SEQUENCE)
    masks = [_key_mask(call, 4, k.shape[SEQUENCE], q), *_causal(call, q, k, "unidirectional"), call.optional(5)]
    return [_attend(call, q, k, v, [mask for mask in masks if mask is not None]), k, v][: max(call.output_count, 1)]


def group_query_attention(call: Call) -> list[Value]:
    """GroupQueryAttention: heads of keys are shared; the cache grows by the new rows, and all of its rows count."""
    query, key, value, build = call.input(0), call.optional(1), call.optional(2), call.build
    for name, least in (
        ("k_quant_type", b"NONE"),
        ("v_quant_type", b"NONE"),
        ("qk_output", 0),
        ("sliding_window_cache", 0),
    ):
        if call.attrs.get(name, least) not in (least, -1):
            raise call.unimplemented(f"{name} {call.attrs[name]}")
    if any(call.optional(index) is not None for index in (12, 13, 16)):
        raise call.unimplemented("a cache of integers, or lengths of queries")
    heads, kv_heads = int(call.attrs["num_heads"]), int(call.attrs["kv_num_heads"])
    if key is None or value is None:
        size = query.shape[-1] // (heads + 2 * kv_heads)
        ends = [0, heads * size, (heads + kv_heads) * size, (heads + 2 * kv_heads) * size]
        parts = [build.slice(query, {2: (ends[i], ends[i + 1], 1)}) for i in range(3)]
    else:
        parts = [query, key, value]
    q, k, v = (_split(call, part, n) for part, n in zip(parts, (heads, kv_heads, kv_heads), strict=True))
    q, k = _normal_heads(call, q, "q", call.optional(14)), _normal_heads(call, k, "k", call.optional(15))
    past_k, past_v = call.optional(3), call.optional(4)
    past = 0 if past_k is None else past_k.shape[SEQUENCE]
    count = q.shape[SEQUENCE]
    if past:
        last, total = call.input(5), np.int32(past + count - 1)
        if last.const is None:
            call.require(("eq", X, ("const", int(total))), [last])
        elif np.any(last.const != total):
            raise call.unimplemented(
                f"{last.const.max() + 1} rows that count of {past} in the cache and {count} new ones"
            )
    if call.attrs.get("do_rotary", 0):
        ids = call.optional(9)
        if ids is None:
            ids = build.const(np.arange(past, past + count, dtype=np.int32).reshape(1, count), f"{call.name}.positions")
        interleaved = bool(call.attrs.get("rotary_interleaved", 0))
        turns = [_rows(call, index, ids) for index in (7, 8)]
        q, k = (rotated(call, x, turns[0], turns[1], interleaved) for x in (q, k))
    if past_k is not None and past_v is not None and past:
        k, v = _join(build, [past_k, k], SEQUENCE), _join(build, [past_v, v], SEQUENCE)
    window = int(call.attrs.get("local_window_size", -1))
    first = np.arange(past, past + count)[:, None] - np.arange(past + count)
    allowed = ((first >= 0) & ((first < window) if window > 0 else True)) | (not int(call.attrs.get("causal", 1)))
    masks = [] if allowed.all() else [_additive(call, allowed, -np.inf, q)]
    bias = call.optional(10)
    masks += [] if bias is None else [bias]
    sink = call.optional(11)
    if sink is None and int(call.attrs.get("smooth_softmax", 0)) == 1:
        sink = build.const(np.zeros(heads, q.dtype), f"{call.name}.sink")
    result = _attend(call, q, _repeated(build, k, heads), _repeated(build, v, heads), masks, sink)
    return [result, k, v][: max(call.output_count, 1)]


def rotary_embedding(call: Call) -> Value:
    """RotaryEmbedding of [B, S, N * H] or [B, N, S, H]; positions are one to start from or one for each row."""
    x, ids, build = call.input(0), call.input(1), call.build
    if call.attrs.get("is_packed_batching", 0):
        raise call.unimplemented("packed batches")
    flat = len(x.shape) == 3
    count = x.shape[1] if flat else x.shape[2]
    if ids.shape in ((), (1,)):
        steps = build.const(np.arange(count, dtype=np.int32).reshape(1, count), f"{call.name}.steps")
        ids = build.elementwise(("add", X, Y), [steps, build.reshape(ids, (1, 1))], np.dtype(np.int32))
    cache = call.input(2)
    heads = int(call.attrs.get("num_heads", 0)) or (x.shape[-1] // (2 * cache.shape[-1]) if flat else x.shape[1])
    split = _split(call, x, heads) if flat else x
    turned = rotated(call, split, _rows(call, 2, ids), _rows(call, 3, ids), bool(call.attrs.get("interleaved", 0)))
    return _merged(build, turned) if flat else turned


def rotated(call: Call, x: Value, cos: Value, sin: Value, interleaved: bool) -> Value:
    """Return [B, N, S, H] with pairs of elements turned by angles [B, 1, S, R / 2]; elements from R on stay as they are.

    Pairs are neighbours when `interleaved`, else an element of the first half of R and one of the second.
    """
    build, half, size = call.build, cos.shape[-1], x.shape[-1]
    if 2 * half > size:
        raise ModelError(f"node {call.name}: {call.op} of {half} angles for heads of {size} elements")
    if interleaved:
        first, second = (build.slice(x, {3: (i, 2 * half, 2)}) for i in (0, 1))
    else:
        first, second = build.slice(x, {3: (0, half, 1)}), build.slice(x, {3: (half, 2 * half, 1)})
    across: Expr = ("sub", ("mul", X, ("in", 2)), ("mul", Y, ("in", 3)))
    along: Expr = ("add", ("mul", X, ("in", 3)), ("mul", Y, ("in", 2)))
    pair = [build.elementwise(expr, [first, second, cos, sin]) for expr in (across, along)]
    if interleaved:
        columns = [build.reshape(part, (*part.shape, 1)) for part in pair]
        turned = build.reshape(_join(build, columns, 4), (*x.shape[:3], 2 * half))
    else:
        turned = _join(build, pair, 3)
    return turned if 2 * half == size else _join(build, [turned, build.slice(x, {3: (2 * half, size, 1)})], 3)


def _rows(call: Call, index: int, ids: Value) -> Value:
    """Return the rows of a cache of angles [P, R / 2] at positions [B, S], as [B, 1, S, R / 2]."""
    cache, build = call.input(index), call.build
    if ids.const is not None and cache.const is not None:
        rows = build.const(cache.const[ids.const], f"{call.name}.angles")
    else:
        rows = build.emit("Gather", [cache, ids], {"axis": 0})
    return build.reshape(rows, (rows.shape[0], 1, *rows.shape[1:]))


def _hidden(part: Value) -> int:
    return part.shape[-1] if len(part.shape) == 3 else part.shape[1] * part.shape[3]


def _split(call: Call, x: Value, heads: int | None = None) -> Value:
    """Return [B, S, N * H] as [B, N, S, H]."""
    count = heads or int(call.attrs["num_heads"])
    if len(x.shape) != 3 or x.shape[2] % count:
        raise ModelError(f"node {call.name}: {call.op}: {x.name} {x.shape} with {count} heads")
    wide = call.build.reshape(x, (*x.shape[:2], count, x.shape[2] // count))
    return call.build.transpose(wide, [0, 2, 1, 3])


def _merged(build: Builder, x: Value) -> Value:
    """Return [B, N, S, H] as [B, S, N * H]."""
    turned = build.transpose(x, [0, 2, 1, 3])
    return build.reshape(turned, (*turned.shape[:2], turned.shape[2] * turned.shape[3]))


def _join(build: Builder, parts: list[Value], axis: int) -> Value:
    kept = [part for part in parts if 0 not in part.shape]
    return kept[0] if len(kept) == 1 else build.emit("Concat", kept, {"axis": axis})


def _repeated(build: Builder, x: Value, heads: int) -> Value:
    """Return [B, G, S, H] with each head repeated, so that there are `heads`."""
    batch, groups, count, size = x.shape
    if groups == heads:
        return x
    wide = build.expand(
        build.reshape(x, (batch, groups, 1, count, size)), (batch, groups, heads // groups, count, size)
    )
    return build.reshape(wide, (batch, heads, count, size))


def _normal_heads(call: Call, x: Value, name: str, weight: Value | None) -> Value:
    """Return [B, N, S, H] over the root of the mean square of each head, times a weight [H]; `x` without one."""
    if weight is None:
        return x
    epsilon = float(call.attrs.get(f"{name}_norm_epsilon", call.attrs.get("qk_norm_epsilon", NORM_EPSILON)))
    return reduction.normalised(call.build, x, 3, weight, None, epsilon, centred=False)[0]


def _attend(call: Call, q: Value, k: Value, v: Value, masks: list[Value], sink: Value | None = None) -> Value:
    """Return the attention [B, S, N * E]; masks are added to the scores. `sink` [N] is the score of one key more, of which nothing is taken."""
    build = call.build
    scale = float(call.attrs.get("scale", 0.0)) or 1 / math.sqrt(q.shape[-1])
    scores = build.emit("MatMul", [q, build.transpose(k, [0, 1, 3, 2]), None], {"act": None, "scale": scale})
    cap = float(call.attrs.get("softcap", 0.0))
    if cap:
        scores = build.elementwise(("mul", ("tanh", ("div", X, ("const", cap))), ("const", cap)), [scores])
    for mask in masks:
        scores = build.elementwise(("add", X, Y), [scores, mask])
    keys = scores.shape[3]
    if sink is not None:
        column = build.expand(build.reshape(sink, (1, sink.shape[0], 1, 1)), (*scores.shape[:3], 1))
        scores = build.emit("Concat", [scores, column], {"axis": 3})
    weights = build.emit("Softmax", [scores], {"axis": 3, "log": False})
    if sink is not None:
        weights = build.slice(weights, {3: (0, keys, 1)})
    return _merged(build, build.emit("MatMul", [weights, v, None], {"act": None, "scale": 1.0}))


def _additive(call: Call, allowed: np.ndarray, removed: float, like: Value) -> Value:
    return call.build.const(np.where(allowed, 0.0, removed).astype(like.dtype), f"{call.name}.mask")


def _causal(call: Call, q: Value, k: Value, attribute: str) -> list[Value]:
    """Return what keeps queries, the last ones of the keys, from keys behind them."""
    if not call.attrs.get(attribute, 0):
        return []
    queries, keys = q.shape[SEQUENCE], k.shape[SEQUENCE]
    allowed = np.tri(queries, keys, keys - queries, dtype=bool)
    return [] if allowed.all() else [_additive(call, allowed, -np.inf, q)]


def _key_mask(call: Call, index: int, keys: int, q: Value) -> Value | None:
    """Return a mask of keys as what is added to scores: 1 for each key that counts, or where those that count end and perhaps begin."""
    mask, build = call.optional(index), call.build
    if mask is None:
        return None
    removed = float(call.attrs.get("mask_filter_value", REMOVED))
    expr: Expr = ("where", X, ("const", 0.0), ("const", removed))
    batch, queries = q.shape[0], q.shape[SEQUENCE]
    if mask.shape == (batch, keys):
        return build.elementwise(expr, [build.reshape(mask, (batch, 1, 1, keys))], q.dtype)
    if mask.shape == (batch, queries, keys):
        return build.elementwise(expr, [build.reshape(mask, (batch, 1, queries, keys))], q.dtype)
    if mask.shape in ((batch,), (2 * batch,)):
        places = build.const(np.arange(keys, dtype=np.int32).reshape(1, 1, 1, keys), f"{call.name}.places")
        inside: Expr = ("lt", X, Y)
        ends = [build.reshape(build.slice(mask, {0: (0, batch, 1)}), (batch, 1, 1, 1))]
        if mask.shape != (batch,):  # then where they begin
            inside = ("and", inside, ("ge", X, ("in", 2)))
            ends.append(build.reshape(build.slice(mask, {0: (batch, 2 * batch, 1)}), (batch, 1, 1, 1)))
        return build.elementwise(("where", inside, *expr[2:]), [places, *ends], q.dtype)
    raise call.unimplemented(f"a mask of shape {mask.shape}")


CONTRIBUTED: dict[str, Callable[[Call], Value | list[Value]]] = {
    "Attention": attention,
    "QAttention": quantised_attention,
    "MultiHeadAttention": multi_head_attention,
    "GroupQueryAttention": group_query_attention,
    "RotaryEmbedding": rotary_embedding,
}
