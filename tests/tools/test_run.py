"""npu run and npu compile: values, JSON, traces, determinism."""

import json
import sys

import numpy as np
import onnx
import onnx.reference
import pytest
from npu_model import native
from npu_model.profile import load_profile

from libnpu import blob
from libnpu.tools import arithmetic

ENGINE_FIELDS = {"name", "units", "tasks", "busy_ps", "utilisation"}


def test_outputs_are_the_reference_s(npu, tmp_path, model_path):
    x = np.random.default_rng(0).integers(-8, 9, (1, 3, 8, 8)).astype(np.float32) / 8
    np.savez(tmp_path / "in.npz", x=x)
    shape = ("--shape", "x=1,3,8,8")
    status, _, err = npu("run", model_path, *shape, "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz")
    assert (status, err) == (0, "")
    with np.load(tmp_path / "out.npz") as file:
        found = dict(file)
    expected = onnx.reference.ReferenceEvaluator(model_path).run(None, {"x": x})[0]
    assert [*found] == ["y"]
    np.testing.assert_array_equal(found["y"], expected)  # every value and sum is exact in fp16


def test_a_schedule_changes_no_value(npu, tmp_path, blob_path):
    for name in ("timed", "eager", "hold:1.1"):
        assert npu("run", blob_path, "--outputs", tmp_path / f"{name}.npz", "--schedule", name)[0] == 0
    one, *others = [np.load(tmp_path / f"{name}.npz")["y"].tobytes() for name in ("timed", "eager", "hold:1.1")]
    assert others == [one, one]
    status, _, err = npu("run", blob_path, "--schedule", "hold:1")
    assert (status, err[:44]) == (1, "npu: error: schedule 'hold:1': '1' is no lis")


def test_json_says_where_the_time_went(npu, blob_path):
    status, out, err = npu("run", blob_path, "--json")
    report = json.loads(out)
    assert (status, err) == (0, "")
    assert report["profile"] == "npu-37xx"
    assert [set(engine) for engine in report["engines"]] == [ENGINE_FIELDS] * 3
    assert report["latency_ps"] > max(engine["busy_ps"] / engine["units"] for engine in report["engines"])
    assert sum(report["overlap"]["by_count"]) == pytest.approx(1, abs=4e-6)  # four shares, rounded to 6 digits
    assert sum(report["overlap"]["by_engines_ps"].values()) == report["latency_ps"]
    assert report["macs"] == 8 * 8 * 16 * 27
    assert report["ddr_write_bytes"] == 4 * 16 * 8 * 8
    assert report["outputs"] == {"y": {"dtype": "float32", "shape": [1, 16, 8, 8]}}


def test_json_has_cycles_of_engines_and_energy(npu, blob_path):
    report = json.loads(npu("run", blob_path, "--json")[1])
    counters = report["counters"]
    assert report["engine_cycles"]["mac_util"] == counters["DPU_MACS"] / counters["DPU_MAC_SLOTS"]
    for kind, cycles in report["engine_cycles"]["cycles"].items():
        assert cycles["unit_active"] == counters[f"{kind}_BUSY"]
        assert cycles["mem_stall"] <= cycles["mem_pending"] == counters[f"{kind}_MEM_PENDING"]
    energy, profile = report["energy"], load_profile("npu-37xx")
    assert energy["total_fj"] == sum(energy["parts_fj"].values())
    assert energy["parts_fj"]["dpu"] == report["macs"] * profile.energy.mac_fj["f16"]
    asked = ("SHAVE_DDR_READ", "SHAVE_DDR_WRITE", "CODE_LOAD")
    assert counters["DDR_MOVED"] >= report["ddr_read_bytes"] + report["ddr_write_bytes"] + sum(
        counters[name] for name in asked
    )
    assert energy["parts_fj"]["ddr"] == counters["DDR_MOVED"] * profile.energy.ddr_byte_fj
    assert energy["parts_fj"]["static"] == pytest.approx(energy["time_ps"] * profile.energy.static_mw, rel=1e-3)
    assert energy["watts"] == pytest.approx(energy["total_fj"] / energy["time_ps"] / 1000)


def test_power_is_the_energy_of_a_run_by_part_and_per_token(npu, blob_path):
    run = json.loads(npu("run", blob_path, "--json", "--no-compute")[1])
    status, out, err = npu("power", blob_path, "--tokens", "4", "--json")
    report = json.loads(out)
    assert (status, err) == (0, "")
    assert report["parts_fj"] == run["energy"]["parts_fj"]
    assert report["joules_per_token"] == report["total_fj"] / 1e15 / 4
    assert report["tokens_per_second_per_watt"] == pytest.approx(4 * report["inferences_per_second"] / report["watts"])
    assert "tokens" not in json.loads(npu("power", blob_path, "--json")[1])
    table = npu("power", blob_path, "--tokens", "4")[1]
    for word in ("DPU", "SHAVE", "CMX", "NOC", "DDR", "STATIC", "average power", "tokens/s/W"):
        assert word in table


def test_two_runs_print_and_trace_the_same_bytes(npu, tmp_path, blob_path):
    found = []
    for number in range(2):
        trace = tmp_path / f"{number}.json"
        assert npu("run", blob_path, "--trace", trace, "--outputs", tmp_path / f"{number}.npz")[0] == 0
        found.append((trace.read_bytes(), (tmp_path / f"{number}.npz").read_bytes()))
    assert found[0] == found[1]


def test_no_compute_gives_the_same_times(npu, blob_path):
    with_values = json.loads(npu("run", blob_path, "--json")[1])
    without = json.loads(npu("run", blob_path, "--json", "--no-compute")[1])
    assert without["outputs"] == {}
    for report in (with_values, without):
        del report["counters"]["TLB_MISS"]  # engines that compute nothing look up no operands
    for field in ("latency_ps", "engines", "overlap", "counters"):
        assert without[field] == with_values[field]


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_check_compares_with_a_reference(npu, model_path, precision):
    status, out, _ = npu("run", model_path, "--shape", "x=1,3,8,8", "--precision", precision, "--check", "--json")
    check = json.loads(out)["check"]
    assert status == 0
    assert check["passed"]
    assert [o["name"] for o in check["outputs"]] == ["y"]


def test_the_table_names_engines_layers_and_outputs(npu, blob_path):
    status, out, err = npu("run", blob_path)
    assert (status, err) == (0, "")
    for word in ("simulated latency", "DDR read", "DMA", "DPU", "SHAVE", "conv", "float32 [1, 16, 8, 8]"):
        assert word in out
    assert "\x1b" not in out  # no colours in a pipe


def test_a_trace_has_a_track_per_unit_and_a_bandwidth_counter(npu, tmp_path, blob_path):
    path = tmp_path / "trace.json"
    report = json.loads(npu("run", blob_path, "--trace", path, "--json")[1])
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert {"host", "core", "DMA 0", "DPU 0"} <= names
    assert any(e["ph"] == "X" and e["name"] == "conv" and e["cat"] == "DPU" for e in events)
    assert any(e["ph"] == "C" and e["name"] == "DDR bandwidth" and e["args"]["GB/s"] > 0 for e in events)
    assert any(e["ph"] == "X" and e["cat"] == "host" and e["name"] == "launch" for e in events)
    status, out, _ = npu("timeline", path, "--json")
    timeline = json.loads(out)
    assert status == 0
    assert timeline["engines"] == report["engines"]
    assert timeline["overlap"] == report["overlap"]
    assert "3 engines busy" in npu("timeline", path, "--overlap")[1]


def test_compile_writes_a_blob_that_verifies_and_says_what_it_did(npu, tmp_path, model_path):
    path = tmp_path / "a.blob"
    arguments = ("compile", model_path, "--shape", "x=1,3,8,8", "-o", path)
    status, out, _ = npu(*arguments, "--json")
    assert status == 0
    assert json.loads(out)["blob_bytes"] == path.stat().st_size
    first = path.read_bytes()
    assert npu(*arguments) == (0, "", "")
    assert path.read_bytes() == first
    assert npu("objdump", path, "--verify") == (0, f"{path}: no rule broken\n", "")
    status, out, _ = npu(*arguments, "--dump-pass", "tiles")
    assert status == 0
    assert "conv" in out


def test_a_deadlock_is_one_line_with_the_barrier(npu, tmp_path, blob_path):
    with open(blob_path, "rb") as file:
        image = blob.read(file.read())
    first = image.tasks[".npu.tasks.dma0"][0]
    assert (first["barriers_wait_mask"], first["barriers_post_mask"]) == (0, 1)
    first["barriers_wait_mask"] = 1  # the task now waits for what it alone posts
    image.tasks[".npu.barriers"]["consumer_count"][0] += 1
    path = tmp_path / "deadlock.blob"
    path.write_bytes(blob.write(image))
    status, out, err = npu("run", path)
    assert (status, out) == (1, "")
    assert err.startswith("npu: error: ")
    assert "barrier 0" in err
    assert err.count("\n") == 1
    assert npu("run", blob_path)[0] == 0


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_report_names_the_numerics_and_what_computed_them(npu, blob_path, numerics):
    status, out, err = npu("run", blob_path, "--numerics", numerics, "--json")
    assert (status, err) == (0, "")
    report = json.loads(out)["numerics"]
    assert report["policy"] == numerics
    assert report["helpers"].split(",")[0] in ("C", "none")
    assert report["blas"]


def test_run_without_the_c_helpers_says_so(npu, blob_path, monkeypatch):
    native.load.cache_clear()
    monkeypatch.setenv("LIBNPU_NATIVE", "0")
    try:
        _, out, _ = npu("run", blob_path)
        _, info, _ = npu("info", "--json")
    finally:
        native.load.cache_clear()
    assert "none, NumPy (LIBNPU_NATIVE=0)" in out
    assert json.loads(info)["versions"]["C helpers of the device"] == "none, NumPy (LIBNPU_NATIVE=0)"


def test_blas_library_is_named_without_threadpoolctl(monkeypatch):
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    built = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    assert arithmetic.blas() == f"{built['name']} {built['version']}"
