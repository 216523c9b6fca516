"""An event means what was enqueued before its record, and a wait what was recorded before the wait.

The stream goes on with other memory behind the record, and the event is recorded again after it was waited for. Both are right. A checker
that takes an event for its stream would miss races; one that takes it for its last record would report these waits.

    right: 1 1 2
"""

import sys

import libnpu


def main(fixed: bool) -> None:
    """Record an event twice, each time with a waiter, while the stream goes on."""
    with libnpu.open() as device:
        producer, consumer, event = device.create_stream(), device.create_stream(), device.create_event()
        data, later, results = device.alloc(128), device.alloc(64), device.alloc_host(192)
        producer.fill(data[:64], 1)
        event.record(producer)
        producer.fill(later, 9)
        consumer.wait_event(event)
        consumer.copy(results[:64], data[:64])
        event.synchronize()
        results[64:128].write(data[:64].read())
        producer.fill(data[64:], 2)
        event.record(producer)
        consumer.wait_event(event)
        consumer.copy(results[128:], data[64:])
        consumer.synchronize()
        print(*results.array[::64].tolist())


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
