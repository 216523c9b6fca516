"""Hoist: nodes that compute the same of the same become one. Loops are unrolled, so that what does not change in one is computed in its first step alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.compiler.frontend.rewriting import Rewriter
from libnpu.compiler.hollow import is_hollow

if TYPE_CHECKING:
    from collections.abc import Hashable

    from libnpu.compiler.ir import Graph, Node, Value

_LOOKED_AT = 256  # elements of a constant that tell most apart


def hoist(graph: Graph) -> Graph:
    """Return an equal graph in which no two nodes have the same operator, attributes and operands. Constants are the same if their bytes are."""
    edit = Rewriter(graph)
    constants: dict[Hashable, list[Value]] = {}
    first: dict[Hashable, Node] = {}
    for node in edit.nodes():
        for index, value in enumerate(node.inputs):
            if value is not None and value.const is not None:
                edit.set_input(node, index, _known(value, constants))
        key = (node.op, _attribute(sorted(node.attrs.items())), *map(id, node.inputs), *map(_type, node.outputs))
        known = first.setdefault(key, node)
        if known is not node and all(map(edit.replace, node.outputs, known.outputs)):
            known.layers += [layer for layer in node.layers if layer not in known.layers]
            edit.remove(node)
    return edit.done()


def _known(value: Value, constants: dict[Hashable, list[Value]]) -> Value:
    """Return the first constant of the bytes of `value`, which has some."""
    array = value.const
    assert array is not None
    if is_hollow(array):
        return value
    same = constants.setdefault((_type(value), _bytes(array.reshape(-1)[:_LOOKED_AT])), [])
    for other in same:
        assert other.const is not None
        if other.const is array or _bytes(other.const) == _bytes(array):
            return other
    same.append(value)
    return value


def _bytes(array: np.ndarray[Any, Any]) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def _attribute(value: Any) -> Hashable:
    """Return what is the same for attributes that are."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_attribute, value))
    return _bytes(value) if isinstance(value, np.ndarray) else repr(value)


def _type(value: Value) -> Hashable:
    return value.shape, value.dtype
