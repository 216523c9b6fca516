"""The commands of docs/profiling.md work, in the order in which they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "profiling.md").read_text()
LONG = {"Roofline", "Plans", "The device beside a GPU"}  # whose plans take seconds to compile: in CI alone
SECTIONS = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)


@pytest.mark.parametrize(
    ("title", "text"),
    [pytest.param(*one, id=one[0], marks=[pytest.mark.slow] if one[0] in LONG else []) for one in SECTIONS],
)
def test_the_commands_of_a_section_work(tmp_path, title, text):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    commands = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S))
    done = subprocess.run(
        ["bash", "-eu", "-s"], input=commands, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert commands
    assert dict(SECTIONS).keys() >= LONG
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
