"""The layout that reductions share: [outer, n, inner] operands, a tile whose rows or columns run along n.

`COLS`: the tile is [outer chunk, n chunk] and columns are reduced, one inner index at a time.
`ROWS`: the tile is [n chunk, inner chunk] and rows are reduced, one outer index at a time.
The argument `mode` picks one of the two code paths, by the number of tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from npu_model.shave_isa import VECTOR_CAPACITY

from libnpu.compiler.kernels.program import Operand
from libnpu.errors import Unsupported

COLS, ROWS = 0, 1
HEADER = ("mode", "outer", "n", "inner", "chunk_n", "chunk_free")
IN = ("in_base", "in_outer", "in_n", "in_inner")


@dataclass(frozen=True, slots=True)
class Axes:
    """Sizes of a reduction and the strides of its input."""

    outer: int
    n: int
    inner: int


def axes(kernel: str, operands: Sequence[Operand], expected: tuple[int, ...], out_rank: int) -> Axes:
    """Return the sizes of `operands` (input [outer, n, inner] first), checked. Unsupported when they do not fit the kernel."""
    if tuple(operand.dtype for operand in operands) != expected:
        raise Unsupported(f"operands of {kernel} must have dtypes {expected}")
    source, target = operands[0], operands[-1]
    if len(source.dims) != 3 or 0 in source.dims:
        raise Unsupported(f"{kernel}: input dims {source.dims} are not [outer, n, inner]")
    outer, n, inner = source.dims
    if target.dims != (source.dims if out_rank == 3 else (outer, inner)):
        raise Unsupported(f"{kernel}: output dims {target.dims} for input {source.dims}")
    return Axes(outer, n, inner)


def header(sizes: Axes, chunk_n: int) -> dict[str, int]:
    """Return the values of HEADER: tiles of `chunk_n` along n, whose other side is as long as the register allows."""
    free = max(1, VECTOR_CAPACITY // chunk_n)
    by_cols = sizes.inner * -(-sizes.outer // free)
    by_rows = sizes.outer * -(-sizes.inner // free)
    mode = ROWS if by_rows < by_cols else COLS
    length = sizes.outer if mode == COLS else sizes.inner
    values = (mode, sizes.outer, sizes.n, sizes.inner, chunk_n, min(free, length))
    return dict(zip(HEADER, values, strict=True))
