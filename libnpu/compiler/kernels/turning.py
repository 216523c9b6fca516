"""Element-wise kernels of one operand whose result lies in another order: tiles are loaded as they lie, and turned in registers.

A load with a distance between columns takes a cycle for each element; rows of a tile that is turned have the length of the runs
that lie together. A load waits for the stores before it, and the result of a transpose is there as a whole: a tile is loaded in
parts, so that the memory unit stores the first while the vector unit turns the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from npu_model.shave_isa import VECTOR_CAPACITY

from libnpu.compiler.ir import Expr
from libnpu.compiler.kernels.builder import Builder, memory_type
from libnpu.compiler.kernels.elementwise import HEADER, MAX_DIMS, Kernel, block, elementwise, merge
from libnpu.compiler.kernels.expression import Lowering, normalise
from libnpu.compiler.kernels.program import ArgsTemplate, Operand, Program
from libnpu.errors import Unsupported

_PARTS = 4  # of a tile; chosen: the memory unit then waits for an eighth of the transposes
_COLUMNS = 128  # of a tile, where there are as many rows; chosen: runs of 256 bytes and more on both sides


def unary(expr: Expr, in_dtype: int, out_dtype: int) -> tuple[Program, ...]:
    """Return the programs of an expression of one operand: one that walks it in the result's order, and one that turns tiles.

    The second takes no operands whose innermost dim is the result's too (Unsupported).
    """
    plain = elementwise(expr, (in_dtype,), out_dtype)
    try:
        return plain, _turning(normalise(expr), in_dtype, out_dtype)
    except Unsupported:  # too few registers beside the parts
        return (plain,)


@lru_cache(maxsize=256)
def _turning(expr: Expr, in_dtype: int, out_dtype: int) -> Program:
    builder = _Turning(Lowering(expr, (in_dtype,), out_dtype), (in_dtype,), out_dtype).build()

    def pack(operands: Sequence[Operand]) -> ArgsTemplate:
        dims, strides = merge(operands)
        inner = min(range(len(dims)), key=lambda i: abs(strides[0][i]) or VECTOR_CAPACITY**2, default=0)
        if not 2 <= len(dims) <= MAX_DIMS or inner == len(dims) - 1:
            raise Unsupported(f"{builder.name}: nothing to turn, {[op.dims for op in operands]}")
        order = [i for i in range(len(dims) - 1) if i != inner] + [inner, len(dims) - 1]
        cols = min(dims[-1], max(_COLUMNS, VECTOR_CAPACITY // dims[inner]))
        rows = min(dims[inner], VECTOR_CAPACITY // cols * _PARTS)
        return block(builder, operands, dims, strides, order, (rows, cols))

    return builder.program(pack)


class _Turning(Kernel):
    """Emits the loops of one expression, and in them the steps for each part of a tile."""

    def build(self) -> Builder:
        b = self.b
        d0, d1, rows, cols, tile_rows, tile_cols = b.args(*HEADER)
        self.i0, self.i1, self.r, self.c, vr, vc = (b.reg() for _ in range(6))
        self.q, self.t, self.size, self.last, parts = (b.reg() for _ in range(5))
        for k in (0, 1):
            self.hoisted[k] = (b.reg(), b.arg(f"row_stride{k}"), b.arg(f"col_stride{k}"))
        b.emit("li", parts, _PARTS)
        self.loaded = [b.vreg("a part of a tile") for _ in range(_PARTS)]
        with b.loop(self.i0, d0), b.loop(self.i1, d1):
            for k, (pointer, _, _) in self.hoisted.items():
                self.outer(pointer, k)
            with b.loop(self.r, rows, tile_rows):
                b.rest(vr, rows, self.r, tile_rows)
                b.emit("addi", self.size, vr, _PARTS - 1)
                b.emit("div", self.size, self.size, parts)
                b.emit("sub", self.last, vr, self.size)
                with b.loop(self.c, cols, tile_cols):
                    b.rest(vc, cols, self.c, tile_cols)
                    b.emit("setvl", vc, self.size)
                    for self.part in range(_PARTS):
                        address, row_stride, col_stride = self.address(0)
                        load = f"vld.{memory_type(self.dtypes[0])}"
                        b.emit(load, self.loaded[self.part], address, col_stride, row_stride, 0)
                    b.emit("setvl", self.size, vc)
                    for self.part in range(_PARTS):
                        self.body()
        return b

    def load(self, register: str, k: int) -> None:
        """Turn the part that has been loaded."""
        self.b.emit("vtrans", register, self.loaded[self.part])

    def address(self, k: int) -> tuple[str, str, str]:
        """Return registers with operand k's address in this part and its strides; the last parts of few rows are the same."""
        b = self.b
        pointer, row_stride, col_stride = self.hoisted[k]
        b.emit("muli", self.t, self.size, self.part)
        b.emit("min", self.t, self.t, self.last)
        b.emit("add", self.t, self.t, self.r)
        b.emit("mul", self.t, self.t, row_stride)
        b.emit("add", self.q, pointer, self.t)
        b.advance(self.q, self.c, col_stride, self.t)
        return self.q, row_stride, col_stride
