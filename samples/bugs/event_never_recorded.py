"""A stream waits for an event that nobody has recorded, which is no wait at all.

An event that was never recorded has nothing to wait for, and the wait succeeds. Here the record was only made when there was work of a
certain kind, the wait always. The failure showed far away, as an illegal access of a kernel that followed an index nobody had written yet.
The fix: record the event wherever the work is enqueued.

    catalogue: B14
    link: https://github.com/cms-patatrack/pixeltrack-standalone/pull/202
    schedule: lazy
    report: WAIT-UNRECORDED at wait
    report: XS-RAW at first, second
    right: 9
    wrong: 0
"""

import sys

import libnpu


def main(fixed: bool) -> None:
    """Fill memory in one stream and copy it in another that waits for the event."""
    with libnpu.open() as device:
        producer, consumer, filled = device.create_stream(), device.create_stream(), device.create_event()
        memory, result = device.to_device(bytearray(64)), device.alloc_host(64)
        producer.fill(memory, 9)  # <- first
        if fixed:
            filled.record(producer)
        consumer.wait_event(filled)  # <- wait
        consumer.copy(result, memory)  # <- second
        consumer.synchronize()
        print(int(result.array[0]))


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
