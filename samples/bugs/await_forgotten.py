"""An asynchronous wait is made and never waited for.

A call returns a handle for the transfer, and whoever needs the data waits for the handle. Where the interface changed from a call that
waits to one that returns such a handle, old callers still compile; they wait for nothing.
The fix: wait for the handle.

    catalogue: B42
    link: https://github.com/Xilinx/XRT/pull/9085
    schedule: lazy
    report: HD-RAW at first, second
    right: 5
    wrong: 0
"""

import asyncio
import sys

import libnpu


def fetch(stream: libnpu.Stream, target: libnpu.HostBuffer, source: libnpu.Buffer) -> libnpu.Job:
    """Begin to copy a result out, and return what to wait for."""
    job = stream.copy(target, source)  # <- first
    assert job is not None
    return job


async def run(device: libnpu.Device, fixed: bool) -> None:
    """Fetch a result and print it."""
    target = device.alloc_host(64)
    target.array[:] = 0
    handle = fetch(device.create_stream(), target, device.to_device(bytes([5] * 64)))
    if fixed:
        await handle
    print(int(target.array[0]))  # <- second


def main(fixed: bool) -> None:
    """Run it."""
    with libnpu.open() as device:
        asyncio.run(run(device, fixed))


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
