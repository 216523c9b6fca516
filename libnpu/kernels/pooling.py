"""pool2d: the largest or the average input under a window, for dense NCHW operands.

A tile is some whole planes, or some output rows of one plane. Its rows lie in CMX between columns of padding, so that each
position of the window is one load with the window's strides. Of a window of more than `LARGE` positions that would be more
than a watchdog allows; there each row of outputs takes the columns together first, and then the rows of what came out. The
average counts the inputs inside the tensor only.
"""

from __future__ import annotations

from libnpu.kernels.assembler import GRID, Const, Expr, Program, Reg, Value, align, ceil_div, expr, maximum, minimum
from libnpu.kernels.operations import (
    CAPACITY,
    ITEM_BYTES,
    LOAD,
    STORE,
    TRAP_BAD_SIZE,
    TRAP_TOO_LARGE,
    Space,
    begin,
    copy,
    copy_planes,
    room,
    share,
    wait,
    window_outputs,
)

_NAMES = (
    "input", "output", "n", "c", "h", "w", "kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w", "average",
)  # fmt: skip
LARGE = 512  # positions of a window; with more, columns come first
LARGE_STEPS, LARGE_READS = (
    2048,
    1 << 21,
)  # of a tile of such windows: loads, and elements that they load from columns' results


def pool2d(dtype: str) -> Program:
    """Return the program; `average` is 0 for the maximum. Padding is smaller than the window."""
    p = Program(_NAMES)
    es = ITEM_BYTES[dtype]
    begin(p)
    h, w, stride, kernel = (p.let(p[name]) for name in ("h", "w", "stride_h", "kernel_h"))
    out_h, out_w = window_outputs(p, h, w, kernel, stride)
    p.trap_when(CAPACITY, "<", out_w, TRAP_BAD_SIZE)
    line = p.let((w + p["pad_w"] * 2) * es)  # a row with its padding
    taps = p.keep(kernel * p["kernel_w"])
    summed = p.keep(0)  # bytes of a row of columns' results
    with p.when(LARGE, "<", taps):
        p.rekeep(summed, line // es * 4)
    high = p.let(maximum(room(4) - summed - (kernel - stride) * line, 0) // (stride * line + out_w * es))
    p.trap_when(high, "<", 1, TRAP_TOO_LARGE)
    p.set(high, minimum(minimum(high, out_h), CAPACITY // out_w))
    with p.when(LARGE, "<", taps):
        steps = minimum(LARGE_STEPS // (kernel + p["kernel_w"]), LARGE_READS // (out_w * p["kernel_w"]))
        p.set(high, minimum(high, maximum(steps, 1)))
    planes = p.keep(p["n"] * p["c"])
    deep = p.keep(1)  # planes of a tile
    with p.when(high, "==", out_h):
        plane = ((out_h - 1) * stride + kernel) * line + out_h * out_w * es
        tiles = p.let(ceil_div(planes, minimum((room(4) - summed) // plane, planes)))
        p.rekeep(deep, ceil_div(planes, ceil_div(tiles, GRID) * GRID))  # as many for each block
    down = p.keep(ceil_div(out_h, high))
    item, last = share(p, down * ceil_div(planes, deep))
    space = Space(p)
    columns = p.keep(space.end)
    p.set(space.end, align(summed) + space.end)
    source = space.take(deep * ((high - 1) * stride + kernel) * line)
    target = space.end
    average = p.let(p["average"])
    p.emit("fli", "f1", "-inf")
    with p.when(average, "!=", 0):
        p.emit("fli", "f1", "0.0")
    first = p.keep(0)  # plane of the item
    with p.repeat_while(item, "<", last, "item"):
        rows = p.let(minimum(high, out_h - item % down * high))
        start = p.let(item % down * high * stride - p["pad_h"])
        rows_in = p.let((rows - 1) * stride + kernel)
        p.rekeep(first, item // down * deep)
        count = p.let(minimum(deep, planes - first))
        with p.when(p["pad_h"] + p["pad_w"], "!=", 0):
            _fill(p, dtype, source, count * rows_in * line // es)
        with p.scope():
            top = p.let(maximum(start, 0))
            size = p.let((minimum(h, start + rows_in) - top) * w * es)
            copy_planes(
                p, LOAD, LOAD, src=p["input"] + (first * h + top) * w * es, length=size, num_planes=count,
                src_plane_stride=h * w * es, src_width=size, dst=source + (top - start) * line + p["pad_w"] * es,
                dst_plane_stride=rows_in * line, dst_width=w * es, dst_stride=line,
            )  # fmt: skip
        with p.when(taps, "<", LARGE + 1), p.when(average, "!=", 0), p.meter.part("counts"):
            _counts(p, rows, out_w, start, h, w, stride, kernel)
        wait(p, LOAD)
        wait(p, STORE)
        with p.loop(0, count, part="plane") as plane:
            corner = p.let(source + plane * rows_in * line)
            with p.when(taps, "<", LARGE + 1), p.meter.part("small plane"):
                p.length(rows, out_w)
                p.emit("vsplat.f32.s", "v1", "f1")
                with p.scope():
                    left, apart = p.let(corner), p.let(p["stride_w"] * es)
                    with p.loop(0, kernel, part="tap row"):
                        right = p.let(p["kernel_w"] * es + left)
                        with p.loop(left, right, es, "tap") as position:
                            p.load("v0", dtype, position, stride * line, apart)
                            _take(p, average, "tap")
                        p.set(left, left + line)
                with p.when(average, "!=", 0), p.meter.part("divide"):
                    p.emit("vdiv.f32", "v1", "v1", "v10")
                p.store("v1", dtype, target + plane * rows * out_w * es, out_w * es, es)
            with p.when(LARGE, "<", taps), p.loop(0, rows, part="row") as row:
                _columns(p, dtype, corner, columns, line, kernel, average)
                with p.when(average, "!=", 0), p.scope(), p.meter.part("row counts"):
                    _counts(p, 1, out_w, start + row * stride, h, w, stride, kernel)
                p.length(1, out_w)
                p.emit("vsplat.f32.s", "v1", "f1")
                with p.scope():
                    left, apart = p.let(columns), p.let(p["stride_w"] * 4)
                    right = p.let(p["kernel_w"] * 4 + left)
                    with p.loop(left, right, 4, "across") as position:
                        p.load("v0", "f32", position, 0, apart)
                        _take(p, average, "across")
                with p.when(average, "!=", 0), p.meter.part("row divide"):
                    p.emit("vdiv.f32", "v1", "v1", "v10")
                p.store("v1", dtype, target + (plane * rows + row) * out_w * es, 0, es)
                p.set(corner, corner + stride * line)
        place = (first * out_h + item % down * high) * out_w * es
        copy(p, target, p["output"] + place, count * rows * out_w * es, STORE, STORE)
        p.set(item, item + 1)
    return p


def _fill(p: Program, dtype: str, target: Reg, elements: Expr) -> None:
    """Store f1 `elements` times."""
    es = ITEM_BYTES[dtype]
    with p.scope():
        total = p.let(elements)
        p.emit("vsplat.f32.s", "v0", "f1")
        with p.loop(0, total, CAPACITY, "fill") as at:
            p.length(1, minimum(total - at, CAPACITY))
            p.store("v0", dtype, target + at * es, 0, es)


def _take(p: Program, average: Reg, part: str) -> None:
    """Take v0 into v1: the larger of both, or their sum; these are parts of the program, `part` maximum and `part` sum."""
    with p.when(average, "==", 0), p.meter.part(f"{part} maximum"):
        p.emit("vmax.f32", "v1", "v1", "v0")
    with p.when(average, "!=", 0), p.meter.part(f"{part} sum"):
        p.emit("vadd.f32", "v1", "v1", "v0")


def _columns(p: Program, dtype: str, corner: Reg, columns: Expr, line: Reg, kernel: Reg, average: Reg) -> None:
    """Store the result of each column of the `kernel` rows at `corner`, in fp32, at `columns`."""
    es = ITEM_BYTES[dtype]
    with p.loop(0, line // es, CAPACITY, "columns") as at:
        p.length(1, minimum(line // es - at, CAPACITY))
        p.emit("vsplat.f32.s", "v1", "f1")
        with p.loop(0, kernel, part="column tap") as y:
            p.load("v0", dtype, corner + y * line + at * es, 0, es)
            _take(p, average, "column tap")
        p.store("v1", "f32", columns + at * 4, 0, 4)


def _counts(p: Program, rows: Value, out_w: Reg, start: Value, h: Reg, w: Reg, stride: Reg, kernel: Reg) -> None:
    """Set v10[rows, out_w] to the number of inputs inside the tensor under each window; `start` is the first window's row."""
    p.length(rows, out_w)
    axes = (
        ("v10", "col", stride, expr(start), kernel, h),
        ("v11", "row", p["stride_w"], 0 - p["pad_w"], p["kernel_w"], w),
    )
    for vector, shape, step, offset, size, limit in axes:
        p.emit(f"viota.i32.{shape}", vector)
        p.emit("vmul.i32.s", vector, vector, step)
        p.emit("vadd.i32.s", vector, vector, offset)
        p.emit("vadd.i32.s", "v12", vector, size)
        p.emit("vmin.i32.s", "v12", "v12", limit)
        p.emit("vmax.i32.s", vector, vector, Const(0))
        p.emit("vsub.i32", vector, "v12", vector)
        p.emit("vcvt.f32", vector, vector)
    p.emit("vmul.f32", "v10", "v10", "v11")
