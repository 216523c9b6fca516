"""A launch takes its arguments from memory of the caller, who changes them before the device has looked.

The block of arguments is passed by address and read when the kernel runs. The caller fills the same block for the next launch, or its
function returns and the frame is reused. The first launch then runs with arguments of the second one.
libnpu copies arguments of a launch before it returns; what a kernel reads from pinned memory, such as this factor, is the caller's concern.
The fix: a block for each launch in flight.

    catalogue: B31
    link: https://github.com/mathiasbourgoin/Sarek/pull/221
    schedule: lazy
    report: HD-WAR at first, second
    right: 10 20
    wrong: 20 20
"""

import sys

import numpy as np

import libnpu


def main(fixed: bool) -> None:
    """Multiply by 10 and by 20, with the factor in pinned memory."""
    with libnpu.open() as device:
        stream, multiply = device.create_stream(), device.kernel("mul")
        blocks = [device.alloc_host(64), device.alloc_host(64)]
        ones, results = device.to_device(np.ones(16, np.float32)), device.alloc(128)
        for number, factor in enumerate((10, 20)):
            block = blocks[number if fixed else 0]
            block.array.view(np.float32)[:] = factor  # <- second
            multiply.launch(stream, block, ones, results[64 * number : 64 * number + 64], 16)  # <- first
        stream.synchronize()
        print(*(f"{value:.0f}" for value in results.read(np.float32)[::16]))


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
