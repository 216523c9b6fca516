"""The asynchronous model: two kernels at the same time, while the host prepares the next batch.

    python samples/python/two_streams.py

Operations of one stream run in order; those of two streams do not wait for each other. The host enqueues, works, and waits
once: all of it takes as long as the longer of the two, host or device. With a wait after each launch it takes as long as in
the synchronous model.
"""

from __future__ import annotations

import numpy as np

import libnpu

ROWS, COLUMNS = 1024, 64


class Program:
    """Two softmax kernels, each on two of the device's four units, and work for the host."""

    def __init__(self, device: libnpu.Device) -> None:
        self.device = device
        self.softmax = device.kernel("softmax")
        self.x = device.to_device(np.zeros((ROWS, COLUMNS), np.float32))
        self.y = [device.alloc(self.x.size) for _ in range(2)]
        self.streams = [device.create_stream() for _ in range(2)]

    def launch(self, which: int, stream: libnpu.Stream) -> libnpu.Job:
        return self.softmax.launch(stream, self.x, self.y[which], ROWS, COLUMNS, grid=2)

    def run(self, title: str, mode: str, prepare_us: float) -> float:
        """Run both kernels and let the host work; return how long all of it takes, in us."""
        device, profiler = self.device, self.device.primary.profiler
        profiler.start()
        begin, times = device.now_ps, device.host_times()
        for which, stream in enumerate(self.streams):
            self.launch(which, device.default_stream if mode == "synchronous" else stream)
            if mode == "synchronous":
                device.synchronize()
            if mode == "wait after each":
                stream.synchronize()
        device.host_delay(prepare_us * 1000)  # prepare_next_batch()
        for stream in self.streams:
            stream.synchronize()
        total_us = (device.now_ps - begin) / 1e6
        busy, blocked = (after - before for after, before in zip(device.host_times(), times, strict=True))
        profiler.stop()
        print(f"\n{title}: {total_us:.3f} us, CPU utilisation {100 * busy / (busy + blocked):.0f} %")
        print(libnpu.timeline(device.primary), end="")
        return total_us


def main() -> None:
    with libnpu.open() as device:
        program = Program(device)
        for which, stream in enumerate(program.streams):
            program.launch(which, stream).wait()  # fills the instruction caches
        one = program.launch(0, program.streams[0])
        one.wait()
        print(f"one kernel alone: {one.latency_ps / 1e6:.3f} us on the device")

        sync = program.run("synchronous", "synchronous", 70)
        each = program.run("two streams, but a wait after each launch", "wait after each", 70)
        device_longer = program.run("two streams, one wait at the end", "wait once", 70)
        host_longer = program.run("the same, and the host has more to do", "wait once", 140)
        result = [memory.read(np.float32) for memory in program.y]

    if not 0.95 < each / sync < 1.05:
        raise SystemExit("this is not so: a wait after each launch is no better than the synchronous model")
    if not device_longer < 1.2 * one.latency_ps / 1e6:
        raise SystemExit("this is not so: two kernels in two streams take little longer than one")
    if not 140 < host_longer < 1.05 * 140:
        raise SystemExit("this is not so: when the host has more to do, only that counts")
    if not all(np.allclose(values, 1 / COLUMNS) for values in result):
        raise SystemExit("this is not so: softmax of 64 zeros is 1/64 each")


if __name__ == "__main__":
    main()
