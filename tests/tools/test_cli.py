"""The command line: exit statuses, one-line errors, fast help."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from libnpu.kernels import builtin_library
from libnpu.tools import values


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "compile",
        "sweep",
        "compare",
        "power",
        "burst",
        "ddr-bandwidth",
        "soc-diag",
        "explain",
        "latency",
        "roofline",
        "monitor",
        "top",
        "kernels",
        "launch-profile",
        "advise",
        "objdump",
        "info",
        "perf",
        "check",
        "explore",
        "timeline",
    ],
)
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
        (["run", ""], 1, "an empty file name: No such file or directory"),
        (["run", "{folder}"], 1, "Is a directory"),
        (["objdump", "{folder}"], 1, "Is a directory"),
        (["run", "{blob}", "--inputs", "{folder}"], 1, "Is a directory"),
        (["run", "{text}"], 1, "not an ONNX file"),
        (["objdump", "{text}"], 1, "text: is not a blob; npu compile makes one of an ONNX model"),
        (["objdump", "{model}"], 1, "small.onnx: is not a blob"),
        (["timeline", "{text}"], 1, "not a trace file of npu run --trace: it is no JSON"),
        (["timeline", "{deep}"], 1, "deep: not a trace file of npu run --trace: it is nested too deeply"),
        (["advise", "{deep}"], 1, "deep: not a trace file of Device.export_trace: it is nested too deeply"),
        (["objdump", "--tasks", "{library}"], 1, "--tasks: {library} is a kernel library, which has no tasks"),
        (["objdump", "--verify", "--tasks", "{library}"], 1, "--tasks: {library} is a kernel library"),
        (["objdump", "--kernels", "{blob}"], 1, "--kernels: {blob} is a compiled model, which has no table of kernels"),
        (["info", "--profile", "nope"], 1, "no hardware profile named 'nope'"),
        (["run", "{model}"], 1, "input x: shape [1, 3, h, 8] is not static; give one with --shape x=N,N,..."),
        (
            ["run", "{model}", "--cmx-bytes", "-5"],
            2,
            "argument --cmx-bytes/--cmx: expected whole bytes above 0, such as 262144, 256K or 1M, found '-5'",
        ),
        (["run", "{model}", "--prefetching-level-limit", "a"], 2, "expected a number, 0 or more, found 'a'"),
        (["run", "{model}", "--shape", "x"], 1, "--shape x: expected NAME=1,3,224,224"),
        (["run", "{model}", "--shape", "x=1,-3"], 1, "--shape x=1,-3: expected NAME=1,3,224,224"),
        (["run", "{model}", "--shape", "z=1,3"], 1, "'z'"),
        (["run", "{model}", "--shape", "x=1,3,8,8", "--profile", "nope"], 1, "no hardware profile named 'nope'"),
        (["run", "{blob}", "--check"], 1, "--check needs the ONNX model"),
        (["run", "{blob}", "--precision", "fp32"], 1, "is a blob, compiled already"),
        (["run", "{blob}", "--profile", "unit"], 1, "unit"),
        (["run", "{blob}", "--no-compute", "--outputs", "y.npz"], 1, "--outputs needs values"),
        (["run", "{blob}", "--inputs", "{text}"], 1, "not a .npz file"),
        (["run", "{blob}", "--seed", "-1"], 2, "argument --seed: expected a number, 0 or more, found '-1'"),
        (
            ["run", "{blob}", "--seed", "9" * 5000],
            2,
            "argument --seed: expected a number, 0 to 999999999999999999, found",
        ),
        (
            ["latency", "{blob}", "--seed", "9" * 20],
            2,
            f"argument --seed: expected a number, 0 to 999999999999999999, found '{'9' * 20}'",
        ),
        (
            ["monitor", "{blob}", "--period-ns", "9" * 21],
            2,
            "argument --period-ns: expected a number, 1 to 999999999999999999, found",
        ),
        (
            ["run", "{blob}", "--cmx", "9" * 19 + "K"],
            2,
            "expected a number of bytes, K, M or G, 1 to 999999999999999999",
        ),
        (["run", "{blob}", "--seed", "1", "--seed", "2"], 2, "argument --seed: given twice"),
        (["run", "{blob}", "--inputs", "a", "--inputs", "b"], 2, "argument --inputs: given twice"),
        (["run", "{blob}", "--stats", "/no/such/s.json"], 1, "--stats /no/such/s.json: there is no folder /no/such"),
        (["run", "{blob}", "--trace", "/dev"], 1, "--trace /dev: is a folder"),
        (["run", "{blob}", "--outputs", "/dev/full"], 1, "/dev/full: No space left on device"),
        (["run", "{empty}"], 1, "empty: is empty; expected an ONNX model"),
        (["objdump", "{empty}"], 1, "empty: is not a blob"),
        (["compile", "{model}", "--shape", "x=1,3,8,8", "-o", "/dev/full"], 1, "/dev/full: No space left on device"),
        (["run", "{model}", "--shape", "x=1,3,8,8", "--shape", "x=1,3,8,8"], 1, "'x' has a shape already"),
        (["run", "{model}", "--shape", "x=1,3," + "9" * 20 + ",8"], 1, "expected NAME=1,3,224,224"),
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
    empty = tmp_path / "empty"
    empty.touch()
    deep = tmp_path / "deep"
    deep.write_text("[" * 100_000)
    names = {"text": text, "empty": empty, "folder": tmp_path, "model": model_path, "blob": blob_path}
    names |= {"deep": deep, "library": builtin_library()}
    found, out, err = npu(*(a.format(**names) for a in arguments))
    assert found == status
    assert out == ""
    assert err.startswith("npu: error: ")
    assert err.count("\n") == 1
    assert message.format(**names) in err


@pytest.mark.parametrize("written", ["model", "hard link", "symbolic link", "inputs"])
@pytest.mark.parametrize("option", ["--outputs", "--trace", "--stats"])
def test_what_is_read_is_not_written_over(npu, tmp_path, blob_path, option, written):
    paths = {name: tmp_path / name for name in ("model", "hard link", "symbolic link", "inputs")}
    data = Path(blob_path).read_bytes()
    paths["model"].write_bytes(data)
    paths["hard link"].hardlink_to(paths["model"])
    paths["symbolic link"].symlink_to(paths["model"])
    paths["inputs"].write_bytes(b"never read")
    status, out, err = npu("run", paths["model"], "--inputs", paths["inputs"], option, paths[written])
    same = "--inputs" if written == "inputs" else "the model"
    assert (status, out, err) == (1, "", f"npu: error: {option} {paths[written]}: is the same file as {same}\n")
    assert (paths["model"].read_bytes(), paths["inputs"].read_bytes()) == (data, b"never read")


def test_a_model_is_not_compiled_over_itself(npu, tmp_path, model_path):
    path = tmp_path / "model.blob"  # what the blob would be called
    path.write_bytes(Path(model_path).read_bytes())
    for arguments in (("-o", path), ()):
        status, _, err = npu("compile", path, "--shape", "x=1,3,8,8", *arguments)
        assert (status, err) == (1, f"npu: error: --output {path}: is the same file as the model\n")
    assert path.read_bytes() == Path(model_path).read_bytes()


def test_two_results_do_not_go_to_one_file(npu, tmp_path, blob_path):
    path = tmp_path / "one"
    status, _, err = npu("run", blob_path, "--outputs", path, "--trace", path)
    assert (status, err) == (1, f"npu: error: --trace {path}: is the same file as --outputs\n")
    assert not path.exists()
    assert npu("run", blob_path, "--outputs", "/dev/null", "--trace", "/dev/null")[0] == 0


def test_a_failure_keeps_its_name_in_json(npu, tmp_path, blob_path):
    status, out, err = npu("run", blob_path, "--profile", "unit", "--json")
    error = json.loads(out)["error"]
    assert status == 1
    assert err == f"npu: error: {error['message']}\n"
    assert error["result"] == "NPU_ERROR_INVALID_BLOB"
    assert "NPU_" not in err
    assert json.loads(npu("run", "/no/such.onnx", "--json")[1])["error"] == {
        "result": None,
        "message": "/no/such.onnx: No such file or directory",
    }


def test_what_the_machine_has_not_is_one_line(npu, monkeypatch, blob_path):
    def refuse(*_):
        raise MemoryError("Unable to allocate 8.00 EiB")

    monkeypatch.setattr(values, "random_inputs", refuse)
    status, _, err = npu("run", blob_path)
    assert (status, err) == (1, "npu: error: this machine has not enough memory: Unable to allocate 8.00 EiB\n")


def test_a_full_disk_behind_stdout_is_one_line():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", "import sys; from libnpu.tools.cli import main; sys.exit(main())", "info"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "npu: error: standard output: No space left on device\n")


@pytest.mark.parametrize("in_node", [False, True])
def test_external_data_is_not_written_over_and_named_when_it_is_missing(npu, tmp_path, in_node):
    path = tmp_path / "model.onnx"
    weights = numpy_helper.from_array(np.zeros((64, 64), np.float32), "w")
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 64]) for name in "xy"]
    nodes = [helper.make_node("Constant", [], ["w"], value=weights)] if in_node else []
    nodes.append(helper.make_node("MatMul", ["x", "w"], ["y"]))
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], [] if in_node else [weights])
    where = {"location": "weights", "size_threshold": 0, "convert_attribute": in_node}
    save(helper.make_model(graph), path, save_as_external_data=True, **where)
    status, _, err = npu("compile", path, "-o", tmp_path / "weights")
    assert (status, (tmp_path / "weights").stat().st_size) == (1, 64 * 64 * 4)
    assert f"is the same file as the model's {tmp_path / 'weights'}" in err
    (tmp_path / "weights").unlink()
    status, _, err = npu("compile", path)
    assert status == 1
    assert err.startswith(f"npu: error: {path}: its external data cannot be read: ")
    assert err.count("\n") == 1


def test_a_model_without_outputs_is_refused(npu, tmp_path):
    path = tmp_path / "model.onnx"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    status, _, err = npu("compile", path)
    assert (status, path.with_suffix(".blob").exists()) == (1, False)
    assert "no outputs" in err


def test_a_damaged_blob_is_an_error_with_its_place(npu, tmp_path, blob_path):
    data = bytearray(Path(blob_path).read_bytes())
    data[0x200] ^= 1
    path = tmp_path / "damaged.blob"
    path.write_bytes(data)
    for command in ("run", "objdump"):
        status, _, err = npu(command, path)
        assert status == 1
        assert ".npu.digest" in err


@pytest.mark.parametrize("kind", ["npy", "member", "object", "cut", "zip"])
def test_other_input_files_are_one_line(npu, tmp_path, blob_path, kind):
    path = tmp_path / "inputs.npz"
    if kind == "npy":
        with open(path, "wb") as file:
            np.save(file, np.zeros((1, 3, 8, 8), np.float32))
    elif kind == "object":
        np.savez(path, x=np.array([{}], object))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy" if kind == "cut" else "x", b"\x93NUMPY" if kind == "cut" else b"text")
        if kind == "zip":
            path.write_bytes(path.read_bytes()[:-4])
    status, out, err = npu("run", blob_path, "--inputs", path)
    assert (status, out) == (1, "")
    assert err.startswith(f"npu: error: {path}: ")
    assert err.count("\n") == 1


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
