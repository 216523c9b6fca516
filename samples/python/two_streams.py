"""The asynchronous model: two kernels at the same time, while the host prepares the next batch.

    python samples/python/two_streams.py

Operations of one stream run in order; those of two streams do not wait for each other. The host enqueues, works, and waits
once: all of it takes as long as the longer of the two, host or device. With a wait after each launch it takes as long as in
the synchronous mode, in which each launch returns when its kernel has ended.
"""

from __future__ import annotations

import numpy as np

import libnpu

ROWS, COLUMNS = 1024, 64


class Program:
    """Two softmax kernels, each on two of the device's four units, and work for the host. Their instructions are cached."""

    def __init__(self, device: libnpu.Device) -> None:
        self.device = device
        self.softmax = device.kernel("softmax")
        self.x = device.to_device(np.zeros((ROWS, COLUMNS), np.float32))
        self.y = [device.alloc(self.x.size) for _ in range(2)]
        self.streams = [device.create_stream() for _ in range(2)]
        for which in range(2):
            self.launch(which).wait()

    def launch(self, which: int) -> libnpu.Job:
        return self.softmax.launch(self.streams[which], self.x, self.y[which], ROWS, COLUMNS, grid=2)

    def run(self, title: str, prepare_us: float, *, wait_after_each: bool = False) -> float:
        """Run both kernels and let the host work; return how long all of it takes, in us."""
        device, profiler = self.device, self.device.primary.profiler
        profiler.start()
        begin, times = device.now_ps, device.host_times()
        for which, stream in enumerate(self.streams):
            self.launch(which)
            if wait_after_each:
                stream.synchronize()
        device.host_delay(prepare_us * 1000)  # prepare_next_batch()
        for stream in self.streams:
            stream.synchronize()
        total_us = (device.now_ps - begin) / 1e6
        busy, blocked = (after - before for after, before in zip(device.host_times(), times, strict=True))
        profiler.stop()
        print(f"\n{title}: {total_us:.3f} us, CPU utilisation {100 * busy / (busy + blocked):.0f} %")
        print(libnpu.timeline(device.primary), end="")
        if not all(np.allclose(memory.read(np.float32), 1 / COLUMNS) for memory in self.y):
            raise SystemExit("this is not so: softmax of 64 zeros is 1/64 each")
        return total_us


def main() -> None:
    with libnpu.open(launch_blocking=True) as device:
        sync = Program(device).run("synchronous: each launch returns when its kernel has ended", 70)
    with libnpu.open() as device:
        program = Program(device)
        one = program.launch(0)
        one.wait()
        print(f"\none kernel alone: {one.latency_ps / 1e6:.3f} us on the device")
        each = program.run("two streams, but a wait after each launch", 70, wait_after_each=True)
        device_longer = program.run("two streams, one wait at the end", 70)
        host_longer = program.run("the same, and the host has more to do", 140)

    if not 0.95 < each / sync < 1.05:
        raise SystemExit("this is not so: a wait after each launch is no better than the synchronous mode")
    if not device_longer < 1.2 * one.latency_ps / 1e6:
        raise SystemExit("this is not so: two kernels in two streams take little longer than one")
    if not 140 < host_longer < 1.05 * 140:
        raise SystemExit("this is not so: when the host has more to do, only that counts")


if __name__ == "__main__":
    main()
