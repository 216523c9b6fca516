"""What the README tells a reader to type works."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language=""):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.M | re.S)[1]


@pytest.fixture
def folder(tmp_path):
    """A folder with model.onnx (input x, as the README's example feeds it) and in.npz."""
    weights = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32) / 5
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["c"], strides=[2, 2]), helper.make_node("Relu", ["c"], ["y"])],
        "readme",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 48, 192])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 23, 95])],
        [numpy_helper.from_array(weights, "w")],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    np.savez(tmp_path / "in.npz", x=np.ones((1, 3, 48, 192), np.float32))
    return tmp_path


@pytest.fixture
def environment():
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def test_python_example(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (code,) = blocks("python")
    names = {}
    exec(code, names)
    assert names["outputs"]["y"].shape == (1, 8, 23, 95)


def test_command_line_examples(folder, environment):
    lines = [line for line in section("Command line").splitlines() if line.startswith("npu ")]
    assert len(lines) == 4
    for line in lines:
        done = subprocess.run(shlex.split(line), cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stderr)
        assert "Traceback" not in done.stderr
    assert {"out.npz", "trace.json", "model.blob"} <= {p.name for p in folder.iterdir()}


def test_c_example(folder, environment):
    (line,) = [line for line in section("C").splitlines() if line.startswith("gcc ")]
    command = line.replace("samples/", f"{ROOT}/samples/").replace("-o run_blob", f"-o {folder}/run_blob")
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (folder / "run_blob").exists()


def test_targets_exist_in_the_makefile():
    targets = re.findall(r"`?make (\w+)", README)
    assert {"demo", "test", "check", "bench"} <= set(targets)
    makefile = (ROOT / "Makefile").read_text()
    for target in targets:
        assert f"\n{target}:" in makefile


def test_every_link_of_the_documents_leads_somewhere():
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text()):
            assert (document.parent / target).exists(), (document.name, target)
