"""The host clears the output, and its cache writes the zeros back over what the device has written.

The output is set to zeros as a precaution. The lines stay dirty in the host's cache while the device writes its results to memory; when the
cache needs room, the zeros follow. Without the precaution the program is right, which is why nobody looks there.
The fix: flush what was stored before the device writes, or do not store it.

    catalogue: B35
    link: https://github.com/nod-ai/iree-amd-aie/issues/209
    schedule: timed
    report: DIRTY-OVER-DMA at first, second
    right: 4
    wrong: 0
"""

import sys

from npu_abi import C

import libnpu


def main(fixed: bool) -> None:
    """Clear an output and let the device fill it, with a cache that writes back when a job ends."""
    with libnpu.open(module_params="evict=evict") as device:
        stream, output = device.create_stream(), device.alloc_host(64, int(C.NPU_HOST_NON_COHERENT))
        output.array[:] = 0  # <- first
        if fixed:
            output.flush()
        stream.fill(output, 4)  # <- second
        stream.synchronize()
        output.invalidate()
        print(int(output.array[0]))


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
