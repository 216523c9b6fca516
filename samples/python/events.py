"""Order between streams, and time: a copy in one stream, a kernel in another that needs it.

    python samples/python/events.py

An event is a snapshot of a stream: what was enqueued there so far. Another stream can wait for it, the host can ask and wait,
and two events give the device time between them. Without the wait the kernel reads what was there before.
"""

from __future__ import annotations

import numpy as np

import libnpu

COUNT = 65536


def run(device: libnpu.Device, host: libnpu.HostBuffer, *, ordered: bool) -> float:
    """Copy x in and compute y from it in another stream. Returns the last element of y."""
    context = device.primary
    x, y = device.to_device(np.zeros(COUNT, np.float32)), device.alloc(4 * COUNT)
    begun, copied, finished = (device.create_event() for _ in range(3))
    with device.create_stream() as copies, device.create_stream() as kernels:
        context.profiler.start()
        begun.record(copies)
        copies.copy(x, host)  # pinned memory: a DMA job, the call returns at once
        copied.record(copies)
        if ordered:
            kernels.wait_event(copied)
        device.kernel("relu").launch(kernels, x, y, COUNT)
        finished.record(kernels)
        finished.synchronize()
        copies.synchronize()
        context.profiler.stop()
        last = float(y.read(np.float32)[-1])
        print(
            f"\n{'with an event between the streams' if ordered else 'without the wait'}: the last of relu(3) is {last}"
        )
        print(libnpu.timeline(context), end="")
        if ordered and device.times_meaningful:
            copy_ns, all_ns = begun.elapsed_ns(copied), begun.elapsed_ns(finished)
            print(f"device time from the begin: copied after {copy_ns} ns, finished after {all_ns} ns")
            if not 0 < copy_ns < all_ns:
                raise SystemExit("this is not so: the copy comes first")
    return last


def main() -> None:
    for schedule, ordered, expected in (("timed", True, 3.0), ("lazy", False, 0.0), ("lazy", True, 3.0)):
        with libnpu.open() as device, device.alloc_host(4 * COUNT) as host:
            host.array.view(np.float32)[:] = 3
            device.set_schedule(schedule)  # lazy: work is held back until somebody needs it, a legal order as any other
            if run(device, host, ordered=ordered) != expected:
                raise SystemExit(f"this is not so: the result is {expected} when ordered is {ordered}")


if __name__ == "__main__":
    main()
