"""A copy of pageable memory returns when its bytes are staged, not when they have arrived.

Under some runtimes an asynchronous copy of ordinary memory takes the bytes into a buffer of the library and returns. The source can be
used again, so the copy looks complete; another stream that reads the target may yet come before it.
The fix: an event behind the copy, as for any other, or a copy that is documented to be complete on return.

    catalogue: B11
    link: https://github.com/intel/llvm/pull/1798
    schedule: lazy
    report: XS-RAW at first, second
    right: 6
    wrong: 0
"""

import sys

import numpy as np

import libnpu


def main(fixed: bool) -> None:
    """Copy 6 in from ordinary memory on one stream, and use it on another."""
    with libnpu.open(semantics="cuda") as device:
        copies, kernels = device.create_stream(), device.create_stream()
        x, y = (device.to_device(np.zeros(64, np.float32)) for _ in range(2))
        source = np.full(64, 6, np.float32)
        copies.copy(x, source)  # <- first
        if fixed:
            copies.synchronize()
        device.kernel("relu").launch(kernels, x, y, 64)  # <- second
        kernels.synchronize()
        print(f"{y.read(np.float32)[0]:.0f}")


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
