"""Einsum: diagonals and sums of one operand, then one product after the other, each a matrix product of grouped axes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler.frontend.call import is_float, shape_product
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from libnpu.compiler.frontend.builder import Builder
    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Expr, Value

PRODUCT: Expr = ("mul", ("in", 0), ("in", 1))


def einsum(call: Call) -> Value:
    """Labels are letters; axes of an ellipsis are labelled by their number from the right."""
    operands = [call.input(index) for index in range(len(call.inputs))]
    terms, result = _parsed(call, call.attrs["equation"].decode().replace(" ", ""), operands)
    sizes: dict[str, int] = {}
    for labels, operand in zip(terms, operands, strict=True):
        for label, size in zip(labels, operand.shape, strict=True):
            if sizes.setdefault(label, size) not in (size, 1) and size != 1:
                raise ModelError(f"node {call.name}: Einsum: {label} is {sizes[label]} and {size}")
            sizes[label] = max(sizes[label], size)
    build = call.build
    total: Value | None = None
    held: list[str] = []
    for index, (labels, operand) in enumerate(zip(terms, operands, strict=True)):
        later = {*result, *(label for rest in terms[index + 1 :] for label in rest)}
        value, labels = _diagonal(build, operand, labels)
        if total is None:
            total, held = value, labels
        else:
            total, held = _product(build, total, held, value, labels, later, sizes)
        gone = [axis for axis, label in enumerate(held) if label not in later]
        if gone:
            total, held = build.reduce(total, "sum", gone, False), [label for label in held if label in later]
    if total is None or set(held) != set(result):
        raise ModelError(f"node {call.name}: Einsum: the result {''.join(result)} has labels that no operand has")
    return build.transpose(total, [held.index(label) for label in result]) if held != result else total


def _parsed(call: Call, equation: str, operands: list[Value]) -> tuple[list[list[str]], list[str]]:
    """Return the labels of each operand and of the result."""
    left, arrow, right = equation.partition("->")
    sides = left.split(",")
    if len(sides) != len(operands):
        raise ModelError(f"node {call.name}: Einsum {equation!r} of {len(operands)} operands")
    widest = 0
    terms = []
    for side, operand in zip(sides, operands, strict=True):
        rest = len(operand.shape) - len(side.replace("...", ""))
        if rest < 0 or (rest and "..." not in side):
            raise ModelError(f"node {call.name}: Einsum {equation!r}: {operand.name} has shape {operand.shape}")
        widest = max(widest, rest)
        terms.append(_labels(side, rest))
    if arrow:
        return terms, _labels(right, widest)
    counts = Counter(letter for side in sides for letter in side if letter.isalpha())
    once = sorted(letter for letter, count in counts.items() if count == 1)
    return terms, _labels("...", widest) + once


def _labels(side: str, count: int) -> list[str]:
    before, dots, after = side.partition("...")
    return [*before, *(str(number) for number in range(count)[::-1] if dots), *after]


def _diagonal(build: Builder, x: Value, labels: list[str]) -> tuple[Value, list[str]]:
    """Return `x` with one axis for each label: where a label stands twice, the elements of equal positions."""
    for label, count in Counter(labels).items():
        while count > 1:
            first, second = [axis for axis, other in enumerate(labels) if other == label][:2]
            rest = [axis for axis in range(len(labels)) if axis not in (first, second)]
            size = x.shape[first]
            moved = build.transpose(x, [first, second, *rest])
            flat = build.reshape(moved, (size * size, *moved.shape[2:]))
            places = build.const(np.arange(size, dtype=np.int32) * (size + 1), "diagonal")
            x, labels = build.emit("Gather", [flat, places], {"axis": 0}), [label, *(labels[axis] for axis in rest)]
            count -= 1
    return x, labels


def _product(
    build: Builder, a: Value, in_a: list[str], b: Value, in_b: list[str], later: set[str], sizes: dict[str, int]
) -> tuple[Value, list[str]]:
    """Return the product, summed over what both have and nothing wants later."""
    shared = [label for label in in_a if label in in_b]
    batch, inner = [x for x in shared if x in later], [x for x in shared if x not in later]
    rows, columns = [x for x in in_a if x not in shared], [x for x in in_b if x not in shared]
    if not inner or not is_float(a):
        labels = batch + inner + rows + columns
        return build.elementwise(PRODUCT, [_aligned(build, a, in_a, labels), _aligned(build, b, in_b, labels)]), labels

    def grouped(value: Value, labels: list[str], *groups: list[str]) -> Value:
        order = [label for group in groups for label in group]
        moved = build.transpose(value, [labels.index(label) for label in order])
        moved = build.expand(
            moved,
            [max(sizes[label], 1) if label in shared else dim for label, dim in zip(order, moved.shape, strict=True)],
        )
        dims = iter(moved.shape)
        return build.reshape(moved, [shape_product(tuple(next(dims) for _ in group)) for group in groups])

    left, right = grouped(a, in_a, batch, rows, inner), grouped(b, in_b, batch, inner, columns)
    product = build.emit("MatMul", [left, right, None], {"act": None, "scale": 1.0})
    final = [
        *(sizes[x] for x in batch),
        *(a.shape[in_a.index(x)] for x in rows),
        *(b.shape[in_b.index(x)] for x in columns),
    ]
    return build.reshape(product, final), batch + rows + columns


def _aligned(build: Builder, x: Value, labels: list[str], order: list[str]) -> Value:
    """Return `x` with axes in `order`, 1 where it has none."""
    own = [label for label in order if label in labels]
    moved = build.transpose(x, [labels.index(label) for label in own])
    return build.reshape(moved, [moved.shape[own.index(label)] if label in own else 1 for label in order])
