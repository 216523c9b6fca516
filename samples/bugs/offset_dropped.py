"""The offset of a part of a buffer gets lost, and two results are written to one place.

Two results share one allocation. The code that binds arguments kept the buffer and dropped the offset into it, so both kernels write the
first half. The second half is what the memory held: zeros mostly, which look like a result.
The fix: hand over the part with its offset.

    catalogue: B43
    link: https://github.com/nod-ai/iree-amd-aie/pull/1405
    schedule: timed
    report: UNINIT at read
    right: 1 2
    wrong: 2 255
"""

import sys

import libnpu


def main(fixed: bool) -> None:
    """Write two results to two parts of one allocation."""
    with libnpu.open() as device:
        stream, results, host = device.create_stream(), device.alloc(128), device.alloc_host(128)
        for number, value in enumerate((1, 2)):
            offset = 64 * number if fixed else 0
            stream.fill(results[offset : offset + 64], value)
        stream.copy(host, results)  # <- read
        stream.synchronize()
        print(*host.array[::64].tolist())


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
