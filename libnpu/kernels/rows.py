"""Kernels over `rows` contiguous rows of `cols` elements: softmax, layernorm, reduce_sum.

Rows that fit in a vector register come several at a time through the pipeline of `streams`. Longer rows are read in pieces,
once for each pass over a row that the kernel needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from libnpu.kernels.assembler import ARGS, CMX, Const, Expr, Program, Reg, Value, minimum
from libnpu.kernels.operations import CAPACITY, HEADER_BYTES, ITEM_BYTES, LOAD, STORE, begin, copy, room, share, wait
from libnpu.kernels.streams import Stream, run

PIECE_BUFFERS = 4  # of a long row: input, output and two more operands
_LOWEST = "-3.4028234663852886e+38"  # a maximum to begin with that leaves exp(-inf - maximum) 0


class RowKernel(Protocol):
    """What a kernel does with rows. `cols` and `rows` are registers, buffers are in CMX."""

    def setup(self, cols: Reg) -> None:
        """Load what all rows share, when rows fit in a register."""

    def tile(self, source: Reg, target: Reg, rows: Reg, cols: Reg) -> None:
        """Compute several rows at once."""

    def long_row(self, pieces: Pieces, row: Reg) -> None:
        """Compute one row in pieces."""


class Pieces:
    """A long row in pieces of at most `size` elements, and the buffers for them."""

    def __init__(self, p: Program, dtype: str, cols: Reg) -> None:
        self.p, self.dtype, self.cols = p, dtype, cols
        self.item_bytes = ITEM_BYTES[dtype]
        self.size = p.let(minimum(room(PIECE_BUFFERS) // (64 * PIECE_BUFFERS) * 64 // self.item_bytes, CAPACITY))
        self.start = p.let(Const(0))
        self.count = p.let(Const(0))

    def buffer(self, number: int) -> Expr:
        """Return the address of buffer `number`."""
        return self.size * (number * self.item_bytes) + (CMX + HEADER_BYTES)

    @contextmanager
    def each(self) -> Iterator[None]:
        """Run the body with `start`, `count` and the vector length of each piece of a row."""
        p = self.p
        with p.loop(0, self.cols, self.size, "piece") as at:
            p.set(self.start, at)
            p.set(self.count, minimum(self.size, self.cols - at))
            p.length(1, self.count)
            yield

    def read(self, vector: str, operand: Expr, number: int) -> None:
        """Load the piece of the row that begins at DDR address `operand`, through buffer `number`."""
        at = operand + self.start * self.item_bytes
        copy(self.p, at, self.buffer(number), self.count * self.item_bytes, 0, LOAD)
        wait(self.p, LOAD)
        self.p.load(vector, self.dtype, self.buffer(number), 0, self.item_bytes)

    def add(self, vector: str, operand: Expr) -> None:
        """Load the piece of the row that begins at DDR address `operand` into v0, and add its sum to `vector`. Uses v1."""
        self.read("v0", operand, 0)
        self.p.emit("vrsum.f32.col", "v1", "v0")
        self.p.emit("vadd.f32", vector, vector, "v1")

    def write(self, vector: str, operand: Expr) -> None:
        """Store the piece, through buffer 1, when the store before has ended."""
        wait(self.p, STORE)
        self.p.store(vector, self.dtype, self.buffer(1), 0, self.item_bytes)
        at = operand + self.start * self.item_bytes
        copy(self.p, self.buffer(1), at, self.count * self.item_bytes, 1, STORE)


def rows_program(p: Program, dtype: str, kernel: RowKernel, out_bytes: Value | None) -> Program:
    """Emit `kernel` for all rows of this block. `out_bytes` are those of a row's result, a whole row's when None."""
    es = ITEM_BYTES[dtype]
    begin(p)
    cols = p.let(p["cols"])
    row_bytes = p.let(cols * es)
    first, last = share(p, p["rows"])
    out = row_bytes if out_bytes is None else out_bytes
    limit = p.let(minimum(CAPACITY // cols, room(4) // (row_bytes * 4)))
    with p.when(0, "<", limit), p.scope():
        kernel.setup(cols)

        def compute(ins: Sequence[Reg], outs: Sequence[Reg], count: Reg) -> None:
            p.length(count, cols)
            kernel.tile(ins[0], outs[0], count, cols)

        run(p, first, last, limit, 1, [Stream(p["input"], row_bytes)], [Stream(p["output"], out)], compute)
    with p.when(limit, "==", 0), p.scope():
        pieces = Pieces(p, dtype, cols)
        with p.loop(first, last, part="row") as row:
            kernel.long_row(pieces, row)
    return p


class _Softmax:
    """exp(x - maximum) / sum of exp(x - maximum)."""

    def __init__(self, p: Program, dtype: str) -> None:
        self.p, self.dtype = p, dtype

    def setup(self, cols: Reg) -> None:
        """Nothing."""

    def tile(self, source: Reg, target: Reg, rows: Reg, cols: Reg) -> None:
        """One pass: the rows are in a register."""
        p, es = self.p, ITEM_BYTES[self.dtype]
        p.load("v0", self.dtype, source, cols * es, es)
        p.emit("vrmax.f32.col", "v1", "v0")
        p.emit("vsub.f32", "v0", "v0", "v1")
        p.emit("vexp.f32", "v0", "v0")
        p.emit("vrsum.f32.col", "v1", "v0")
        p.emit("vrcp.f32", "v1", "v1")
        p.emit("vmul.f32", "v0", "v0", "v1")
        p.store("v0", self.dtype, target, cols * es, es)

    def long_row(self, pieces: Pieces, row: Reg) -> None:
        """Two passes: v8 is the maximum so far and v9 the sum so far, rescaled when the maximum grows; then the results."""
        p = self.p
        with p.scope():
            source, target = (p.let(p[name] + row * pieces.cols * pieces.item_bytes) for name in ("input", "output"))
            p.emit("fli", "f2", _LOWEST)
            p.emit("vsplat.f32.s", "v8", "f2")
            p.emit("vsplat.f32.s", "v9", "f0")
            with pieces.each():
                pieces.read("v0", source, 0)
                p.emit("vrmax.f32.col", "v1", "v0")
                p.emit("vmax.f32", "v1", "v1", "v8")
                p.emit("vsub.f32", "v2", "v8", "v1")
                p.emit("vexp.f32", "v2", "v2")
                p.emit("vmul.f32", "v9", "v9", "v2")
                p.emit("vmov", "v8", "v1")
                p.emit("vsub.f32", "v0", "v0", "v8")
                p.emit("vexp.f32", "v0", "v0")
                p.emit("vrsum.f32.col", "v1", "v0")
                p.emit("vadd.f32", "v9", "v9", "v1")
            p.emit("vrcp.f32", "v9", "v9")
            with pieces.each():
                pieces.read("v0", source, 0)
                p.emit("vsub.f32", "v0", "v0", "v8")
                p.emit("vexp.f32", "v0", "v0")
                p.emit("vmul.f32", "v0", "v0", "v9")
                pieces.write("v0", target)


class _LayerNorm:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta; gamma and beta of `cols` elements, address 0 = none.

    f1 is 1 / cols, f2 epsilon; v10 and v11 are gamma and beta.
    """

    def __init__(self, p: Program, dtype: str) -> None:
        self.p, self.dtype = p, dtype

    def _constants(self, cols: Reg) -> None:
        self.p.emit("itof", "f1", cols)
        self.p.emit("fli", "f3", "1.0")
        self.p.emit("fdiv", "f1", "f3", "f1")
        self.p.emit("fld.f32", "f2", ARGS, self.p["epsilon"].offset)

    def _defaults(self) -> None:
        self.p.emit("vsplat.f32.s", "v10", "f3")
        self.p.emit("vsplat.f32.s", "v11", "f0")

    def setup(self, cols: Reg) -> None:
        """Load gamma and beta, once for all rows."""
        p = self.p
        self._constants(cols)
        self._defaults()
        p.length(1, cols)
        for vector, name in (("v10", "gamma"), ("v11", "beta")):
            with p.when(p[name], "!=", 0):
                p.load(vector, self.dtype, p[name], 0, ITEM_BYTES[self.dtype])

    def _mean(self, lowest: str, highest: str) -> None:
        """v8 = v8 / cols, but within [lowest, highest]: rounding does not carry the mean of equal elements away from them."""
        for line in ("vmul.f32.s v8, v8, f1", f"vmax.f32 v8, v8, {lowest}", f"vmin.f32 v8, v8, {highest}"):
            self.p.emit(line)

    def _scale(self) -> None:
        """v9 = 1 / sqrt(v9 / cols + epsilon)."""
        for line in ("vmul.f32.s v9, v9, f1", "vadd.f32.s v9, v9, f2", "vrsqrt.f32 v9, v9"):
            self.p.emit(line)

    def tile(self, source: Reg, target: Reg, rows: Reg, cols: Reg) -> None:
        """The variance from the differences, all in registers."""
        p, es = self.p, ITEM_BYTES[self.dtype]
        p.load("v0", self.dtype, source, cols * es, es)
        p.emit("vrsum.f32.col", "v8", "v0")
        p.emit("vrmin.f32.col", "v9", "v0")
        p.emit("vrmax.f32.col", "v1", "v0")
        self._mean("v9", "v1")
        p.emit("vsub.f32", "v0", "v0", "v8")
        p.emit("vmul.f32", "v1", "v0", "v0")
        p.emit("vrsum.f32.col", "v9", "v1")
        self._scale()
        p.emit("vmul.f32", "v0", "v0", "v9")
        p.emit("vfma.f32", "v0", "v0", "v10", "v11")
        p.store("v0", self.dtype, target, cols * es, es)

    def long_row(self, pieces: Pieces, row: Reg) -> None:
        """Three passes: mean, variance, results."""
        p = self.p
        self._constants(pieces.cols)
        with p.scope():
            source, target = (p.let(p[name] + row * pieces.cols * pieces.item_bytes) for name in ("input", "output"))
            p.emit("vsplat.f32.s", "v8", "f0")
            p.emit("vsplat.f32.s", "v9", "f0")
            for vector, value in (
                ("v10", "inf"),
                ("v11", "-inf"),
            ):  # of the row: the lowest and the highest element so far
                p.emit("fli", "f4", value)
                p.emit("vsplat.f32.s", vector, "f4")
            with pieces.each():
                pieces.add("v8", source)
                for kind, vector in (("min", "v10"), ("max", "v11")):
                    p.emit(f"vr{kind}.f32.col", "v1", "v0")
                    p.emit(f"v{kind}.f32", vector, vector, "v1")
            self._mean("v10", "v11")
            with pieces.each():
                pieces.read("v0", source, 0)
                p.emit("vsub.f32", "v0", "v0", "v8")
                p.emit("vmul.f32", "v0", "v0", "v0")
                p.emit("vrsum.f32.col", "v1", "v0")
                p.emit("vadd.f32", "v9", "v9", "v1")
            self._scale()
            with pieces.each():
                self._defaults()
                for number, (vector, name) in enumerate((("v10", "gamma"), ("v11", "beta")), 2):
                    with p.when(p[name], "!=", 0):
                        pieces.read(vector, p[name], number)
                pieces.read("v0", source, 0)
                p.emit("vsub.f32", "v0", "v0", "v8")
                p.emit("vmul.f32", "v0", "v0", "v9")
                p.emit("vfma.f32", "v0", "v0", "v10", "v11")
                pieces.write("v0", target)


class _ReduceSum:
    """The sum of each row."""

    def __init__(self, p: Program, dtype: str) -> None:
        self.p, self.dtype = p, dtype

    def setup(self, cols: Reg) -> None:
        """Nothing."""

    def tile(self, source: Reg, target: Reg, rows: Reg, cols: Reg) -> None:
        """One sum per row."""
        p, es = self.p, ITEM_BYTES[self.dtype]
        p.load("v0", self.dtype, source, cols * es, es)
        p.emit("vrsum.f32.col", "v0", "v0")
        p.store("v0", self.dtype, target, es, 0, ".col")

    def long_row(self, pieces: Pieces, row: Reg) -> None:
        """Add the sums of the pieces."""
        p, es = self.p, pieces.item_bytes
        with p.scope():
            source = p.let(p["input"] + row * pieces.cols * es)
            p.emit("vsplat.f32.s", "v8", "f0")
            with pieces.each():
                pieces.add("v8", source)
            p.set(pieces.start, row)
            p.set(pieces.count, 1)
            p.length(1, 1)
            pieces.write("v8", p["output"])


def softmax(dtype: str) -> Program:
    """Return the program of softmax along each row."""
    p = Program(["input", "output", "rows", "cols"])
    return rows_program(p, dtype, _Softmax(p, dtype), None)


def layernorm(dtype: str) -> Program:
    """Return the program of layer normalisation along each row."""
    p = Program(["input", "gamma", "beta", "output", "rows", "cols", "epsilon"])
    return rows_program(p, dtype, _LayerNorm(p, dtype), None)


def reduce_sum(dtype: str) -> Program:
    """Return the program of the sum of each row."""
    p = Program(["input", "output", "rows", "cols"])
    return rows_program(p, dtype, _ReduceSum(p, dtype), ITEM_BYTES[dtype])
