"""A callback tells a consumer that a result is there, and is in no order with the copy that brings it.

A worker outside of the device is told by a callback in a stream. The callback was put in a stream of its own, so that it does not hold up
the work; it also does not wait for the work. The worker takes what is in the memory.
The fix: let the callback's stream wait for an event behind the copy.

    catalogue: B55
    link: https://github.com/tenstorrent/tt-metal/pull/49877
    schedule: lazy
    report: XS-RAW at first, second
    right: 3
    wrong: 0
"""

import sys

import libnpu


def main(fixed: bool) -> None:
    """Copy a result out and let a callback take it."""
    with libnpu.open() as device:
        work, callbacks, copied = device.create_stream(), device.create_stream(), device.create_event()
        memory, result = device.to_device(bytes([3] * 64)), device.alloc_host(64)
        array = result.array
        array[:] = 0
        taken: list[int] = []

        def take() -> None:
            taken.append(int(array[0]))  # <- second

        work.copy(result, memory)  # <- first
        copied.record(work)
        if fixed:
            callbacks.wait_event(copied)
        callbacks.add_host_function(take)
        callbacks.synchronize()
        print(*taken)


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
