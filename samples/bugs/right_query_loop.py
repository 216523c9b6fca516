"""A loop that asks until the work has ended is a wait.

A query that says "ended" orders what the host does next behind the work, as a synchronise does. A checker that knows waits only would report
the look at the result.

    right: 7 8
"""

import sys

import libnpu


def main(fixed: bool) -> None:
    """Ask a stream and an event until they have ended, and look at the results."""
    with libnpu.open() as device:
        stream, other, event = device.create_stream(), device.create_stream(), device.create_event()
        memory, results = device.alloc(128), device.alloc_host(128)
        stream.fill(memory[:64], 7)
        stream.copy(results[:64], memory[:64])
        while not stream.query():
            device.host_delay(5000)
        first = int(results.array[0])
        other.fill(memory[64:], 8)
        other.copy(results[64:], memory[64:])
        event.record(other)
        while not event.query():
            device.host_delay(5000)
        print(first, int(results.array[64]))


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
