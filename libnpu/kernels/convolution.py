"""conv2d on the DPU, for dense NCHW operands and [K][C / groups][kernel_h][kernel_w] weights, of any size.

The DPU wants channels innermost. A tile of input rows comes into CMX as [C][pixels], is transposed to [pixels][C], and
what the DPU writes, [pixels][k], is transposed to [k][pixels] on its way out; weights are turned when they have come.
A tile has all input channels of its group, `wide` output channels, `high` output rows and `broad` output columns. While the DPU works, the
next tile's input is loaded and the last tile's output stored.
"""

from __future__ import annotations

from npu_abi import C

from libnpu.kernels.assembler import GRID, Expr, Program, Reg, Word, ceil_div, maximum, minimum
from libnpu.kernels.operations import (
    CAPACITY,
    ITEM_BYTES,
    LOAD,
    STORE,
    TRAP_TOO_LARGE,
    Space,
    begin,
    copy,
    copy_planes,
    dpu_common,
    dpu_fields,
    dpu_run,
    room,
    share,
    transpose,
    wait,
    weight_table,
    window_outputs,
)

LARGEST_WIDTH = 256  # output channels of a tile
SMALLEST_SHARE = 16  # output channels, when blocks share the weights: a block of the MAC array
_WEIGHTS = 2  # tag
_NAMES = (
    "input", "weights", "bias", "output", "n", "c", "h", "w", "k", "kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h",
    "pad_w", "groups", "activation",
)  # fmt: skip


def conv2d(dtype: str) -> Program:
    """Return the program of a convolution; bias 0 = none; activation 0 none, 1 relu."""
    p = Program(_NAMES)
    es = ITEM_BYTES[dtype]
    begin(p)
    dpu_common(p, dtype, C.NPU_DPU_CONV)
    h, w, stride = (p.let(p[name]) for name in ("h", "w", "stride_h"))
    kernel = p.keep(p["kernel_h"])
    c, k = p.let(p["c"] // p["groups"]), p.keep(p["k"] // p["groups"])  # of a group
    out_h, out_w = window_outputs(p, h, w, kernel, stride)
    taps = p.keep(kernel * p["kernel_w"])
    high, wide, broad = _tiles(p, es, c, k, taps, out_h, out_w, h, w, stride, kernel)
    raw, act = p.let(0), p.let(0)
    with p.scope():
        space = Space(p)
        image = p.let(
            minimum((high - 1) * stride + kernel, h) * minimum((broad - 1) * p["stride_w"] + p["kernel_w"], w) * c * es
        )
        result = p.let(high * broad * wide * es)
        p.set(raw, space.take(image))
        p.set(act, space.take(image))
        out, turned, table = (p.keep(space.take(size)) for size in (result, result, wide * 16))
        weights = p.keep(space.end)
    dpu_fields(
        p, in_z=c, kernel_x=p["kernel_w"], kernel_y=kernel, stride_x=p["stride_w"], stride_y=stride, act_addr=act, wt_addr=weights,
        wt_table_addr=table, out_addr=out, act_stride_x=c * es, ppe_fn=p["activation"],
    )  # fmt: skip
    down, over, across = p.let(ceil_div(out_h, high)), p.keep(ceil_div(out_w, broad)), p.keep(ceil_div(k, wide))
    # Items in this order: group, output channels, image, columns, rows; the last changes with every item.
    item, last = share(p, down * over * across * p["n"] * p["groups"])

    def first_row(number: Reg) -> Expr:
        """Return the first input row of a tile, before the padding is cut off."""
        return number % down * high * stride - p["pad_h"]

    def height(number: Reg) -> Expr:
        """Return the output rows of a tile."""
        return minimum(high, out_h - number % down * high)

    def first_col(number: Reg) -> Expr:
        """Return the first input column, as first_row."""
        return number // down % over * broad * p["stride_w"] - p["pad_w"]

    def width(number: Reg) -> Expr:
        """Return the output columns of a tile."""
        return minimum(broad, out_w - number // down % over * broad)

    def load(number: Reg) -> None:
        """Start the load of a tile's inputs."""
        with p.scope():
            left = p.let(first_col(number))
            row = p.let(minimum(w, (width(number) - 1) * p["stride_w"] + p["kernel_w"] + left))
            p.set(left, maximum(left, 0))
            p.set(row, (row - left) * es)
            start = p.let(first_row(number))
            size = p.let(minimum(h, (height(number) - 1) * stride + kernel + start))
            p.set(start, maximum(start, 0))
            p.set(size, (size - start) * row)
            channel = p.let(number // down // over)
            p.set(channel, (channel % p["n"] * p["groups"] + channel // p["n"] // across) * c)
            copy_planes(
                p, LOAD, LOAD, src=((channel * h + start) * w + left) * es + p["input"], dst=raw, length=size, num_planes=c,
                src_plane_stride=h * w * es, dst_plane_stride=size, src_width=row, src_stride=w * es, dst_width=size,
            )  # fmt: skip

    with p.when(item, "<", last):
        load(item)
    loaded = p.keep(-1)  # group and output channels of the weights that are here
    first, cols = p.keep(0), p.let(0)  # output channels of the item
    span = p.keep(0)  # and its output columns
    with p.repeat_while(item, "<", last, "item"):
        with p.scope():
            wanted = p.let(item // down // over // p["n"])
            with p.when(wanted, "!=", loaded), p.meter.part("weights"):
                p.rekeep(loaded, wanted)
                channel = p.let(wanted % across * wide)
                p.set(cols, minimum(wide, k - channel))
                p.rekeep(first, wanted // across * k + channel)
                _load_weights(p, dtype, weights, first, cols, c, taps)
                weight_table(p, dtype, table, p["bias"], first, cols)
                dpu_fields(p, out_z=cols, size_z=cols, out_stride_x=cols * es)
        rows = p.let(height(item))
        p.rekeep(span, width(item))
        dpu_fields(p, out_x=span, size_x=span, out_stride_y=span * cols * es)
        with p.scope():
            pixels = p.let((rows - 1) * stride + kernel + first_row(item))
            with p.scope():
                start = p.let(first_row(item))
                dpu_fields(p, pad_top=maximum(0 - start, 0), pad_bottom=maximum(pixels - h, 0))
                p.set(pixels, minimum(pixels, h) - maximum(start, 0))
            dpu_fields(p, in_y=pixels, out_y=rows, size_y=rows)
            with p.scope():
                left = p.let(first_col(item))
                row = p.let((span - 1) * p["stride_w"] + p["kernel_w"] + left)
                dpu_fields(p, pad_left=maximum(0 - left, 0), pad_right=maximum(row - w, 0))
                p.set(row, minimum(row, w) - maximum(left, 0))
                dpu_fields(p, in_x=row, act_stride_y=row * c * es)
                p.set(pixels, pixels * row)
            wait(p, LOAD)
            transpose(p, "in", dtype, raw, act, c, pixels)
        with p.scope():
            following = p.let(item + 1)
            with p.when(following, "<", last):
                load(following)
        dpu_run(p)
        wait(p, STORE)
        with p.scope():
            pixels = p.let(rows * span)
            transpose(p, "out", dtype, out, turned, pixels, cols)
            place = p.let(item // down // over % p["n"] * p["k"] + first)
            p.set(place, (place * out_h + item % down * high) * out_w + item // down % over * broad)
            p.set(pixels, pixels * es)
            copy_planes(
                p, STORE, STORE, src=turned, dst=place * es + p["output"], length=pixels, num_planes=cols, src_plane_stride=pixels,
                dst_plane_stride=out_h * out_w * es, src_width=pixels, dst_width=span * es, dst_stride=out_w * es,
            )  # fmt: skip
        p.set(item, item + 1)
    return p


def _load_weights(p: Program, dtype: str, target: Word, first: Word, cols: Reg, c: Reg, taps: Word) -> None:
    """Load [cols][c][taps] weights as [cols][taps][c]: turned in place when a channel fits in a register, else by the DMA.

    With one tap or one input channel there is nothing to turn.
    """
    es = ITEM_BYTES[dtype]
    with p.scope():
        size = p.let(taps * c)  # elements of an output channel
        source = p["weights"] + first * size * es
        with p.when(size, "<", CAPACITY + 1):
            copy(p, source, target, cols * size * es, STORE, _WEIGHTS)
            wait(p, _WEIGHTS)
            with p.when(taps, "!=", 1), p.when(c, "!=", 1), p.scope():
                place, window = p.let(target), p.let(taps)
                with p.loop(0, cols, part="turn"):
                    p.length(c, window)
                    p.load("v0", dtype, place, window * es, es)
                    p.emit("vtrans", "v0", "v0")
                    p.length(window, c)
                    p.store("v0", dtype, place, c * es, es)
                    p.set(place, size * es + place)
        with p.when(CAPACITY, "<", size):
            copy_planes(
                p, STORE, _WEIGHTS, src=source, dst=target, length=cols * c * es, num_planes=taps, src_plane_stride=es,
                dst_plane_stride=c * es, src_width=es, src_stride=taps * es, dst_width=c * es, dst_stride=size * es,
            )  # fmt: skip
            wait(p, _WEIGHTS)


def _tiles(
    p: Program,
    es: int,
    c: Reg,
    k: Word,
    taps: Word,
    out_h: Reg,
    out_w: Reg,
    h: Reg,
    w: Reg,
    stride: Reg,
    kernel: Word,
) -> tuple[Reg, Reg, Word]:
    """Return output rows, output channels and output columns of a tile.

    It begins with LARGEST_WIDTH channels and all columns; the larger of the two is halved until weights and one row fit. Then as many
    rows as fit, but few enough that every block has some; all evened out over the tiles.
    """
    high, wide, broad = p.let(0), p.let(minimum(k, LARGEST_WIDTH)), p.keep(out_w)
    with p.when(p["n"] * h * w, "<", k * taps):  # more weights than inputs: blocks share the weights
        p.set(wide, minimum(wide, maximum(ceil_div(k * p["groups"], GRID), SMALLEST_SHARE)))
    with p.scope():
        span = p.let(out_w)
        fresh = p.let(1)  # nothing has been halved
        with p.repeat_while(high, "<", 1, "halve"):
            with p.when(fresh, "==", 0):
                p.trap_when(maximum(wide, span), "<", 2, TRAP_TOO_LARGE)
                p.set(fresh, span)
                with p.when(wide, "<", span):
                    p.set(span, ceil_div(span, 2))
                with p.when(fresh, "==", span):
                    p.set(wide, ceil_div(wide, 2))
            p.set(fresh, 0)
            row = p.let(minimum((span - 1) * p["stride_w"] + p["kernel_w"], w) * c * (2 * es))  # raw and turned
            left = p.let(room(6) - wide * (taps * c * es + 16) - (kernel - stride) * row)
            p.set(high, maximum(left, 0) // (stride * row + span * wide * (2 * es)))
        p.set(wide, ceil_div(k, ceil_div(k, wide)))
        p.set(span, ceil_div(out_w, ceil_div(out_w, span)))
        p.rekeep(broad, span)
        columns = p.let(p["n"] * p["groups"] * ceil_div(k, wide) * ceil_div(out_w, span))  # of tiles
        p.set(high, ceil_div(out_h, minimum(high, out_h)))
        # As many tiles for each block, as far as whole rows allow.
        p.set(high, maximum(high, ceil_div(columns * high, GRID) * GRID // columns))
        p.set(high, ceil_div(out_h, minimum(high, out_h)))
    return high, wide, broad
