"""TfIdfVectorizer: every n-gram of a sequence of integers is compared with every one of the pool, and the hits are counted."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler.frontend.ops_scatter import MAX_PAIRS
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Expr, Value

X: Expr = ("in", 0)
Y: Expr = ("in", 1)
Z: Expr = ("in", 2)
INT32, SINGLE = np.dtype(np.int32), np.dtype(np.float32)


def tf_idf(call: Call) -> Value:
    """TfIdfVectorizer of integers, [C] or [N, C]; what no gram of the pool stands for is 0."""
    x, build = call.input(0), call.build
    if "pool_int64s" not in call.attrs:
        raise call.unsupported("a pool of strings")
    rows = build.reshape(x, (1, *x.shape)) if len(x.shape) == 1 else x
    place = np.array(call.attrs["ngram_indexes"], np.int64)
    width = int(place.max()) + 1
    counts, grams = [], []
    for size, first, pool in _pools(call):
        if int(call.attrs["min_gram_length"]) <= size <= int(call.attrs["max_gram_length"]):
            counts.append(_hits(call, rows, pool))
            grams.append(np.arange(first, first + len(pool)))
    numbers = np.concatenate(grams)
    if len(set(place[numbers].tolist())) < len(numbers):
        raise call.unsupported("two grams of one index")
    zero = build.const(np.zeros((rows.shape[0], 1), np.int32), "no gram")
    found = build.emit("Concat", [*counts, zero], {"axis": 1})
    column = np.full(width, len(numbers), np.int32)
    column[place[numbers]] = np.arange(len(numbers))
    weight = np.ones(width, np.float32)
    if "weights" in call.attrs:
        weight[place[numbers]] = np.array(call.attrs["weights"], np.float32)[numbers]
    count = build.emit("Gather", [found, build.const(column, "columns")], {"axis": 1})
    result = _weighted(call, count, build.const(weight.reshape(1, width), "weights"))
    return build.reshape(result, (*x.shape[:-1], width))


def _weighted(call: Call, count: Value, weight: Value) -> Value:
    match call.attrs["mode"].decode():
        case "TF":
            return call.build.elementwise(("cast_f32", X), [count], SINGLE)
        case "IDF":
            once: Expr = ("where", ("gt", X, ("const", 0)), Y, ("const", 0.0))
            return call.build.elementwise(once, [count, weight], SINGLE)
        case "TFIDF":
            return call.build.elementwise(("mul", ("cast_f32", X), Y), [count, weight], SINGLE)
        case mode:
            raise ModelError(f"node {call.name}: TfIdfVectorizer of mode {mode!r}")


def _pools(call: Call) -> list[tuple[int, int, NDArray[np.int64]]]:
    """Return for each length of gram: the length, the number of the first gram, and the grams [count, length]."""
    pool = np.array(call.attrs["pool_int64s"], np.int64)
    if pool.size and not np.array_equal(pool, pool.astype(np.int32)):
        raise call.unsupported("a pool beyond 32 bits")
    starts = [*map(int, call.attrs["ngram_counts"]), len(pool)]
    found, first = [], 0
    for size, (start, stop) in enumerate(pairwise(starts), 1):
        grams = pool[start:stop].reshape(-1, size)
        if len(grams):
            found.append((size, first, grams))
        first += len(grams)
    return found


def _hits(call: Call, rows: Value, pool: NDArray[np.int64]) -> Value:
    """Return how often each gram of `pool` is in each row, int32 [N, grams], with as many items left out between its own as allowed."""
    build = call.build
    (count, length), (grams, size) = rows.shape, pool.shape
    total: Value = build.const(np.zeros((count, grams), np.int32), "no hit")
    for distance in range(1, 2 + (int(call.attrs["max_skip_count"]) if size > 1 else 0)):
        places = length - (size - 1) * distance
        if places < 1:
            break
        if prod((count, places, grams)) > MAX_PAIRS:
            raise call.unimplemented(f"{prod((count, places, grams))} comparisons, at most {MAX_PAIRS}")
        hit: Value | None = None
        for item in range(size):
            part = build.slice(rows, {1: (item * distance, item * distance + places, 1)})
            wanted = build.const(pool[:, item].astype(np.int32).reshape(1, 1, grams), "grams")
            inputs = [build.reshape(part, (count, places, 1)), wanted]
            if hit is None:
                hit = build.elementwise(("eq", X, Y), inputs, INT32)
            else:
                hit = build.elementwise(("and", Z, ("eq", X, Y)), [*inputs, hit], INT32)
        assert hit is not None
        total = build.elementwise(("add", X, Y), [build.reduce(hit, "sum", [1], False), total], INT32)
    return total
