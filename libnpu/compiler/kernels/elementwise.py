"""Element-wise kernels: any expression over strided operands, in tiles of the vector length.

The argument packer drops dims of one element, merges those that are contiguous in every operand, and picks the two dims that
become the rows and columns of the tile; the other two are loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from npu_model.shave_isa import VECTOR_CAPACITY

from libnpu.compiler.ir import Expr
from libnpu.compiler.kernels.builder import ARGS, Builder, memory_type, store
from libnpu.compiler.kernels.expression import Lowering, last_uses, normalise
from libnpu.compiler.kernels.program import ArgsTemplate, Operand, Program
from libnpu.errors import Unsupported

MAX_DIMS = 4
HEADER = ("d0", "d1", "rows", "cols", "tile_rows", "tile_cols")
OPERAND = ("base", "s0", "s1", "row_stride", "col_stride")
_MERGE_GAIN = 4  # how much larger a tile must be to make up for a strided inner dim


def elementwise(expr: Expr, in_dtypes: tuple[int, ...], out_dtype: int) -> Program:
    """Return the program of `expr` over `in_dtypes`, stored as `out_dtype`. Operands: inputs in order, then the output.

    All operands have the same dims, which merge to at most four; an input broadcasts with stride 0. Unsupported when the
    expression needs more registers than there are or uses a type that the core cannot load.
    """
    return _elementwise(normalise(expr), tuple(in_dtypes), out_dtype)


@lru_cache(maxsize=1024)
def _elementwise(expr: Expr, in_dtypes: tuple[int, ...], out_dtype: int) -> Program:
    count = len(in_dtypes) + 1
    lowering = Lowering(expr, in_dtypes, out_dtype)
    kernel = Kernel(lowering, in_dtypes, out_dtype)
    builder = kernel.build()

    def pack(operands: Sequence[Operand]) -> ArgsTemplate:
        expected = (*in_dtypes, out_dtype)
        if len(operands) != count or tuple(operand.dtype for operand in operands) != expected:
            raise Unsupported(f"operands of {builder.name} must have dtypes {expected}")
        return _template(builder, operands)

    return builder.program(pack)


def convert(in_dtype: int, out_dtype: int) -> Program:
    """Return the strided copy with conversion; operands (in, out). A transpose is a choice of strides."""
    return elementwise(("in", 0), (in_dtype,), out_dtype)


class Kernel:
    """Emits the loops and the steps of one expression."""

    def __init__(self, lowering: Lowering, in_dtypes: tuple[int, ...], out_dtype: int) -> None:
        self.lowering = lowering
        self.dtypes = (*in_dtypes, out_dtype)
        words = [*HEADER, *(f"{word}{k}" for k in range(len(self.dtypes)) for word in OPERAND)]
        self.b = Builder(f"elementwise {lowering.expr!r}", words)
        self.hoisted: dict[int, tuple[str, str, str]] = {}  # operand -> pointer, row stride, column stride

    def build(self) -> Builder:
        b = self.b
        d0, d1, rows, cols, tile_rows, tile_cols = b.args(*HEADER)
        self.i0, self.i1, self.r, self.c, vr, vc = (b.reg() for _ in range(6))
        self.q, self.t, self.u = b.reg(), b.reg(), b.reg()
        for k in reversed(range(len(self.dtypes))):  # the output first: it is always used
            if b.free_int_count >= 3:
                self.hoisted[k] = (b.reg(), b.arg(f"row_stride{k}"), b.arg(f"col_stride{k}"))
        with b.loop(self.i0, d0), b.loop(self.i1, d1):
            for k, (pointer, _, _) in self.hoisted.items():
                self.outer(pointer, k)
            with b.loop(self.r, rows, tile_rows):
                b.rest(vr, rows, self.r, tile_rows)
                with b.loop(self.c, cols, tile_cols):
                    b.rest(vc, cols, self.c, tile_cols)
                    b.emit("setvl", vr, vc)
                    self.body()
        return b

    def outer(self, pointer: str, k: int) -> None:
        """Set `pointer` to the start of operand k's current [rows, cols]."""
        b = self.b
        b.arg(f"base{k}", pointer)
        for counter, word in ((self.i0, "s0"), (self.i1, "s1")):
            b.advance(pointer, counter, b.arg(f"{word}{k}", self.t), self.t)

    def address(self, k: int) -> tuple[str, str, str]:
        """Return registers with operand k's address in this tile and its strides."""
        b = self.b
        if k in self.hoisted:
            pointer, row_stride, col_stride = self.hoisted[k]
            b.emit("mul", self.t, self.r, row_stride)
            b.emit("add", self.q, pointer, self.t)
            b.advance(self.q, self.c, col_stride, self.t)
            return self.q, row_stride, col_stride
        self.outer(self.q, k)
        b.arg(f"row_stride{k}", self.t)
        b.advance(self.q, self.r, self.t, self.t)
        b.arg(f"col_stride{k}", self.u)
        b.advance(self.q, self.c, self.u, self.u)
        b.emit("ld.i64", self.t, ARGS, 8 * b.words[f"row_stride{k}"])
        b.emit("ld.i64", self.u, ARGS, 8 * b.words[f"col_stride{k}"])
        return self.q, self.t, self.u

    def load(self, register: str, k: int) -> None:
        """Load operand k's tile."""
        self.b.emit(f"vld.{memory_type(self.dtypes[k])}", register, *self.address(k), 0)

    def body(self) -> None:
        """Emit the steps of one tile, and its store."""
        b, steps = self.b, self.lowering.steps
        result = self.lowering.result
        last = last_uses(steps, result.step)
        where: dict[int, str] = {}
        for index, step in enumerate(steps):
            sources = [where[source] for source in step.sources]
            for source in dict.fromkeys(step.sources):
                if last[source] == index:
                    b.free(where.pop(source))
            target = where[index] = b.vreg(f"{self.lowering.expr!r}")
            if step.mnemonic == "load":
                self.load(target, step.operand)
            elif step.scalar is None:
                b.emit(step.mnemonic, target, *sources)
            else:
                scalar = "f1" if step.scalar_float else self.t
                if step.scalar_float:
                    b.emit("fli", scalar, step.scalar)
                else:
                    b.emit("li", scalar, step.scalar)
                b.emit(step.mnemonic, target, *sources, scalar)
            if last[index] == index:
                b.free(where.pop(index))
        register = where[result.step]
        address, row_stride, col_stride = self.address(len(self.dtypes) - 1)
        store(b, register, result.is_float, self.dtypes[-1], address, row_stride, col_stride, "")
        b.free(register)


def _template(b: Builder, operands: Sequence[Operand]) -> ArgsTemplate:
    dims, strides = merge(operands)
    if len(dims) > MAX_DIMS:
        raise Unsupported(f"{b.name}: {len(dims)} dims that do not merge, {[op.dims for op in operands]}")
    order = _tile_order(dims, strides[-1])
    *_, rows, cols = 1, 1, *(dims[i] for i in order)
    cols = min(cols, VECTOR_CAPACITY)
    return block(b, operands, dims, strides, order, (min(rows, VECTOR_CAPACITY // cols), cols))


def block(
    b: Builder,
    operands: Sequence[Operand],
    dims: Sequence[int],
    strides: Sequence[Sequence[int]],
    order: Sequence[int],
    tile: tuple[int, int],
) -> ArgsTemplate:
    """Return the argument block for merged dims and strides, walked in `order` in tiles of (rows, columns)."""
    sizes = [1] * (MAX_DIMS - len(order)) + [dims[i] for i in order]
    values = dict(zip(HEADER, (*sizes, *tile), strict=True))
    addresses = {}
    for k, (operand, steps) in enumerate(zip(operands, strides, strict=True)):
        padded = [0] * (MAX_DIMS - len(order)) + [steps[i] for i in order]
        values |= {f"{word}{k}": value for word, value in zip(OPERAND[1:], padded, strict=True)}
        addresses[f"base{k}"] = operand.address_index
    return b.template(values, addresses)


def merge(operands: Sequence[Operand]) -> tuple[list[int], list[list[int]]]:
    """Return the dims, outermost first by the last operand's strides, and each operand's strides.

    Dims of one element are dropped; neighbours that every operand steps through contiguously become one. Unsupported when the
    operands differ in dims or one is empty.
    """
    dims = operands[0].dims
    for operand in operands:
        if operand.dims != dims or len(operand.strides) != len(dims):
            raise Unsupported(f"operands with dims {[op.dims for op in operands]}")
    if 0 in dims:
        raise Unsupported(f"an operand without elements: {dims}")
    order = sorted((i for i, n in enumerate(dims) if n > 1), key=lambda i: -abs(operands[-1].strides[i]))
    merged: list[int] = []
    strides: list[list[int]] = [[] for _ in operands]
    for i in order:
        if merged and all(s[-1] == op.strides[i] * dims[i] for s, op in zip(strides, operands, strict=True)):
            merged[-1] *= dims[i]
            for s, op in zip(strides, operands, strict=True):
                s[-1] = op.strides[i]
        else:
            merged.append(dims[i])
            for s, op in zip(strides, operands, strict=True):
                s.append(op.strides[i])
    return merged, strides


def _tile_order(dims: list[int], out_strides: list[int]) -> list[int]:
    """Return the dims' order with the tile's rows and columns last: the innermost dim and the largest other one.

    Another pair is taken when its tile is much larger.
    """
    count = len(dims)
    if count < 2:
        return list(range(count))
    pairs = [(i, j) for j in range(count) for i in range(j)]

    def gain(pair: tuple[int, int]) -> tuple[int, int]:
        size = min(dims[pair[0]] * dims[pair[1]], VECTOR_CAPACITY)
        return (size * _MERGE_GAIN if pair[1] == count - 1 else size), pair[0]

    best = max(pairs, key=gain)
    return [i for i in range(count) if i not in best] + list(best)
