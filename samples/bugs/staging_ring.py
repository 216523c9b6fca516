"""A ring of staging slots is shorter than the work that is in flight.

Two slots take turns, so the host can fill one while the other is copied. With three rounds in flight the third one stores into the slot of
the first, whose copy may still be queued. The ring's depth had to be the number of rounds in flight, and nobody said so where that grew.
The fix: wait for the slot's own last copy, by an event, before the slot is used again.

    catalogue: B08
    link: https://github.com/mstar-project/mstar/pull/236
    schedule: lazy
    report: HD-WAR at first, second
    right: 1 2 3 4
    wrong: 3 4 3 4
"""

import sys

import libnpu

SLOTS, ROUNDS = 2, 4


def main(fixed: bool) -> None:
    """Send four rounds through two slots and print what arrived."""
    with libnpu.open() as device:
        stream, memory = device.create_stream(), device.alloc(256 * ROUNDS)
        slots = [(device.alloc_host(256), device.create_event()) for _ in range(SLOTS)]
        for number in range(ROUNDS):
            slot, used = slots[number % SLOTS]
            if fixed and number >= SLOTS:
                used.synchronize()
            slot.array[:] = number + 1  # <- second
            stream.copy(memory[256 * number : 256 * number + 256], slot)  # <- first
            used.record(stream)
        stream.synchronize()
        print(*memory.read()[::256].tolist())


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
