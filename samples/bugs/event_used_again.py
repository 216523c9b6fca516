"""The event of a step is recorded for the next step before anybody has waited for it.

One event object says "the tokens of this step have been copied". With steps that overlap, the next step records it, in another stream,
before the host has waited: the wait is then for the wrong step, and the host reads tokens that are not there.
The fix: events by step, as many as there are steps in flight.

    catalogue: B15
    link: https://github.com/vllm-project/vllm/pull/39115
    schedule: lazy
    report: HD-RAW at first, second
    report: EVENT-OVERWRITTEN at old record, new record
    right: 7
    wrong: 0
"""

import sys

import libnpu


def main(fixed: bool) -> None:
    """Copy the tokens of a step out, begin the next step, and look at the tokens."""
    with libnpu.open() as device:
        copies, steps = device.create_stream(), device.create_stream()
        events = [device.create_event(), device.create_event()]
        tokens, state, host = device.to_device(bytes([7] * 64)), device.to_device(bytearray(64)), device.alloc_host(64)
        host.array[:] = 0
        copies.copy(host, tokens)  # <- first
        events[0].record(copies)  # <- old record
        steps.fill(state, 1)
        events[1 if fixed else 0].record(steps)  # <- new record
        events[0].synchronize()
        print(int(host.array[0]))  # <- second


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
