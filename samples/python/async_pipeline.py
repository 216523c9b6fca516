"""asyncio: batches go through copy in, kernel and copy out, each a task; while one waits, the others run.

    python samples/python/async_pipeline.py

`await` hands the time over: when all tasks wait, the device runs until the first of what they wait for is done. There is no
thread and no clock of the machine in it, so every run is the same. Two sets of buffers let the copies of one batch overlap
with the kernel of another; with one set everything is in a row.
"""

from __future__ import annotations

import asyncio

import numpy as np

import libnpu

BATCHES, ROWS, COLUMNS = 4, 512, 64


class Pipeline:
    """`sets` sets of buffers, and three streams: one for each direction of copies, one for kernels."""

    def __init__(self, device: libnpu.Device, sets: int) -> None:
        self.softmax = device.kernel("softmax")
        size = 4 * ROWS * COLUMNS
        self.host = [(device.alloc_host(size), device.alloc_host(size)) for _ in range(BATCHES)]
        self.copy_in, self.run, self.copy_out = (device.create_stream() for _ in range(3))
        self.free: asyncio.Queue[tuple[libnpu.Buffer, libnpu.Buffer]] = asyncio.Queue()
        for _ in range(sets):
            self.free.put_nowait((device.alloc(size), device.alloc(size)))

    async def batch(self, number: int) -> None:
        """Take a set of buffers, let a batch through, and give the set back."""
        source, result = self.host[number]
        source.array.view(np.float32)[:] = number
        x, y = await self.free.get()
        self.copy_in.copy(x, source)
        await self.copy_in
        await self.softmax.launch(self.run, x, y, ROWS, COLUMNS)
        self.copy_out.copy(result, y)
        await self.copy_out
        self.free.put_nowait((x, y))

    async def all_batches(self) -> None:
        await asyncio.gather(*(self.batch(number) for number in range(BATCHES)))


def run(sets: int) -> float:
    """Let all batches through; return how long it takes, in us."""
    with libnpu.open() as device:
        pipeline = Pipeline(device, sets)
        device.primary.profiler.start()
        begin_ps = device.now_ps
        asyncio.run(pipeline.all_batches())
        total_us = (device.now_ps - begin_ps) / 1e6
        device.primary.profiler.stop()
        print(f"\n{sets} set{'s' if sets > 1 else ''} of buffers: {BATCHES} batches in {total_us:.3f} us")
        print(libnpu.timeline(device.primary), end="")
        for _, result in pipeline.host:
            if not np.allclose(result.array.view(np.float32), 1 / COLUMNS):
                raise SystemExit("this is not so: softmax of equal numbers is 1/64 each")
    return total_us


def main() -> None:
    one, two = run(1), run(2)
    if not two < 0.85 * one:
        raise SystemExit("this is not so: with two sets of buffers copies and kernels overlap")


if __name__ == "__main__":
    main()
