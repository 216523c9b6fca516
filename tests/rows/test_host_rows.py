"""Rows on launches, as the command line shows them: kernels, the five steps, who waits, and what a launch per layer costs."""

from collections import Counter

import numpy as np
import pytest
from npu_abi import C

import libnpu

STEPS = ["pack", "submit", "pick", "load", "execute"]


@pytest.fixture
def device():
    with libnpu.open(trace=True) as opened:
        yield opened


def test_convolution_pooling_and_fully_connected_are_callable_by_name(npu_json, device):
    """P006: in the list of kernels, and with the values of NumPy."""
    listed = {kernel["name"] for kernel in npu_json("kernels", "list")}
    assert {"conv2d", "pool2d", "fully_connected"} <= listed
    rng = np.random.default_rng(1)
    x = rng.integers(-4, 5, (1, 3, 6, 5)).astype(np.float32)
    w = rng.integers(-4, 5, (4, 3, 3, 3)).astype(np.float32)
    source, weights, result = device.to_device(x), device.to_device(w), device.alloc(4 * 4 * 6 * 5)
    device.kernel("conv2d").launch(None, source, weights, None, result, 1, 3, 6, 5, 4, 3, 3, 1, 1, 1, 1, 1, 0).wait()
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    expected = np.zeros((1, 4, 6, 5))
    for dy in range(3):
        for dx in range(3):
            expected += np.einsum("kc,nchw->nkhw", w[:, :, dy, dx], padded[:, :, dy : dy + 6, dx : dx + 5])
    assert np.array_equal(result.read(np.float32, (1, 4, 6, 5)), expected)
    device.kernel("pool2d").launch(None, source, result, 1, 3, 6, 5, 2, 2, 2, 2, 0, 0, 0).wait()
    pooled = x[:, :, :, :4].reshape(1, 3, 3, 2, 2, 2).max((3, 5))
    assert np.array_equal(result.read(np.float32)[: pooled.size].reshape(pooled.shape), pooled)
    a, b = rng.integers(-4, 5, (2, 7)).astype(np.float32), rng.integers(-4, 5, (3, 7)).astype(np.float32)
    bias = np.arange(3, dtype=np.float32)
    memory = [device.to_device(array) for array in (a, b, bias)]
    device.kernel("fully_connected").launch(None, *memory, result, 2, 7, 3, 0).wait()
    assert np.array_equal(result.read(np.float32)[:6].reshape(2, 3), a @ b.T + bias)


def test_eight_launches_are_two_for_each_of_four_units(npu_json, device):
    """P012, P039: the core gives each launch to the unit with the least work; the profile says how many there are."""
    assert npu_json("info")["derived"]["n_units"] == {
        "aie-like": 4,
        "npu-37xx": 4,
        "npu-40xx": 12,
        "unit": 2,
    }
    relu = device.kernel("relu")
    streams = [device.create_stream() for _ in range(8)]
    memory = [device.alloc(4 << 14) for _ in streams]
    jobs = [relu.launch(s, m, m, 1 << 14, grid=1) for s, m in zip(streams, memory, strict=True)]
    device.synchronize()
    assert Counter(job.blocks[0].unit for job in jobs) == {0x00: 2, 0x01: 2, 0x10: 2, 0x11: 2}


def test_the_second_launch_finds_its_instructions_in_the_cache(npu_json):
    """P013: and the first one takes cycles to load them, more for more code."""
    cycles = {}
    for code in ("4K", "16K"):
        first, second = npu_json("launch-profile", "relu", "--code", code)["runs"]
        size = 1024 * int(code[:-1])
        assert (first["loaded_bytes"], first["cached_bytes"]) == (size, 0)
        assert (second["loaded_bytes"], second["cached_bytes"]) == (0, size)
        assert second["steps_ps"]["load"] == second["iload_cycles"] == 0
        cycles[code] = first["iload_cycles"]
    # 12 KiB at 8 bytes per cycle of 975 MHz are 1536 cycles, in cycles of the counters' 1300 MHz: 2048, and requests in between
    assert 2048 <= cycles["16K"] - cycles["4K"] < 2048 * 1.06


@pytest.mark.parametrize(("size", "largest"), [(8, "load"), (512, "execute")])
def test_the_largest_step_is_the_load_for_little_data_and_the_execution_for_much(npu, npu_json, size, largest):
    """P015: conv2d with 64 KiB of code."""
    arguments = ("launch-profile", "conv2d", "--code", "64K", "--size", size, "--runs", "1")
    report = npu_json(*arguments)
    (launch,) = report["runs"]
    assert report["code_bytes"] == 65536
    assert list(launch["steps_ps"]) == STEPS
    assert all(ps > 0 for ps in launch["steps_ps"].values())
    assert max(launch["steps_ps"], key=launch["steps_ps"].get) == launch["largest"] == largest
    assert sum(launch["steps_ps"].values()) < launch["wall_ps"]
    status, out, _ = npu(*arguments)
    assert status == 0
    assert [line.split()[-1] for line in out.splitlines() if line.startswith("largest step")] == [largest]


def test_a_sweep_over_sizes_has_a_cross_over_and_small_models_a_large_share_of_overhead(npu_json):
    """P030, P031: and P033, too many synchronisation points are found."""
    found = npu_json("advise", "--sweep", "size", "--size", "128", "--launches", "8")
    each = {p["size"]: p["overhead"] for p in found["points"] if p["way"] == "sync each"}
    assert each[8] > 0.5 > each[128]
    assert 8 < found["crossover_size"] <= 128
    assert {p["way"]: p["syncs"] for p in found["points"] if p["size"] == 8} == {
        "sync each": 8,
        "async": 1,
        "two streams": 2,
    }
    assert any("8 synchronisation points for 8 launches" in line for line in found["advice"])


def test_the_code_size_of_each_kernel_is_known(npu_json, device):
    """P037: the list's is the module's, and all of it is loaded."""
    for kernel in npu_json("kernels", "list", "--size"):
        assert device.kernel(kernel["name"]).code_bytes == kernel["code_bytes"] > 0
    assert npu_json("launch-profile", "add")["code_bytes"] == device.kernel("add").code_bytes


@pytest.mark.parametrize("wait", ["interrupt", "poll"])
def test_the_host_learns_of_the_end_by_interrupt_or_by_asking_for_the_fence(device, copy_blob, wait):
    """E012: the fence is written before the interrupt; a host that asks often need not wait for that one."""
    module, x, y = device.load(copy_blob()), device.alloc(1024), device.alloc(1024)
    stream = device.create_stream()
    job = stream.launch(module, {"x": x}, {"y": y})
    polls = 0
    if wait == "interrupt":
        job.wait()
    else:
        while stream.fence < 1:
            device.host_delay(100)
            polls += 1
    learned_ps = device.now_ps
    stream.synchronize()
    records = device.trace()
    at = {
        kind: records[records["kind"] == kind]["time_ps"].max() for kind in (C.NPU_TRACE_FENCE_WRITE, C.NPU_TRACE_IRQ)
    }
    assert at[C.NPU_TRACE_FENCE_WRITE] < at[C.NPU_TRACE_IRQ]
    assert learned_ps > at[C.NPU_TRACE_FENCE_WRITE]
    if wait == "interrupt":
        assert learned_ps > at[C.NPU_TRACE_IRQ]
    else:
        assert polls > 10
        assert learned_ps - at[C.NPU_TRACE_FENCE_WRITE] < 1_000_000


def test_one_submit_of_a_whole_model_against_a_launch_per_layer(npu, npu_json, models):
    """E013: host and device interact once against once per layer, and the host's time grows with it; same outputs."""
    report = npu_json("compare", "--mode", "blob,launch", models["chain"])
    whole, layers = report["runs"]
    assert whole["interactions"] == 1
    assert layers["interactions"] == 8  # six convolutions with their activations, and a conversion at each end
    assert whole["host_overhead_us"] < layers["host_overhead_us"] / 7
    assert whole["makespan_ps"] < layers["makespan_ps"]
    assert set(report["max_abs_diff"].values()) == {0.0}
    status, out, _ = npu("compare", "--mode", "blob,launch", models["chain"])
    assert status == 0
    assert [line.split()[:2] for line in out.splitlines()[3:5]] == [["blob", "1"], ["launch", "8"]]


def test_a_run_time_scheduler_has_another_makespan_and_the_same_outputs(npu, npu_json, chain_blob):
    """E026."""
    report = npu_json("compare", "--sched", "static,dynamic", chain_blob)
    static, dynamic = report["runs"]
    assert static["interactions"] == dynamic["interactions"] == 1
    assert static["makespan_ps"] != dynamic["makespan_ps"]
    assert set(report["max_abs_diff"].values()) == {0.0}
    status, out, _ = npu("compare", "--sched", "static,dynamic", chain_blob)
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()[3:5]] == ["static", "dynamic"]


def test_the_host_can_choose_semantics_and_schedules_by_their_names(npu_json):
    """The names that npu info lists are those that the library takes."""
    info = npu_json("info")
    assert info["semantics"] == ["ascend", "cuda", "strict"]
    for semantics in info["semantics"]:
        with libnpu.open(semantics=semantics) as device:
            for schedule in info["schedules"]:
                device.set_schedule(schedule.replace("N", "7").replace("...", "1.3@2.1"))
