"""Lines are invalidated before the transfer, and fetched again while it runs.

To invalidate before the device writes keeps dirty lines from falling on its data, and looks sufficient: nobody reads the memory meanwhile.
The processor does, ahead of the program, and has the old line again when the transfer ends.
The fix: invalidate once more behind the transfer.

    catalogue: B38
    link: https://github.com/apache/nuttx/pull/19506
    schedule: timed
    report: INVALIDATE-TOO-EARLY at invalidate, first, second
    right: 3
    wrong: 0
"""

import sys

from npu_abi import C

import libnpu


def main(fixed: bool) -> None:
    """Read a sector twice into one buffer."""
    with libnpu.open() as device:
        stream, sector = device.create_stream(), device.alloc_host(512, int(C.NPU_HOST_NON_COHERENT))
        sector.array[:] = 0
        sector.flush()
        sector.invalidate()  # <- invalidate
        stream.fill(sector, 3)  # <- first
        stream.synchronize()
        if fixed:
            sector.invalidate()
        print(int(sector.array[0]))  # <- second


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
