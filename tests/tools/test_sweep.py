"""npu sweep, and the small questions behind the other checks."""

import argparse
import json

import numpy as np
import pytest

from libnpu.tools import cmx_map, reference, source


def test_a_sweep_is_over_every_combination(npu, model_path):
    arguments = (
        "sweep",
        model_path,
        "--shape",
        "x=1,3,8,8",
        "--prefetching-level-limit",
        "0,2",
        "--cmx-bytes",
        "32K,64K",
    )
    points = json.loads(npu(*arguments, "--json")[1])
    assert [(p["prefetching_level_limit"], p["cmx_bytes"]) for p in points] == [
        (0, 32768),
        (0, 65536),
        (2, 32768),
        (2, 65536),
    ]
    assert all(p["latency_ps"] > 0 and p["tasks"] > 0 and p["ddr_read_bytes"] >= 768 for p in points)
    assert all(p["peak_cmx_bytes"] <= p["cmx_bytes"] for p in points)
    status, out, err = npu(*arguments)
    assert (status, err) == (0, "")
    assert [line.split()[:3] for line in out.splitlines()[3:5]] == [["0", "32.00", "KiB"], ["0", "64.00", "KiB"]]


def test_a_sweep_without_ranges_is_one_point(npu, model_path):
    (point,) = json.loads(npu("sweep", model_path, "--shape", "x=1,3,8,8", "--json")[1])
    assert (point["prefetching_level_limit"], point["cmx_bytes"]) == (None, None)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--prefetchingLevelLimit", "3..1"], 2, "'3..1' has 0 numbers; expected 1 to 1000"),
        (["--prefetchingLevelLimit", "0..99999999999"], 2, "has 100000000000 numbers"),
        (["--prefetchingLevelLimit", "a..b"], 2, "expected a number, 0 or more, found 'a'"),
        (["--cmx", "64K,0"], 2, "expected whole bytes above 0, such as 262144, 256K or 1M, found '0'"),
        (["--cmx", "1K"], 1, "bytes"),
    ],
)
def test_a_wrong_range_is_one_line_on_stderr(npu, model_path, arguments, status, message):
    found, out, err = npu("sweep", model_path, "--shape", "x=1,3,8,8", *arguments)
    assert (found, out) == (status, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_blob_cannot_be_swept(npu, blob_path):
    status, _, err = npu("sweep", blob_path)
    assert status == 1
    assert "is a blob already" in err


@pytest.mark.parametrize(("text", "size"), [("1", 1), ("256K", 262_144), ("2m", 2_097_152), ("1G", 1 << 30)])
def test_sizes_have_units_of_1024(text, size):
    assert source.byte_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "0", "0K", "-1", "1.5M", "1T", "-1K", "1_0", "٣", "9" * 20])
def test_other_sizes_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        source.byte_size(text)


def test_live_bytes_change_where_buffers_begin_and_behind_where_they_end():
    found = [
        cmx_map.Stay("a", 0, 0, 50, 0, 3),
        cmx_map.Stay("b", 0, 50, 20, 2, 5),
        cmx_map.Stay("c", 0, 0, 50, 4, 4),
    ]
    steps = [(s.task, s.live_bytes, s.buffers) for s in cmx_map.live_bytes(found)]
    assert steps == [(0, 50, 1), (2, 70, 2), (5, 20, 1), (6, 0, 0)]


def test_the_largest_difference_takes_equal_infinities_and_nans_for_equal():
    a = np.array([1.0, np.inf, np.nan, 2.0])
    assert reference.max_abs_difference(a, a) == 0
    assert reference.max_abs_difference(a, np.array([1.5, np.inf, np.nan, 2.0])) == 0.5
    assert reference.max_abs_difference(a, np.array([1.0, np.inf, 0.0, 2.0])) == np.inf
    assert reference.max_abs_difference(np.zeros(0), np.zeros(0)) == 0


def test_stats_go_to_a_file_or_to_stdout(npu, tmp_path, blob_path):
    path = tmp_path / "s.json"
    status, table, _ = npu("run", blob_path, "--stats", path)
    assert status == 0
    assert "simulated latency" in table
    assert json.loads(path.read_text())["submits"] == 1
    assert npu("run", blob_path, "--stats", "-")[1] == path.read_text() == npu("run", blob_path, "--json")[1]


def test_an_untiled_comparison_needs_a_model_and_values(npu, model_path, blob_path):
    assert "needs the ONNX model" in npu("run", blob_path, "--compare-untiled")[2]
    arguments = ("run", model_path, "--shape", "x=1,3,8,8", "--compare-untiled")
    assert "--compare-untiled needs values" in npu(*arguments, "--no-compute")[2]
    status, out, _ = npu(*arguments, "--cmx", "16K")
    assert status == 0
    assert "against all of CMX" in out


def test_a_difference_from_the_untiled_outputs_fails_with_its_size(npu, monkeypatch, model_path):
    monkeypatch.setattr(reference, "max_abs_difference", lambda found, expected: 0.25)
    status, _, err = npu("run", model_path, "--shape", "x=1,3,8,8", "--compare-untiled", "--json")
    assert status == 1
    assert err.endswith("output 'y' differs by 0.25 from the untiled one\n")
