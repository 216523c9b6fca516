"""Rows P021 to P036: what synchronous and asynchronous programs see, and what it costs them."""

from __future__ import annotations

import numpy as np
import pytest
from npu_abi import C

import libnpu

ROWS, COLUMNS = 1024, 64  # of a softmax that takes the device about 90 us on two of its four units
COUNT = ROWS * COLUMNS
CALL_US = 0.75  # of a launch: 0.1 for the call, 0.4 for the ioctl, 0.25 for the doorbell, as the profile says
WAKE_US = 2.0  # from the interrupt to the host, as the profile says
POISON = b"\xff"


@pytest.fixture
def device():
    with libnpu.open(trace=True) as opened:
        yield opened


class Program:
    """Softmax kernels on streams, warm: their instructions are in the caches, the queues are known."""

    def __init__(self, device, streams=2, grid=2):
        self.device, self.grid = device, grid
        self.softmax = device.kernel("softmax")
        self.x = device.to_device(np.zeros(COUNT, np.float32))
        self.streams = [device.create_stream() for _ in range(streams)]
        self.y = [device.alloc(4 * COUNT) for _ in self.streams]
        for n in range(streams):
            self.launch(n).wait()
        self.launch(0).wait()

    def launch(self, n, stream=None, rows=ROWS):
        stream = self.streams[n] if stream is None else stream
        return self.softmax.launch(stream, self.x, self.y[n], rows, COLUMNS, grid=self.grid)

    def timed(self, function):
        """Run it; return the time in us, and how much of it the host was blocked."""
        begin, times = self.device.now_ps, self.device.host_times()
        function()
        return (self.device.now_ps - begin) / 1e6, (self.device.host_times()[1] - times[1]) / 1e6


def test_a_synchronous_host_is_blocked_for_as_long_as_the_device_works(device):
    """P021."""
    program = Program(device)
    jobs = []

    def synchronous():
        jobs.append(program.launch(0))
        jobs[0].wait()

    total, blocked = program.timed(synchronous)
    works = jobs[0].latency_ps / 1e6
    assert 70 < works < 110
    assert works < blocked < works + 2 * CALL_US + 2 * WAKE_US
    assert blocked < total < blocked + 2


def test_a_launch_returns_after_the_same_time_however_long_the_kernel_runs(device):
    """P022."""
    program = Program(device)
    latencies, launches = [], []
    for rows in (1, 16, ROWS):
        jobs = []
        launch, blocked = program.timed(lambda rows=rows, jobs=jobs: jobs.append(program.launch(0, rows=rows)))
        assert blocked == 0
        assert not jobs[0].done
        jobs[0].wait()
        launches.append(launch)
        latencies.append(jobs[0].latency_ps)
    assert latencies[2] > 15 * latencies[0]
    assert max(launches) == min(launches) == pytest.approx(CALL_US, abs=0.01)


def test_two_streams_run_their_kernels_at_the_same_time_on_different_units(device):
    """P026: their times overlap, and the whole is shorter than the sum."""
    program = Program(device)
    a, b = program.launch(0), program.launch(1)
    device.synchronize()
    makespan = max(a.end_ps, b.end_ps) - min(a.start_ps, b.start_ps)
    assert max(a.start_ps, b.start_ps) < min(a.end_ps, b.end_ps)
    assert makespan < 0.6 * (a.latency_ps + b.latency_ps)
    units = [{block.unit for block in job.blocks} for job in (a, b)]
    assert not units[0] & units[1]
    records = device.trace()
    kernels = records[(records["engine"] == C.NPU_ENGINE_SHAVE) & (records["time_ps"] >= a.start_ps)]
    begins = kernels[kernels["kind"] == C.NPU_TRACE_START]["time_ps"]
    ends = kernels[kernels["kind"] == C.NPU_TRACE_END]["time_ps"]
    assert len(begins) == len(ends) == 4  # two blocks each
    assert max(begins) < min(ends)  # all four at the same time


@pytest.mark.parametrize("host_us", [20, 70, 140, 400])
def test_host_and_device_together_take_as_long_as_the_longer_of_them(device, host_us):
    """P027: and what two launches and two waits cost, no more."""
    program = Program(device)
    jobs = []

    def asynchronous():
        jobs.extend(program.launch(n) for n in range(2))
        device.host_delay(1000 * host_us)
        for stream in program.streams:
            stream.synchronize()

    total, _ = program.timed(asynchronous)
    npu_us = (max(job.end_ps for job in jobs) - min(job.start_ps for job in jobs)) / 1e6
    overheads = 2 * CALL_US + 2 * CALL_US + 2 * WAKE_US  # the second launch may find a message to take note of
    assert 0 < total - max(host_us, npu_us) < overheads


@pytest.mark.parametrize("time", ["once", "and again"])
def test_who_reads_before_the_wait_reads_what_was_there(device, time):
    """P028: fresh memory is poison, every time; the bytes are there when a wait says so."""
    kernel, stream = device.kernel("relu"), device.create_stream()
    x, y = device.to_device(np.full(4096, 3, np.float32)), device.alloc(16384)
    with device.alloc_host(16384) as pinned:
        for step in range(3):
            kernel.launch(stream, x, y, 4096)
            stream.copy(pinned, y)
            expected = POISON if step == 0 else np.float32(3 * step).tobytes()
            for part in (y.read().tobytes(), pinned.array.tobytes()):
                assert part == expected * (16384 // len(expected))
            stream.synchronize()
            for part in (y, pinned):
                assert (part.read(np.float32) == 3 * (step + 1)).all()
            x.write(np.full(4096, 3 * (step + 2), np.float32))


def test_the_signal_goes_from_the_device_through_the_interrupt_to_the_host(device):
    """P029: the last block ends, the fence is written, the interrupt comes, and the host wakes."""
    program = Program(device)
    device.trace()
    job = program.launch(0)
    job.wait()
    woken_ps = device.now_ps
    records = device.trace()

    def last(kind, engine=None):
        found = records[records["kind"] == kind]
        return int((found if engine is None else found[found["engine"] == engine])["time_ps"][-1])

    block_ends = last(C.NPU_TRACE_END, C.NPU_ENGINE_SHAVE)
    fence_ps, irq_ps = last(C.NPU_TRACE_FENCE_WRITE), last(C.NPU_TRACE_IRQ)
    assert block_ends == max(block.end_ps for block in job.blocks)
    assert block_ends < fence_ps <= job.end_ps < irq_ps < woken_ps
    assert irq_ps + WAKE_US * 1e6 <= woken_ps < irq_ps + WAKE_US * 1e6 + 1e6


def test_of_a_small_kernel_the_launch_is_a_large_part_and_of_a_large_one_it_is_not(device):
    """P030, P031: so a small model may as well run synchronously, and a large one should not."""
    program = Program(device, grid=1)
    shares = []
    for rows in (1, ROWS):
        jobs = []

        def synchronous(jobs=jobs, rows=rows):
            jobs.append(program.launch(0, rows=rows))
            jobs[0].wait()

        total, _ = program.timed(synchronous)
        executes = jobs[0].steps.execute_ps / 1e6
        shares.append((total - executes) / total)
    assert shares[0] > 0.6
    assert shares[1] < 0.06


def test_a_wait_after_each_launch_is_as_slow_as_the_synchronous_model(device):
    """P032, P033: within 5 %; with one wait at the end the same kernels take half the time."""
    program = Program(device)

    def launch_all(program):
        for n in (0, 1, 0, 1):
            program.launch(n)

    def wait_after_each():
        for n in (0, 1, 0, 1):
            program.launch(n)
            program.streams[n].synchronize()

    def wait_once():
        launch_all(program)
        device.synchronize()

    with libnpu.open(launch_blocking=True) as blocking:
        synchronous = Program(blocking)
        sync, blocked = synchronous.timed(lambda: launch_all(synchronous))
    each, once = (program.timed(way)[0] for way in (wait_after_each, wait_once))
    assert blocked > 0.95 * sync  # there is no wait in the program: the launches themselves are blocked
    assert each == pytest.approx(sync, rel=0.05)
    assert once < 0.6 * sync


SCHEDULES = ["timed", "eager", "lazy", "newest-first", "seed:1", "seed:2"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_in_one_stream_order_is_enough(device, schedule):
    """P034: B needs A's result; no wait is between them, under any schedule."""
    device.set_schedule(schedule)
    scale_add, stream = device.kernel("scale_add"), device.create_stream()
    a, b, c = (device.to_device(np.full(4096, value, np.float32)) for value in (1, 0, 0))
    scale_add.launch(stream, a, b, 2.0, 4096)  # b += 2 a
    scale_add.launch(stream, b, c, 3.0, 4096)  # c += 3 b
    stream.copy(a, c)
    stream.synchronize()
    assert (a.read(np.float32) == 6).all()


def across_streams(device, *, ordered, later_first=True):
    """A copy in one stream, a kernel that needs it in another; which one is waited for first. Returns the kernel's result."""
    relu = device.kernel("relu")
    x, y = device.to_device(np.zeros(4096, np.float32)), device.alloc(16384)
    one, two, event = device.create_stream(), device.create_stream(), device.create_event()
    with device.alloc_host(16384) as pinned:
        pinned.array.view(np.float32)[:] = 3
        one.copy(x, pinned)
        event.record(one)
        if ordered:
            two.wait_event(event)
        relu.launch(two, x, y, 4096)
        for stream in (two, one) if later_first else (one, two):
            stream.synchronize()
    return y.read(np.float32)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_across_streams_an_event_makes_every_schedule_right(device, schedule):
    """P035."""
    device.set_schedule(schedule)
    assert (across_streams(device, ordered=True) == 3).all()


@pytest.mark.parametrize("schedule", ["lazy", "newest-first"])
def test_across_streams_a_missing_event_gives_other_bytes(device, schedule):
    """P035: the kernel reads what was there before the copy, every time."""
    device.set_schedule(schedule)
    for _ in range(3):
        assert (across_streams(device, ordered=False) == 0).all()


@pytest.mark.parametrize(("schedule", "expected"), [("eager", 3), ("lazy", 3), ("newest-first", 0)])
def test_what_hides_a_missing_event(device, schedule, expected):
    """P035: eager always; lazy, when the host waits for the copy before the kernel; newest-first does not."""
    device.set_schedule(schedule)
    assert (across_streams(device, ordered=False, later_first=False) == expected).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_hides_a_missing_wait_of_the_host(device, schedule):
    """Eager alone: with it the result is there when the launch returns."""
    device.set_schedule(schedule)
    with device.alloc_host(4096) as pinned:
        pinned.array[:] = 0
        device.default_stream.fill(pinned, 7)
        assert (pinned.array == (7 if schedule == "eager" else 0)).all()
        device.synchronize()


def test_the_host_is_busy_in_the_asynchronous_model_and_idle_in_the_synchronous_one(device):
    """P036: the same kernels and the same work of the host; utilisation is busy time by all of it."""
    program = Program(device)

    def utilisation(function):
        busy, blocked = device.host_times()
        function()
        busy, blocked = (after - before for after, before in zip(device.host_times(), (busy, blocked), strict=True))
        return busy / (busy + blocked)

    def synchronous():
        for n in range(2):
            program.launch(n)
            program.streams[n].synchronize()
            device.host_delay(40_000)

    def asynchronous():
        for n in range(2):
            program.launch(n)
            device.host_delay(40_000)
        device.synchronize()

    assert 0.25 < utilisation(synchronous) < 0.35
    assert 0.55 < utilisation(asynchronous) < 0.7
