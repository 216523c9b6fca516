"""A program is built once, cached, and keeps the addresses of its first call.

The cache is looked up by shapes. The second call has the same shapes and other memory; what was built for the first one runs again, reads the
first input and writes to the first output. The second output holds what was in its memory.
The fix: hand the addresses of each call over before it runs.

    catalogue: B33
    link: https://github.com/tenstorrent/tt-metal/issues/49749
    schedule: timed
    report: UNINIT at read
    right: 1 2
    wrong: 1 nan
"""

import sys

import numpy as np

import libnpu


def main(fixed: bool) -> None:
    """Call a cached program twice."""
    with libnpu.open() as device:
        stream, relu = device.create_stream(), device.kernel("relu")
        cache: dict[int, libnpu.GraphExec] = {}
        seen = []
        for value in (1, 2):
            x, y = device.to_device(np.full(64, value, np.float32)), device.alloc(256)
            if 64 not in cache or fixed:
                with stream.capture() as capture:
                    relu.launch(stream, x, y, 64)
                cache[64] = capture.graph.instantiate()
            cache[64].launch(stream)
            stream.synchronize()
            seen.append(f"{y.read(np.float32)[0]:.0f}")  # <- read
        print(*seen)


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
