"""A result is read before the copy that brings it has ended.

A copy to pinned memory is only enqueued when the call returns, and nothing in the memory says whether it has run. On a fast device it
has, mostly: the program is right for months and then, under load, prints what was in the memory before.
The fix is a wait between the copy and the look: of the stream, or of an event recorded behind the copy.

    catalogue: B01
    link: https://github.com/pytorch/pytorch/issues/140296
    schedule: lazy
    report: HD-RAW at first, second
    right: 36
    wrong: 0
"""

import sys

import numpy as np

import libnpu


def main(fixed: bool) -> None:
    """Sum what a kernel made of 1 to 8 and -1 to -8."""
    with libnpu.open() as device:
        values = np.array([1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6, 7, -7, 8, -8], np.float32)
        x, y = device.to_device(values), device.alloc(values.nbytes)
        stream, result = device.create_stream(), device.alloc_host(values.nbytes)
        result.array[:] = 0
        device.kernel("relu").launch(stream, x, y, values.size)
        stream.copy(result, y)  # <- first
        if fixed:
            stream.synchronize()
        print(f"{result.array.view(np.float32).sum():.0f}")  # <- second


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
