"""Waits for work that another thread breaks off: it ends the context by force, resets the device, or closes it."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from npu_abi import C

import libnpu

ENDS = {
    "destroy": lambda work: work.context.destroy(force=True),
    "reset": lambda work: work.device.reset(),
    "close": lambda work: work.device.close(),
}


class Work:
    """A stream of a context of its own whose first operation waits for a record that never comes."""

    def __init__(self, device):
        self.device, self.context = device, device.create_context()
        self.stream, self.memory = self.context.create_stream(), self.context.alloc(4096)
        self.event, self.shared = (
            self.context.create_event(),
            self.context.create_event(timing=False, interprocess=True),
        )
        with self.stream.capture() as capture:
            self.stream.fill(self.memory, 1)
        self.graph = capture.graph.instantiate()
        self.notify = self.context.create_notify()
        self.notify.wait(self.stream)
        self.job = self.stream.fill(self.memory, 7)
        self.event.record(self.stream)
        self.shared.record(self.stream)

    def behind(self, call):
        """Do `call` on the context with its default stream behind the stream."""
        self.context.default_stream.wait_event(self.event)
        call(self.context)

    def awaited(self, what):
        """Wait in asyncio."""

        async def wait():
            await what

        asyncio.run(wait())

    def fill_up(self):
        """Enqueue more than the queue takes."""
        for _ in range(100):
            self.stream.fill(self.memory, 1)


WAITS = {
    "stream": lambda work: work.stream.synchronize(),
    "stream, timeout": lambda work: work.stream.synchronize(1e12),
    "up to a job": lambda work: work.stream.synchronize_to(work.job),
    "job": lambda work: work.job.wait(),
    "event": lambda work: work.event.synchronize(),
    "event of processes": lambda work: work.shared.synchronize(),
    "context": lambda work: work.context.synchronize(),
    "context, timeout": lambda work: work.context.synchronize(1e12),
    "device": lambda work: work.device.synchronize(),
    "graph": lambda work: work.graph.launch(work.stream).wait(),
    "copy": lambda work: work.behind(lambda context: context.copy(work.memory[:64], work.memory[64:128])),
    "pageable copy": lambda work: work.behind(lambda context: context.copy(work.memory, bytes(64))),
    "fill": lambda work: work.behind(lambda context: context.fill(work.memory, 1)),
    "new memory": lambda work: work.behind(lambda context: context.to_device(np.ones(4))),
    "full queue": lambda work: work.fill_up(),
    "await stream": lambda work: work.awaited(work.stream),
    "await event": lambda work: work.awaited(work.event),
    "await job": lambda work: work.awaited(work.job),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("wait", WAITS)
def test_who_waits_for_what_another_thread_breaks_off_gets_an_error(end, wait, run_team):
    with libnpu.open("unit") as device:
        work, seen = Work(device), []

        def ender():
            device.host_delay(10**6)
            seen.append("ended")
            ENDS[end](work)

        def waiter():
            try:
                WAITS[wait](work)
            finally:
                seen.append("waited")

        error, _ = run_team(device, waiter, ender)
        assert seen == ["ended", "waited"]
        assert isinstance(error, libnpu.NpuError)
        assert error.result == C.NPU_ERROR_STALE_HANDLE


def test_work_that_had_ended_is_no_business_of_the_context_s_end(run_team):
    with libnpu.open("unit") as device:
        other = device.create_context()
        done = other.create_stream().fill(other.alloc(64), 1)
        stream, notify, memory = device.create_stream(), device.create_notify(), device.alloc(64)
        notify.wait(stream)
        last = stream.fill(memory, 1)

        def ender():
            device.host_delay(10**6)
            done.wait()
            other.destroy(force=True)
            notify.record()

        assert run_team(device, device.synchronize, ender) == [None, None]
        assert last.done


def test_a_stream_that_is_closed_meanwhile_is_no_error_of_the_context_s_wait(run_team):
    with libnpu.open("unit") as device:
        first, second, memory = device.create_stream(), device.create_stream(), device.alloc(64)
        notify = device.create_notify()
        notify.wait(first)

        def closer():
            device.host_delay(10**6)
            second.close()
            notify.record()

        second.fill(memory, 1)
        assert run_team(device, device.primary.synchronize, closer) == [None, None]
