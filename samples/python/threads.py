"""Several host threads: each has its own position on the device's clock and its own streams.

    python samples/python/threads.py

The machine starts threads when it likes. A team takes part from one moment on and is ordered by virtual time, so the calls,
the times and this page are the same in every run.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

import libnpu

THREADS, ROWS, COLUMNS = 3, 256, 64


def main() -> None:
    with libnpu.open() as device:
        softmax = device.kernel("softmax")
        x = device.to_device(np.zeros((ROWS, COLUMNS), np.float32))
        results = [device.alloc(x.size) for _ in range(THREADS)]
        streams = [device.create_stream() for _ in range(THREADS)]
        device.primary.profiler.start()
        begin_ps = device.now_ps

        with (
            ThreadPoolExecutor(THREADS) as pool,
            device.team(THREADS) as team,
        ):  # this thread is suspended until its end

            def member(rank: int) -> tuple[int, int]:
                """Prepare, launch, wait; return when the kernel was launched and when this thread went on."""
                team.enter(rank)
                try:
                    device.host_delay(1000 * (rank + 1))  # each prepares something first
                    softmax.launch(streams[rank], x, results[rank], ROWS, COLUMNS, grid=1)
                    launched_ps = device.now_ps
                    streams[rank].synchronize()
                    return launched_ps - begin_ps, device.now_ps - begin_ps
                finally:
                    team.leave()

            times = list(pool.map(member, range(THREADS)))
        total_ps = device.now_ps - begin_ps  # this thread goes on where the last one came to
        device.primary.profiler.stop()

        for rank, (launched, finished) in enumerate(times):
            print(f"thread {rank}: launched after {launched / 1e6:.3f} us, finished after {finished / 1e6:.3f} us")
            if not np.allclose(results[rank].read(np.float32), 1 / COLUMNS):
                raise SystemExit("this is not so: softmax of 64 zeros is 1/64 each")
        print(libnpu.timeline(device.primary), end="")
        one_by_one_ps = sum(finished - launched for launched, finished in times)
        print(f"all of it: {total_ps / 1e6:.3f} us; one after the other: {one_by_one_ps / 1e6:.3f} us")
        if not total_ps < 0.6 * one_by_one_ps:
            raise SystemExit("this is not so: the threads' kernels overlap")
        if not device.reproducible:
            raise SystemExit(f"this is not so: the run depends on the program alone; {device.disorder}")


if __name__ == "__main__":
    main()
