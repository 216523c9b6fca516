"""A library copies on the null stream, and its caller has a stream that does not wait for that one.

Where the default stream is of the legacy kind it waits for all others and they for it, so a library that uses it for a small copy needs no
event. It does not hold for a stream that was created as non-blocking: the caller's kernel overtakes the copy within the device, though the call
of the library, a copy within device memory, has returned.
The fix: the library enqueues in the stream of its caller.

    catalogue: B10
    link: https://github.com/OpenPPL/ppl.cv/issues/135
    schedule: lazy
    report: XS-RAW at first, second
    right: 3
    wrong: 0
"""

import sys

import numpy as np

import libnpu


def prepare(stream: libnpu.Stream, target: libnpu.Buffer, source: libnpu.Buffer) -> None:
    """Be the library: put the image where its kernels expect it."""
    stream.copy(target, source)  # <- first


def main(fixed: bool) -> None:
    """Let the library copy an image, and use it in a non-blocking stream."""
    with libnpu.open(semantics="cuda") as device:
        image, work, y = (device.to_device(np.full(64, value, np.float32)) for value in (3, 0, 0))
        stream = device.create_stream(blocking=False)
        prepare(stream if fixed else device.default_stream, work, image)
        device.kernel("relu").launch(stream, work, y, 64)  # <- second
        stream.synchronize()
        print(f"{y.read(np.float32)[0]:.0f}")


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
