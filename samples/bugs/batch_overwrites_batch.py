"""The host prepares the next batch in the memory that the copy of this batch still reads.

The scheduler of a server fills its input arrays, enqueues their copies and goes on to the next step. It was written when every step ended
with a synchronise; without it the arrays of step n + 1 are stored over those of step n, and a step computes with its successor's tokens.
No call fails, the answers are only those to other questions.
The fix: memory of its own for each step that can be in flight.

    catalogue: B02
    link: https://github.com/vllm-project/vllm-ascend/pull/16428
    schedule: lazy
    report: HD-WAR at first, second
    right: 11 22 33
    wrong: 33 33 33
"""

import sys

import libnpu

STEPS = 3


def main(fixed: bool) -> None:
    """Send three batches and print the first byte of what arrived for each."""
    with libnpu.open() as device:
        stream, memory, results = device.create_stream(), device.alloc(64), device.alloc_host(64 * STEPS)
        batches = [device.alloc_host(64) for _ in range(STEPS)]
        for step in range(STEPS):
            batch = batches[step if fixed else 0]
            batch.array[:] = 11 * (step + 1)  # <- second
            stream.copy(memory, batch)  # <- first
            stream.copy(results[64 * step : 64 * step + 64], memory)
        stream.synchronize()
        print(*results.array[::64].tolist())


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
