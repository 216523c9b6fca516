"""Local synchronisation: a sum over two units, right with a barrier between them and wrong without.

    python samples/python/local_sync.py

Each block of the launch adds up its half and stores a partial sum; the first block then adds the partial sums. `bar` holds
the blocks until all have come to it, and what they stored before is visible behind it. Without it the first block reads what
the other one has not stored yet. No host takes part in any of this.
"""

from __future__ import annotations

import numpy as np
from npu_abi import C

import libnpu
from libnpu.blob import KernelParam, KernelSource, kernel_library

BLOCKS, EACH = 2, 1024
REDUCE = """
    ldm r6, r1, 0, 3          # numbers, partial sums, the sum
    li r9, 1
    li r10, 1024
    li r11, 4                 # bytes of a number
    muli r12, r2, 4096        # r2 is the number of the block
    add r6, r6, r12
    setvl r9, r10
    vld.f32 v0, r6, r0, r11, 0
    vrsum.f32.col v1, v0
    muli r12, r2, 4
    add r12, r12, r7
    setvl r9, r9
    vst.f32 v1, r12, r0, r11, 0
    {bar}
    bne r2, r0, done          # the first block goes on
    setvl r9, r3              # r3 is how many blocks there are
    vld.f32 v2, r7, r0, r11, 0
    vrsum.f32.col v3, v2
    setvl r9, r9
    vst.f32 v3, r8, r0, r11, 0
done:
    halt
"""


def library() -> bytes:
    """The blob of the sum with and without its barrier. All blocks of a cooperative launch run at the same time."""
    params = tuple(
        KernelParam(name, int(C.NPU_ARG_BUFFER), int(direction), int(C.NPU_DT_F32))
        for name, direction in (("numbers", C.NPU_ARG_IN), ("partial", C.NPU_ARG_INOUT), ("sum", C.NPU_ARG_OUT))
    )
    return kernel_library(
        "reduce",
        {
            name: KernelSource(REDUCE.format(bar=bar), params, int(C.NPU_KERNEL_COOPERATIVE))
            for name, bar in (("with_bar", "bar"), ("without", "nop"))
        },
    )


def run(name: str) -> float:
    """Sum with one of the kernels; print the blocks and return the sum."""
    numbers = np.arange(BLOCKS * EACH, dtype=np.float32)
    with libnpu.open() as device:
        kernel = device.load(library())[name]
        partial, total = device.alloc(4 * BLOCKS), device.alloc(4)
        source = device.to_device(numbers)
        device.primary.profiler.start()
        job = kernel.launch(None, source, partial, total, grid=BLOCKS)
        job.wait()
        device.primary.profiler.stop()
        found = float(total.read(np.float32)[0])
        print(f"{name:8}: partial sums {partial.read(np.float32)}, sum {found}")
        for number, block in enumerate(job.blocks):
            begin_us, end_us = ((ps - job.start_ps) / 1e6 for ps in (block.start_ps, block.end_ps))
            print(
                f"    block {number} on tile {block.unit >> 4}, SHAVE {block.unit & 15}: {begin_us:.3f} to {end_us:.3f} us"
            )
        print(libnpu.timeline(device.primary), end="")
    return found


def main() -> None:
    expected = float(np.arange(BLOCKS * EACH, dtype=np.float64).sum())
    if run("with_bar") != expected:
        raise SystemExit(f"this is not so: with the barrier the sum is {expected}")
    if run("without") == expected:
        raise SystemExit("this is not so: without the barrier the sum is wrong")


if __name__ == "__main__":
    main()
