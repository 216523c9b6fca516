"""The command line: exit statuses, one-line errors, fast help."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


@pytest.mark.parametrize("command", ["run", "compile", "sweep", "objdump", "info", "timeline"])
def test_every_command_has_help(npu, command):
    status, out, err = npu(command, "--help")
    assert (status, err) == (0, "")
    assert out.startswith(f"usage: npu {command} ")


def test_no_command_prints_help_and_fails(npu):
    status, out, _ = npu()
    assert status == 2
    assert "timeline" in out


def test_help_loads_neither_numpy_nor_rich_nor_the_compiler():
    code = (
        "import sys\nfrom libnpu.tools.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('numpy', 'rich', 'onnx', 'libnpu.compiler', 'libnpu.runtime') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.endswith("[]\n")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["bogus"], 2, "invalid choice: 'bogus'"),
        (["run"], 2, "the following arguments are required: MODEL|BLOB (see npu run --help)"),
        (["run", "/no/such.onnx"], 1, "/no/such.onnx: No such file or directory"),
        (["run", "{text}"], 1, "not an ONNX file"),
        (["objdump", "{text}"], 1, "file: 5 bytes; expected 64 to"),
        (["timeline", "{text}"], 1, "not a trace file of npu run --trace"),
        (["info", "--profile", "nope"], 1, "no hardware profile named 'nope'"),
        (["run", "{model}"], 1, "'x'"),
        (
            ["run", "{model}", "--cmx-bytes", "-5"],
            2,
            "argument --cmx-bytes/--cmx: expected a number above 0, found '-5'",
        ),
        (["run", "{model}", "--prefetching-level-limit", "a"], 2, "expected a number, found 'a'"),
        (["run", "{model}", "--shape", "x"], 1, "--shape x: expected NAME=1,3,224,224"),
        (["run", "{model}", "--shape", "x=1,-3"], 1, "--shape x=1,-3: expected NAME=1,3,224,224"),
        (["run", "{model}", "--shape", "z=1,3"], 1, "'z'"),
        (["run", "{model}", "--shape", "x=1,3,8,8", "--profile", "nope"], 1, "no hardware profile named 'nope'"),
        (["run", "{blob}", "--check"], 1, "--check needs the ONNX model"),
        (["run", "{blob}", "--precision", "fp32"], 1, "is a blob, compiled already"),
        (["run", "{blob}", "--profile", "unit"], 1, "unit"),
        (["run", "{blob}", "--no-compute", "--outputs", "y.npz"], 1, "--outputs needs values"),
        (["run", "{blob}", "--inputs", "{text}"], 1, "not a .npz file"),
        (["compile", "{blob}"], 1, "is a blob already"),
        (
            ["compile", "{model}", "--shape", "x=1,3,8,8", "-o", "/dev/null", "--dump-pass", "nope"],
            1,
            "--dump-pass nope",
        ),
    ],
)
def test_a_mistake_is_one_line_on_stderr(npu, tmp_path, model_path, blob_path, arguments, status, message):
    text = tmp_path / "text"
    text.write_text("hello")
    names = {"text": text, "model": model_path, "blob": blob_path}
    found, out, err = npu(*(a.format(**names) for a in arguments))
    assert found == status
    assert out == ""
    assert err.startswith("npu: error: ")
    assert err.count("\n") == 1
    assert message in err


def test_a_damaged_blob_is_an_error_with_its_place(npu, tmp_path, blob_path):
    data = bytearray(Path(blob_path).read_bytes())
    data[0x200] ^= 1
    path = tmp_path / "damaged.blob"
    path.write_bytes(data)
    for command in ("run", "objdump"):
        status, _, err = npu(command, path)
        assert status == 1
        assert ".npu.digest" in err


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "no array 'x'; the model's inputs are x"),
        (
            {"x": np.zeros((1, 3, 8, 8), np.float64)},
            "'x' is float64 [1, 3, 8, 8]; the model expects float32 [1, 3, 8, 8]",
        ),
        ({"x": np.zeros((1, 3, 8, 9), np.float32)}, "'x' is float32 [1, 3, 8, 9]"),
        ({"x": np.zeros((1, 3, 8, 8), np.float32), "z": np.zeros(1)}, "array 'z' is no input"),
    ],
)
def test_wrong_input_files_are_named(npu, tmp_path, blob_path, arrays, message):
    path = tmp_path / "inputs.npz"
    np.savez(path, **arrays)
    status, _, err = npu("run", blob_path, "--inputs", path)
    assert status == 1
    assert message in err
