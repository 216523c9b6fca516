"""Memory is given back with a fill in flight, because the wait stood in a loop that ran no times.

A block of pinned memory is cleared by the device and goes back to the program's pool. The wait for the clearing was the last statement of
a loop over pieces; for an empty list there is no piece and no wait. The next owner gets the block, stores its values, and then the late
fill clears them.
The fix: the wait belongs behind the loop, where it is always reached.

    catalogue: B06
    link: https://github.com/openxla/xla/issues/46093
    schedule: lazy
    report: HD-WAW at first, second
    right: 5
    wrong: 7
"""

import sys

import libnpu


def main(fixed: bool) -> None:
    """Clear a block, give it back, and let its next owner store a value."""
    with libnpu.open() as device:
        stream, pool = device.create_stream(), [device.alloc_host(256)]
        block = pool.pop()
        stream.fill(block, 7)  # <- first
        pieces: list[int] = []
        for piece in pieces:
            stream.fill(block[piece : piece + 1], 7)
            stream.synchronize()
        if fixed:
            stream.synchronize()
        pool.append(block)

        mine = pool.pop()
        mine.array[:] = 5  # <- second
        stream.synchronize()
        print(int(mine.array[0]))


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
