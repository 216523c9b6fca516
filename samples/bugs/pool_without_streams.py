"""A memory pool hands a block to another stream while the first one still reads it.

A caching allocator takes a block back when the program drops it and knows nothing of streams. A tensor that a side stream reads is dropped
by the main stream's code, the next allocation gets its block, and the main stream writes it. An event had made the data right for the side
stream; that the memory lives as long as its reader is another order, which no event gave. With a wait after every launch it never shows.
The fix: the pool remembers an event behind the last use in each stream, and the next owner's stream waits for it.

    catalogue: B23
    link: https://github.com/NVIDIA/TensorRT-LLM/pull/15265
    schedule: lazy
    report: XS-WAR at first, second
    right: 2
    wrong: 9
"""

import sys

import libnpu


class Pool:
    """Blocks of one size, each with an event behind its last use."""

    def __init__(self, device: libnpu.Device) -> None:
        self.free = [(device.alloc(256), device.create_event())]

    def take(self, stream: libnpu.Stream, *, ordered: bool) -> tuple[libnpu.Buffer, libnpu.Event]:
        """Return a block for work of `stream`."""
        block, used = self.free.pop()
        if ordered:
            stream.wait_event(used)
        return block, used


def main(fixed: bool) -> None:
    """Let a side stream read a block that the main stream gives back and gets again."""
    with libnpu.open() as device:
        main_stream, side, filled = device.create_stream(), device.create_stream(), device.create_event()
        pool, result = Pool(device), device.alloc(256)
        tensor, used = pool.take(main_stream, ordered=False)
        main_stream.fill(tensor, 2)
        filled.record(main_stream)
        side.wait_event(filled)
        side.copy(result, tensor)  # <- first
        used.record(side)
        pool.free.append((tensor, used))

        scratch, _ = pool.take(main_stream, ordered=fixed)
        main_stream.fill(scratch, 9)  # <- second
        main_stream.synchronize()
        side.synchronize()
        print(int(result.read()[0]))


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
