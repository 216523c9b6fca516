"""Macros that start DMA and DPU operations: the descriptors lie at the beginning of the block's CMX.

A descriptor is read when its operation starts, so one place serves all operations of an engine.
"""

from __future__ import annotations

import struct

import npu_abi
import numpy as np
from npu_abi import C

from libnpu.kernels.assembler import (
    BLOCK,
    CMX,
    CMX_BYTES,
    GRID,
    KEPT_AT,
    KEPT_WORDS,
    ZERO,
    Expr,
    Program,
    Reg,
    Value,
    align,
    expr,
    maximum,
    minimum,
)

_DMA = 0
_INVARIANT, _VARIANT = 128, 384
HEADER_BYTES = KEPT_AT + 8 * KEPT_WORDS  # of CMX, for descriptors and what `keep` keeps; multiple of 64

ITEM_BYTES = {"f32": 4, "f16": 2}
CAPACITY = 16384  # elements of a vector register
TRANSPOSED_ROWS = 128  # of a chunk that is transposed, or more when they are short
LOAD, STORE = 0, 1  # tags of DMAs
_STORES = {"<u4": "u32", "<i4": "i32", "<u8": "i64", "<u2": "u16", "|u1": "u8", "<f4": "u32"}
TRAP_TOO_LARGE = 1  # not even the smallest tile fits in the block's CMX
TRAP_BAD_SIZE = 2  # a size, stride or padding outside what the kernel takes


def begin(p: Program) -> None:
    """Clear the descriptors and set what never changes. First macro of a program that uses the others."""
    p.length(1, HEADER_BYTES // 4)
    p.emit("vsplat.i32.s", "v0", ZERO)
    p.store("v0", "i32", CMX, 0, 4)


def put(p: Program, name: str, base: int, field: str, value: Value | float) -> None:
    """Store `value` in `field` of struct `name`, which lies `base` bytes from the beginning of CMX."""
    kind, offset = npu_abi.dtype(name).fields[field][:2]  # type: ignore[index]
    number = struct.unpack("<I", np.float32(value).tobytes())[0] if isinstance(value, float) else value
    p.emit(f"st.{_STORES[kind.str]}", expr(number), CMX, base + offset)


def _start(p: Program, port: Value, tag: int) -> None:
    """Start the DMA on a port: a number, or a register that is 0 or 1."""
    if isinstance(port, int):
        p.emit("dmastart", CMX, port, tag)
        return
    with p.scope():
        chosen = p.let(port)
        for number in (0, 1):
            with p.when(chosen, "==", number):
                p.emit("dmastart", CMX, number, tag)


def copy(p: Program, source: Value, target: Value, size_bytes: Value, port: Value, tag: int) -> None:
    """Start a DMA of `size_bytes` contiguous bytes."""
    with p.scope():
        size = p.let(size_bytes)
        put(p, "npu_dma_descriptor", _DMA, "src", source)
        put(p, "npu_dma_descriptor", _DMA, "dst", target)
        put(p, "npu_dma_descriptor", _DMA, "length", size)
        put(p, "npu_dma_descriptor", _DMA, "num_planes", 1)
        put(p, "npu_dma_descriptor", _DMA, "src_width", size)
        put(p, "npu_dma_descriptor", _DMA, "dst_width", size)
    _start(p, port, tag)


def copy_planes(p: Program, port: Value, tag: int, **fields: Value) -> None:
    """Start a DMA with every field of the descriptor that says what is copied; absent ones are 0."""
    for field in ("src", "dst", "length", "num_planes", "src_plane_stride", "dst_plane_stride"):
        put(p, "npu_dma_descriptor", _DMA, field, fields.pop(field, 0))
    for field in ("src_width", "src_stride", "dst_width", "dst_stride"):
        put(p, "npu_dma_descriptor", _DMA, field, fields.pop(field, 0))
    assert not fields, fields
    _start(p, port, tag)


def dpu_common(p: Program, dtype: str, op: int) -> None:
    """Set the fields of the invariant that are the same for all tiles: types, no activation, no limits."""
    code = {"f32": C.NPU_DT_F32, "f16": C.NPU_DT_F16}[dtype]
    ones = ("groups", "kernel_x", "kernel_y", "stride_x", "stride_y", "dilation_x", "dilation_y", "variant_count")
    for field in ones:
        put(p, "npu_dpu_invariant", _INVARIANT, field, 1)
    for field in ("act_dtype", "wt_dtype", "out_dtype"):
        put(p, "npu_dpu_invariant", _INVARIANT, field, code)
    values = {"op": op, "ppe_scale": 1.0, "clamp_low": float("-inf"), "clamp_high": float("inf")}
    values["sched_start_after"] = C.NPU_BARRIER_NONE
    dpu_fields(p, **values)


def dpu_fields(p: Program, **fields: Value | float) -> None:
    """Set fields of the invariant; those of its one variant are named start_*, size_* and pad_*."""
    for field, value in fields.items():
        if field.startswith(("start_", "size_", "pad_")):
            put(p, "npu_dpu_variant", _VARIANT, field, value)
        else:
            put(p, "npu_dpu_invariant", _INVARIANT, field, value)


def dpu_run(p: Program) -> None:
    """Start the DPU with the invariant and wait for it."""
    p.emit("dpustart", CMX + _INVARIANT, 0)
    p.emit("dpuwait", 0)


def wait(p: Program, tag: int) -> None:
    """Wait for the DMAs with `tag`."""
    p.emit("dmawait", tag)


class Space:
    """The block's CMX behind the descriptors, given out from low to high. Sizes are known when the program runs."""

    def __init__(self, p: Program) -> None:
        self.p = p
        self.end = p.let(CMX + HEADER_BYTES)

    def take(self, size_bytes: Value) -> Reg:
        """Return a register with the address of `size_bytes` bytes, 64-byte aligned."""
        start = self.p.let(self.end)
        self.p.set(self.end, align(size_bytes) + self.end)
        return start


def room(buffers: int) -> Expr:
    """Return the bytes that `buffers` buffers can have together, whatever their alignment costs."""
    return CMX_BYTES - (HEADER_BYTES + 64 * buffers)


def share(p: Program, total: Value) -> tuple[Reg, Reg]:
    """Return registers with the first of `total` items that are this block's, and the one after the last."""
    whole = p.let(total)
    last = p.let((BLOCK + 1) * whole // GRID)
    p.set(whole, BLOCK * whole // GRID)
    return whole, last


def window_outputs(p: Program, h: Reg, w: Reg, kernel_h: Value, stride_h: Reg) -> tuple[Reg, Reg]:
    """Return registers with the output rows and columns of a window over [h, w] inputs; traps when there are none.

    The columns' window, the columns' stride and the padding are parameters of the program.
    """
    out_h = p.let((h + p["pad_h"] * 2 - kernel_h) // stride_h + 1)
    out_w = p.let((w + p["pad_w"] * 2 - p["kernel_w"]) // p["stride_w"] + 1)
    p.trap_when(minimum(out_h, out_w), "<", 1, TRAP_BAD_SIZE)
    return out_h, out_w


def transpose(p: Program, part: str, dtype: str, source: Expr, target: Expr, rows: Reg, cols: Reg) -> None:
    """Write [rows, cols] at `source` as [cols, rows] at `target`; both dense, in CMX. Uses v0 and v1.

    The parts of the program are `part` rows, for each chunk of rows, and `part` chunk.
    """
    es = ITEM_BYTES[dtype]
    with p.scope():
        high = p.let(minimum(rows, maximum(CAPACITY // cols, TRANSPOSED_ROWS)))
        wide = p.let(minimum(cols, CAPACITY // high))
        with p.loop(0, rows, high, f"{part} rows") as row:
            h = p.let(minimum(high, rows - row))
            with p.loop(0, cols, wide, f"{part} chunk") as col:
                w = p.let(minimum(wide, cols - col))
                p.length(h, w)
                p.load("v0", dtype, (row * cols + col) * es + source, cols * es, es)
                p.emit("vtrans", "v1", "v0")
                p.length(w, h)
                p.store("v1", dtype, (col * rows + row) * es + target, rows * es, es)


def weight_table(p: Program, dtype: str, table: Expr, bias: Expr, first: Expr, count: Reg) -> None:
    """Write struct npu_dpu_weight_entry[count]: scale 1, and the biases from `first` at address `bias`, 0 = none."""
    p.length(count, 4)
    p.emit("vsplat.f32.s", "v0", "f0")
    p.store("v0", "f32", table, 16, 4)
    p.length(count, 1)
    p.emit("fli", "f4", "1.0")
    p.emit("vsplat.f32.s", "v0", "f4")
    p.store("v0", "f32", table, 16, 0)
    with p.when(bias, "!=", 0):
        p.load("v0", dtype, bias + first * ITEM_BYTES[dtype], ITEM_BYTES[dtype], 0)
        p.store("v0", "f32", table + 4, 16, 0)
