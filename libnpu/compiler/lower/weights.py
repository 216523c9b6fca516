"""Operands of the weight port: constant blocks (weight table and weights, one DMA per channel tile), or a view of an activation."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from npu_abi import dtype as record_dtype
from npu_abi import sizeof

from libnpu.compiler.ir import INT4, SMALL_INTEGERS
from libnpu.compiler.lower.view import View, aligned, dense
from libnpu.compiler.program import Access, Ref

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.compiler.ir import Node
    from libnpu.compiler.lower.builder import Builder

ENTRY_BYTES = sizeof("npu_dpu_weight_entry")


@dataclass(slots=True, frozen=True)
class Loaded:
    """A channel tile's weights in CMX: addresses by field of npu_dpu_invariant, and the bytes that a task reads."""

    refs: dict[str, Ref]
    reads: list[Access]


class WeightSource(Protocol):
    """Where the weights of output channels [c0, c1) come from. `dtype` is their type, None without weights."""

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Type of the elements."""
        ...

    def tile_bytes(self, channels: int) -> int:
        """Return the CMX bytes of a tile; 0 when it is resident."""
        ...

    def load(self, builder: Builder, node: Node, c0: int, c1: int) -> Loaded:
        """Bring the tile in."""
        ...


@dataclass(slots=True, frozen=True)
class NoWeights:
    """Pooling and element-wise operations."""

    @property
    def dtype(self) -> None:
        """Return None."""
        return

    def tile_bytes(self, channels: int) -> int:
        """Return 0."""
        return 0

    def load(self, builder: Builder, node: Node, c0: int, c1: int) -> Loaded:
        """Return nothing."""
        return Loaded({}, [])


@dataclass(slots=True)
class ConstantWeights:
    """`weights` has the output channel on `axis`, in the memory order that the engine reads; either part may be absent.

    Those of 4 bits share a byte in twos.
    """

    weights: NDArray[Any] | None
    axis: int
    bias: NDArray[Any] | None
    scale: float | NDArray[Any]  # one, or one for each channel, with a bias then
    offset: NDArray[Any] | None = None  # of sums of integers, with a bias
    stays: bool = False  # in CMX, for the next node that has the same
    blocks: dict[tuple[int, int], View] = field(default_factory=dict)
    tiles: dict[tuple[int, int], View] = field(default_factory=dict)

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Type of the elements that the engine multiplies."""
        if self.weights is None:
            return None
        if self.are_small:
            return np.dtype(np.int8 if self.weights.dtype == INT4 else np.uint8)
        return self.weights.dtype

    @property
    def are_small(self) -> bool:
        """Whether the weights have 4 bits."""
        return self.weights is not None and self.weights.dtype in SMALL_INTEGERS

    @property
    def has_table(self) -> bool:
        """Whether the bias asks for a weight table (a scale alone goes into the invariant)."""
        return self.bias is not None

    def tile_bytes(self, channels: int) -> int:
        """Return table and weights of `channels` channels."""
        table = aligned(channels * ENTRY_BYTES) if self.has_table else 0
        if self.weights is None:
            return table
        per_channel: int = self.weights.nbytes // self.weights.shape[self.axis]
        return table + (per_channel // 2 if self.are_small else per_channel) * channels

    def load(self, builder: Builder, node: Node, c0: int, c1: int) -> Loaded:
        """Load one block; its constant enters the weights section on first use."""
        if self.weights is None and not self.has_table:
            return Loaded({}, [])
        if (c0, c1) not in self.blocks:
            size = self.tile_bytes(c1 - c0)
            tensor = builder.constant_bytes(size, f"{node.name}.weights[{c0}:{c1}]", partial(self._block, c0, c1))
            self.blocks[c0, c1] = dense(tensor, (size,), np.dtype(np.uint8))
        tile = self.tiles.get((c0, c1)) or builder.fetch(self.blocks[c0, c1], (0,), node, "weights")
        if self.stays:
            self.tiles[c0, c1] = tile
        table_bytes = aligned((c1 - c0) * ENTRY_BYTES) if self.has_table else 0
        refs = {"wt_addr": Ref(tile.target, table_bytes)} if self.weights is not None else {}
        if self.has_table:
            refs["wt_table_addr"] = Ref(tile.target, 0)
        return Loaded(refs, [tile.access()])

    def _part(self, c0: int, c1: int) -> NDArray[Any]:
        assert self.weights is not None
        return np.take(self.weights, range(c0, c1), self.axis) if self.axis else self.weights[c0:c1]

    def _block(self, c0: int, c1: int) -> bytes:
        table = b""
        if self.bias is not None:
            entries = np.zeros(c1 - c0, record_dtype("npu_dpu_weight_entry"))
            entries["scale"] = self.scale if isinstance(self.scale, float) else self.scale[c0:c1]
            if self.offset is not None:
                entries["offset"] = self.offset[c0:c1]
            entries["bias"] = self.bias[c0:c1]
            table = entries.tobytes()
            table += bytes(aligned(len(table)) - len(table))
        if self.weights is None:
            return table
        part = np.ascontiguousarray(self._part(c0, c1))
        return table + (_pairs(part) if self.are_small else part.tobytes())


def _pairs(weights: NDArray[Any]) -> bytes:
    """Return 4-bit integers in twos, the first in the lower half of a byte."""
    halves = weights.astype(np.int8).view(np.uint8).reshape(-1, 2) & 15
    return (halves[:, 0] | halves[:, 1] << 4).tobytes()


@dataclass(slots=True)
class ActivationWeights:
    """A computed [N][K] matrix: used in place when resident and dense, else fetched; `table` holds scale and bias, if any."""

    matrix: View  # [N, K]
    table: ConstantWeights

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self.matrix.dtype

    @property
    def resident(self) -> bool:
        """Whether the engine can read it where it is."""
        return self.matrix.in_cmx and self.matrix.strides == dense_rows(self.matrix)

    def tile_bytes(self, channels: int) -> int:
        """Return what has to be fetched for `channels` rows."""
        fetched = 0 if self.resident else channels * prod(self.matrix.shape[1:]) * self.matrix.dtype.itemsize
        return aligned(fetched) + self.table.tile_bytes(channels)

    def load(self, builder: Builder, node: Node, c0: int, c1: int) -> Loaded:
        """Return rows [c0, c1), and the table."""
        table = self.table.load(builder, node, c0, c1)
        rows = self.matrix.sliced((c0, 0), (c1 - c0, self.matrix.shape[1]))
        if not self.resident:
            rows = builder.fetch_dense(rows, (0, 1), node, "matrix")
        return Loaded({"wt_addr": rows.ref, **table.refs}, [rows.access(), *table.reads])


def dense_rows(matrix: View) -> tuple[int, ...]:
    """Return the strides that the engine demands of an [N, K] matrix; those of axes of one element are free."""
    wanted = dense(matrix.target, matrix.shape, matrix.dtype).strides
    return tuple(s if n == 1 else w for s, w, n in zip(matrix.strides, wanted, matrix.shape, strict=True))
