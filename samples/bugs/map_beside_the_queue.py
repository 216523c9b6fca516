"""What shows device memory to the host fetches it on a queue of its own, which does not wait for the kernel.

To map a buffer, an adapter copies it to host memory, and to unmap it back. It does so on its list for copies, while the kernel that writes
the buffer is in the user's queue. The wait of the map is for the copy alone, which takes the old bytes.
The fix: the copy waits for an event behind the last kernel of the queue to which the buffer belongs.

    catalogue: B18
    link: https://github.com/intel/llvm/pull/21467
    schedule: lazy
    report: XS-RAW at first, second
    right: 4
    wrong: 1
"""

import sys

import numpy as np

import libnpu


def main(fixed: bool) -> None:
    """Run a kernel in a queue and show its result to the host."""
    with libnpu.open() as device:
        queue, copies, launched = device.create_stream(), device.create_stream(), device.create_event()
        x, y = (device.to_device(np.full(64, value, np.float32)) for value in (4, 1))
        shown = device.alloc_host(256)
        device.kernel("relu").launch(queue, x, y, 64)  # <- first
        launched.record(queue)
        if fixed:
            copies.wait_event(launched)
        copies.copy(shown, y)  # <- second
        copies.synchronize()
        print(f"{shown.array.view(np.float32)[0]:.0f}")


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
