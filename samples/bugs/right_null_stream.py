"""A legacy default stream waits for blocking streams, and they for it.

Under such rules a copy in the default stream comes behind the kernels of all blocking streams before it, and kernels behind it come behind
the copy, without an event. A checker that takes the default stream for a stream like others would report both.

    right: 5
"""

import sys

import numpy as np

import libnpu


def main(fixed: bool) -> None:
    """Let a kernel, a copy in the default stream, and a kernel in another stream follow each other."""
    with libnpu.open(semantics="cuda") as device:
        one, two, relu = device.create_stream(), device.create_stream(), device.kernel("relu")
        w, x, y, z = (device.to_device(np.full(64, value, np.float32)) for value in (5, 0, 0, 0))
        relu.launch(one, w, x, 64)
        device.default_stream.copy(y, x)
        relu.launch(two, y, z, 64)
        two.synchronize()
        print(f"{z.read(np.float32)[0]:.0f}")


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
