"""A notify hands one buffer back and forth between two streams.

Each record lets one wait pass, so the streams take turns without a wait of the host. A checker that knows events only would report all turns.

    right: 11 12 13
"""

import sys

import libnpu


def main(fixed: bool) -> None:
    """Fill in one stream and copy in the other, three times."""
    with libnpu.open() as device:
        producer, consumer = device.create_stream(), device.create_stream()
        full, empty = device.primary.create_notify(), device.primary.create_notify()
        buffer, results = device.alloc(64), device.alloc_host(192)
        for turn in range(3):
            if turn:
                empty.wait(producer)
            producer.fill(buffer, 11 + turn)
            full.record(producer)
            full.wait(consumer)
            consumer.copy(results[64 * turn : 64 * turn + 64], buffer)
            empty.record(consumer)
        consumer.synchronize()
        print(*results.array[::64].tolist())


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
