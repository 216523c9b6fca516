"""Streams: priorities, failure modes, abort, default streams that order others, ids, what an error tells."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from npu_abi import C

import libnpu
from libnpu.blob import write
from libnpu.errors import errno_error
from libnpu.syscalls import Node

LONG = 1 << 20


class Work:
    """Copies that last (`long`), and one that never ends well (`fail`), on a device's primary context."""

    def __init__(self, device, image):
        self.device = device
        self.module = device.load(write(image(nbytes=LONG)))
        self.stuck = device.load(write(image(deadlock=True)))
        self.source, self.small = device.alloc(LONG), device.alloc(1024)
        self.source.write(np.full(LONG, 5, np.uint8))

    def long(self, stream, source=None):
        target = self.device.alloc(LONG)
        job = stream.launch(self.module, {"x": source or self.source}, {"y": target})
        return job, target

    def fail(self, stream):
        return stream.launch(self.stuck, {"x": self.small}, {"y": self.small})


@pytest.fixture
def work(device, image):
    """Work for the device of default semantics."""
    return Work(device, image)


@pytest.fixture
def cuda(image):
    """Work for a device under `cuda`."""
    with libnpu.open("npu-37xx", semantics="cuda", trace=True) as device:
        yield Work(device, image)


@pytest.fixture
def fails_once(monkeypatch):
    """Lets the next call of the driver by a name fail with an errno."""
    real, armed = Node.ioctl, {}

    def ioctl(node, request, segments=()):
        if request.name in armed:
            raise errno_error(armed.pop(request.name), request.name)
        return real(node, request, segments)

    monkeypatch.setattr(Node, "ioctl", ioctl)
    return armed.__setitem__


@pytest.fixture
def strict(image):
    """Work for a device under `strict`."""
    with libnpu.open("npu-37xx", semantics="strict", trace=True) as device:
        yield Work(device, image)


def test_streams_have_ids_of_their_own(device):
    assert [device.create_stream().id for _ in range(3)] == [1, 2, 3]


# ---- priority ----


def test_a_priority_reaches_the_driver(device):
    normal = device.create_stream()
    stream = device.create_stream(priority=int(C.NPU_PRIORITY_FOCUS))
    kernel = device.node.machine.syscall.__self__
    queues = [queue for context in kernel.contexts.values() for queue in context.queues.values()]
    assert {q.cmdq_id: q.priority for q in queues} == {normal.cmdq_id: 2, stream.cmdq_id: 3}


@pytest.mark.parametrize(("priority", "nearest"), [(-1, 1), (0, 1), (5, 4)])
def test_a_priority_out_of_range_is_refused_or_clamped(device, cuda, strict, priority, nearest, refused):
    for refusing in (device, strict.device):
        error = refused(C.NPU_ERROR_INVALID_VALUE, lambda d=refusing: d.create_stream(priority=priority))
        assert f"priority {priority}; 1 to 4 are allowed" in error.message
    assert cuda.device.create_stream(priority=priority).priority == nearest


# ---- failures ----


def test_work_goes_on_after_a_failure_by_default(device, work, refused):
    stream = device.create_stream()
    work.fail(stream)
    job, target = work.long(stream)
    refused(C.NPU_ERROR_BARRIER_DEADLOCK, stream.synchronize)
    stream.synchronize()  # reported once
    assert job.error is None
    assert target.read()[0] == 5


def test_stop_on_failure_ends_all_later_work_of_the_context(device, work, refused):
    stream, neighbour = device.create_stream(), device.create_stream()
    stream.set_failure_mode(libnpu.FailureMode.STOP)
    first = work.fail(stream)
    second, _ = work.long(stream)
    refused(C.NPU_ERROR_BARRIER_DEADLOCK, first.wait)
    third, target = work.long(neighbour)
    refused(C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR, second.wait)
    refused(C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR, third.wait)
    assert target.read()[0] == 255
    other = device.create_context()
    assert other.create_stream().query()  # not a matter of other contexts


def test_stop_on_failure_ends_copies_by_the_host_too(device, work, refused):
    stream, memory = device.create_stream(), device.to_device(np.full(64, 7, np.uint8))
    stream.set_failure_mode(libnpu.FailureMode.STOP)
    device.copy(memory, np.full(64, 8, np.uint8))  # nothing has failed
    refused(C.NPU_ERROR_BARRIER_DEADLOCK, work.fail(stream).wait)
    free, pageable = device.memory_info()[0], np.zeros(64, np.uint8)
    for copy in (
        lambda: device.copy(pageable, memory),
        lambda: device.copy(memory, np.full(64, 9, np.uint8)),
        lambda: device.copy(pageable, np.full(64, 9, np.uint8)),
        lambda: device.create_stream().copy(pageable, memory),
        lambda: device.primary.copy_2d(pageable, 8, memory, 8, 4, 4),
        lambda: np.asarray(memory),
        lambda: device.to_device([1]),
    ):
        refused(C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR, copy)
    assert pageable.tolist() == [0] * 64
    assert memory.read().tolist() == [8] * 64
    assert device.memory_info()[0] <= free


def test_the_failure_mode_cannot_change_with_work_in_flight(device, work, refused):
    stream = device.create_stream()
    work.long(stream)
    refused(C.NPU_ERROR_IN_USE, lambda: stream.set_failure_mode(libnpu.FailureMode.STOP))
    assert stream.failure_mode is libnpu.FailureMode.CONTINUE
    stream.synchronize()
    stream.set_failure_mode(libnpu.FailureMode.STOP)
    stream.set_failure_mode(libnpu.FailureMode.STOP)
    assert work.long(stream)[0].number == 2  # the stream is the same one
    stream.synchronize()
    assert stream.fence == 2


def test_a_failed_job_names_its_operation_and_its_line(device, work, refused):
    stream = device.create_stream()
    line = test_a_failed_job_names_its_operation_and_its_line.__code__.co_firstlineno + 3
    job = stream.launch(work.stuck, {"x": work.small}, {"y": work.small})
    error = refused(C.NPU_ERROR_BARRIER_DEADLOCK, stream.synchronize)
    assert (error.operation, error.enqueue_site) == ("copy", f"{__file__}:{line}")
    assert error.job is job
    where = f"enqueued at {__file__}:{line}"
    assert f"of 'copy' ended with NPU_JOB_DEADLOCK, barrier 0, task 'step1', {where}" in error.message


# ---- abort ----


def test_abort_ends_what_has_not_ended_and_the_stream_goes_on(device, work, refused):
    stream = device.create_stream()
    jobs = [work.long(stream)[0] for _ in range(3)]
    before = device.now_ps
    stream.abort()
    assert [job.done for job in jobs] == [True] * 3
    assert device.now_ps - before < 10**8  # it does not wait for the copies
    assert {job.error.result for job in jobs} == {C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR}
    refused(C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR, stream.synchronize)
    refused(C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR, stream.query)
    refused(C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR, jobs[0].wait)
    refused(C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR, stream.synchronize)
    job, target = work.long(stream)
    stream.synchronize()
    assert job.error is None
    assert target.read()[0] == 5


def test_whoever_waits_for_an_aborted_stream_goes_on(device, work, refused):
    stream, waiter = device.create_stream(), device.create_stream()
    event, notify = device.create_event(), device.create_notify()
    for _ in range(3):
        work.long(stream)
    event.record(stream)
    notify.record(stream)
    waiter.wait_event(event)
    notify.wait(waiter)
    job, target = work.long(waiter)
    stream.abort()
    waiter.synchronize()
    assert job.error is None
    assert target.read()[0] == 5
    refused(C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR, event.synchronize)


def test_abort_frees_a_stream_that_waits_for_ever(device, refused):
    stream, notify = device.create_stream(), device.create_notify()
    notify.wait(stream)
    stream.abort()
    refused(C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR, stream.synchronize)
    notify.record(device.default_stream)  # of nobody's wait: the next one takes it
    notify.wait(stream)
    stream.synchronize()


def test_abort_on_a_context_that_was_just_lost_is_whole(device, image, refused):
    bad = device.load(write(image(addend=1 << 40)))
    stream, waiter, other = device.create_stream(), device.create_stream(), device.create_stream()
    notify, event, memory = device.create_notify(), device.create_event(), device.alloc(1024)
    notify.wait(stream)
    event.record(stream)
    waiter.wait_event(event)
    other.launch(bad, {"x": memory}, {"y": memory})
    device.host_delay(10**6)
    for _ in range(3):
        assert "is lost" in refused(C.NPU_ERROR_DEVICE_LOST, stream.abort).message
    for _ in range(2):  # its own errors: of the wait, and of the record
        refused(C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR, stream.synchronize)
    refused(C.NPU_ERROR_DEVICE_PAGE_FAULT, other.synchronize)
    stream.close()
    waiter.close()
    refused(C.NPU_ERROR_STALE_HANDLE, stream.synchronize)


def test_a_stream_whose_abort_found_no_new_queue_gets_one_with_its_next_operation(device, work, refused, fails_once):
    stream, notify = device.create_stream(), device.create_notify()
    notify.wait(stream)
    free = device.memory_info()[0]
    fails_once("CMDQ_CREATE", errno.ENOMEM)
    refused(C.NPU_ERROR_OUT_OF_DEVICE_MEMORY, stream.abort)
    refused(C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR, stream.synchronize)
    fails_once("CMDQ_CREATE", errno.ENOMEM)
    refused(C.NPU_ERROR_OUT_OF_DEVICE_MEMORY, lambda: stream.fill(work.small, 1))
    job, target = work.long(stream)
    job.wait()
    assert target.read()[0] == 5
    target.free()
    assert device.memory_info()[0] <= free
    fails_once("CMDQ_CREATE", errno.ENOMEM)
    refused(C.NPU_ERROR_OUT_OF_DEVICE_MEMORY, stream.abort)
    stream.abort()
    stream.fill(work.small, 1).wait()
    fails_once("CMDQ_CREATE", errno.ENOMEM)
    refused(C.NPU_ERROR_OUT_OF_DEVICE_MEMORY, stream.abort)
    stream.close()  # without a queue


def test_a_failure_mode_that_found_no_new_queue_is_as_before(device, work, refused, fails_once):
    stream = device.create_stream()
    fails_once("CMDQ_CREATE", errno.ENOMEM)
    refused(C.NPU_ERROR_OUT_OF_DEVICE_MEMORY, lambda: stream.set_failure_mode(libnpu.FailureMode.STOP))
    assert stream.failure_mode is libnpu.FailureMode.CONTINUE
    refused(C.NPU_ERROR_BARRIER_DEADLOCK, work.fail(stream).wait)
    assert work.long(stream)[0].wait() is None  # it goes on
    stream.set_failure_mode(libnpu.FailureMode.STOP)
    refused(C.NPU_ERROR_BARRIER_DEADLOCK, work.fail(stream).wait)
    refused(C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR, work.long(stream)[0].wait)


def test_abort_and_failure_mode_need_no_queue_more_than_the_stream_s_own(device, refused):
    streams = []
    with pytest.raises(libnpu.NpuError):
        while True:
            streams.append(device.create_stream())
    streams[-1].abort()
    streams[-1].set_failure_mode(libnpu.FailureMode.STOP)
    assert streams[-1].failure_mode is libnpu.FailureMode.STOP
    refused(C.NPU_ERROR_OUT_OF_RESOURCES, device.create_stream)


@pytest.mark.parametrize("call", ["BO_INFO", "mmap"])
def test_memory_that_the_host_cannot_see_is_given_back(device, refused, fails_once, call):
    device.alloc(4096).free()
    free = device.memory_info()[0]
    fails_once(call, errno.ENOBUFS)
    refused(C.NPU_ERROR_OUT_OF_HOST_MEMORY, lambda: device.alloc(4096))
    assert device.memory_info()[0] == free


def test_abort_of_an_idle_stream_changes_nothing(device, work):
    stream = device.create_stream()
    work.long(stream)
    stream.synchronize()
    stream.abort()
    stream.synchronize()
    assert stream.query()


# ---- the legacy default stream ----


def test_under_cuda_the_default_stream_waits_for_blocking_streams_and_they_for_it(cuda):
    device = cuda.device
    blocking, free = device.create_stream(), device.create_stream(blocking=False)
    before, middle = cuda.long(blocking)
    default, end = cuda.long(device.default_stream, middle)
    after, last = cuda.long(blocking, end)
    aside, hole = cuda.long(free, middle)
    device.synchronize()
    assert before.end_ps < default.end_ps < after.end_ps
    assert (end.read()[0], last.read()[0]) == (5, 5)
    assert aside.end_ps < default.end_ps  # exempt: it did not wait for the bytes that it reads
    assert 255 in hole.read()


def test_under_cuda_a_non_blocking_stream_is_not_waited_for(cuda):
    device = cuda.device
    free = device.create_stream(blocking=False)
    aside, _ = cuda.long(free)
    default, _ = cuda.long(device.default_stream)
    device.synchronize()
    assert default.start_ps < aside.end_ps


def test_elsewhere_the_default_stream_is_a_stream_like_any_other(device, work):
    stream = device.create_stream()
    first, _ = work.long(stream)
    second, _ = work.long(device.default_stream)
    device.synchronize()
    assert second.start_ps < first.end_ps


# ---- destroying with work in flight ----


def test_under_ascend_closing_a_stream_waits_for_its_work(device, work):
    stream = device.create_stream()
    job, target = work.long(stream)
    stream.close()
    assert job.done
    assert device.now_ps >= job.end_ps
    assert target.read()[0] == 5


def test_under_cuda_closing_returns_at_once_and_the_work_drains(cuda, refused):
    device = cuda.device
    stream = device.create_stream()
    job, target = cuda.long(stream)
    before = device.now_ps
    stream.close()
    assert device.now_ps - before < 10**7
    assert not job.done
    refused(C.NPU_ERROR_STALE_HANDLE, stream.synchronize)
    device.synchronize()
    assert job.done
    assert target.read()[0] == 5


def test_under_strict_closing_with_work_in_flight_is_refused(strict, refused):
    stream = strict.device.create_stream()
    strict.long(stream)
    refused(C.NPU_ERROR_IN_USE, stream.close)
    stream.synchronize()
    stream.close()


def test_hundreds_of_streams_come_and_go(device, work):
    free = device.memory_info()[0]
    for _ in range(300):
        with device.create_stream() as stream:
            stream.launch(work.stuck, {"x": work.small}, {"y": work.small})
    assert device.memory_info()[0] <= free
    assert work.long(device.create_stream())[0].wait() is None


# ---- sticky errors ----


@pytest.mark.parametrize("semantics", ["cuda", "strict"])
def test_a_device_s_error_sticks_to_its_context(semantics, image, refused):
    with libnpu.open("npu-37xx", semantics=semantics) as device:
        work = Work(device, image)
        stream, event, other = device.create_stream(), device.create_event(), device.create_context()
        work.fail(stream)
        error = refused(C.NPU_ERROR_BARRIER_DEADLOCK, stream.synchronize)
        for call in (
            stream.synchronize,
            stream.query,
            device.create_stream,
            device.create_event,
            device.synchronize,
            lambda: device.alloc(64),
            lambda: event.record(stream),
            event.query,
            lambda: work.long(stream),
        ):
            assert refused(C.NPU_ERROR_BARRIER_DEADLOCK, call).enqueue_site == error.enqueue_site
        assert other.alloc(64).size == 64
        device.reset()
        assert device.alloc(64).size == 64


@pytest.mark.parametrize("semantics", ["cuda", "strict"])
def test_what_leaves_the_context_whole_does_not_stick(semantics, image, refused):
    with libnpu.open("npu-37xx", semantics=semantics) as device:
        work, notify = Work(device, image), device.create_notify()
        stream, event = device.create_stream(), device.create_event()
        event.record(stream)

        def works():
            assert event.query()
            device.alloc(64).free()
            other = device.create_stream()
            other.fill(work.small, 1).wait()
            other.close()

        stream.add_host_function(lambda: 1 // 0)
        refused(C.NPU_ERROR_HOST_FUNCTION, stream.synchronize)
        works()
        notify.wait(stream)
        refused(C.NPU_ERROR_BARRIER_DEADLOCK, stream.synchronize)
        works()
        assert not stream.query()  # it goes on waiting
        stream.abort()
        refused(C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR, stream.synchronize)
        works()
        stream.fill(work.small, 1)
        stream.synchronize()


@pytest.mark.parametrize("semantics", ["cuda", "strict"])
def test_the_first_error_of_the_device_that_comes_out_is_the_one_that_sticks(semantics, image, refused):
    with libnpu.open("npu-37xx", semantics=semantics) as device:
        work = Work(device, image)
        one, two = device.create_stream(), device.create_stream()
        bad = device.load(write(image(addend=1 << 40)))
        work.fail(two)
        device.host_delay(10**6)
        one.launch(bad, {"x": work.small}, {"y": work.small})
        refused(C.NPU_ERROR_DEVICE_PAGE_FAULT, one.synchronize)
        for call in (device.create_stream, two.synchronize, two.query, one.query, lambda: device.alloc(64)):
            refused(C.NPU_ERROR_DEVICE_PAGE_FAULT, call)


def test_under_ascend_an_error_is_reported_once(device, work, refused):
    stream = device.create_stream()
    work.fail(stream)
    refused(C.NPU_ERROR_BARRIER_DEADLOCK, stream.synchronize)
    stream.synchronize()
    assert stream.query()
    assert device.alloc(64).size == 64


# ---- unrecorded events ----


@pytest.mark.parametrize("semantics", ["ascend", "cuda"])
def test_an_event_that_was_never_recorded_is_complete(semantics):
    with libnpu.open("npu-37xx", semantics=semantics) as device:
        event, stream = device.create_event(), device.create_stream()
        assert event.query()
        event.synchronize()
        stream.wait_event(event)
        assert device.counters()["DOORBELLS"] == 0


def test_under_strict_an_event_that_was_never_recorded_is_an_error(strict, refused):
    event, stream = strict.device.create_event(), strict.device.create_stream()
    for call in (event.query, event.synchronize, lambda: stream.wait_event(event)):
        refused(C.NPU_ERROR_NOT_RECORDED, call)


def test_semantics_have_names(refused):
    error = refused(C.NPU_ERROR_INVALID_VALUE, lambda: libnpu.open("npu-37xx", semantics="levelzero"))
    assert "semantics 'levelzero'; there are 'ascend', 'cuda', 'strict'" in error.message
    with libnpu.open("npu-37xx") as device:
        assert device.semantics.name == "ascend"


# ---- jobs ----


def test_a_job_knows_when_and_where_it_was_enqueued(device, work):
    stream = device.create_stream()
    before = device.now_ps
    job, _ = work.long(stream)
    assert job.number == 1
    assert job.operation.kind == "model"
    assert before <= job.enqueue_ps < job.packed_ps < job.submitted_ps <= device.now_ps
    assert os.path.basename(job.site).startswith("test_stream_options.py:")
    assert stream.jobs[0] is job is stream.last_job
    job.wait()
    assert job.start_ps >= job.submitted_ps - 10**6
    assert stream.last_job is None


def test_jobs_in_flight_name_the_memory_that_they_touch(device, work):
    stream = device.create_stream()
    job, target = work.long(stream)
    assert device.primary.jobs_using(target.handle) == [job]
    assert device.primary.jobs_using(work.small.handle) == []
    job.wait()
    assert device.primary.jobs_using(target.handle) == []


@pytest.mark.parametrize("semantics", ["ascend", "cuda", "strict"])
@pytest.mark.parametrize("schedule", ["timed", "lazy"])
def test_an_abort_is_no_failure_of_the_context(semantics, schedule, image, refused):
    with libnpu.open("npu-37xx", semantics=semantics) as device:
        work = Work(device, image)
        device.set_schedule(schedule)
        stream = device.create_stream()
        work.long(stream)
        stream.abort()
        refused(C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR, stream.synchronize)
        stream.synchronize()
        job, target = work.long(stream)
        stream.synchronize()
        assert job.error is None
        assert target.read()[0] == 5
