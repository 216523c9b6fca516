"""The C samples: they build without a warning, and do what a Python program with the same input does, byte for byte."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import libnpu

SAMPLES = Path(__file__).parents[2] / "samples" / "c"


@pytest.fixture(scope="session")
def samples(tmp_path_factory, cache, flags):
    """A folder with all samples, built by their Makefile."""
    folder = tmp_path_factory.mktemp("samples")
    shutil.copytree(SAMPLES, folder, dirs_exist_ok=True)
    environment = {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(cache)}
    config = f"NPU_CONFIG={sys.executable} -m libnpu.capi.config"
    command = ["make", "-s", "-B", config, "CFLAGS=-O2 -Wall -Wextra -Werror", "CC=gcc", "all"]
    subprocess.run(command, check=True, cwd=folder, env={**environment, "PYTHONPATH": ":".join(sys.path)})
    return folder


def test_run_blob_gives_the_bytes_of_python(samples, blobs, tmp_path):
    x = np.random.default_rng(1).standard_normal((1, 65536)).astype(np.float32)
    x.tofile(tmp_path / "x.raw")
    blob = blobs / "long.blob"
    run = subprocess.run(
        [samples / "run_blob", blob, "x.raw", "-o", "out"], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    with libnpu.open("npu-37xx") as device:
        expected = device.load(blob).run({"x": x})["y"]
    assert (tmp_path / "out0.raw").read_bytes() == expected.tobytes()
    assert run.stderr == ""
    assert re.fullmatch(r"launch to completion: [\d.]+ us\ny f32\[1,65536\]:( \S+){6} \.\.\.\n", run.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["missing.blob"],
            "npu_load_blob: a file cannot be opened or read (No such file or directory: 'missing.blob')",
        ),
        (["copy.blob"], "x: needs a file for this input"),
        (["copy.blob", "short.raw"], "short.raw: cannot be read, or is not as long as the tensor"),
        (["copy.blob", "x.raw", "x.raw"], "x.raw: the model has no input for this file"),
    ],
)
def test_run_blob_says_what_is_wrong(samples, blobs, tmp_path, arguments, message):
    shutil.copy(blobs / "copy.blob", tmp_path)
    (tmp_path / "short.raw").write_bytes(bytes(63))
    (tmp_path / "x.raw").write_bytes(bytes(64))
    run = subprocess.run([samples / "run_blob", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (1, f"run_blob: {message}\n")
