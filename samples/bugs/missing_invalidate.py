"""The host reads a line that it had in its cache before the device wrote the memory.

The output buffer was looked at, or cleared, before the work ran, so its lines are in the host's cache. The device writes memory and tells
nobody. The host waits for the work, as it should, and reads its old lines.
The fix: invalidate what the device has written before it is read.

    catalogue: B39
    link: https://github.com/Xilinx/XRT/pull/8957
    schedule: timed
    report: MISSING-INVALIDATE at first, second
    right: 9
    wrong: 0
"""

import sys

from npu_abi import C

import libnpu


def main(fixed: bool) -> None:
    """Let the device fill memory that the host has seen."""
    with libnpu.open() as device:
        stream, output = device.create_stream(), device.alloc_host(64, int(C.NPU_HOST_NON_COHERENT))
        output.array[:] = 0
        output.flush()
        stream.fill(output, 9)  # <- first
        stream.synchronize()
        if fixed:
            output.invalidate()
        print(int(output.array[0]))  # <- second


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
