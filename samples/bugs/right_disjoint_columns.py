"""Two streams write the left and the right half of each row of one matrix.

From first to last byte the two overlap nearly everywhere; no byte is written by both. A checker that keeps one range for each access would
report them.

    right: 1 2 1 2
"""

import sys

import libnpu

ROWS, PITCH, HALF = 32, 64, 32


def main(fixed: bool) -> None:
    """Write both halves and read two rows."""
    with libnpu.open() as device:
        streams = [device.create_stream(), device.create_stream()]
        matrix = device.alloc(ROWS * PITCH)
        halves = [device.to_device(bytes([value]) * (ROWS * HALF)) for value in (1, 2)]
        for number, stream in enumerate(streams):
            stream.copy_2d(matrix[number * HALF :], PITCH, halves[number], HALF, HALF, ROWS)
        for stream in streams:
            stream.synchronize()
        print(*matrix.read()[: 2 * PITCH : HALF].tolist())


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
