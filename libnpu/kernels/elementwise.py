"""Element-wise kernels over `count` elements: relu, add, mul, scale_add, copy, fill."""

from __future__ import annotations

from collections.abc import Sequence

from libnpu.kernels.assembler import ARGS, CMX, Const, Program, Reg, minimum
from libnpu.kernels.operations import CAPACITY, HEADER_BYTES, ITEM_BYTES, STORE, begin, copy, copy_planes, share
from libnpu.kernels.streams import Stream, run

LEAST = 1024  # elements for which a DMA is worth its latency

# Kernel -> (buffers that are read, the instructions on v0, v1 that give v2).
_BODIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "relu": (("input",), ("vmax.f32.s v2, v0, f1",)),  # f1 is 0 unless the kernel has a scalar
    "add": (("input", "other"), ("vadd.f32 v2, v0, v1",)),
    "mul": (("input", "other"), ("vmul.f32 v2, v0, v1",)),
    "scale_add": (("input", "output"), ("vsplat.f32.s v3, f1", "vfma.f32 v2, v0, v3, v1")),
}


def elementwise(name: str, dtype: str) -> Program:
    """Return the program of relu, add, mul or scale_add (output = scale * input + output)."""
    reads, body = _BODIES[name]
    own = ["output"] if "output" not in reads else []
    scalars = ["scale"] if name == "scale_add" else []
    p = Program([*reads, *own, *scalars, "count"])
    es = ITEM_BYTES[dtype]
    begin(p)
    if scalars:
        p.emit("fld.f32", "f1", ARGS, p["scale"].offset)
    first, last = share(p, p["count"])

    def compute(ins: Sequence[Reg], outs: Sequence[Reg], count: Reg) -> None:
        p.length(1, count)
        for number, buffer in enumerate(ins):
            p.load(f"v{number}", dtype, buffer, 0, es)
        for line in body:
            p.emit(line)
        p.store("v2", dtype, outs[0], 0, es)

    loads = [Stream(p[name], es) for name in reads]
    run(p, first, last, CAPACITY, LEAST, loads, [Stream(p["output"], es)], compute)
    return p


def copy_kernel(dtype: str) -> Program:
    """Return the program that copies `count` elements: one DMA a block, DDR to DDR."""
    p = Program(["input", "output", "count"])
    es = ITEM_BYTES[dtype]
    begin(p)
    first, last = share(p, p["count"])
    with p.when(first, "<", last):
        copy(p, p["input"] + first * es, p["output"] + first * es, (last - first) * es, 0, STORE)
    return p


def fill_kernel(dtype: str) -> Program:
    """Return the program that stores `value` `count` times: a buffer of it, and a DMA that reads it again and again."""
    p = Program(["output", "value", "count"])
    es = ITEM_BYTES[dtype]
    begin(p)
    first, last = share(p, p["count"])
    source = p.let(CMX + HEADER_BYTES)
    with p.when(first, "<", last):
        width = p.let(minimum(Const(4096), last - first))
        p.emit("fld.f32", "f1", ARGS, p["value"].offset)
        p.length(1, width)
        p.emit("vsplat.f32.s", "v0", "f1")
        p.store("v0", dtype, source, 0, es)
        whole = p.let((last - first) // width * width * es)
        target = p.let(p["output"] + first * es)
        size = p.let(width * es)
        copy_planes(p, 0, STORE, src=source, dst=target, length=whole, num_planes=1, src_width=size, dst_width=whole)
        rest = p.let((last - first) * es - whole)
        with p.when(0, "<", rest):
            copy(p, source, target + whole, rest, 1, STORE)
    return p
