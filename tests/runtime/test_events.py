"""Events and notifies: order across streams, snapshots, times."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from npu_abi import C

import libnpu

LONG = 1 << 20  # bytes: such a copy takes longer than many calls of the host


def refused(result, call):
    with pytest.raises(libnpu.NpuError) as caught:
        call()
    assert caught.value.result == result


@pytest.fixture
def work(device, blob_bytes):
    """Enqueues a long copy of memory that holds 5, or of `source`; returns (job, destination)."""
    module, fives = device.load(blob_bytes(nbytes=LONG)), device.alloc(LONG)
    fives.write(np.full(LONG, 5, np.uint8))

    def enqueue(stream, source=fives):
        target = device.alloc(LONG)
        return stream.launch(module, {"x": source}, {"y": target}), target

    return enqueue


def test_a_wait_orders_two_streams(device, work):
    producer, consumer, event = device.create_stream(), device.create_stream(), device.create_event()
    first, middle = work(producer)
    event.record(producer)
    consumer.wait_event(event)
    second, end = work(consumer, source=middle)
    consumer.synchronize()
    assert end.read()[[0, -1]].tolist() == [5, 5]
    assert second.start_ps >= first.end_ps


def test_without_a_wait_the_second_stream_reads_poison(device, work):
    producer, consumer = device.create_stream(), device.create_stream()
    first, middle = work(producer)
    second, end = work(consumer, source=middle)
    device.synchronize()
    assert 255 in end.read()
    assert second.start_ps < first.end_ps


def test_query_and_synchronise_follow_the_work_before_the_record(device, work):
    stream, event = device.create_stream(), device.create_event()
    job, _ = work(stream)
    event.record(stream)
    behind, _ = work(stream)
    assert event.query() is False
    event.synchronize()
    assert event.query() is True
    assert job.done
    assert not behind.done  # a snapshot: it does not wait for what came later
    assert device.now_ps >= event.timestamp_ps >= job.end_ps


def test_polling_an_event_ends(device, work):
    stream, event = device.create_stream(), device.create_event()
    work(stream)
    event.record(stream)
    polls = 0
    while not event.query():
        polls += 1
    assert polls > 10


def test_a_timeout_leaves_the_event_pending(device, work):
    stream, event = device.create_stream(), device.create_event()
    work(stream)
    event.record(stream)
    refused(C.NPU_TIMEOUT, lambda: event.synchronize(timeout_ns=100))
    event.synchronize()


def test_a_wait_takes_the_record_of_its_time(device, work):
    """B13 of the catalogue, in both directions: a later record does not change an earlier wait."""
    slow, fast, waiter, event = *(device.create_stream() for _ in range(3)), device.create_event()
    long_job, _ = work(slow)
    event.record(slow)
    waiter.wait_event(event)  # of the slow stream
    event.record(fast)  # nothing is before it
    event.synchronize()
    assert not long_job.done
    job, _ = work(waiter)
    waiter.synchronize()
    assert job.start_ps >= long_job.end_ps


def test_a_record_again_forgets_the_first_one(device, work):
    slow, fast, event = device.create_stream(), device.create_stream(), device.create_event()
    long_job, _ = work(slow)
    event.record(slow)
    event.record(fast)
    event.synchronize()
    assert event.query()
    assert not long_job.done
    first = event.timestamp_ps
    device.synchronize()
    assert event.timestamp_ps == first < long_job.end_ps


def test_elapsed_time_is_the_device_s(device, work):
    stream, start, end = device.create_stream(), device.create_event(), device.create_event()
    work(stream)  # the first inference of a stream lets the host make its preemption buffer
    start.record(stream)
    job, _ = work(stream)
    end.record(stream)
    stream.synchronize()
    elapsed = start.elapsed_ns(end)
    assert elapsed == (end.timestamp_ps - start.timestamp_ps) / 1000
    assert elapsed == pytest.approx(job.latency_ps / 1000, rel=0.1)
    assert end.elapsed_ns(start) == -elapsed


def test_elapsed_time_names_what_is_missing(device, work):
    stream, event = device.create_stream(), device.create_event()
    other, silent = device.create_event(), device.create_event(timing=False)
    refused(C.NPU_ERROR_NOT_RECORDED, lambda: event.elapsed_ns(other))
    event.record(stream)
    work(stream)
    other.record(stream)
    silent.record(stream)
    refused(C.NPU_ERROR_NO_TIMING, lambda: event.elapsed_ns(silent))
    refused(C.NPU_NOT_READY, lambda: event.elapsed_ns(other))
    silent.synchronize()
    refused(C.NPU_ERROR_NO_TIMING, lambda: silent.timestamp_ps)
    assert event.elapsed_ns(other) > 0


def test_reset_forgets_the_record_but_not_who_waits(device, work):
    producer, consumer, event = device.create_stream(), device.create_stream(), device.create_event()
    first, _ = work(producer)
    event.record(producer)
    consumer.wait_event(event)
    event.reset()
    assert event.query()
    refused(C.NPU_ERROR_NOT_RECORDED, lambda: event.timestamp_ps)
    second, _ = work(consumer)
    device.synchronize()
    assert second.start_ps >= first.end_ps


def test_destroying_a_pending_event_does_not_disturb_who_waits(device, work):
    producer, consumer, event = device.create_stream(), device.create_stream(), device.create_event()
    first, _ = work(producer)
    event.record(producer)
    consumer.wait_event(event)
    event.destroy()
    event.destroy()
    second, _ = work(consumer)
    device.synchronize()
    assert second.start_ps >= first.end_ps
    for call in (event.query, event.synchronize, event.record, event.reset, lambda: consumer.wait_event(event)):
        refused(C.NPU_ERROR_STALE_HANDLE, call)


def test_an_event_outlives_the_stream_of_its_record(device, work):
    stream, event = device.create_stream(), device.create_event()
    job, _ = work(stream)
    event.record(stream)
    stream.close()
    assert event.query()
    event.synchronize()
    assert event.timestamp_ps >= job.end_ps
    device.create_stream().wait_event(event)


def test_a_wait_for_the_same_stream_enqueues_nothing(device):
    stream, event = device.create_stream(), device.create_event()
    event.record(stream)
    before = device.counters()["DOORBELLS"]
    stream.wait_event(event)
    assert device.counters()["DOORBELLS"] == before


def test_every_call_costs_host_time(device):
    stream, event = device.create_stream(), device.create_event()
    event.record(stream)
    event.synchronize()
    calls = (event.query, event.synchronize, event.reset, event.query, lambda: stream.wait_event(event), stream.query)
    for call in calls:
        before = device.now_ps
        call()
        assert device.now_ps >= before + 100_000  # api_call_ns of the profile


def test_many_events_record_in_turn(device):
    streams = [device.create_stream() for _ in range(4)]
    events = [device.create_event() for _ in range(50)]
    for i, event in enumerate(events):
        stream = streams[i % 4]
        if i:
            stream.wait_event(events[i - 1])
        event.record(stream)
    device.synchronize()
    times = [event.timestamp_ps for event in events]
    assert times == sorted(times)


# ---- notifies ----


def test_a_record_releases_a_wait(device, work):
    producer, consumer, notify = device.create_stream(), device.create_stream(), device.create_notify()
    first, middle = work(producer)
    notify.record(producer)
    notify.wait(consumer)
    second, end = work(consumer, source=middle)
    consumer.synchronize()
    assert end.read()[0] == 5
    assert second.start_ps >= first.end_ps


def test_a_wait_may_be_enqueued_before_its_record(device, work):
    producer, consumer, notify = device.create_stream(), device.create_stream(), device.create_notify()
    notify.wait(consumer)
    second, _ = work(consumer)
    first, _ = work(producer)
    notify.record(producer)
    consumer.synchronize()
    assert second.start_ps >= first.end_ps


def test_one_record_releases_exactly_one_wait(device):
    one, two, source = (device.create_stream() for _ in range(3))
    notify = device.create_notify()
    notify.wait(one)
    notify.wait(two)
    notify.record(source)
    one.synchronize()
    device.host_delay(1_000_000)
    assert not two.query()
    refused(C.NPU_ERROR_BARRIER_DEADLOCK, two.synchronize)
    notify.record(source)
    two.synchronize()


def test_a_stream_that_waits_for_ever_is_named_and_goes_on_when_it_is_released(device):
    waiter, source, notify = device.create_stream(), device.create_stream(), device.create_notify()
    notify.wait(waiter)
    with pytest.raises(
        libnpu.NpuError, match=r"'wait for a notify', enqueued at .*test_events\.py:\d+ cannot end"
    ) as caught:
        waiter.synchronize()
    assert caught.value.result == C.NPU_ERROR_BARRIER_DEADLOCK
    refused(C.NPU_ERROR_IN_USE, notify.destroy)
    notify.record(source)
    waiter.synchronize()
    notify.destroy()
    refused(C.NPU_ERROR_STALE_HANDLE, lambda: notify.wait(waiter))


def test_records_of_two_streams_release_in_the_order_of_their_enqueuing(device, work):
    slow, fast, waiter, notify = *(device.create_stream() for _ in range(3)), device.create_notify()
    long_job, _ = work(slow)
    notify.record(slow)
    notify.record(fast)
    notify.wait(waiter)  # of the slow one
    job, _ = work(waiter)
    waiter.synchronize()
    assert job.start_ps >= long_job.end_ps


def test_reset_drops_records_that_nobody_took(device):
    source, waiter, notify = device.create_stream(), device.create_stream(), device.create_notify()
    notify.record(source)
    notify.reset()
    notify.wait(waiter)
    refused(C.NPU_ERROR_BARRIER_DEADLOCK, waiter.synchronize)
    notify.record(source)
    waiter.synchronize()


def test_a_context_with_a_stuck_stream_ends(device):
    with device.create_context() as context:
        notify = context.create_notify()
        notify.wait(context.create_stream())
    assert not context.is_alive


def test_fences_are_given_back(device):
    source, waiter, notify = device.create_stream(), device.create_stream(), device.create_notify()
    fences = device.primary.fences
    for _ in range(100):
        notify.wait(waiter)
        notify.record(source)
        waiter.synchronize()
        source.synchronize()
    assert fences._made == 3  # two streams, one pair at a time


def test_a_stream_that_waits_for_ever_can_be_closed_and_gives_its_fences_back(device):
    fences = device.primary.fences
    for _ in range(10):
        with device.create_stream() as stream:
            device.create_notify().wait(stream)
    assert len(fences._free) == fences._made == 2


def test_notifies_that_are_forgotten_give_back_their_fences(device):
    stream, fences = device.create_stream(), device.primary.fences
    before = fences.in_use
    for _ in range(3):
        token = device.create_notify()
        token.record(stream)
        del token  # with its record in flight, or seen to have ended
        gc.collect()
    stream.synchronize()
    token = device.create_notify()
    token.record(stream)
    stream.synchronize()
    del token
    gc.collect()
    assert fences.in_use == before
