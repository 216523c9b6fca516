"""The C samples: they build without a warning, check themselves, and print what was recorded."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import libnpu
from libnpu.compiler import CompileOptions, HostPartWarning, compile_model

FOLDER = Path(__file__).parents[2] / "samples" / "c"
NAMES = sorted(path.stem for path in FOLDER.glob("*.c"))
ARGUMENTS = {"run_model": ["model.blob", "x.raw", "y.raw"], "error_handling": ["fault.blob"]}


@pytest.mark.parametrize("name", NAMES)
def test_the_sample_prints_what_was_recorded(name, c_samples, check_recorded):
    command = [c_samples / name, *ARGUMENTS.get(name, [])]
    run = subprocess.run(command, cwd=c_samples, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    check_recorded("c", name, run.stdout)


def test_make_run_runs_all_of_them(c_samples, environment):
    plan = ["make", "-n", "-C", c_samples, "run"]
    printed = subprocess.run(plan, env=environment, capture_output=True, text=True, check=True).stdout
    started = [line.split() for line in printed.splitlines() if line.startswith("./")]
    assert {words[0][2:]: words[1:] for words in started} == {name: ARGUMENTS.get(name, []) for name in NAMES}


def test_a_sample_that_is_wrong_says_so_and_fails(c_samples, environment, tmp_path):
    source = (FOLDER / "vector_add_sync.c").read_text()
    assert "z[i] == x[i] + y[i]" in source
    (tmp_path / "wrong.c").write_text(source.replace("z[i] == x[i] + y[i]", "z[i] == x[i] - y[i]"))
    for name in ("Makefile", "check.h", "timeline.h"):
        shutil.copy(FOLDER / name, tmp_path)
    subprocess.run(["make", "-s", "wrong"], cwd=tmp_path, env=environment, check=True)
    run = subprocess.run([tmp_path / "wrong"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (1, "this is not so: after the wait z is x + y\n")


def test_run_model_gives_the_bytes_of_python(c_samples, tmp_path):
    shutil.copy(c_samples / "x.raw", tmp_path)
    command = [c_samples / "run_model", c_samples / "model.blob", "x.raw", "-o", "out"]
    run = subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, text=True)
    x = np.fromfile(tmp_path / "x.raw", np.float32).reshape(1, 1, 8, 8)
    with libnpu.open("npu-37xx") as device:
        expected = device.load(c_samples / "model.blob").run({"x": x})["y"]
    assert (tmp_path / "out0.raw").read_bytes() == expected.tobytes()
    assert run.stderr == ""


def test_run_model_runs_a_model_in_parts(c_samples, tmp_path):
    """y = relu(x) * (how many elements of it are not 0), counted on the host: C needs to know nothing of it."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("NonZero", ["a"], ["n"]),
        helper.make_node("Shape", ["n"], ["s"], start=1),
        helper.make_node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["a", "f"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (4,)) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    with pytest.warns(HostPartWarning):
        (tmp_path / "parts.blob").write_bytes(compile_model(model, CompileOptions(precision="fp32")).blob)
    np.array([-1, 2, 0, 0.5], np.float32).tofile(tmp_path / "x.raw")
    command = [c_samples / "run_model", "parts.blob", "x.raw"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert "g.part1" in run.stdout and run.stdout.splitlines()[-1] == "y [4]: 0 4 0 1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["missing.blob"],
            "npu_load_blob: a file cannot be opened or read (No such file or directory: 'missing.blob')",
        ),
        ([], "run_model: usage: BLOB [INPUT.raw ...] [OUTPUT.raw ...] [-o PREFIX]"),
        (["model.blob"], "run_model: x: needs a file for this input"),
        (
            ["model.blob", "short.raw"],
            "run_model: short.raw: cannot be read or written, or is not as long as the tensor",
        ),
        (["model.blob", "x.raw", "wrong.raw"], "this is not so: the output is what was expected"),
        (["model.blob", "x.raw", "y.raw", "x.raw"], "run_model: x.raw: the model has no input or output for this file"),
    ],
)
def test_run_model_says_what_is_wrong(c_samples, tmp_path, arguments, message):
    for name in ("model.blob", "x.raw", "y.raw"):
        shutil.copy(c_samples / name, tmp_path)
    (tmp_path / "short.raw").write_bytes(bytes(63))
    (tmp_path / "wrong.raw").write_bytes(bytes(16))
    run = subprocess.run(
        [c_samples / "run_model", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (1, f"{message}\n")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
@pytest.mark.timeout(600)
def test_valgrind_finds_nothing_in_a_sample(c_samples):
    """No error and nothing lost, but for what valgrind.supp names: the interpreter's own."""
    suppressions = f"--suppressions={FOLDER / 'valgrind.supp'}"
    command = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"]
    command += ["--show-leak-kinds=definite", suppressions, c_samples / "vector_add_sync"]
    settings = {**os.environ, "PYTHONMALLOC": "malloc"}
    run = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
