"""What goes wrong on the device, and that everything works afterwards."""

from __future__ import annotations

import errno

import numpy as np
import pytest
from npu_abi import C

import libnpu
from libnpu.blob import read, write
from libnpu.syscalls import Node

VALUES = np.arange(1024).astype(np.uint8)
FAR = 1 << 40  # beyond every address that a context maps


def assert_works(device, blob_bytes):
    assert device.load(blob_bytes()).run({"x": VALUES})["y"].tolist() == VALUES.tolist()


def test_a_deadlock_names_the_barrier_and_the_task_that_waits_for_it(device, blob_bytes):
    blob = device.load(blob_bytes(deadlock=True))
    with pytest.raises(libnpu.NpuError, match="NPU_JOB_DEADLOCK, barrier 0") as caught:
        blob.run({"x": VALUES})
    assert caught.value.result == C.NPU_ERROR_BARRIER_DEADLOCK
    assert caught.value.error_detail == 0
    assert caught.value.error_info == 1 << 32 | 0  # the first task of the second DMA port
    assert_works(device, blob_bytes)


def test_a_bad_pointer_names_address_and_task_and_ends_the_context(device, blob_bytes):
    blob, x, y = device.load(blob_bytes(addend=FAR)), device.alloc(1024), device.alloc(1024)
    device.default_stream.launch(blob, {"x": x}, {"y": y})
    with pytest.raises(libnpu.NpuError, match=r"NPU_JOB_CTX_VIOLATION, address .*, task 'step0'") as caught:
        device.synchronize()
    assert caught.value.result == C.NPU_ERROR_DEVICE_PAGE_FAULT
    assert caught.value.error_detail == x.device_address + FAR
    with pytest.raises(
        libnpu.NpuError, match=r"context 2 is lost: NPU_MMU_EVT_TRANSLATION: .*DMA read at 0x"
    ) as caught:
        device.alloc(1)
    assert caught.value.result == C.NPU_ERROR_DEVICE_LOST


def test_after_a_reset_a_lost_device_works(device, blob_bytes):
    bad = device.load(blob_bytes(addend=FAR))
    with pytest.raises(libnpu.NpuError):
        bad.run({"x": VALUES})
    device.reset()
    assert_works(device, blob_bytes)
    with pytest.raises(libnpu.NpuError) as caught:
        bad.run({"x": VALUES})
    assert caught.value.result == C.NPU_ERROR_STALE_HANDLE


def test_a_launch_that_nothing_will_finish_is_named_by_the_error(device, blob_bytes, monkeypatch):
    real = Node.try_ioctl

    def never(node, request, *segments):
        return -errno.EDEADLK if request.name == "BO_WAIT" else real(node, request, *segments)

    blob, x, y = device.load(blob_bytes()), device.alloc(1024), device.alloc(1024)
    job = device.default_stream.launch(blob, {"x": x}, {"y": y})
    with monkeypatch.context() as patch, pytest.raises(libnpu.NpuError) as caught:
        patch.setattr(Node, "try_ioctl", never)
        device.synchronize()
    assert (caught.value.result, caught.value.errno) == (C.NPU_ERROR_BARRIER_DEADLOCK, errno.EDEADLK)
    assert caught.value.job is job


def test_an_error_is_raised_once(device, blob_bytes):
    blob = device.load(blob_bytes(deadlock=True))
    with pytest.raises(libnpu.NpuError):
        blob.run({"x": VALUES})
    device.synchronize()


def test_the_first_error_of_a_stream_comes_first(device, blob_bytes):
    good, bad = device.load(blob_bytes()), device.load(blob_bytes(deadlock=True, name="bad"))
    stream = device.create_stream()
    x, y = device.alloc(1024), device.alloc(1024)
    x.write(VALUES)
    jobs = [stream.launch(blob, {"x": x}, {"y": y}) for blob in (bad, good, bad)]
    for job in (jobs[0], jobs[2]):
        with pytest.raises(libnpu.NpuError) as caught:
            stream.synchronize()
        assert caught.value.job is job
    stream.synchronize()
    assert jobs[1].error is None
    assert y.read().tolist() == VALUES.tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"profile": "npu-40xx"}, "compiled for 'npu-40xx', the device is 'npu-37xx'"),
        ({"tile_count": 3}, "needs 3 tiles, the device has 2"),
        ({"cmx_bytes": 1 << 22}, "needs 4194304 CMX bytes"),
        ({"barrier_count": 33}, "needs 33 barriers, the device has 32"),
    ],
)
def test_a_blob_that_does_not_fit_is_refused_before_anything_is_allocated(device, image, blob_bytes, changes, message):
    made = image()
    for field, value in changes.items():
        setattr(made, field, value)
    free = device.memory_info()
    with pytest.raises(libnpu.NpuError, match=message) as caught:
        device.load(write(made))
    assert caught.value.result == C.NPU_ERROR_INVALID_BLOB
    assert device.memory_info() == free
    assert_works(device, blob_bytes)


def test_damaged_blobs_are_refused(device, blob_bytes):
    data = blob_bytes()
    for bad in (b"", b"no blob", data[:-1], data[:200], data.replace(b"npu-37xx", b"npu-37xy")):
        with pytest.raises(libnpu.NpuError) as caught:
            device.load(bad)
        assert caught.value.result == C.NPU_ERROR_INVALID_BLOB
    assert_works(device, blob_bytes)


def test_a_file_that_does_not_exist_is_named(device, tmp_path):
    with pytest.raises(libnpu.NpuError, match=r"none\.blob"):
        device.load(tmp_path / "none.blob")


def test_unload_gives_the_memory_back(device, blob_bytes):
    free = device.memory_info()
    blob = device.load(blob_bytes(through_scratch=True))
    blob.run({"x": VALUES})
    blob.unload()
    device.default_stream.close()
    assert device.memory_info() == free
    with pytest.raises(libnpu.NpuError) as caught:
        blob.run({"x": VALUES})
    assert caught.value.result == C.NPU_ERROR_STALE_HANDLE


def test_a_blob_in_flight_cannot_be_unloaded(device, blob_bytes):
    blob, x, y = device.load(blob_bytes()), device.alloc(1024), device.alloc(1024)
    device.default_stream.launch(blob, {"x": x}, {"y": y})
    with pytest.raises(libnpu.NpuError) as caught:
        blob.unload()
    assert caught.value.result == C.NPU_ERROR_IN_USE
    device.synchronize()
    blob.unload()


def test_buffers_check_ranges_and_age(device):
    buffer = device.alloc(100)
    for call in (lambda: buffer.write(bytes(101)), lambda: buffer.read_bytes(99, 2), lambda: buffer.at(50, 51)):
        with pytest.raises(libnpu.NpuError) as caught:
            call()
        assert caught.value.result == C.NPU_ERROR_OUT_OF_RANGE
    buffer.free()
    buffer.free()
    with pytest.raises(libnpu.NpuError) as caught:
        buffer.write(b"1")
    assert caught.value.result == C.NPU_ERROR_STALE_HANDLE


@pytest.mark.parametrize(
    ("nbytes", "result"), [(0, C.NPU_ERROR_INVALID_SIZE), (1 << 40, C.NPU_ERROR_OUT_OF_DEVICE_MEMORY)]
)
def test_bad_allocations(device, nbytes, result):
    with pytest.raises(libnpu.NpuError) as caught:
        device.alloc(nbytes)
    assert caught.value.result == result


def test_a_closed_device_is_stale(blob_bytes):
    device = libnpu.open("npu-37xx")
    device.close()
    device.close()
    with pytest.raises(libnpu.NpuError) as caught:
        device.load(blob_bytes())
    assert caught.value.result == C.NPU_ERROR_STALE_HANDLE


def test_errors_of_the_driver_say_why(device):
    with pytest.raises(libnpu.NpuError, match=r"BO_CREATE of 1099511627776 bytes: .* the device has 4294967296 bytes"):
        device.alloc(1 << 40)


def test_a_firmware_that_does_not_answer_loses_the_device_until_reset(device, blob_bytes):
    x, data = np.arange(1024).astype(np.uint8), blob_bytes()
    blob = device.load(data)
    device.node.machine.syscall.__self__.device.core.reset()
    with pytest.raises(libnpu.NpuError, match="no answer to NPU_JSM_REGISTER_DB") as caught:
        blob.run({"x": x})
    assert caught.value.result == C.NPU_ERROR_DEVICE_LOST
    device.reset()
    assert device.load(data).run({"x": x})["y"].tolist() == x.tolist()


def test_reset_gives_all_memory_back(device, blob_bytes):
    device.reset()
    free = device.memory_info()[0]
    blob, stream, buffer = device.load(blob_bytes()), device.create_stream(), device.alloc(1 << 20)
    blob.run({"x": np.zeros(1024, np.uint8)}, stream)
    stream.launch(blob, {"x": buffer}, {"y": buffer.at(1 << 19)})
    assert device.memory_info()[0] < free - (1 << 20)
    device.reset()
    assert device.memory_info()[0] == free


def test_a_wrong_barrier_count_names_the_entry(device, blob_bytes):
    image = read(blob_bytes(deadlock=True))
    image.tasks[".npu.barriers"]["producer_count"][1] = 2
    blob = device.load(write(image))
    with pytest.raises(libnpu.NpuError, match=r"NPU_PARSE_BAD_BARRIER, \.npu\.barriers\[1\]"):
        blob.run({"x": VALUES})
    assert_works(device, blob_bytes)
