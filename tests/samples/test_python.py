"""The Python samples: they check themselves, print what was recorded, and are typed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "samples" / "python"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_the_sample_prints_what_was_recorded(name, environment, check_recorded, tmp_path):
    command = [sys.executable, FOLDER / f"{name}.py"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    check_recorded("python", name, run.stdout)


def test_there_is_the_same_in_both_languages():
    in_c = {path.stem for path in (ROOT / "samples" / "c").glob("*.c")}
    assert set(NAMES) - in_c == {"async_pipeline", "kernel_merge", "local_sync", "pipeline"}
    assert in_c <= set(NAMES)


def test_each_is_short_and_prints_what_host_and_device_did():
    for path in (*(ROOT / "samples").glob("c/*.c"), *FOLDER.glob("*.py")):
        assert len(path.read_text().splitlines()) <= 150, path
        printed = (path.parent / "expected" / f"{path.stem}.txt").read_text()
        assert re.search(r"^# .*\bworks .* = .*device", printed, re.M), path
        assert re.search(r"^host .*[#.].*us$", printed, re.M), path
        assert re.search(r"^stream \d+ .*=.*us$", printed, re.M), path


@pytest.mark.slow
def test_the_samples_are_typed():
    pytest.importorskip("mypy")
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *(FOLDER / f"{name}.py" for name in NAMES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
