"""What a tile of scores needs of its masks. Masks that are constant are looked at when the model is compiled.

A tile whose constant masks change nothing needs no mask, one that they remove as a whole is not computed, and of the others
equal masks are stored once: a causal mask costs its diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.compiler.frontend.expr import leaves, rewrite, substitute
from libnpu.compiler.hollow import is_hollow
from libnpu.compiler.reference import run_expression

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from libnpu.compiler.ir import Expr, Value

REMOVED = -6e4  # at most this, a score stands for nothing: its exponential is 0 beside that of any in range of float16


@dataclass(slots=True, frozen=True)
class TileScores:
    """The expression of one tile's scores, and which masks it still reads, as its inputs 1, 2, ..."""

    expr: Expr
    masks: tuple[int, ...]


class Masks:
    """The masks of one attention, by tile. `shape` is that of its scores."""

    def __init__(self, expr: Expr, masks: Sequence[Value], shape: tuple[int, ...]) -> None:
        self.expr = expr
        self.constants: list[NDArray[Any] | None] = [
            None if value.const is None or is_hollow(value.const) else np.broadcast_to(value.const, shape)
            for value in masks
        ]
        self._narrow = [value.const for value in masks]
        self._shape = shape
        extras = [len(shape) - value.const.ndim for value in masks if value.const is not None]
        narrow = [(1,) * extra + array.shape for extra, array in zip(extras, self._present(), strict=True)]
        self._varies = [any(dims[axis] > 1 for dims in narrow) for axis in range(len(shape) - 2)]
        self._tiles: dict[tuple[Any, ...], TileScores | None] = {}
        self._counted: dict[tuple[Any, ...], bool] = {}

    def _present(self) -> list[NDArray[Any]]:
        return [array for array in self._narrow if array is not None]

    def counted(self) -> int:
        """Return how many scores are not removed by constant masks: what every tiling has to compute."""
        total = prod(self._shape)
        arrays = self._present()
        if not arrays or any(array is None for array in self.constants):
            return total
        value = run_expression(self.expr, [np.zeros((1,) * len(self._shape), np.float32), *arrays])
        removed = value <= REMOVED
        counted = int(np.count_nonzero(~removed | removed.all(axis=-1, keepdims=True)))
        return total // max(value.size, 1) * counted

    def constant(self, mask: int, index: tuple[int, ...], rows: slice, columns: slice) -> NDArray[Any] | None:
        """Return a tile [rows, columns] of a constant mask, of one row or column where it does not vary; None of a computed one."""
        array = self.constants[mask]
        if array is None:
            return None
        place: Any = (*index, rows, columns)
        tile: NDArray[Any] = array[place]
        narrow = self._narrow[mask]
        assert narrow is not None
        last = narrow.shape[-2:] if narrow.ndim > 1 else (1, *narrow.shape[-1:])
        return tile[: 1 if len(last) < 2 or last[0] == 1 else None, : 1 if not last or last[-1] == 1 else None]

    def tile(self, index: tuple[int, ...], rows: slice, columns: slice) -> TileScores | None:
        """Return what the tile needs, None when nothing of it counts."""
        index = tuple(i if varies else 0 for i, varies in zip(index, self._varies, strict=True))
        key = (index, rows.start, rows.stop, columns.start, columns.stop)
        if key not in self._tiles:
            self._tiles[key] = self._tile(index, rows, columns)
        return self._tiles[key]

    def _tile(self, index: tuple[int, ...], rows: slice, columns: slice) -> TileScores | None:
        known: dict[int, float | int] = {}
        for number in range(len(self.constants)):
            array = self.constant(number, index, rows, columns)
            if array is not None and array.size and (array == array.flat[0]).all():
                known[number] = _number(array)
        expr = _simplified(self.expr, known)
        if known and _removes(expr) and self._counted_elsewhere(index, rows):
            return None
        used = sorted(set(leaves(expr)) - {0})
        placed = substitute(expr, lambda i: ("in", 0 if i == 0 else 1 + used.index(i)))
        if 0 not in set(leaves(expr)):  # the kernels load scores
            placed = ("where", ("const", 1), placed, ("in", 0))
        return TileScores(placed, tuple(i - 1 for i in used))

    def _counted_elsewhere(self, index: tuple[int, ...], rows: slice) -> bool:
        """Whether every row of the tile has a score that counts, in whatever tile."""
        if any(array is None for array in self.constants):
            return False
        key = (index, rows.start, rows.stop)
        if key not in self._counted:
            self._counted[key] = self._counts(index, rows)
        return self._counted[key]

    def _counts(self, index: tuple[int, ...], rows: slice) -> bool:
        place: Any = (*index, rows)
        arrays = [array[place] for array in self.constants if array is not None]
        count = self._shape[-1]
        value = run_expression(self.expr, [np.zeros((1, count), np.float32), *arrays])
        return bool((np.broadcast_to(value, (rows.stop - rows.start, count)) > REMOVED / 2).any(axis=-1).all())


def _number(array: NDArray[Any]) -> float | int:
    item = array.flat[0]
    return int(item) if array.dtype.kind in "iub" else float(item)


def _simplified(expr: Expr, known: dict[int, float | int]) -> Expr:
    """Return an expression with masks of one number in place, without what then changes nothing."""
    placed = substitute(expr, lambda i: ("const", known[i - 1]) if i - 1 in known else ("in", i))
    return _neutral(rewrite(placed))


def _neutral(expr: Expr) -> Expr:
    if expr[0] in ("in", "const"):
        return expr
    expr = (expr[0], *(_neutral(operand) for operand in expr[1:]))
    match expr:
        case ("add", x, ("const", 0.0)) | ("add", ("const", 0.0), x):  # of scores 0 and -0 are one
            return x  # type: ignore[no-any-return]
        case ("where", ("const", condition), x, y):
            return x if condition else y  # type: ignore[no-any-return]
        case (op, ("const", x), ("const", y)) if isinstance(x, float) or isinstance(y, float):
            folded = run_expression((op, ("in", 0), ("in", 1)), [np.array(x, np.float32), np.array(y, np.float32)])
            return ("const", float(folded)) if folded.dtype.kind == "f" else ("const", int(folded))
        case ("not", ("const", condition)):
            return ("const", int(not condition))
    return expr


def _removes(expr: Expr) -> bool:
    """Whether every score becomes one that stands for nothing."""
    match expr:
        case ("const", number):
            return bool(number <= REMOVED)
        case ("add", _, ("const", number)) | ("add", ("const", number), _):
            return bool(number <= REMOVED)
    return False
