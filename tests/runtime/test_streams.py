"""Streams: order, time, and launches in flight that must not disturb each other."""

from __future__ import annotations

import numpy as np
import pytest
from npu_abi import C

import libnpu


def ramp(start, nbytes=1024):
    return (np.arange(nbytes) + start).astype(np.uint8)


def pair(device, start, nbytes=1024):
    """Memory with values for "x", and poison for "y"."""
    x, y = device.alloc(nbytes), device.alloc(nbytes)
    x.write(ramp(start, nbytes))
    return x, y


def test_launch_returns_before_the_job_ends(device, blob_bytes):
    blob, stream = device.load(blob_bytes()), device.create_stream()
    x, y = pair(device, 1)
    job = stream.launch(blob, {"x": x}, {"y": y})
    launched_ps = device.now_ps
    assert y.read_bytes(0, 1024) == b"\xff" * 1024
    stream.synchronize()
    assert y.read().tolist() == ramp(1).tolist()
    assert job.done
    assert job.end_ps > launched_ps
    assert job.latency_ps == job.end_ps - job.start_ps > 0
    assert device.now_ps >= job.end_ps


def test_host_delay_lets_the_device_finish(device, blob_bytes):
    blob, stream = device.load(blob_bytes()), device.create_stream()
    x, y = pair(device, 1)
    stream.launch(blob, {"x": x}, {"y": y})
    before = device.now_ps
    device.host_delay(1_000_000)
    assert device.now_ps == before + 10**9
    assert y.read().tolist() == ramp(1).tolist()


def test_launches_with_other_arguments_do_not_patch_the_one_in_flight(device, blob_bytes):
    blob, stream = device.load(blob_bytes()), device.create_stream()
    pairs = [pair(device, start) for start in range(5)]
    for x, y in pairs:
        stream.launch(blob, {"x": x}, {"y": y})
    stream.synchronize()
    for start, (_, y) in enumerate(pairs):
        assert y.read().tolist() == ramp(start).tolist()


def test_streams_that_use_one_blob_do_not_share_scratch(device, blob_bytes):
    blob = device.load(blob_bytes(through_scratch=True, nbytes=65536))
    streams = [device.create_stream() for _ in range(3)]
    pairs = [pair(device, start, 65536) for start in range(3)]
    for stream, (x, y) in zip(streams, pairs, strict=True):
        stream.launch(blob, {"x": x}, {"y": y})
    device.synchronize()
    for start, (_, y) in enumerate(pairs):
        assert y.read().tolist() == ramp(start, 65536).tolist()


def test_jobs_of_a_stream_run_in_order(device, blob_bytes):
    blob, stream = device.load(blob_bytes()), device.create_stream()
    a, b, c = device.alloc(1024), device.alloc(1024), device.alloc(1024)
    a.write(ramp(9))
    first = stream.launch(blob, {"x": a}, {"y": b})
    second = stream.launch(blob, {"x": b}, {"y": c})
    stream.synchronize()
    assert c.read().tolist() == ramp(9).tolist()
    assert first.end_ps <= second.start_ps


def test_parts_of_buffers_are_arguments_too(device, blob_bytes):
    blob, stream = device.load(blob_bytes()), device.create_stream()
    memory = device.alloc(8192)
    memory.write(ramp(3), offset=4096)
    stream.launch(blob, {"x": memory.at(4096)}, {"y": memory.at(64, 1024)})
    stream.synchronize()
    assert memory.read(offset=64, shape=(1024,)).tolist() == ramp(3).tolist()


def test_launch_by_addresses_takes_inputs_then_outputs(device, blob_bytes):
    blob, stream = device.load(blob_bytes()), device.create_stream()
    x, y = pair(device, 4)
    stream.launch_addresses(blob, [x.device_address, y.device_address])
    stream.synchronize()
    assert y.read().tolist() == ramp(4).tolist()


def test_query_is_true_when_all_work_has_finished(device, blob_bytes):
    blob, stream = device.load(blob_bytes()), device.create_stream()
    x, y = pair(device, 1)
    stream.launch(blob, {"x": x}, {"y": y})
    assert not stream.query()
    device.host_delay(1_000_000)
    assert stream.query()


def test_a_timeout_moves_the_host_and_leaves_the_work(device, blob_bytes):
    blob, stream = device.load(blob_bytes(nbytes=1 << 20)), device.create_stream()
    x, y = pair(device, 1, 1 << 20)
    stream.launch(blob, {"x": x}, {"y": y})
    before = device.now_ps
    with pytest.raises(libnpu.NpuError) as caught:
        stream.synchronize(timeout_ns=1000)
    assert caught.value.result == C.NPU_TIMEOUT
    assert before + 10**6 <= device.now_ps < before + 2 * 10**7
    stream.synchronize()
    assert y.read().tolist() == ramp(1, 1 << 20).tolist()


def test_many_launches_reuse_what_finished(device, empty_bytes):
    blob, stream = device.load(empty_bytes), device.create_stream()
    for _ in range(100):
        stream.launch(blob, {}, {})
    stream.synchronize()
    assert device.counters()["DOORBELLS"] == 100


def test_a_full_queue_makes_a_launch_wait_for_its_oldest_job(device, blob_bytes):
    blob, stream = device.load(blob_bytes(nbytes=1 << 20)), device.create_stream()
    x, y = pair(device, 1, 1 << 20)
    jobs = [stream.launch(blob, {"x": x}, {"y": y}) for _ in range(70)]
    assert jobs[0].done
    assert not jobs[-1].done
    jobs += [stream.launch_addresses(blob, [x.device_address, y.device_address]) for _ in range(10)]
    assert [job.number for job in jobs] == list(range(1, 81))
    stream.synchronize()
    assert all(job.done for job in jobs)
    assert stream.fence == device.counters()["DOORBELLS"] == 80


def test_a_launch_without_a_doorbell_left_says_so(device, empty_bytes):
    blob, stream = device.load(empty_bytes), device.create_stream()
    doorbells = device.node.machine.syscall.__self__.doorbells
    doorbells.update(dict.fromkeys(range(1, 256)))
    with pytest.raises(libnpu.NpuError, match="all 255 doorbells are in use") as caught:
        stream.launch(blob, {}, {})
    assert caught.value.result == C.NPU_ERROR_OUT_OF_RESOURCES
    doorbells.clear()
    stream.launch(blob, {}, {}).wait()


def test_synchronising_a_device_waits_for_all_streams_before_it_raises(device, blob_bytes):
    good, stuck = device.load(blob_bytes()), device.load(blob_bytes(deadlock=True))
    first, second, third = (device.create_stream() for _ in range(3))
    x, y = pair(device, 1)
    failing = first.launch(stuck, {"x": x}, {"y": y})
    also_failing = second.launch(stuck, {"x": x}, {"y": y})
    last = third.launch(good, {"x": x}, {"y": device.alloc(1024)})
    with pytest.raises(libnpu.NpuError) as caught:
        device.synchronize()
    assert caught.value.job is failing
    assert last.done
    with pytest.raises(libnpu.NpuError) as caught:
        second.synchronize()  # no error is lost
    assert caught.value.job is also_failing


def test_a_closed_stream_is_stale(device, empty_bytes):
    blob = device.load(empty_bytes)
    with device.create_stream() as stream:
        stream.launch(blob, {}, {})
    with pytest.raises(libnpu.NpuError) as caught:
        stream.synchronize()
    assert caught.value.result == C.NPU_ERROR_STALE_HANDLE


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        (lambda d, x, y: ({"x": x}, {}), C.NPU_ERROR_INVALID_VALUE),
        (lambda d, x, y: ({"x": x}, {"y": y, "z": y}), C.NPU_ERROR_INVALID_VALUE),
        (lambda d, x, y: ({"x": x}, {"y": d.alloc(1000)}), C.NPU_ERROR_ARG_SIZE),
        (lambda d, x, y: ({"x": x}, {"y": d.alloc(4096).at(32)}), C.NPU_ERROR_MISALIGNED),
        (lambda d, x, y: ({"x": x}, {"y": freed(d)}), C.NPU_ERROR_STALE_HANDLE),
    ],
)
def test_bad_arguments_are_refused_and_nothing_is_enqueued(device, blob_bytes, arguments, result):
    blob, stream = device.load(blob_bytes()), device.create_stream()
    inputs, outputs = arguments(device, *pair(device, 1))
    with pytest.raises(libnpu.NpuError) as caught:
        stream.launch(blob, inputs, outputs)
    assert caught.value.result == result
    assert device.counters()["DOORBELLS"] == 0


def freed(device):
    buffer = device.alloc(4096)
    buffer.free()
    return buffer


def test_memory_of_another_device_is_refused(device, blob_bytes):
    blob, stream = device.load(blob_bytes()), device.create_stream()
    x, _ = pair(device, 1)
    with libnpu.open("npu-37xx") as other, pytest.raises(libnpu.NpuError) as caught:
        stream.launch(blob, {"x": x}, {"y": other.alloc(4096)})
    assert caught.value.result == C.NPU_ERROR_WRONG_CONTEXT
