"""Recipes of attention and of what turns its operands."""

from __future__ import annotations

from tests.compiler.fuzz.recipes.table import BOOL, BYTES, F32, I32, I64, recipe


@recipe("Attention")
def attention(g, op):
    batch, heads, rows, columns, size = g.whole(1, 2), g.whole(1, 2), g.whole(1, 9), g.whole(1, 9), g.choice((4, 8, 16))
    groups = g.choice((1, 1, 2))
    q = g.operand(g.dtypes(op, among=(F32,)), shape=(batch, heads * groups, rows, size))
    k, v = (g.like(q, (batch, heads, columns, size)) for _ in range(2))
    attrs = {"scale": g.number(0.1, 1)} if g.chance(0.4) else {}
    mask = []
    if g.chance(0.4):
        array = g.array(g.choice((F32, BOOL)), (rows, columns))
        if array.dtype == BOOL:
            array[:, 0] = True  # no row is masked whole
        mask = [g.new(array)]
    elif g.chance(0.4) and rows <= columns:
        attrs["is_causal"] = 1
    g.add(op, [q, k, v, *mask], attrs)


@recipe("MultiHeadAttention")
def multi_head_attention(g, op):
    batch, heads, rows, columns, size = g.whole(1, 2), g.whole(1, 2), g.whole(1, 9), g.whole(1, 9), g.choice((4, 8, 16))
    q = g.operand([F32], shape=(batch, rows, heads * size))
    k, v = (g.like(q, (batch, columns, heads * size)) for _ in range(2))
    g.add(op, [q, k, v], {"num_heads": heads}, domain="com.microsoft")


@recipe("Attention of Microsoft")
def attention_of_one_product(g, _):
    heads, size, width = g.whole(1, 2), g.choice((4, 8)), g.choice((6, 8, 16))
    x = g.operand([F32], shape=(g.whole(1, 2), g.whole(1, 9), width))
    w, bias = (g.new(g.array(F32, (*rows, 3 * heads * size), -1, 1), True) for rows in ((width,), ()))
    attrs = {"num_heads": heads, "unidirectional": g.whole(0, 1)}
    g.add("Attention", [x, w, bias], attrs, domain="com.microsoft")


@recipe("QAttention")
def attention_of_integers(g, op):
    heads, size, width = g.whole(1, 2), g.choice((4, 8)), g.choice((6, 8, 16))
    x = g.operand(BYTES, shape=(g.whole(1, 2), g.whole(1, 9), width))
    w, bias = g.new(g.array(BYTES[1], (width, 3 * heads * size)), True), g.new(g.array(F32, (3 * heads * size,)), True)
    scales = [g.constant(0.0078125, F32), g.constant(0.015625, F32)]
    zeros = [g.constant(7, g.known(x).dtype), g.constant(-3, BYTES[1])]
    g.add(op, [x, w, bias, *scales, "", *zeros], {"num_heads": heads}, domain="com.microsoft")


@recipe("GroupQueryAttention")
def group_query_attention(g, op):
    count, groups, new, size = g.whole(1, 2), g.choice((1, 2)), g.whole(1, 5), g.choice((8, 16))
    past = g.choice((0, 0, 3)) if new == 1 else 0
    q = g.operand([F32], shape=(1, new, count * groups * size))
    k, v = (g.like(q, (1, new, count * size)) for _ in range(2))
    cache = [g.like(q, (1, count, past, size)) if past else "" for _ in range(2)]
    lengths = [g.constant([past + new - 1], I32), g.constant(past + new, I32)]
    attrs = {"num_heads": count * groups, "kv_num_heads": count} | ({"softcap": 5.0} if g.chance(0.3) else {})
    if g.chance(0.3):
        attrs["local_window_size"] = g.whole(1, 4)
    g.add(op, [q, k, v, *cache, *lengths], attrs, 3, domain="com.microsoft")


@recipe("RotaryEmbedding")
def rotary_embedding(g, op):
    batch, heads, rows, size = g.whole(1, 2), g.whole(1, 2), g.whole(1, 9), g.choice((4, 8, 16))
    x = g.operand(g.dtypes(op, among=(F32,)), shape=(batch, heads, rows, size))
    cos, sin = (g.new(g.array(F32, (16, size // 2), -1, 1), True) for _ in range(2))
    places = g.new(g.array(I64, (batch, rows), 0, 15))
    g.add(op, [x, cos, sin, places], {"interleaved": g.whole(0, 1)})


@recipe("RotaryEmbedding of Microsoft")
def rotary_embedding_of_microsoft(g, _):
    batch, heads, rows, size = g.whole(1, 2), g.whole(1, 2), g.whole(1, 9), g.choice((4, 8, 16))
    x = g.operand([F32], shape=(batch, heads, rows, size))
    places = g.new(g.array(I64, (batch, rows), 0, 15))
    cos, sin = (g.new(g.array(F32, (16, size // 2), -1, 1), True) for _ in range(2))
    g.add("RotaryEmbedding", [x, places, cos, sin], {"interleaved": g.whole(0, 1)}, domain="com.microsoft")
