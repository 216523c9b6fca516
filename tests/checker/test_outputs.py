"""SARIF, suppressions, the end at the first finding, and the plugin of pytest."""

import json
import os
import subprocess
import sys

import pytest

from libnpu.checker.rules import RULES
from libnpu.checker.suppressions import Suppressions

RACES = """
import libnpu
with libnpu.open("unit") as device:
    stream, memory, pinned = device.create_stream(), device.alloc(256), device.alloc_host(256)
    stream.fill(memory, 1)
    stream.copy(pinned, memory)
    pinned.array.sum()
    stream.synchronize()
    print("on", flush=True)
    stream.fill(pinned, 2)
    pinned.array[:] = 3
    stream.synchronize()
open("ended", "w")
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    path = tmp_path / "races.py"
    path.write_text(RACES)
    monkeypatch.chdir(tmp_path)
    return path


def test_sarif_has_rule_level_and_places(npu, program, tmp_path):
    assert npu("check", "--sarif", "found.sarif", "-o", "text", "--", sys.executable, program)[0] == 1
    log = json.loads((tmp_path / "found.sarif").read_text())
    (run,) = log["runs"]
    first, second = run["results"]
    assert (log["version"], [rule["id"] for rule in run["tool"]["driver"]["rules"]]) == ("2.1.0", list(RULES))
    assert (first["ruleId"], second["ruleId"], first["level"]) == ("HD-RAW", "HD-WAW", "error")
    assert run["tool"]["driver"]["rules"][first["ruleIndex"]]["id"] == "HD-RAW"
    places = [at["physicalLocation"] for at in (*first["locations"], *first["relatedLocations"])]
    assert [place["region"]["startLine"] for place in places] == [7, 6, 4]
    assert {place["artifactLocation"]["uri"] for place in places} == {program.as_uri()}


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        ("fastest", "'fastest'; there are 'timed', 'eager', 'lazy', 'newest-first', 'seed:0' to "),
        ("seed:-1", "'seed:-1'; there are 'timed', 'eager', "),
        ("hold:1.0", "'hold:1.0': '1.0' is no list of operations such as '1.3@2.1,1.5'\n"),
    ],
)
def test_a_schedule_that_cannot_be_meant(npu, program, monkeypatch, schedule, why):
    _, _, err = npu("check", "--schedule", schedule, "--", sys.executable, program)
    assert err.startswith(f"npu: error: schedule {why}")
    monkeypatch.setenv("NPU_SCHEDULE", schedule)
    assert npu("check", "--", sys.executable, program) == (2, "", err)


def test_what_is_suppressed_is_left_out_and_counted(npu, program, tmp_path):
    (tmp_path / "known").write_text("# by hand\nHD-WAW races.py:11  # known\n\nXS-* races.py\n")
    status, _, err = npu("check", "--suppress", "known", "--", sys.executable, program)
    assert (status, err.count("HD-RAW"), err.count("HD-WAW")) == (1, 1, 0)
    assert err.endswith("npu check: 1 finding, 1 suppressed\n")
    (tmp_path / "known").write_text(f"* {tmp_path}/*")
    status, _, err = npu("check", "--suppress", "known", "--schedule", "hold:9.9", "--", sys.executable, program)
    never = "npu check: schedule 'hold:9.9': there never was an operation 9.9; there is 1.1 to 1.3\n"
    assert (status, err) == (2, f"{never}npu check: 0 findings, 2 suppressed\n")
    (tmp_path / "known").write_text("HD-WAW races.py\nHD-RAW\n")
    status, _, err = npu("check", "--suppress", "known", "--", sys.executable, program)
    assert (status, err) == (2, "npu: error: --suppress known: line 2: 'HD-RAW' is no rule and place\n")
    (tmp_path / "known").write_text("HD-RAV  made.py:*\n")
    _, _, err = npu("check", "--suppress", "known", "--", sys.executable, program)
    assert err == "npu: error: --suppress known: line 1: no rule is 'HD-RAV'; npu check --rules shows them\n"


@pytest.mark.parametrize(
    ("row", "covers"),
    [
        ("HD-RAW race.py:9", True),
        ("HD-RAW race.py", True),
        ("HD-* */race.py:*", True),
        ("* /x/y/race.py:4", True),
        ("HD-RAW race.py:5", False),
        ("HD-WAR race.py", False),
        ("* ace.py", False),
    ],
)
def test_patterns(row, covers):
    acts = [{"site": "/x/y/race.py:9"}, {"site": "/x/y/race.py:4"}, {"site": ""}]
    assert Suppressions.parse(row).covers({"rule": "HD-RAW", "acts": acts}) is covers


def test_the_program_ends_at_the_first_certain_finding_that_is_not_suppressed(npu, program, tmp_path):
    command = ["check", "--stop-on-first", "-o", "report"]
    assert npu(*command, "--", sys.executable, program)[0] == 1
    report = (tmp_path / "report").read_text()
    assert (report.count("HD-RAW"), report.count("HD-WAW")) == (1, 0)
    assert not (tmp_path / "ended").exists()
    (tmp_path / "known").write_text("HD-RAW races.py")
    assert npu(*command, "--suppress", "known", "--", sys.executable, program)[0] == 1
    report = (tmp_path / "report").read_text()
    assert (report.count("HD-RAW"), report.count("HD-WAW")) == (0, 1)
    (tmp_path / "known").write_text("HD-* races.py")
    assert npu(*command, "--suppress", "known", "--", sys.executable, program)[0] == 0
    assert (tmp_path / "ended").exists()


TESTS = """
import libnpu, pytest

def work(fixed):
    with libnpu.open("unit") as device:
        stream, pinned = device.create_stream(), device.alloc_host(256)
        stream.fill(pinned, 1)
        if fixed:
            stream.synchronize()
        pinned.array.sum()

@pytest.mark.npu_check
def test_wrong():
    work(False)

@pytest.mark.npu_check(leaks=True)
def test_leaks():
    work(True)

@pytest.mark.npu_check
def test_right():
    work(True)

def test_not_marked():
    work(False)

@pytest.mark.npu_check
def test_fails_itself():
    work(False)
    assert not "its own failure"
"""


def test_the_plugin_fails_a_marked_test_with_the_report(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    plugin = ["-p", "libnpu.checker.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-rfp", *plugin, "test_it.py"]
    path = os.pathsep.join(map(os.path.abspath, sys.path[1:]))
    environment = os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1].startswith("3 failed, 2 passed"), done.stdout + done.stderr
    assert "PluggyTeardownRaisedWarning" not in done.stdout
    assert "ERROR HD-RAW" in done.stdout
    assert "test_it.py:7" in done.stdout
    assert "WARNING LEAK" in done.stdout or "LEAK: memory of 256 bytes was never given back" in done.stdout
    assert "assert not 'its own failure'" in done.stdout
