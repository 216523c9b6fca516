"""Values in, values out, through every layer below the compiler."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import libnpu


def ramp(start=0, nbytes=1024):
    return (np.arange(nbytes) + start).astype(np.uint8)


def test_run_returns_what_the_blob_copies(device, blob_bytes):
    blob = device.load(blob_bytes())
    assert blob.run({"x": ramp()})["y"].tolist() == ramp().tolist()


def test_run_again_with_other_values(device, blob_bytes):
    blob = device.load(blob_bytes())
    for start in (1, 2, 3):
        assert blob.run({"x": ramp(start)})["y"].tolist() == ramp(start).tolist()


def test_scratch_memory_belongs_to_the_launch(device, blob_bytes):
    blob = device.load(blob_bytes(through_scratch=True))
    assert blob.run({"x": ramp()})["y"].tolist() == ramp().tolist()


def test_a_blob_knows_its_tensors(device, blob_bytes):
    blob = device.load(blob_bytes())
    (x,), (y,) = blob.inputs, blob.outputs
    assert (x.name, x.numpy_dtype, x.shape, x.size_bytes) == ("x", np.uint8, (1024,), 1024)
    assert (y.name, y.numpy_dtype, y.shape, y.size_bytes) == ("y", np.uint8, (1024,), 1024)


def test_a_blob_loads_from_a_file(device, blob_bytes, tmp_path):
    path = tmp_path / "copy.blob"
    path.write_bytes(blob_bytes())
    assert device.load(path).name == "copy"


def test_a_blob_is_unloaded_at_the_end_of_its_with_statement(device, blob_bytes):
    free = device.memory_info()
    with device.load(blob_bytes()) as blob:
        assert device.memory_info() < free
        blob.run({"x": np.zeros(1024, np.uint8)})
    device.default_stream.close()
    assert device.memory_info() == free
    assert blob.in_flight == 0


def test_an_empty_blob_runs(device, empty_bytes):
    assert device.load(empty_bytes).run({}) == {}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "inputs: missing 'x'; the blob has 'x'"),
        ({"x": ramp(), "z": ramp()}, "inputs: unknown 'z'; the blob has 'x'"),
        ({"x": ramp().astype(np.float32)}, "'x' is float32, the blob expects uint8"),
        ({"x": ramp(nbytes=1000)}, r"'x' has shape \(1000,\), the blob expects \(1024,\)"),
        ({"x": ramp().reshape(2, 512)}, r"'x' has shape \(2, 512\), the blob expects \(1024,\)"),
    ],
)
def test_wrong_arrays_are_refused_with_expected_and_found(device, blob_bytes, arrays, message):
    blob = device.load(blob_bytes())
    with pytest.raises(libnpu.NpuError, match=message):
        blob.run(arrays)
    assert blob.run({"x": ramp()})["y"].tolist() == ramp().tolist()


def test_two_devices_in_one_process_are_independent(device, blob_bytes):
    with libnpu.open("npu-37xx") as other:
        first, second = device.load(blob_bytes()), other.load(blob_bytes())
        before = other.now_ps
        assert first.run({"x": ramp(1)})["y"].tolist() == ramp(1).tolist()
        assert other.now_ps == before
        assert second.run({"x": ramp(2)})["y"].tolist() == ramp(2).tolist()


def test_without_compute_the_times_are_the_same_and_there_are_no_values(blob_bytes):
    times = []
    for compute in (True, False):
        with libnpu.open("npu-37xx", compute=compute) as device:
            blob = device.load(blob_bytes())
            buffers = device.alloc(1024), device.alloc(1024)
            job = device.default_stream.launch(blob, {"x": buffers[0]}, {"y": buffers[1]})
            job.wait()
            times.append((job.start_ps, job.end_ps))
            if not compute:
                assert blob.run({"x": ramp()}) == {}
                with pytest.raises(libnpu.NpuError, match="compute=False"):
                    buffers[1].read()
    assert times[0] == times[1]


def test_two_runs_give_the_same_bytes_times_and_trace(blob_bytes):
    records = []
    for _ in range(2):
        with libnpu.open("npu-37xx", trace=True) as device:
            device.set_schedule(seed=7)
            blob = device.load(blob_bytes(through_scratch=True))
            values = blob.run({"x": ramp()})["y"].tobytes()
            records.append((values, device.now_ps, device.trace().tobytes(), device.counters()))
    assert records[0] == records[1]


def test_counters_and_trace_show_the_copy(device, blob_bytes):
    device.load(blob_bytes()).run({"x": ramp()})
    counters = device.counters()
    assert (counters["DMA_DDR_READ"], counters["DMA_DDR_WRITE"], counters["TASKS"]) == (1024, 1024, 2)
    assert len(device.trace()) > 0
    assert len(device.trace()) == 0


def test_info_describes_the_device(device):
    info = device.info()
    assert (info.profile, info.tiles, info.dma_ports, info.firmware_api) == ("npu-37xx", 2, 2, ("1.0", "1.0"))


def test_unknown_profile_is_named():
    with pytest.raises(libnpu.NpuError, match="no hardware profile named 'npu-99'"):
        libnpu.open("npu-99")


def test_unknown_numerics_are_named():
    with pytest.raises(libnpu.NpuError, match="numerics 'sloppy'"):
        libnpu.open("unit", numerics="sloppy")


def test_importing_the_library_loads_neither_numpy_nor_the_driver():
    program = (
        "import sys, libnpu; print([m for m in ('numpy', 'npu_driver', 'npu_device', 'onnx') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
