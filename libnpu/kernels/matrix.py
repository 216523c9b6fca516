"""Matrix kernels on the DPU: matmul, fully_connected.

output[M, N] = input[M, K] · weights, which are [N, K] (fully_connected, with a bias and an activation) or [K, N] (matmul, for
`batch` matrices). Tiles have all of K. While the DPU works on one, the operands of the next are loaded, into the other of two
buffers each; [K, N] weights are loaded as they are, and transposed to what the DPU reads.
"""

from __future__ import annotations

from npu_abi import C

from libnpu.kernels.assembler import GRID, Expr, Program, Reg, Value, Word, ceil_div, maximum, minimum
from libnpu.kernels.operations import (
    ITEM_BYTES,
    LOAD,
    STORE,
    TRAP_TOO_LARGE,
    Space,
    begin,
    copy_planes,
    dpu_common,
    dpu_fields,
    dpu_run,
    room,
    share,
    transpose,
    wait,
    weight_table,
)

LARGEST_TILE = 512  # rows or columns: beyond, the DPU gains nothing
SMALLEST_SHARE = 16  # to which tiles shrink so that every block has one: a block of the MAC array


def matmul(dtype: str) -> Program:
    """Return the program of output[b] = input[b] · weights[b], row-major."""
    p = Program(["input", "weights", "output", "batch", "m", "k", "n"])
    return _gemm(p, dtype, p["batch"], transposed=False)


def fully_connected(dtype: str) -> Program:
    """Return the program of output = input · weightsᵀ + bias, then the activation (0 none, 1 relu); bias 0 = none."""
    p = Program(["input", "weights", "bias", "output", "m", "k", "n", "activation"])
    return _gemm(p, dtype, 1, transposed=True)


def _gemm(p: Program, dtype: str, batch: Value, *, transposed: bool) -> Program:
    es = ITEM_BYTES[dtype]
    begin(p)
    dpu_common(p, dtype, C.NPU_DPU_MATMUL)
    m, k, n = (p.let(p[name]) for name in "mkn")
    high, wide = _tiles(p, es, batch, m, k, n)
    down, across = p.let(ceil_div(m, high)), p.let(ceil_div(n, wide))
    item, last = share(p, down * across * batch)
    # Two buffers each, in turn: `x_both - x` is the other one.
    x, w, y = p.let(0), p.let(0), p.let(0)
    with p.scope():
        space = Space(p)
        x_both = _pair(p, space, x, high * k * es)
        w_both = _pair(p, space, w, wide * k * es)
        y_both = _pair(p, space, y, high * wide * es)
        table = p.keep(space.end)
    dpu_fields(p, in_y=1, out_y=1, size_y=1, in_z=k, act_stride_x=k * es)
    if transposed:
        dpu_fields(p, ppe_fn=p["activation"], wt_table_addr=table)

    def row_of(number: Expr) -> Expr:
        return number % down * high

    def col_of(number: Expr) -> Expr:
        return number // down % across * wide

    def other_rows() -> Expr:
        """Return 0 when the next item has the same rows: there is one tile of them, and it has the same matrix."""
        return (item + 1) // across - item // across + (down - 1)

    def load_rows(number: Expr, buffer: Expr) -> None:
        with p.scope():
            rows = p.let(minimum(high, m - row_of(number)))
            start = (number // (down * across) * m + row_of(number)) * (k * es)
            _copy_rows(p, 1, LOAD, p["input"] + start, k * es, buffer, k * es, k * es, rows)

    def load_weights(number: Expr, buffer: Expr) -> None:
        with p.scope():
            cols = p.let(minimum(wide, n - col_of(number)))
            if transposed:
                _copy_rows(p, 0, LOAD, p["weights"] + col_of(number) * (k * es), k * es, buffer, k * es, k * es, cols)
            else:
                start = (number // (down * across) * k * n + col_of(number)) * es
                _copy_rows(p, 0, LOAD, p["weights"] + start, n * es, buffer, cols * es, cols * es, k)

    with p.when(item, "<", last):
        load_rows(item, x)
        load_weights(item, w)
    fresh = p.let(1)  # the weights of this item are not those of the one before
    with p.repeat_while(item, "<", last, "item"):
        rows, cols = p.let(minimum(high, m - row_of(item))), p.let(minimum(wide, n - col_of(item)))
        wait(p, LOAD)
        with p.when(fresh, "!=", 0), p.meter.part("weights"):
            if transposed:
                weight_table(p, dtype, table, p["bias"], col_of(item), cols)
            else:
                p.set(w, w_both - w)
                transpose(p, "turn", dtype, w_both - w, w, k, cols)
        following = p.let(item + 1)
        p.set(fresh, following // down - item // down)
        with p.when(following, "<", last):
            with p.when(other_rows(), "!=", 0), p.meter.part("load rows"):
                load_rows(following, x_both - x)
            with p.when(fresh, "!=", 0), p.meter.part("load weights"):
                load_weights(following, w_both - w)
        dpu_fields(p, act_addr=x, wt_addr=w, out_addr=y, in_x=rows, out_x=rows, size_x=rows, out_z=cols, size_z=cols)
        dpu_fields(p, out_stride_x=cols * es, out_stride_y=rows * cols * es, act_stride_y=rows * k * es)
        dpu_run(p)
        wait(p, STORE)
        start = ((item // (down * across) * m + row_of(item)) * n + col_of(item)) * es
        _copy_rows(p, 1, STORE, y, cols * es, p["output"] + start, n * es, cols * es, rows)
        with p.when(other_rows(), "!=", 0):
            p.set(x, x_both - x)
        p.set(y, y_both - y)
        with p.when(fresh, "!=", 0):
            p.set(w, w_both - w)
        p.set(item, following)
    return p


def _tiles(p: Program, es: int, batch: Value, m: Reg, k: Reg, n: Reg) -> tuple[Reg, Reg]:
    """Return rows and columns of a tile: the largest that fit, but small enough that every block has one.

    The larger of the two is halved until it is so (of two equals the columns, if the tile has all rows, which are then loaded
    once, else the rows, which come and go while the weights stay), then both are evened out; `matrix_bytes` of params.py is the least.
    """
    high, wide = p.let(minimum(m, LARGEST_TILE)), p.let(minimum(n, LARGEST_TILE))
    with p.scope():
        _shrink(p, es, batch, m, k, n, high, wide)
    p.set(high, ceil_div(m, ceil_div(m, high)))
    p.set(wide, ceil_div(n, ceil_div(n, wide)))
    return high, wide


def _shrink(p: Program, es: int, batch: Value, m: Reg, k: Reg, n: Reg, high: Reg, wide: Reg) -> None:
    need = p.let(0)
    turn = p.let(1)
    with p.repeat_while(turn, "!=", 0, "halve"):
        p.set(turn, 0)
        p.set(need, ((high + wide) * k + high * wide) * (2 * es) + wide * 16)
        with p.when(room(7), "<", need):
            p.trap_when(maximum(high, wide), "<", 2, TRAP_TOO_LARGE)
            p.set(turn, 1)
        with (
            p.when(ceil_div(m, high) * ceil_div(n, wide) * batch, "<", GRID),
            p.when(SMALLEST_SHARE, "<", maximum(high, wide)),
        ):
            p.set(turn, 1)
        with p.when(turn, "!=", 0):
            p.set(need, high)
            bound = p.let(high)
            with p.when(high, "!=", m):
                p.set(bound, high + 1)
            with p.when(wide, "<", bound):
                p.set(high, ceil_div(high, 2))
            with p.when(need, "==", high):
                p.set(wide, ceil_div(wide, 2))


def _pair(p: Program, space: Space, one: Reg, size_bytes: Value) -> Word:
    """Set `one` to the address of one of two buffers; return the sum of both addresses."""
    size = p.let(size_bytes)
    p.set(one, space.take(size))
    return p.keep(one + space.take(size))


def _copy_rows(
    p: Program,
    port: int,
    tag: int,
    src: Value,
    src_stride: Value,
    dst: Value,
    dst_stride: Value,
    width: Value,
    rows: Value,
) -> None:
    """Start a DMA of `rows` rows of `width` bytes."""
    with p.scope():
        size = p.let(width)
        copy_planes(
            p, port, tag, src=src, dst=dst, length=size * rows, num_planes=1,
            src_width=size, src_stride=src_stride, dst_width=size, dst_stride=dst_stride,
        )  # fmt: skip
