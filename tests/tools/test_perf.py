"""npu perf stat: what the PMU counted while a program ran, C or Python."""

import json
import sys

import pytest
from npu_abi import enum
from npu_model.profile import load_profile

import libnpu
from libnpu.tools import perf

PROGRAM = """
import json, sys
import numpy as np
import libnpu

with libnpu.open() as device:
    before = device.counters()
    stream, relu = device.create_stream(), device.kernel("relu")
    x, y = device.to_device(np.arange(1024, dtype=np.float32)), device.alloc(4096)
    relu.launch(stream, x, y, 1024)
    stream.synchronize()
    after = device.counters()
    json.dump({name: after[name] - value for name, value in before.items()}, open(sys.argv[1], "w"))
sys.exit(3)
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_r005_counters_are_those_that_the_program_could_read_itself(npu, program, tmp_path):
    seen, report = tmp_path / "seen.json", tmp_path / "report.json"
    command = ["-e", ",".join(perf.EVENTS), "--json", "-o", report, "--", sys.executable, program, seen]
    status, out, err = npu("perf", "stat", *command)
    assert (status, out, err) == (3, "", "")  # the program's
    found = json.loads(report.read_text())
    own = json.loads(seen.read_text())
    still = {
        "CYCLES",
        "ENERGY_STATIC",
        "CORE_BUSY",
    }  # the time, and the core that says that a job has ended, go on to the close
    assert {n: v for n, v in found["events"].items() if perf_name(n) not in still} == {
        n.lower().replace("_", "-"): v for n, v in own.items() if n not in still
    }
    assert own["SHAVE_MEM_STALL"] == found["events"]["shave-mem-stall"] > 0
    assert found["cycles"] == found["events"]["cycles"] >= own["CYCLES"]
    assert (found["devices"], found["command"].endswith(str(seen))) == (1, True)


def perf_name(event):
    return event.upper().replace("-", "_")


def test_r005_a_name_without_its_engine_is_that_of_each(npu, program, tmp_path):
    assert perf.events("mem-stall") == ["dma-mem-stall", "dpu-mem-stall", "shave-mem-stall"]
    assert perf.events("mem-stall") == perf.events("AIE_PMU_MEM_STALL_CYCLES") == perf.events("r1000")
    assert perf.events("NPU_PMU_DPU_MACS,dpu-macs,tasks") == ["dpu-macs", "tasks"]
    report = tmp_path / "report"
    assert npu("perf", "stat", "-e", "mem-stall", "-o", report, "--", sys.executable, program, tmp_path / "x")[0] == 3
    lines = [line.split() for line in report.read_text().splitlines() if line]
    assert lines[0][:4] == ["Performance", "counter", "stats", "for"]
    assert [line[1] for line in lines[1:4]] == ["dma-mem-stall", "dpu-mem-stall", "shave-mem-stall"]
    assert all(line[-2:] == ["of", "cycles"] for line in lines[1:4])
    assert lines[4][1:] == ["seconds", "on", "the", "device's", "clock"]


def test_events_have_the_names_of_the_header(npu):
    status, out, _ = npu("perf", "list")
    assert (status, out.split()) == (
        0,
        [m.name.removeprefix("NPU_PMU_").lower().replace("_", "-") for m in sorted(enum("npu_pmu"))][:-1],
    )


def test_counters_that_begin_anew_are_added(monkeypatch, capsys):
    """A reset sets them to 0: what was counted before it, is."""
    reports = []
    monkeypatch.setenv("NPU_TRACE", "pmu")
    monkeypatch.setattr("libnpu.counter_log.at_end", reports.append)
    with libnpu.open("unit") as device:
        device.host_delay(10_000)
        before = device.counters()["CYCLES"]
        device.recover()
        device.host_delay(5000)
        assert device.counters()["CYCLES"] < before
    (report,) = reports
    report()
    counted = json.loads(capsys.readouterr().err)["counters"]
    assert counted["CYCLES"] == pytest.approx(device_cycles(15_000), abs=3)


def device_cycles(ns):
    return ns * load_profile("unit").dpu.clock_hz // 10**9


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["stat", "--", "true"], 1, "true ended with status 0 and counted nothing: it opened no device"),
        (["stat", "-e", "nope", "--", "true"], 2, "no event 'nope'; npu perf list shows them"),
        (["stat", "-e", "", "--", "true"], 2, "no event ''"),
        (["stat"], 2, "the following arguments are required: PROG"),
        ([], 2, "the following arguments are required: ACTION"),
        (["stat", "-o", "/no/such/file", "--", "true"], 1, "--output /no/such/file: there is no folder /no/such"),
        (["stat", "--", "/no/such/program"], 1, "/no/such/program: No such file or directory"),
    ],
)
def test_wrong_arguments_are_named(npu, arguments, status, message):
    found, out, err = npu("perf", *arguments)
    assert (found, out) == (status, "")
    assert message in err
