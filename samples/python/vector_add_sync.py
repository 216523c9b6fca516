"""The synchronous model: allocate, copy in, launch, wait, copy out, free.

    python samples/python/vector_add_sync.py

A launch returns at once and says nothing about the result. The result is in memory when a wait says so: who reads before
reads what was there, here the poison of fresh memory. The host is blocked for as long as the device works.
"""

from __future__ import annotations

import numpy as np

import libnpu

COUNT = 65536


def main() -> None:
    x, y = np.arange(COUNT, dtype=np.float32), np.full(COUNT, 0.5, np.float32)
    with libnpu.open() as device, device.alloc_host(4 * COUNT) as pinned:
        context, stream, add = device.primary, device.default_stream, device.kernel("add")
        context.profiler.start()

        dx, dy = device.to_device(x), device.to_device(y)  # synchronous copies: complete on return
        job = add.launch(stream, dx, dy, pinned, COUNT)  # pinned: the kernel writes it, the host reads it in place
        early = pinned.array[:4].tobytes()
        print(f"read before the wait: {early.hex()}, poison")
        if not (pinned.array == 0xFF).all():
            raise SystemExit("this is not so: before the wait every byte of fresh memory is ff")

        busy, blocked = device.host_times()
        stream.synchronize()
        awake_ps = device.now_ps
        busy, blocked = (after - before for after, before in zip(device.host_times(), (busy, blocked), strict=True))
        z = pinned.array.view(np.float32)
        print(f"read after the wait:  {z[0]} {z[1]} {z[2]} ... {z[-1]}")
        if not np.array_equal(z, x + y):
            raise SystemExit("this is not so: after the wait z is x + y")

        print(libnpu.timeline(context), end="")
        print(
            f"the device was done at {job.end_ps / 1e6:.3f} us; its interrupt woke the host, which went on at {awake_ps / 1e6:.3f} us"
        )
        print(f"in the wait the host worked {busy / 1e6:.3f} us and was blocked {blocked / 1e6:.3f} us")
        if not job.end_ps < awake_ps:
            raise SystemExit("this is not so: the signal goes from the device to the host")
        if not blocked > 10 * busy:
            raise SystemExit("this is not so: a synchronous host is blocked while the device works")


if __name__ == "__main__":
    main()
