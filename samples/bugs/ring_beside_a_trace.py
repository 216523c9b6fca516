"""A ring of argument slots does not count the slots that a trace holds.

Arguments go to slots of a ring, and a slot is used again when the work before has let it go. A trace was recorded with a slot of its own and
is replayed without the ring's knowledge; the programs behind it count the slot as free and store their arguments over those of the trace.
The fix: whoever replays a trace takes its slots out of the ring until the replay has ended.

    catalogue: B34
    link: https://github.com/tenstorrent/tt-metal/issues/14501
    schedule: lazy
    report: CAPTURED-BUFFER-CHANGED at first, second
    right: 5 10 15
    wrong: 15 10 15
"""

import sys

import numpy as np

import libnpu


def main(fixed: bool) -> None:
    """Replay a trace and launch two programs behind it, each with its factor in a slot."""
    with libnpu.open() as device:
        stream, multiply, ones = device.create_stream(), device.kernel("mul"), device.to_device(np.ones(16, np.float32))
        ring, results = [device.alloc_host(64) for _ in range(3 if fixed else 2)], device.alloc(192)
        ring[0].array.view(np.float32)[:] = 5
        with stream.capture() as capture:
            multiply.launch(stream, ring[0], ones, results[:64], 16)
        trace = capture.graph.instantiate()

        trace.launch(stream)  # <- first
        for number, factor in ((1, 10), (2, 15)):
            slot = ring[number % len(ring)]
            slot.array.view(np.float32)[:] = factor  # <- second
            multiply.launch(stream, slot, ones, results[64 * number : 64 * number + 64], 16)
        stream.synchronize()
        print(*(f"{value:.0f}" for value in results.read(np.float32)[::16]))


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
