"""Memory is allocated and freed in the order of a stream, while its work is in flight.

The free is enqueued behind the last use, so nothing waits and nothing is freed too early. A checker that looks at the call of the free alone
would report each.

    right: 0 1 2 3
"""

import sys

import libnpu


def main(fixed: bool) -> None:
    """Use four temporaries."""
    with libnpu.open() as device:
        stream, results = device.create_stream(), device.alloc_host(256)
        for number in range(4):
            temporary = device.primary.alloc_async(64, stream)
            stream.fill(temporary, number)
            stream.copy(results[64 * number : 64 * number + 64], temporary)
            temporary.free_async(stream)
        stream.synchronize()
        print(*results.array[::64].tolist())


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
