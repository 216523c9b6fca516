"""Each stream has a chunk of one allocation, from the copy in to the copy out.

All streams use the same three allocations, at bytes of their own. A checker that takes a kernel's argument for the whole allocation would
report each pair of streams.

    right: 0 1 2 3
"""

import sys

import numpy as np

import libnpu

CHUNKS, COUNT = 4, 256


def main(fixed: bool) -> None:
    """Pass four chunks through a kernel in four streams."""
    size = 4 * COUNT
    with libnpu.open() as device:
        x, y, host = device.alloc(CHUNKS * size), device.alloc(CHUNKS * size), device.alloc_host(CHUNKS * size)
        values, relu = host.array.view(np.float32), device.kernel("relu")
        values[:] = np.arange(CHUNKS).repeat(COUNT)
        streams = [device.create_stream() for _ in range(CHUNKS)]
        for number, stream in enumerate(streams):
            part = slice(number * size, (number + 1) * size)
            stream.copy(x[part], host[part])
            relu.launch(stream, x[part], y[part], COUNT)
            stream.copy(host[part], y[part])
        for stream in streams:
            stream.synchronize()
        print(*(f"{value:.0f}" for value in values[COUNT - 1 :: COUNT]))


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
