"""What both ways of lowering attention share: its operands as matrices by batch index, tiles of masks, and SHAVE tasks of states.

`flash.py` lowers FlashSDPA, `incremental.py` IncrementalSDPA.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_model.dtypes import code_of_numpy

from libnpu.compiler import kernels
from libnpu.compiler.attention.masks import Masks
from libnpu.compiler.lower.view import View, dense
from libnpu.compiler.program import Buffer, ShavePayload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libnpu.compiler.ir import Node, Value
    from libnpu.compiler.lower.builder import Builder

QUERIES = (128, 64, 32, 16, 8, 4, 2, 1)  # of a block
GAPS = 512  # what alignment takes of the buffers of a chain
SINGLE = np.dtype(np.float32)
Index = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Attention:
    """Operands of one attention as matrices by batch index."""

    builder: Builder
    node: Node
    query: View  # [..., M, D]
    keys: list[View]  # [..., S_i, D]
    values: list[View]  # [..., S_i, E]
    out: View  # [..., M, E]
    masks: list[View | None]  # [..., M, S], None of a constant
    tiles: Masks
    stored: dict[bytes, View] = field(default_factory=dict)  # tiles of constant masks by content
    fetched: dict[tuple[Any, ...], View] = field(default_factory=dict)

    @property
    def batch(self) -> Index:
        return self.query.shape[:-2]

    @property
    def lengths(self) -> list[int]:
        """Keys of each part."""
        return [part.shape[-2] for part in self.keys]

    def kv_index(self, index: Index, part: View) -> Index:
        """Return where the head of a query is among those of keys or values."""
        if not index or part.shape[-3] == self.batch[-1]:
            return index
        return (*index[:-1], index[-1] // (self.batch[-1] // part.shape[-3]))

    def mask_tile(self, number: int, index: Index, rows: slice, columns: slice) -> View:
        """Return a tile [rows, columns] of a mask in CMX."""
        view, shape = self.masks[number], (rows.stop - rows.start, columns.stop - columns.start)
        if view is not None:
            box = matrix(view, index).sliced((rows.start, columns.start), shape)
            return self.in_cmx(box, "mask")
        array = self.tiles.constant(number, index, rows, columns)
        assert array is not None
        array = np.ascontiguousarray(array)
        key = array.tobytes() + repr((array.dtype, array.shape)).encode()
        if key not in self.stored:
            self.stored[key] = self.builder.constant(array, f"{self.node.name}.mask")
        return self.in_cmx(self.stored[key].broadcast(shape), "mask")

    def in_cmx(self, box: View, what: str) -> View:
        """Return matrices that a SHAVE can read row by row: where they are, or in a buffer of their own."""
        one_run = all(
            s in (0, box.dtype.itemsize) for s, n in zip(box.strides[-1:], box.shape[-1:], strict=True) if n > 1
        )
        return box if box.in_cmx and one_run else self.builder.fetch(box, tuple(range(len(box.shape))), self.node, what)


def attention(builder: Builder, node: Node) -> Attention:
    """Return the operands of a node, each where it is, and a place for its result."""
    parts, value = node.attrs["parts"], node.outputs[0]
    operands = [v for v in node.inputs if v is not None]
    query, keys, values = operands[0], operands[1 : 1 + parts], operands[1 + parts : 1 + 2 * parts]
    masks = operands[1 + 2 * parts :]
    builder.relieve([query, *keys, *values, *[m for m in masks if m.const is None]], builder.cmx_bytes // 2, node)
    shape = (*query.shape[:-1], sum(key.shape[-2] for key in keys))
    tiles = Masks(node.attrs["expr"], masks, shape)
    return Attention(
        builder,
        node,
        builder.home(query),
        [builder.home(v) for v in keys],
        [builder.home(v) for v in values],
        builder.place(value, _out_order(builder, value)),
        [
            None if array is not None else builder.home(v).broadcast(shape)
            for v, array in zip(masks, tiles.constants, strict=True)
        ],
        tiles,
    )


def _out_order(builder: Builder, value: Value) -> tuple[int, ...] | None:
    """Return the order in which a transposition behind the result wants it, so that it moves nothing."""
    readers = builder.readers(value)
    if len(readers) == 1 and readers[0].op == "Transpose":
        return tuple(readers[0].attrs["perm"])
    return None


def matrix(view: View, index: Index) -> View:
    """Return the matrix of a batch index: the last two axes."""
    offset = view.offset + sum(i * s for i, s in zip(index, view.strides, strict=False))
    return View(view.target, offset, view.shape[-2:], view.strides[-2:], view.dtype)


def key_tiles(lengths: Sequence[int], size: int) -> Iterator[tuple[int, slice, int]]:
    """Yield (part, keys of it, keys before it) of each tile."""
    start = 0
    for part, length in enumerate(lengths):
        for first in range(0, length, size):
            yield part, slice(first, min(first + size, length)), start
        start += length


def buffer(of: Attention, what: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> View:
    """Return a dense buffer in CMX of its own."""
    name = f"{of.node.name}.{what}.{len(of.builder.ops)}.{len(of.fetched)}"
    return dense(Buffer(name, prod(shape) * dtype.itemsize), shape, dtype)


def launch(
    of: Attention, program: kernels.Program, operands: Sequence[View], read: Sequence[View], written: Sequence[View]
) -> None:
    """Append a SHAVE task that reads and writes several operands, some of them both."""
    described = [kernels.Operand(i, code_of_numpy(v.dtype), v.shape, v.strides) for i, v in enumerate(operands)]
    template = program.args(described)
    payload = ShavePayload(program.code, [v.ref for v in operands], template)
    cost = kernels.cost_cycles(program, template, of.builder.profile)
    reads = list({v.access(): None for v in read})
    of.builder.shave(of.node, payload, reads, [v.access() for v in written], cost)
