"""A memory pool hands one block from stream to stream, each time behind an event of the last user.

Nobody frees or allocates, many streams write the same bytes, and each of them comes behind the one before. The same pool without its events
is pool_without_streams.

    right: 0 1 2 3 4 5
"""

import sys

import libnpu


def main(fixed: bool) -> None:
    """Use one block in turns from three streams."""
    with libnpu.open() as device:
        block, results = device.alloc(64), device.alloc_host(6 * 64)
        streams = [(device.create_stream(), device.create_event()) for _ in range(3)]
        last: libnpu.Event | None = None
        for turn in range(6):
            stream, used = streams[turn % 3]
            if last is not None:
                stream.wait_event(last)
            stream.fill(block, turn)
            stream.copy(results[64 * turn : 64 * turn + 64], block)
            used.record(stream)
            last = used
        device.synchronize()
        print(*results.array[::64].tolist())


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
