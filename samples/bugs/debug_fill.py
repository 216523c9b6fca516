"""A debug fill of new memory arrives after the program's own values.

An allocator can fill what it hands out with a pattern, so that reads of memory that was never written show. It lets the device do that,
asynchronously. The host stores its input at once, the fill comes later, and the pattern is what the device computes with: switching
debugging on makes a right program wrong.
The fix: the allocator waits for its fill before it returns memory that the host can reach.

    catalogue: B07
    link: https://github.com/cms-sw/cmssw/pull/45368
    schedule: lazy
    report: HD-WAW at first, second
    right: 1
    wrong: 165
"""

import sys

import libnpu


def allocate(device: libnpu.Device, size: int, *, wait: bool) -> libnpu.HostBuffer:
    """Return pinned memory that is filled with a pattern."""
    memory = device.alloc_host(size)
    device.default_stream.fill(memory, 0xA5)  # <- first
    if wait:
        device.default_stream.synchronize()
    return memory


def main(fixed: bool) -> None:
    """Store a value in new memory and send it to the device."""
    with libnpu.open() as device:
        source, target = allocate(device, 256, wait=fixed), device.alloc(256)
        source.array[:] = 1  # <- second
        device.copy(target, source)
        print(int(target.read()[0]))


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
