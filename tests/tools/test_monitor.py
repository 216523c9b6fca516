"""npu monitor: utilisation and memory's bytes over virtual time, whose sums are the totals."""

import csv
import json
import xml.etree.ElementTree as ElementTree

import pytest
from npu_model.profile import load_profile

from libnpu.blob import write
from libnpu.tools import memory_loads, monitor
from libnpu.tools.console import ToolError
from libnpu.tools.memory_loads import Load

EDGE = "npu-37xx+edge-soc"


def samples_of(loads, **options):
    image = memory_loads.load_image(load_profile(EDGE), loads)
    return monitor.monitor(write(image), image, EDGE, **options)


def test_r003_samples_follow_each_other_and_add_up_to_what_was_moved():
    found = samples_of([Load(n << 18, 1 << 18, 1 << 18, 1) for n in range(8)], period_ns=1000)
    assert {s.end_ps - s.start_ps for s in found[1:]} == {1_500_000}  # a period, and the host that looks
    assert [s.start_ps for s in found[1:]] == [s.end_ps for s in found[:-1]]
    assert 0 <= sum(s.npu_bytes for s in found) - (2 << 20) <= 4096  # and page tables or the list
    assert all(0 <= share <= 1.01 for s in found for share in s.utilisation.values())
    assert max(s.utilisation["DMA"] for s in found) == pytest.approx(1, abs=0.01)
    assert {s.utilisation["DPU"] for s in found} == {0.0}
    most = max(s.rate(s.npu_bytes) for s in found)
    assert 45e9 < most <= 60e9  # the pins


def test_traffic_of_others_is_told_apart():
    found = samples_of([Load(0, 1 << 18, 1 << 18, 1)], period_ns=2000, traffic={"cpu": 10 * 10**9})
    assert sum(s.other_bytes for s in found) == pytest.approx(found[-1].end_ps / 100, rel=0.2)


def test_the_files_hold_the_samples(npu, blob_path, tmp_path):
    table, image = tmp_path / "u.csv", tmp_path / "u.svg"
    status, out, err = npu("monitor", blob_path, "--csv", table, "--svg", image, "--period-ns", "500", "--json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert list(rows[0]) == ["time_us", "dma", "dpu", "shave", "ddr_gb_per_s", "others_gb_per_s"]
    assert len(rows) == report["samples"]
    assert float(rows[-1]["time_us"]) * 10**6 == report["span_ps"]
    assert max(float(row["dpu"]) for row in rows) == pytest.approx(report["utilisation"]["DPU"][1], abs=1e-6)
    root = ElementTree.fromstring(image.read_text())
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 4


def test_without_a_period_a_long_run_has_about_a_hundred():
    found = samples_of([Load(n << 18, 1 << 18, 1 << 18, 1) for n in range(100)])
    assert 80 <= len(found) <= 110


def test_too_many_samples_are_refused(monkeypatch):
    monkeypatch.setattr(monitor, "MAX_SAMPLES", 10)
    with pytest.raises(ToolError, match=r"--period-ns 1: a run of .* has more than 10 samples"):
        samples_of([Load(0, 1 << 16, 1 << 16, 1)], period_ns=1)
