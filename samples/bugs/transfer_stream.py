"""Data comes in on a stream for transfers and is used on another one, and nothing lets the second wait for the first.

Copies were moved to a stream of their own so that they overlap with kernels. They do, with those that need them too: kernels read what
was in the memory before. How often depends on sizes and load, from never to nearly always.
The fix: record an event behind the copy, and let the stream of the kernels wait for it.

    catalogue: B09
    link: https://github.com/ROCm/pytorch/issues/3194
    schedule: lazy
    report: XS-RAW at first, second
    right: 8
    wrong: 0
"""

import sys

import numpy as np

import libnpu


def main(fixed: bool) -> None:
    """Copy 8 in on one stream and pass it through a kernel on another."""
    with libnpu.open() as device:
        transfers, kernels, copied = device.create_stream(), device.create_stream(), device.create_event()
        x, y = device.to_device(np.zeros(64, np.float32)), device.alloc(256)
        source = device.alloc_host(256)
        source.array.view(np.float32)[:] = 8
        transfers.copy(x, source)  # <- first
        copied.record(transfers)
        if fixed:
            kernels.wait_event(copied)
        device.kernel("relu").launch(kernels, x, y, 64)  # <- second
        kernels.synchronize()
        print(f"{y.read(np.float32)[0]:.0f}")


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
