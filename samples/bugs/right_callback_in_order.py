"""A host function looks at a result, stores the next input, and the stream goes on with that.

The function runs between its neighbours in the stream, so neither the look nor the store needs a wait, though no thread of the program has
waited. A checker that has one place for the host would report both.

    right: 1 2
"""

import sys

import libnpu


def main(fixed: bool) -> None:
    """Copy out, let the host add 1, and copy in again."""
    with libnpu.open() as device:
        stream, memory, pinned = device.create_stream(), device.to_device(bytes([1] * 64)), device.alloc_host(64)
        array = pinned.array
        seen: list[int] = []

        def add() -> None:
            seen.append(int(array[0]))
            array[:] = seen[0] + 1

        stream.copy(pinned, memory)
        stream.add_host_function(add)
        stream.copy(memory, pinned)
        stream.synchronize()
        print(*seen, int(memory.read()[0]))


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
