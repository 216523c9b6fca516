"""A job that the driver does not take yet, because a queue or the context is full, while other threads look at it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from npu_abi import C

import libnpu

MIB = 1 << 20
RING = 63  # jobs that a queue takes
JOBS = 256  # jobs in flight that a context may have


@pytest.fixture
def crowd(device):
    """Enqueues as many jobs as the context may have, behind one that lasts; returns its streams."""

    def enqueue():
        streams, event, memory = (
            [device.create_stream() for _ in range(5)],
            device.create_event(),
            device.alloc(32 * MIB),
        )
        streams[0].fill(memory, 1)
        event.record(streams[0])
        for stream in streams[1:]:
            stream.wait_event(event)
        for n in range(JOBS - 6):
            streams[n % 5].fill(memory.at(0, 64), 2)
        assert sum(len(stream.jobs) for stream in streams) == JOBS
        return streams

    return enqueue


@pytest.mark.parametrize("how", ["stream", "event", "job", "device", "query"])
def test_a_thread_waits_for_a_job_that_the_driver_has_not_taken(device, crowd, run_team, how):
    crowd()
    stream, event, memory = device.create_stream(), device.create_event(), device.alloc(64)
    made = []

    def enqueue():
        made.append(stream.fill(memory, 7))
        return made[0].submitted

    def look():
        device.host_delay(100_000)
        (job,) = stream.jobs
        assert not job.submitted
        if how == "query":
            assert not stream.query()
            while not stream.query():
                device.host_delay(10_000)
        elif how == "event":
            event.record(stream)
            event.synchronize()
        else:
            {"stream": stream.synchronize, "job": job.wait, "device": device.synchronize}[how]()
        return job.done, device.now_ps

    submitted, (done, woken_ps) = run_team(device, enqueue, look)
    assert submitted
    assert done
    assert 0 < made[0].start_ps < made[0].end_ps < woken_ps
    assert (memory.read() == 7).all()
    assert device.reproducible


def test_a_time_out_passes_while_the_job_cannot_be_taken(device, crowd, run_team):
    crowd()
    stream, memory = device.create_stream(), device.alloc(64)

    def look():
        device.host_delay(100_000)
        begin = device.now_ps
        with pytest.raises(libnpu.NpuError) as caught:
            stream.synchronize(timeout_ns=20_000)
        return caught.value.result, device.now_ps - begin

    _, (result, waited_ps) = run_team(device, lambda: stream.fill(memory, 7), look)
    assert result == C.NPU_TIMEOUT
    assert 20_000_000 <= waited_ps < 21_000_000
    stream.synchronize()
    assert (memory.read() == 7).all()


def test_two_threads_enqueue_in_a_full_queue_in_order(device, run_team):
    stream, memory = device.create_stream(), device.alloc(32 * MIB)
    stream.fill(memory, 1)
    jobs = [stream.fill(memory.at(0, 64), 2) for _ in range(RING - 1)]

    def enqueue(delay_ns, value):
        device.host_delay(delay_ns)
        jobs.append(stream.fill(memory.at(0, 64), value))

    run_team(device, lambda: enqueue(10_000, 3), lambda: enqueue(20_000, 4), lambda: enqueue(5_000, 5))
    stream.synchronize()
    assert all(one.end_ps <= two.start_ps for one, two in pairwise(sorted(jobs, key=lambda job: job.number)))
    assert (memory.read()[:65] == [4] * 64 + [1]).all()


def test_an_abort_frees_the_thread_that_waits_to_enqueue(device, crowd, run_team):
    crowd()
    stream, memory = device.create_stream(), device.alloc(64)
    memory.write(bytes(64))

    def abort():
        device.host_delay(100_000)
        stream.abort()

    job, _ = run_team(device, lambda: stream.fill(memory, 7), abort)
    assert job.done
    with pytest.raises(libnpu.NpuError) as caught:
        stream.synchronize()
    assert caught.value.result == C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR
    device.synchronize()
    assert (memory.read() == 0).all()
    stream.fill(memory, 8)
    stream.synchronize()
    assert (memory.read() == 8).all()
