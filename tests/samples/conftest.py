"""Build the C samples once per session, and compare what samples print with what was recorded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[2] / "samples"
RECORD = "NPU_RECORD_SAMPLES"  # in the environment: write what is printed instead of comparing


@pytest.fixture(scope="session")
def environment():
    """Where the samples find this Python, its packages and npu-config."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = {name: value for name, value in os.environ.items() if not name.startswith("NPU_")}
    return {**settings, "PATH": path, "PYTHONPATH": ":".join(sys.path)}


@pytest.fixture(scope="session")
def c_samples(tmp_path_factory, environment):
    """A folder with all C samples, built without a warning by their Makefile, and what they load."""
    folder = tmp_path_factory.mktemp("samples")
    shutil.copytree(
        SAMPLES / "c", folder / "c", ignore=lambda _, names: [n for n in names if "." not in n and n[0] != "M"]
    )
    shutil.copytree(SAMPLES / "python", folder / "python")
    config = f"NPU_CONFIG={sys.executable} -m libnpu.capi.config"
    command = [
        "make",
        "-s",
        "-B",
        config,
        f"PYTHON={sys.executable}",
        "CFLAGS=-O2 -g -Wall -Wextra -Werror",
        "all",
        "model.blob",
    ]
    subprocess.run(command, check=True, cwd=folder / "c", env=environment)
    return folder / "c"


@pytest.fixture(scope="session")
def check_recorded():
    """check_recorded(language, name, text): what a sample prints is what was recorded, to the byte."""

    def check(language: str, name: str, text: str) -> None:
        expected = SAMPLES / language / "expected" / f"{name}.txt"
        if os.environ.get(RECORD):
            expected.write_text(text)
        assert text == expected.read_text(), f"{RECORD}=1 records it anew"

    return check
