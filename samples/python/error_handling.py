"""Who is told what, and when: mistakes in a call, failures of work, a context that is lost.

    python samples/python/error_handling.py

1. A mistake is raised by the call that makes it, and nothing has changed.
2. A failure on the device is raised by the call that waits; the exception names the operation and where it was enqueued.
3. A fault ends its context and no other: what it had can still be freed, and another context goes on.
"""

from __future__ import annotations

from collections.abc import Callable

import libnpu
from libnpu.blob import KernelSource, kernel_library


def fault_library() -> bytes:
    """A library with one kernel, which writes where no memory is."""
    return kernel_library("fault", {"fault": KernelSource("li r6, 0x70000000\nst.i64 r2, r6, 0\nhalt", ())})


def show(what: str, call: Callable[[], object], expected: str) -> libnpu.NpuError:
    """Make a call that must raise `expected`, and print what it says."""
    try:
        call()
    except libnpu.NpuError as error:
        name = str(error).partition(":")[0]
        if name != expected:
            raise SystemExit(f"this is not so: {what} is {expected}; it is {error}") from None
        print(f"{what:30} {name}")
        if "0x" not in error.message:  # this page is to look the same everywhere
            print(f"    {error.message.partition(', enqueued at')[0].partition(';')[0]}")
        return error
    raise SystemExit(f"this is not so: {what} is {expected}; it succeeded")


def mistakes(context: libnpu.Context) -> None:
    memory, freed, stream = context.alloc(4096), context.alloc(4096), context.default_stream
    freed.free()
    show("allocate 0 bytes", lambda: context.alloc(0), "NPU_ERROR_INVALID_SIZE")
    show("read freed memory", freed.read, "NPU_ERROR_STALE_HANDLE")
    show("read past the end", lambda: memory.at(4000, 200), "NPU_ERROR_OUT_OF_RANGE")
    show("a kernel that is none", lambda: context.kernel("conv3d"), "NPU_ERROR_INVALID_VALUE")
    copy = context.kernel("copy")
    show("too few arguments", lambda: copy.launch(stream, memory, memory), "NPU_ERROR_ARG_COUNT")
    copy.launch(stream, memory[:2048], memory[2048:], 512)
    show("wait, but too short", lambda: stream.synchronize(timeout_ns=100), "NPU_TIMEOUT")
    stream.synchronize()
    stream.add_host_function(stream.query)
    show("a call in a host function", stream.synchronize, "NPU_ERROR_HOST_FUNCTION")


def main() -> None:
    with libnpu.open() as device:
        print("1. mistakes")
        device.primary.profiler.start()
        mistakes(device.primary)
        device.primary.profiler.stop()
        print(libnpu.timeline(device.primary), end="")

        print("2. failures")
        context = device.create_context()
        context.profiler.start()
        stream, notify = context.create_stream(), context.create_notify()
        notify.wait(stream)
        show("wait for what nobody signals", stream.synchronize, "NPU_ERROR_BARRIER_DEADLOCK")
        notify.record()
        stream.synchronize()
        fault = context.load(fault_library())["fault"]
        fault.launch(stream)  # returns at once: nothing is wrong with the call
        error = show("wait for a kernel that faults", stream.synchronize, "NPU_ERROR_DEVICE_PAGE_FAULT")
        site = str(error.enqueue_site).rpartition("/")[2].partition(":")[0]
        print(f"    operation {error.operation!r}, enqueued in {site}")
        if (error.operation, site) != ("fault", "error_handling.py"):
            raise SystemExit("this is not so: the exception says what failed and where it was enqueued")
        print(libnpu.timeline(context), end="")

        print("3. what is left")
        show("the context is lost", context.create_stream, "NPU_ERROR_DEVICE_LOST")
        context.destroy(force=True)
        with device.alloc(4096) as memory:
            device.copy(memory, bytes(4096))
        print(f"{'the other context goes on':30} success")


if __name__ == "__main__":
    main()
