"""npu top: a dashboard of a run, frame by frame; tests/daemon has that of npud's device."""

import json

import pytest

from libnpu.tools import monitor
from libnpu.tools.source import read_blob


def frames(npu, *arguments):
    status, out, err = npu("top", *arguments, "--json")
    assert (status, err) == (0, "")
    decoder, found = json.JSONDecoder(), []
    while out.strip():
        one, end = decoder.raw_decode(out)
        found.append(one)
        out = out[end:].lstrip()
    return found


def test_r103_one_frame_has_utilisation_rates_credits_and_misses_of_the_whole_run(npu, blob_path):
    (found,) = frames(npu, blob_path, "--once")
    data, image = read_blob(blob_path)
    samples = monitor.monitor(data, image, "npu-37xx")
    summary = monitor.summary(samples)
    for name, (mean, _) in summary["utilisation"].items():
        assert found["utilisation"][name] == pytest.approx(mean, abs=1e-3)
    moved = sum(s.npu_bytes for s in samples)
    assert found["time_ps"] == samples[-1].end_ps
    assert found["span_ps"] == pytest.approx(found["time_ps"], abs=1000)  # whole cycles
    assert found["gb_per_s"]["npu"] == pytest.approx(moved * 1000 / found["span_ps"])
    assert found["gb_per_s"]["others"] == 0
    assert set(found["credits"]) == {"npu_dma", "npu_code", "cpu"}
    assert 0 < found["credits"]["npu_dma"] < 1 and found["credits"]["cpu"] == 0
    assert sum(found["misses"]["rows"].values()) * 64 == pytest.approx(moved, rel=0.02)  # accesses of 64 bytes
    assert found["misses"]["tlb"] >= 0
    assert 0 < found["mac_util"] < 1


def test_r103_frames_of_a_run_add_up_to_the_whole(npu, blob_path):
    every, (whole,) = frames(npu, blob_path, "-d", "0"), frames(npu, blob_path, "--once")
    assert len(every) > 20
    assert sum(one["span_ps"] for one in every) == pytest.approx(whole["span_ps"], rel=1e-4)
    for kind in ("hits", "misses", "conflicts"):
        assert sum(one["misses"]["rows"][kind] for one in every) == whole["misses"]["rows"][kind]
    assert frames(npu, blob_path, "-n", "2") == every[:2]


def test_r103_other_clients_of_memory_are_seen(npu, model_path):
    shape = ("--shape", "x=1,3,8,8", "--profile", "npu-37xx+edge-soc")
    (alone,), (shared,) = (frames(npu, model_path, *shape, "--once", *more) for more in ((), ("--bg", "cpu=10")))
    assert alone["gb_per_s"]["others"] == alone["credits"]["cpu"] == 0
    assert shared["gb_per_s"]["others"] == pytest.approx(10, rel=0.2)
    assert shared["credits"]["cpu"] > 0.05


def test_the_dashboard_is_for_people_and_the_same_twice(npu, blob_path):
    first, second = (npu("top", blob_path, "--once") for _ in range(2))
    assert first == second
    status, out, err = first
    assert (status, err) == (0, "")
    for words in (
        "small on npu-37xx",
        "DPU     |",
        "MACs    |",
        "DDR     NPU",
        "credits of the fullest port",
        "misses  TLB",
    ):
        assert words in out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 1, "give a model or a blob to run, or NPU_DEVICE=unix:PATH of the npud"),
        (["{blob}", "--once", "-n", "3"], 1, "--once is one frame; --frames 3 is another number"),
        (["{blob}", "-d", "-1"], 2, "expected seconds, 0 to 3600, found '-1'"),
        (["{blob}", "-n", "0"], 2, "expected a number, 1 or more, found '0'"),
        (["{blob}", "--bg", "cpu"], 1, "--bg cpu: expected CLIENT=GB/s"),
    ],
)
def test_wrong_arguments_are_named(npu, blob_path, monkeypatch, arguments, status, message):
    monkeypatch.delenv("NPU_DEVICE", raising=False)
    found, out, err = npu("top", *(word.format(blob=blob_path) for word in arguments))
    assert (found, out) == (status, "")
    assert message in err
