"""Pages side by side are registered one by one, and only one of them is in use by the device.

The host stores into its page while the device fills the next one. A checker that looks at the mapping of the operating system, which is one
for both, would report it.

    right: 3 4
"""

import mmap
import sys

import numpy as np

import libnpu


def main(fixed: bool) -> None:
    """Register two pages of one mapping, and let host and device write one each."""
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    both = np.frombuffer(pages, np.uint8)
    with libnpu.open() as device, device.register(both[:4096]) as mine, device.register(both[4096:]) as devices:
        stream = device.create_stream()
        stream.fill(devices, 4)
        mine.array[:] = 3
        stream.synchronize()
        print(int(mine.array[4095]), int(devices.array[0]))


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
