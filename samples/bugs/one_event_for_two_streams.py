"""One event is recorded in two streams, and the wait for it is a wait for the second record alone.

To join two streams a program records its event in each and lets the third one wait. An event keeps its last record only: work of the first
stream is in no order with what comes behind the wait. It is the second stream that is slower on the machine of the author.
The fix: an event for each stream, and a wait for each.

    catalogue: B13
    link: https://github.com/torch/cutorch/pull/222
    schedule: lazy
    report: XS-RAW at first, second
    report: EVENT-OVERWRITTEN at old record, new record
    right: 1 2
    wrong: 0 2
"""

import sys

import libnpu


def main(fixed: bool) -> None:
    """Fill two halves in two streams and copy both in a third."""
    with libnpu.open() as device:
        one, two, three = (device.create_stream() for _ in range(3))
        first_done = device.create_event()
        second_done = device.create_event() if fixed else first_done
        halves, result = device.to_device(bytearray(128)), device.alloc_host(128)
        one.fill(halves[:64], 1)  # <- first
        first_done.record(one)  # <- old record
        two.fill(halves[64:], 2)
        second_done.record(two)  # <- new record
        three.wait_event(first_done)
        if fixed:
            three.wait_event(second_done)
        three.copy(result, halves)  # <- second
        three.synchronize()
        print(*result.array[::64].tolist())


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
