"""What a program may get wrong, value by value: each is refused by name, and nothing has changed."""

from __future__ import annotations

import os

import numpy as np
import pytest
from npu_abi import C

import libnpu

X = {"x": np.zeros(1024, np.uint8)}


def refused(call, result, match=None):
    with pytest.raises(libnpu.NpuError, match=match) as caught:
        call()
    assert caught.value.result == result, caught.value
    return caught.value


@pytest.mark.parametrize("duration_ns", [1e30, float("inf"), float("nan"), -1, (1 << 62) // 1000 + 1])
def test_a_delay_past_the_end_of_the_clock_is_refused_and_the_device_goes_on(device, blob_bytes, duration_ns):
    before = device.now_ps
    error = refused(
        lambda: device.host_delay(duration_ns), C.NPU_ERROR_INVALID_VALUE, f"{duration_ns} ns".replace("+", r"\+")
    )
    assert duration_ns < 0 or duration_ns != duration_ns or "2^62 ps" in error.message
    assert device.now_ps == before
    assert device.load(blob_bytes()).run(X)["y"].tolist() == [0] * 1024


def test_calls_still_work_at_the_end_of_the_clock(device, blob_bytes):
    blob = device.load(blob_bytes())
    device.host_delay((1 << 62) // 1000 - device.now_ps // 1000 - 1)
    assert blob.run(X)["y"].tolist() == [0] * 1024
    device.alloc(64).write(bytes(64))
    refused(lambda: device.host_delay(1), C.NPU_ERROR_INVALID_VALUE)


@pytest.mark.parametrize("timeout_ns", [float("inf"), 1e30, 1 << 60, None])
def test_a_time_out_that_no_clock_reaches_waits_for_ever(device, blob_bytes, timeout_ns):
    blob, stream, x, y = device.load(blob_bytes()), device.create_stream(), device.alloc(1024), device.alloc(1024)
    job = stream.launch(blob, {"x": x}, {"y": y})
    stream.synchronize(timeout_ns)
    assert job.done
    stream.launch(blob, {"x": x}, {"y": y}).wait(timeout_ns)


@pytest.mark.parametrize("timeout_ns", [-1, float("nan"), -float("inf")])
def test_a_time_out_below_zero_is_refused(device, blob_bytes, timeout_ns):
    blob, stream, x, y = device.load(blob_bytes()), device.create_stream(), device.alloc(1024), device.alloc(1024)
    job = stream.launch(blob, {"x": x}, {"y": y})
    refused(lambda: stream.synchronize(timeout_ns), C.NPU_ERROR_INVALID_VALUE, "time-out")
    refused(lambda: job.wait(timeout_ns), C.NPU_ERROR_INVALID_VALUE, "time-out")
    stream.synchronize()


def test_files_that_are_not_regular_are_refused_and_never_waited_for(device, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, why in (
        (tmp_path / "pipe", "it is not a regular file: '.*pipe'"),
        ("/dev/zero", "it is not a regular file: '/dev/zero'"),
        (tmp_path, "it is a directory: "),
        (tmp_path / "absent", "No such file or directory: '.*absent'"),
        ("", "No such file or directory: ''"),
        ("a\0b", r"embedded null byte: 'a\\x00b'"),
    ):
        refused(lambda path=path: device.load(path), C.NPU_ERROR_FILE, why)


def test_a_file_larger_than_any_blob_is_refused_unread(device, tmp_path):
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    refused(
        lambda: device.load(tmp_path / "sparse"), C.NPU_ERROR_INVALID_BLOB, "1099511627776 bytes; .* 8589934592 at most"
    )


def test_a_blob_may_be_in_any_kind_of_bytes(device, blob_bytes, tmp_path):
    data = blob_bytes()
    (tmp_path / "model.blob").write_bytes(data)
    every_second = memoryview(bytes(b for byte in data for b in (byte, 0)))[::2]
    for source in (
        data,
        bytearray(data),
        memoryview(data),
        every_second,
        tmp_path / "model.blob",
        str(tmp_path / "model.blob"),
    ):
        assert device.load(source).run(X)["y"].tolist() == [0] * 1024
    for source in (5, None, [data]):
        with pytest.raises(TypeError, match="source must be a path or bytes"):
            device.load(source)


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (lambda d, m: d.alloc(0), C.NPU_ERROR_INVALID_SIZE),
        (lambda d, m: d.alloc(-1), C.NPU_ERROR_INVALID_SIZE),
        (lambda d, m: d.alloc(1 << 63), C.NPU_ERROR_OUT_OF_DEVICE_MEMORY),
        (lambda d, m: d.alloc(1 << 64), C.NPU_ERROR_OUT_OF_DEVICE_MEMORY),
        (lambda d, m: d.set_schedule(-1), C.NPU_ERROR_INVALID_VALUE),
        (lambda d, m: d.set_schedule(1 << 64), C.NPU_ERROR_INVALID_VALUE),
        (lambda d, m: m.read("V0"), C.NPU_ERROR_INVALID_VALUE),
        (lambda d, m: m.read(object), C.NPU_ERROR_INVALID_VALUE),
        (lambda d, m: m.read(np.uint8, (1 << 40, 1 << 40)), C.NPU_ERROR_OUT_OF_RANGE),
        (lambda d, m: m.read(np.uint8, (1 << 63, 2)), C.NPU_ERROR_OUT_OF_RANGE),
        (lambda d, m: m.read(np.uint8, (-1, -4)), C.NPU_ERROR_OUT_OF_RANGE),
        (lambda d, m: m.read(np.uint8, offset=101), C.NPU_ERROR_OUT_OF_RANGE),
        (lambda d, m: m.read_bytes(-1, 5), C.NPU_ERROR_OUT_OF_RANGE),
        (lambda d, m: m.write(b"x", 100), C.NPU_ERROR_OUT_OF_RANGE),
        (lambda d, m: m.write(np.array([None])), C.NPU_ERROR_INVALID_VALUE),
        (lambda d, m: m.write([[1], [1, 2]]), C.NPU_ERROR_INVALID_VALUE),
        (lambda d, m: m.at(101), C.NPU_ERROR_OUT_OF_RANGE),
    ],
)
def test_values_out_of_range(device, call, result):
    refused(lambda: call(device, device.alloc(100)), result)


def test_views_with_strides_are_written_element_by_element(device):
    memory = device.alloc(4)
    memory.write(memoryview(b"a-b-c-d-")[::2])
    assert memory.read_bytes(0, 4) == b"abcd"
    assert memory.read(np.uint8, 2).tolist() == [97, 98]


def test_offsets_and_addresses_are_integers(device, blob_bytes):
    stream, blob, memory = device.create_stream(), device.load(blob_bytes()), device.alloc(4096)
    with pytest.raises(TypeError):
        memory.at(1.5)
    with pytest.raises(TypeError):
        stream.launch_addresses(blob, [float(memory.device_address), memory.device_address])
    refused(lambda: stream.launch_addresses(blob, [1 << 70, 0]), C.NPU_ERROR_ARG_KIND)


def test_inputs_of_run_are_named_and_typed(device, blob_bytes):
    blob = device.load(blob_bytes())
    refused(lambda: blob.run({1: 0, "q": 0}), C.NPU_ERROR_INVALID_VALUE, "unknown 'q', 1")
    refused(lambda: blob.run({"x": [[1], [1, 2]]}), C.NPU_ERROR_INVALID_VALUE, "'x' is no array")


def test_a_failed_job_raises_its_error_at_each_wait(device, blob_bytes):
    blob, stream = device.load(blob_bytes(deadlock=True)), device.create_stream()
    x, y = device.alloc(1024), device.alloc(1024)
    job = stream.launch(blob, {"x": x}, {"y": y})
    for _ in range(2):
        refused(job.wait, C.NPU_ERROR_BARRIER_DEADLOCK)
    stream.synchronize()  # it was raised before
    stream.launch(blob, {"x": x}, {"y": y})
    refused(stream.synchronize, C.NPU_ERROR_BARRIER_DEADLOCK)
    stream.synchronize()


def test_a_job_is_waited_for_on_its_own_stream(device, blob_bytes):
    blob, stream = device.load(blob_bytes()), device.create_stream()
    job = stream.launch(blob, {"x": device.alloc(1024)}, {"y": device.alloc(1024)})
    refused(lambda: device.create_stream().wait(job), C.NPU_ERROR_INVALID_VALUE, "another stream's")
    stream.close()
    job.wait()


def test_a_job_whose_context_ended_says_so(device, blob_bytes):
    blob, stream = device.load(blob_bytes()), device.create_stream()
    job = stream.launch(blob, {"x": device.alloc(1024)}, {"y": device.alloc(1024)})
    device.reset()
    refused(job.wait, C.NPU_ERROR_STALE_HANDLE)


def test_after_close_everything_is_stale(blob_bytes):
    device = libnpu.open()
    blob, stream, buffer = device.load(blob_bytes()), device.create_stream(), device.alloc(1024)
    device.close()
    for call in (
        device.reset,
        device.info,
        device.memory_info,
        device.counters,
        device.trace,
        device.overflows,
        device.set_schedule,
        device.synchronize,
        device.create_stream,
        lambda: device.default_stream,
        lambda: device.host_delay(1),
        lambda: device.alloc(1),
        lambda: device.load(blob_bytes()),
        lambda: blob.run(X),
        lambda: stream.launch(blob, {"x": buffer}, {"y": buffer}),
        stream.synchronize,
        stream.query,
        buffer.read,
        lambda: buffer.write(b"a"),
    ):
        refused(call, C.NPU_ERROR_STALE_HANDLE)
    for clean_up in (device.close, stream.close, blob.unload, buffer.free):
        clean_up()
