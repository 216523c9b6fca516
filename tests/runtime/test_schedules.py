"""Schedules: legal orders of one program. A missing wait shows under some of them, and never when the wait is there."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from npu_abi import C

import libnpu

KIB = 1 << 10
ALL = ["timed", "eager", "lazy", "newest-first", "seed:7", "hold:", "hold:1.1,2.1@1.3"]


@pytest.fixture
def make():
    """Opens a device with a schedule."""
    opened = []

    def make(schedule):
        device = libnpu.open("npu-37xx", trace=True)
        opened.append(device)
        device.set_schedule(schedule)
        return device

    yield make
    for device in opened:
        device.close()


def produce_and_consume(device, with_event):
    """A stream writes 7 (slowly), another one copies what it finds: the copied value."""
    producer, consumer = device.create_stream(), device.create_stream()
    x, y = device.alloc(256 * KIB), device.alloc(256 * KIB)
    x.write(np.zeros(256 * KIB, np.uint8))
    producer.fill(x, 1)
    producer.fill(x, 7)
    if with_event:
        event = device.create_event()
        event.record(producer)
        consumer.wait_event(event)
    consumer.copy(y, x)
    consumer.synchronize()
    value = int(y.read()[-1])
    device.synchronize()
    assert (x.read() == 7).all()
    return value


@pytest.mark.parametrize("schedule", ALL)
def test_with_the_event_the_bytes_are_right_under_every_schedule(make, schedule):
    assert produce_and_consume(make(schedule), with_event=True) == 7


@pytest.mark.parametrize("schedule", ALL)
@pytest.mark.parametrize("records", [False, True])
def test_a_wait_in_the_legacy_default_stream_orders_the_others_also_when_it_waits_for_nothing(schedule, records):
    with libnpu.open("npu-37xx", semantics="cuda") as device:
        device.set_schedule(schedule)
        one, two, event = device.create_stream(), device.create_stream(), device.create_event()
        memory, result = device.to_device(bytes(256 * KIB)), device.alloc(256 * KIB)
        if records:
            event.record(device.default_stream)
        one.fill(memory, 7)
        device.default_stream.wait_event(event)
        two.copy(result, memory)
        two.synchronize()
        assert (result.read() == 7).all()


@pytest.mark.parametrize(("schedule", "value"), [("eager", 7), ("lazy", 0), ("newest-first", 0)])
def test_without_the_event_the_schedules_give_different_bytes(make, schedule, value):
    assert produce_and_consume(make(schedule), with_event=False) == value


def test_without_the_event_the_bytes_under_timed_are_in_between(make):
    assert produce_and_consume(make("timed"), with_event=False) in (0, 1)


def test_a_wait_that_only_one_order_needs_shows_under_newest_first_alone(make):
    """The consumer is enqueued first and reads before the writer in every order but newest-first."""

    def read_before_write(schedule):
        device = make(schedule)
        reader, writer = device.create_stream(), device.create_stream()
        x, y = device.alloc(4 * KIB), device.alloc(4 * KIB)
        x.write(np.full(4 * KIB, 3, np.uint8))
        reader.copy(y, x)
        writer.fill(x, 9)
        device.synchronize()
        return int(y.read()[0])

    assert [read_before_write(name) for name in ("timed", "eager", "lazy", "newest-first")] == [3, 3, 3, 9]


def test_the_order_within_a_stream_is_never_touched(make):
    for schedule in ALL:
        device = make(schedule)
        stream, x = device.create_stream(), device.alloc(4 * KIB)
        jobs = [stream.fill(x, value) for value in range(10)]
        stream.synchronize()
        starts = [job.start_ps for job in jobs]
        assert starts == sorted(starts)
        assert (x.read() == 9).all()


def test_lazy_runs_only_what_a_wait_needs(make):
    device = make("lazy")
    one, two, x = device.create_stream(), device.create_stream(), device.alloc(4 * KIB)
    first, second = one.fill(x, 1), one.fill(x, 2)
    other = two.fill(x, 3)
    device.host_delay(10**6)
    assert not any(job.submitted for job in (first, second, other))
    first.wait()
    assert (first.done, second.submitted, other.submitted) == (True, False, False)
    assert (x.read() == 1).all()
    two.synchronize()
    assert not second.submitted
    one.synchronize()
    assert (x.read() == 2).all()


def test_lazy_follows_fences_through_streams(make):
    device = make("lazy")
    streams, x = [device.create_stream() for _ in range(3)], device.alloc(4 * KIB)
    jobs = []
    for stream, after in itertools.pairwise(streams):
        jobs.append(stream.fill(x, len(jobs)))
        event = device.create_event()
        event.record(stream)
        after.wait_event(event)
    jobs.append(streams[2].fill(x, 5))
    behind = streams[0].fill(x, 6)
    streams[2].synchronize()
    assert [job.submitted for job in (*jobs, behind)] == [True, True, True, False]
    assert (x.read() == 5).all()


@pytest.mark.parametrize("schedule", ["eager", "lazy", "newest-first"])
def test_polling_ends(make, schedule):
    device = make(schedule)
    stream, x, event = device.create_stream(), device.alloc(4 * KIB), device.create_event()
    stream.fill(x, 1)
    event.record(stream)
    polls = 0
    while not event.query():
        polls += 1
    while not stream.query():
        polls += 1
    assert polls < 1000


@pytest.mark.parametrize("schedule", ALL)
def test_a_notify_may_be_waited_for_before_it_is_recorded(make, schedule):
    device = make(schedule)
    waiting, recording, notify, x = (
        device.create_stream(),
        device.create_stream(),
        device.create_notify(),
        device.alloc(64),
    )
    notify.wait(waiting)
    waiting.fill(x, 4)
    assert not waiting.query()
    notify.record(recording)
    waiting.synchronize()
    assert (x.read() == 4).all()


@pytest.mark.parametrize("schedule", ALL)
def test_host_functions_run_under_every_schedule(make, schedule):
    device, seen = make(schedule), []
    one, two, x = device.create_stream(), device.create_stream(), device.alloc(64)
    one.fill(x, 1)
    one.add_host_function(seen.append, "one")
    event = device.create_event()
    event.record(one)
    two.wait_event(event)
    two.add_host_function(seen.append, "two")
    two.synchronize()
    assert seen == ["one", "two"]


@pytest.mark.parametrize("schedule", ["lazy", "newest-first"])
def test_memory_that_is_freed_before_its_work_runs_is_there_when_it_runs(make, schedule):
    device = make(schedule)
    stream, x, y = device.create_stream(), device.alloc(4 * KIB), device.alloc(4 * KIB)
    stream.fill(x, 8)
    stream.copy(y, x)
    x.free()
    stream.synchronize()
    assert (y.read() == 8).all()


@pytest.mark.parametrize("schedule", ["lazy", "newest-first"])
def test_a_deadlock_and_an_abort_are_told_as_ever(make, schedule):
    device = make(schedule)
    stream, notify = device.create_stream(), device.create_notify()
    notify.wait(stream)
    with pytest.raises(libnpu.NpuError, match="waits for a notify") as caught:
        stream.synchronize()
    assert caught.value.result == C.NPU_ERROR_BARRIER_DEADLOCK
    stream.fill(device.alloc(64), 1)
    stream.abort()
    for _ in range(2):
        with pytest.raises(libnpu.NpuError) as caught:
            stream.synchronize()
        assert caught.value.result == C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR
    stream.synchronize()


@pytest.mark.parametrize("schedule", ["lazy", "newest-first"])
def test_more_jobs_than_a_ring_holds_may_be_held(make, schedule):
    device = make(schedule)
    stream, x = device.create_stream(), device.alloc(64)
    for value in range(80):
        stream.fill(x, value)
    stream.synchronize()
    assert (x.read() == 79).all()


def test_an_eager_device_is_idle_when_the_call_returns(make):
    device = make("eager")
    stream, x = device.create_stream(), device.alloc(64 * KIB)
    stream.fill(x, 6)
    assert (x.read() == 6).all()
    assert stream.query()


def test_times_mean_something_under_timed_only(make):
    for schedule in ALL:
        device = make(schedule)
        assert device.schedule.name == schedule
        assert device.times_meaningful is (schedule == "timed")
        device.set_schedule("timed")
        assert device.times_meaningful is (schedule == "timed")  # some of them do not


@pytest.mark.parametrize("schedule", ["", "late", "seed", "seed:", "seed:-1", "seed:18446744073709551616", "seed:x", 5])
def test_unknown_schedules_are_refused(device, schedule):
    with pytest.raises(libnpu.NpuError, match="schedule") as caught:
        device.set_schedule(schedule)
    assert caught.value.result == C.NPU_ERROR_INVALID_VALUE
    assert device.schedule.name == "timed"


def test_the_environment_chooses_the_schedule(monkeypatch):
    monkeypatch.setenv("NPU_SCHEDULE", "seed:12")
    with libnpu.open("unit") as device:
        assert device.schedule.name == "seed:12"
    monkeypatch.setenv("NPU_SCHEDULE", "sometimes")
    with pytest.raises(libnpu.NpuError, match="'sometimes'") as caught:
        libnpu.open("unit")
    assert caught.value.result == C.NPU_ERROR_INVALID_VALUE


def test_a_change_waits_for_the_work_before(make):
    device = make("lazy")
    stream, x = device.create_stream(), device.alloc(4 * KIB)
    job = stream.fill(x, 2)
    device.set_schedule("timed")
    assert job.done
    assert stream.fill(x, 3).submitted


SHARING = ["timed", "eager", "lazy", "newest-first", "seed:7", "hold:", "hold:1.1", "hold:1.2,2.1.1"]


class Sharing:
    """Two contexts with a stream and memory each, and an event of the first that the second has opened."""

    def __init__(self, device):
        there = device.create_context()
        self.made = device.create_event(timing=False, interprocess=True)
        self.opened = there.open_ipc_event(self.made.ipc_handle())
        self.here, self.there = device.create_stream(), there.create_stream()
        self.memory, self.result = device.alloc(64), there.alloc(64)
        self.view = there.open_ipc_memory(self.memory.ipc_handle())

    def hand_over(self, value):
        """Let the second context copy what the first one has written."""
        self.here.fill(self.memory, value)
        self.made.record(self.here)
        self.there.wait_event(self.opened)
        self.there.copy(self.result, self.view)


@pytest.mark.parametrize("schedule", SHARING)
def test_a_context_waits_for_a_record_that_another_one_holds_back(make, schedule):
    both = Sharing(make(schedule))
    both.hand_over(5)
    both.there.synchronize()
    assert bytes(both.result.read()) == bytes([5] * 64)
    both.here.fill(both.memory, 6)
    both.made.record(both.here)
    both.opened.synchronize()
    assert bytes(both.view.read()) == bytes([6] * 64)
    both.here.fill(both.memory, 7)
    both.made.record(both.here)
    while not both.opened.query():
        pass
    assert bytes(both.view.read()) == bytes([7] * 64)


@pytest.mark.parametrize("schedule", SHARING)
def test_contexts_hand_memory_to_and_fro_and_only_the_last_work_is_waited_for(make, schedule):
    both = Sharing(make(schedule))
    for value in range(1, 4):
        both.hand_over(value)
        both.opened.record(both.there)  # the memory may be written again
        both.here.wait_event(both.made)
    both.here.fill(both.memory, 9)
    both.here.synchronize()
    assert bytes(both.result.read()) == bytes([3] * 64)
    assert bytes(both.memory.read()) == bytes([9] * 64)


@pytest.mark.parametrize("schedule", ["lazy", "newest-first"])
def test_a_record_is_handed_over_at_once_while_only_other_processes_may_wait_for_it(make, schedule):
    device = make(schedule)
    stream, memory = device.create_stream(), device.alloc(64)
    event = device.create_event(timing=False, interprocess=True)

    def is_held_back():
        stream.fill(memory, 1)
        event.record(stream)
        return stream.last_job is not None and not stream.last_job.submitted

    assert is_held_back()
    handle = event.ipc_handle()
    assert stream.last_job is None or stream.last_job.submitted
    assert not is_held_back()
    with device.create_context() as there:
        opened = there.open_ipc_event(handle)
        assert is_held_back()
        opened.synchronize()
        opened.destroy()
        assert not is_held_back()


@pytest.mark.parametrize("schedule", ["lazy", "newest-first", "hold:"])
def test_a_cycle_between_contexts_is_a_deadlock(make, schedule):
    device = make(schedule)
    both, token, third = Sharing(device), device.create_notify(), device.create_stream()
    token.wait(both.here)
    both.hand_over(1)
    back = device.create_event(timing=False, interprocess=True)
    back_there = both.there.context.open_ipc_event(back.ipc_handle())
    back_there.record(both.there)
    third.wait_event(back)
    token.record(third)
    with pytest.raises(libnpu.NpuError) as error:
        both.there.synchronize()
    assert error.value.result == C.NPU_ERROR_BARRIER_DEADLOCK
    for stream in (both.here, both.there, third):
        stream.abort()


@pytest.mark.parametrize("ask", ["stream", "job", "event", "shared event"])
def test_polling_ends_after_some_hundred_queries_under_every_seed(make, ask):
    """Other schedules: in the time that the model says, at a query each 500 ns."""
    for schedule in ("timed", "eager", "lazy", "newest-first", *(f"seed:{seed}" for seed in range(1, 5))):
        device = make(schedule)
        stream, memory, pinned = device.create_stream(), device.to_device(bytes(64 * KIB)), device.alloc_host(64 * KIB)
        job = stream.copy(pinned, memory)
        event = device.create_event(timing=False, interprocess=ask == "shared event")
        event.record(stream)
        query = {"stream": stream.query, "job": lambda: stream.query_job(job)}.get(ask, event.query)  # noqa: B023
        count = 0
        while not query() and count < 1000:
            count += 1
        assert count < (400 if schedule.startswith("seed") else 100)
