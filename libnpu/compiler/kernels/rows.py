"""Reductions, softmax and arg-max along one axis of [outer, n, inner] operands.

Both code paths of `layout` are the same loops: over one free dim index by index, over the other in chunks, then along n.
A path names the register kind of a partial result: "col" [R, 1] when columns are reduced, "row" [1, C] when rows are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from npu_model import dtypes
from npu_model.shave_isa import VECTOR_CAPACITY

from libnpu.compiler.kernels import layout
from libnpu.compiler.kernels.builder import ZERO, Builder, is_float, store
from libnpu.compiler.kernels.program import ArgsTemplate, Operand, Program
from libnpu.errors import Unsupported

CHUNK_N = (
    1024  # elements along the axis that are summed at once; fixed, so that results do not depend on the other dims
)
_OUT = ("out_base", "out_outer", "out_n", "out_inner")
_STEP = {"sum": "vadd", "mean": "vadd", "max": "vmax", "min": "vmin", "prod": "vmul"}
_REDUCE = {"sum": "vrsum", "mean": "vrsum", "max": "vrmax", "min": "vrmin", "prod": "vrprod"}


class _Walk:
    """Registers of the loops around a tile, and the emission of both paths."""

    def __init__(self, name: str) -> None:
        self.b = Builder(name, [*layout.HEADER, *layout.IN, *_OUT])

    def emit(self, body: Callable[[_Path], None]) -> None:
        """Emit the two paths, `body` inside the loops of each."""
        b = self.b
        mode, outer, self.n, inner, self.chunk_n, self.chunk_free = b.args(*layout.HEADER)
        self.source, in_outer, self.in_n, in_inner = b.args(*layout.IN)
        self.target, out_outer, self.out_n, out_inner = b.args(*_OUT)
        rows_path, end = b.new_label(), b.new_label()
        b.emit("bne", mode, ZERO, rows_path)
        self._path(_Path(self, "col", inner, outer, (in_inner, out_inner), (in_outer, out_outer)), body)
        b.emit("jmp", end)
        b.label(rows_path)
        self._path(_Path(self, "row", outer, inner, (in_outer, out_outer), (in_inner, out_inner)), body)
        b.label(end)

    def _path(self, path: _Path, body: Callable[[_Path], None]) -> None:
        b = self.b
        single, free, t = b.reg(), b.reg(), b.reg()
        path.length, path.source, path.target = b.reg(), b.reg(), b.reg()
        with b.loop(single, path.single), b.loop(free, path.free, self.chunk_free):
            b.rest(path.length, path.free, free, self.chunk_free)
            for address, base, index in ((path.source, self.source, 0), (path.target, self.target, 1)):
                b.emit("mov", address, base)
                b.advance(address, single, path.single_strides[index], t)
                b.advance(address, free, path.free_strides[index], t)
            body(path)
        b.free(single, free, t, path.length, path.source, path.target)


class _Path:
    """One code path: `kind` of partial results, sizes and strides of its free dims, addresses of the current chunk."""

    length: str
    source: str
    target: str

    def __init__(
        self,
        walk: _Walk,
        kind: str,
        single: str,
        free: str,
        single_strides: tuple[str, str],
        free_strides: tuple[str, str],
    ) -> None:
        self.walk = walk
        self.kind = kind
        self.single, self.free = single, free
        self.single_strides, self.free_strides = single_strides, free_strides

    def setvl(self, along_n: str) -> None:
        """Set the vector length to the tile that is `along_n` elements long on the axis."""
        self.walk.b.emit("setvl", *self._order(self.length, along_n))

    def _order(self, free: str, along_n: str) -> tuple[str, str]:
        return (free, along_n) if self.kind == "col" else (along_n, free)

    @contextmanager
    def chunks(self) -> Iterator[tuple[str, str, str]]:
        """Run the body for each chunk along n, the vector length set to it: (position, input address, output address)."""
        walk, b = self.walk, self.walk.b
        position, size, source, target, t = (b.reg() for _ in range(5))
        with b.loop(position, walk.n, walk.chunk_n):
            b.rest(size, walk.n, position, walk.chunk_n)
            self.setvl(size)
            for address, start, stride in ((source, self.source, walk.in_n), (target, self.target, walk.out_n)):
                b.emit("mov", address, start)
                b.advance(address, position, stride, t)
            yield position, source, target
        b.free(position, size, source, target, t)

    def load(self, register: str, dtype: int, address: str) -> None:
        """Load the tile at `address`."""
        strides = self._order(self.free_strides[0], self.walk.in_n)
        self.walk.b.emit(f"vld.{dtypes.name(dtype)}", register, address, *strides, 0)

    def store_tile(self, register: str, in_float: bool, dtype: int, address: str) -> None:
        """Store a tile."""
        store(self.walk.b, register, in_float, dtype, address, *self._order(self.free_strides[1], self.walk.out_n), "")

    def store_partial(self, register: str, in_float: bool, dtype: int, address: str) -> None:
        """Store one result per free element."""
        strides = self._order(self.free_strides[1], ZERO)
        store(self.walk.b, register, in_float, dtype, address, *strides, f".{self.kind}")


@lru_cache(maxsize=256)
def reduce(kind: str, in_dtype: int, out_dtype: int) -> Program:
    """Return the reduction sum|mean|max|min|prod; operands (in [outer, n, inner], out [outer, inner]).

    Chunks of 1024 elements along n are reduced at once (sum and product in float64, rounded to fp32), their results are
    combined in fp32 in order. mean divides at the end. Integers wrap; their mean truncates.
    """
    if kind not in _REDUCE:
        raise Unsupported(f"reduction {kind!r}")
    floats = is_float(in_dtype)
    is_float(out_dtype)
    suffix = "f32" if floats else "i32"
    walk = _Walk(f"reduce {kind} {dtypes.name(in_dtype)} to {dtypes.name(out_dtype)}")
    b = walk.b
    tile, partial, total = b.vreg(), b.vreg(), b.vreg()

    def body(path: _Path) -> None:
        with path.chunks() as (position, source, _):
            path.load(tile, in_dtype, source)
            b.emit(f"{_REDUCE[kind]}.{suffix}.{path.kind}", partial, tile)
            _combine(b, position, total, partial, lambda: b.emit(f"{_STEP[kind]}.{suffix}", total, total, partial))
        if kind == "mean":
            b.emit("itof", "f1", walk.n)
            b.emit(f"vdiv.{suffix}.s", total, total, "f1" if floats else walk.n)
        path.store_partial(total, floats, out_dtype, path.target)

    walk.emit(body)

    def pack(operands: Sequence[Operand]) -> ArgsTemplate:
        sizes = layout.axes(b.name, operands, (in_dtype, out_dtype), 2)
        return _template(b, operands, layout.header(sizes, min(sizes.n, CHUNK_N)))

    return b.program(pack)


def _combine(b: Builder, position: str, total: str, partial: str, combine: Callable[[], None]) -> None:
    """Set `total` to the first chunk's `partial`; emit `combine` for the others."""
    others, done = b.new_label(), b.new_label()
    b.emit("bne", position, ZERO, others)
    b.emit("vmov", total, partial)
    b.emit("jmp", done)
    b.label(others)
    combine()
    b.label(done)


@lru_cache(maxsize=64)
def softmax(in_dtype: int, out_dtype: int, log: bool = False) -> Program:
    """Return the softmax or log-softmax along n; operands (in, out), both [outer, n, inner].

    x - max, exp, sum in float64 rounded to fp32, division. A row longer than a vector register is read three times, in chunks
    whose sums are added in fp32.
    """
    if not (is_float(in_dtype) and is_float(out_dtype)):
        raise Unsupported("softmax of integers")
    walk = _Walk(f"{'log_' if log else ''}softmax {dtypes.name(in_dtype)} to {dtypes.name(out_dtype)}")
    b = walk.b
    x, e, partial, largest, total = (b.vreg() for _ in range(5))

    def finish(path: _Path, target: str) -> None:
        if log:
            b.emit("vsub.f32", x, x, partial)
        else:
            b.emit("vdiv.f32", x, e, total)
        path.store_tile(x, True, out_dtype, target)

    def one_chunk(path: _Path) -> None:
        path.setvl(walk.n)
        path.load(x, in_dtype, path.source)
        b.emit(f"vrmax.f32.{path.kind}", largest, x)
        b.emit("vsub.f32", x, x, largest)
        b.emit("vexp.f32", e, x)
        b.emit(f"vrsum.f32.{path.kind}", total, e)
        if log:
            b.emit("vlog.f32", partial, total)
        finish(path, path.target)

    def many_chunks(path: _Path) -> None:
        with path.chunks() as (position, source, _):
            path.load(x, in_dtype, source)
            b.emit(f"vrmax.f32.{path.kind}", partial, x)
            _combine(b, position, largest, partial, lambda: b.emit("vmax.f32", largest, largest, partial))
        with path.chunks() as (position, source, _):
            path.load(x, in_dtype, source)
            b.emit("vsub.f32", x, x, largest)
            b.emit("vexp.f32", e, x)
            b.emit(f"vrsum.f32.{path.kind}", partial, e)
            _combine(b, position, total, partial, lambda: b.emit("vadd.f32", total, total, partial))
        if log:
            b.emit("vlog.f32", partial, total)
        with path.chunks() as (_, source, target):
            path.load(x, in_dtype, source)
            b.emit("vsub.f32", x, x, largest)
            if not log:
                b.emit("vexp.f32", e, x)
            finish(path, target)

    def body(path: _Path) -> None:
        wide, done = b.new_label(), b.new_label()
        b.emit("bne", walk.n, walk.chunk_n, wide)
        one_chunk(path)
        b.emit("jmp", done)
        b.label(wide)
        many_chunks(path)
        b.label(done)

    walk.emit(body)

    def pack(operands: Sequence[Operand]) -> ArgsTemplate:
        sizes = layout.axes(b.name, operands, (in_dtype, out_dtype), 3)
        return _template(b, operands, layout.header(sizes, min(sizes.n, VECTOR_CAPACITY)))

    return b.program(pack)


@lru_cache(maxsize=64)
def argmax(in_dtype: int, out_dtype: int) -> Program:
    """Return the index of the first maximum along n; operands (in [outer, n, inner], out [outer, inner] of an integer type).

    NaN counts as the largest.
    """
    if is_float(out_dtype):
        raise Unsupported("argmax with a float output")
    floats = is_float(in_dtype)
    suffix = "f32" if floats else "i32"
    walk = _Walk(f"argmax {dtypes.name(in_dtype)} to {dtypes.name(out_dtype)}")
    b = walk.b
    x, value, index, best, best_index, better, other = (b.vreg() for _ in range(7))

    def keep_the_larger() -> None:
        b.emit(f"vgt.{suffix}", better, value, best)
        if floats:  # a NaN beats every number
            b.emit("vne.f32", x, value, value)
            b.emit("veq.f32", other, best, best)
            b.emit("vand.i32", x, x, other)
            b.emit("vor.i32", better, better, x)
        b.emit("vsel", best, better, value, best)
        b.emit("vsel", best_index, better, index, best_index)

    def body(path: _Path) -> None:
        with path.chunks() as (position, source, _):
            path.load(x, in_dtype, source)
            b.emit(f"vrmax.{suffix}.{path.kind}", value, x)
            b.emit(f"vargmax.{suffix}.{path.kind}", index, x)
            b.emit("vadd.i32.s", index, index, position)
            first, done = b.new_label(), b.new_label()
            b.emit("beq", position, ZERO, first)
            keep_the_larger()
            b.emit("jmp", done)
            b.label(first)
            b.emit("vmov", best, value)
            b.emit("vmov", best_index, index)
            b.label(done)
        path.store_partial(best_index, False, out_dtype, path.target)

    walk.emit(body)

    def pack(operands: Sequence[Operand]) -> ArgsTemplate:
        sizes = layout.axes(b.name, operands, (in_dtype, out_dtype), 2)
        return _template(b, operands, layout.header(sizes, min(sizes.n, VECTOR_CAPACITY)))

    return b.program(pack)


def _template(b: Builder, operands: Sequence[Operand], values: dict[str, int]) -> ArgsTemplate:
    source, target = operands
    strides = target.strides if len(target.strides) == 3 else (target.strides[0], 0, target.strides[1])
    values |= dict(zip(layout.IN[1:], source.strides, strict=True)) | dict(zip(_OUT[1:], strides, strict=True))
    return b.template(values, {"in_base": source.address_index, "out_base": target.address_index})
