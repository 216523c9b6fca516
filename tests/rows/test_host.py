"""Rows on the host's side: memory, copies, launches, waits, and what the device is."""

import subprocess
import sys

import numpy as np
import pytest
from npu_abi import C
from npu_model.profile import load_profile

import libnpu

VALUES = np.arange(1024).astype(np.uint8)


@pytest.fixture
def device():
    with libnpu.open(trace=True) as opened:
        yield opened


def test_the_intel_like_profiles_say_what_they_are(npu, npu_json):
    """E088, E003: with the size of CMX, and a source for every number."""
    profile = npu_json("info", "--profile", "intel-like")
    assert profile["name"] == "npu-37xx"
    assert profile["cmx"]["workspace_bytes"] == load_profile("npu-37xx").cmx.workspace_bytes > 1 << 20
    assert npu_json("info", "--profile", "intel-40xx-like")["name"] == "npu-40xx"
    status, out, _ = npu("info", "--profile", "intel-like")
    assert status == 0
    rows = [line.split() for line in out.splitlines() if line.startswith(("dpu.", "cmx.", "ddr.", "dma."))]
    assert len(rows) > 15
    assert all(len(row) > 2 for row in rows)  # field, value, source


def test_the_host_s_memory_is_out_of_the_device_s_reach(device, copy_blob):
    """P001: an address of this process means nothing to the device."""
    mine = np.zeros(1024, np.uint8)
    address = mine.__array_interface__["data"][0]
    x, y = device.alloc(1024), device.alloc(1024)
    far = address - x.device_address & ~63
    loaded = device.load(copy_blob(('@"in:x"', f'@"in:x"+{far:#x}')))
    device.default_stream.launch(loaded, {"x": x}, {"y": y})
    with pytest.raises(libnpu.NpuError, match="NPU_JOB_CTX_VIOLATION, address") as caught:
        device.synchronize()
    assert caught.value.result == C.NPU_ERROR_DEVICE_PAGE_FAULT


def test_user_code_reaches_the_driver_through_one_module_only():
    """P001, P011: everything else of the library works without the driver's package."""
    code = (
        "import sys, libnpu, libnpu.runtime, libnpu.runtime.stream, libnpu.blob, libnpu.compiler\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('npu_driver', 'npu_device', 'npu_firmware')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_allocate_and_free_give_the_memory_back_and_a_second_free_is_harmless(device):
    """P002."""
    device.alloc(4096).free()
    free, total = device.memory_info()
    buffers = [device.alloc(n) for n in (1, 4096, 100_000)]
    assert device.memory_info() == (free - 4096 * (1 + 1 + 25), total)
    for buffer in buffers:
        buffer.free()
        buffer.free()
        with pytest.raises(libnpu.NpuError) as caught:
            buffer.read()
        assert caught.value.result == C.NPU_ERROR_STALE_HANDLE
    assert device.memory_info() == (free, total)


def test_the_leak_check_of_a_run_passes_and_finds_what_is_left(npu, monkeypatch, chain_blob):
    """P002."""
    assert npu("run", chain_blob, "--no-compute", "--leak-check")[::2] == (0, "")
    monkeypatch.setattr("libnpu.runtime.buffer.Buffer.free", lambda buffer: None)
    status, _, err = npu("run", chain_blob, "--no-compute", "--leak-check")
    assert status == 1
    assert "bytes of device memory are not free after the run" in err


def test_random_bytes_survive_the_round_trip(device, copy_blob):
    """P003: host to DDR, DDR to CMX and back, DDR to host."""
    values = np.random.default_rng(1).integers(0, 256, 1024, np.uint8)
    buffer = device.alloc(1024)
    buffer.write(values)
    assert buffer.read().tobytes() == values.tobytes()
    loaded, result = device.load(copy_blob()), device.alloc(1024)
    before = device.counters()
    device.default_stream.launch(loaded, {"x": buffer}, {"y": result})
    device.synchronize()
    assert result.read().tobytes() == values.tobytes()
    counters = {name: value - before[name] for name, value in device.counters().items()}
    assert (counters["DMA_CMX_WRITE"], counters["DMA_CMX_READ"]) == (1024, 1024)


def test_a_launch_returns_at_once_and_a_wait_with_a_time_out_returns_in_time(device, copy_blob):
    """P004, P005."""
    loaded, x, y = device.load(copy_blob()), device.alloc(1024), device.alloc(1024)
    x.write(VALUES)
    stream = device.create_stream()
    job = stream.launch(loaded, {"x": x}, {"y": y})
    assert not job.done
    before = device.now_ps
    with pytest.raises(libnpu.NpuError) as caught:
        stream.synchronize(timeout_ns=10)
    assert caught.value.result == C.NPU_TIMEOUT
    assert device.now_ps - before < 10_000_000
    stream.synchronize()
    assert job.done
    assert device.now_ps > job.end_ps
    assert y.read().tolist() == VALUES.tolist()


def test_operands_are_counted_on_their_way_from_cmx_to_the_matrix_engine(maker, npu_json, tmp_path):
    """P007: a matmul of [16, 64] and [64, 32] in fp16 reads both operands at least once and writes its result once."""
    import onnx

    make = maker()
    make.weights("w", 64, 32)
    make.node("MatMul", ["x", "w"], "y")
    onnx.save(make.model({"x": [16, 64]}, {"y": [16, 32]}), tmp_path / "m.onnx")
    counters = npu_json("run", tmp_path / "m.onnx", "--no-compute")["counters"]
    converted = 16 * 64 * (4 + 2) + 16 * 32 * (2 + 4)  # fp32 -> fp16 before, fp16 -> fp32 behind, on SHAVEs
    read, written = counters["SRAM_READ"], counters["SRAM_WRITE"]
    assert counters["DPU_MACS"] == 16 * 64 * 32
    assert read >= 2 * (16 * 64 + 64 * 32)
    assert written >= 2 * 16 * 32
    assert read + written <= converted + 2 * (2 * 16 * 64 + 2 * 64 * 32 + 16 * 32)


def test_launch_arguments_are_checked_for_number_size_and_alignment(device, copy_blob):
    """P010: nothing is enqueued when they are wrong."""
    loaded, x, y = device.load(copy_blob()), device.alloc(4096), device.alloc(4096)
    stream = device.create_stream()
    for inputs, outputs, result in (
        ({}, {"y": y}, C.NPU_ERROR_INVALID_VALUE),
        ({"x": x, "z": x}, {"y": y}, C.NPU_ERROR_INVALID_VALUE),
        ({"x": x.at(0, 1000)}, {"y": y}, C.NPU_ERROR_ARG_SIZE),
        ({"x": x.at(8, 1024)}, {"y": y}, C.NPU_ERROR_MISALIGNED),
    ):
        with pytest.raises(libnpu.NpuError) as caught:
            stream.launch(loaded, inputs, outputs)
        assert caught.value.result == result
    assert stream.query()
    assert device.counters()["DOORBELLS"] == 0


def test_a_submit_is_one_ioctl_and_a_full_queue_is_ebusy(device, copy_blob):
    """P011: the ring holds 63 slots, one of which stays free; the library waits for the oldest job then."""
    loaded, x, y = device.load(copy_blob()), device.alloc(1024), device.alloc(1024)
    stream = device.create_stream()
    jobs = []
    for _ in range(200):
        jobs.append(stream.launch(loaded, {"x": x}, {"y": y}))
        if any("EBUSY" in line for line in device.node.log):
            break
    assert len(jobs) > 62
    assert device.node.log[-1].endswith("already holds 62 jobs")
    assert jobs[0].done
    stream.synchronize()
    assert device.counters()["DOORBELLS"] == len(jobs)


def test_the_time_that_engines_execute_is_in_the_statistics(npu_json, chain_blob):
    """P014: the busy cycles of the counters are the busy times of the trace, at the engine's clock."""
    report = npu_json("run", chain_blob, "--no-compute")
    busy = {engine["name"]: engine["busy_ps"] for engine in report["engines"]}
    hz = load_profile("npu-37xx").dpu.clock_hz
    assert report["counters"]["DPU_BUSY"] > 0
    assert busy["DPU"] == pytest.approx(report["counters"]["DPU_BUSY"] * 10**12 / hz, rel=1e-3)
    assert 0 < busy["DPU"] < report["latency_ps"]


def test_the_host_s_utilisation_is_in_the_statistics(npu_json, chain_blob):
    """P036: a synchronous run is blocked for nearly as long as the device works, and both parts are the whole."""
    report = npu_json("run", chain_blob)
    assert report["host_blocked_us"] > 0.5 * report["latency_ps"] / 1e6
    assert round(report["host_busy_us"] + report["host_blocked_us"], 6) == report["host_ps"] / 1e6


def test_synchronising_after_each_kernel_blocks_the_host_and_working_meanwhile_does_not(device):
    """P036, P027: the host works while the device does, and is then hardly blocked."""
    relu, memory, stream = device.kernel("relu"), device.alloc(1 << 20), device.create_stream()

    def share(work_ns, *, each):
        busy, blocked = device.host_times()
        for _ in range(8):
            relu.launch(stream, memory, memory, 1 << 18)
            if each:
                stream.synchronize()
        device.host_delay(work_ns)
        stream.synchronize()
        after = device.host_times()
        return (after[1] - blocked) / (sum(after) - busy - blocked)

    assert share(0, each=True) > 0.9
    assert share(0, each=False) > 0.9
    assert share(10_000_000, each=False) < 0.05
