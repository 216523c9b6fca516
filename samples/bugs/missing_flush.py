"""The device reads memory while what the host stored is still in the host's cache.

Where the device does not snoop the host's caches it reads memory, and stores are there when their lines were written back. Without a flush
that happens whenever the cache needs room: small inputs arrive late or never, large ones mostly.
The fix: flush what was stored before the work that reads it is enqueued.

    catalogue: B40
    link: https://github.com/apache/tvm/pull/13844
    schedule: timed
    report: MISSING-FLUSH at first, second
    right: 6
    wrong: 255
"""

import sys

from npu_abi import C

import libnpu


def main(fixed: bool) -> None:
    """Send a value to the device."""
    with libnpu.open() as device:
        source, target = device.alloc_host(64, int(C.NPU_HOST_NON_COHERENT)), device.alloc(64)
        source.array[:] = 6  # <- first
        if fixed:
            source.flush()
        device.copy(target, source)  # <- second
        print(int(target.read()[0]))


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
