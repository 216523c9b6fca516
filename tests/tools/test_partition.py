"""Models in parts on the command line: the report, --strict, and the line that is never left out."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

WARNING = "npu: warning: g: 2 nodes of 4 run on the host, between 2 blobs (NonZero, Shape); --partition report says why, --strict refuses\n"


@pytest.fixture(scope="module")
def parted(tmp_path_factory):
    """The path of a model with two nodes for the host in its middle."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("NonZero", ["a"], ["n"], name="where"),
        helper.make_node("Shape", ["n"], ["s"], name="count", start=1),
        helper.make_node("Neg", ["s"], ["y"], name="neg"),
    ]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
                              [helper.make_tensor_value_info("y", TensorProto.INT64, [1])])  # fmt: skip
    path = tmp_path_factory.mktemp("parted") / "parted.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


@pytest.fixture(scope="module")
def container(npu, parted):
    path = parted.with_suffix(".blob")
    assert npu("compile", parted, "-o", path) == (0, "", WARNING)
    return path


def test_report_names_parts_reasons_and_bytes(npu, parted, tmp_path):
    """E062: sub-graphs and their devices."""
    status, out, err = npu("compile", parted, "-o", tmp_path / "m.blob", "--partition", "report")
    assert (status, err) == (0, WARNING)
    lines = out.splitlines()
    assert lines[:3] == [
        "g: 2 nodes on the NPU in 2 parts, 2 nodes on the host in 1 part",
        "multiplications on the NPU: none anywhere",
        "bytes between host and NPU in an inference: 24 to the host, 8 to the NPU",
    ]
    assert "  where (NonZero): not implemented: operator NonZero" in lines
    assert "  count (Shape): value n has a shape that only a run tells" in lines


def test_report_of_a_model_that_the_npu_does(npu, model_path, tmp_path):
    arguments = "compile", model_path, "--shape", "x=1,3,8,8", "-o", tmp_path / "m.blob", "--partition", "report"
    assert npu(*arguments) == (0, "small: every node runs on the NPU, in one blob\n", "")


def test_json_has_the_report_and_each_blobs_statistics(npu, parted, tmp_path):
    _, out, _ = npu("compile", parted, "-o", tmp_path / "m.blob", "--partition", "report", "--json")
    report = json.loads(out)
    assert len(report["parts"]) == 2 and report["parts"][0]["predicted_makespan_ps"] > 0
    assert report["partition"][0].startswith("g: 2 nodes on the NPU") and report["warnings"][0].startswith(
        "g: 2 nodes of 4"
    )


@pytest.mark.parametrize("command", ["compile", "run"])
def test_strict_refuses_with_all_reasons_and_writes_nothing(npu, parted, tmp_path, command):
    more = ["-o", tmp_path / "m.blob"] if command == "compile" else []
    status, out, err = npu(command, parted, "--strict", *more)
    assert (status, out) == (1, "")
    assert err == (
        "npu: error: not supported: 2 nodes would run on the host: node where: not implemented: operator NonZero; "
        "node count: value n has a shape that only a run tells\n"
    )
    assert not (tmp_path / "m.blob").exists()


def test_run_takes_the_model_and_the_container(npu, parted, container, tmp_path):
    np.savez(tmp_path / "in.npz", x=np.array([[1, -1, 2], [0, 3, 0]], np.float32))
    files = "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz"
    status, out, err = npu("run", parted, "--check", "--leak-check", *files)
    assert (status, err) == (0, WARNING) and "passed" in out and "host parts" in out
    assert np.load(tmp_path / "out.npz")["y"].tolist() == [-3]
    status, out, err = npu("run", container, "--json", *files)
    report = json.loads(out)
    assert (status, err) == (0, "") and np.load(tmp_path / "out.npz")["y"].tolist() == [-3]
    assert [part["on"] for part in report["parts"]] == ["NPU", "host", "NPU"]
    assert report["latency_ps"] == sum(part["device_ps"] for part in report["parts"])
    assert report["host_parts_ps"] == report["parts"][1]["host_ps"] > 0
    assert (report["parts"][1]["to_host_bytes"], report["parts"][1]["from_host_bytes"]) == (24, 8)


def test_timeline_shows_the_part_on_the_host(npu, parted, tmp_path):
    assert npu("run", parted, "--no-compute", "--trace", tmp_path / "t.json")[0] == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {"part on the host", "relu", "neg"} <= {
        event.get("name", "").split("/")[0].split(".")[0] for event in events
    }


def test_other_commands_say_what_takes_it(npu, parted, container):
    status, _, err = npu("latency", container)
    assert status == 1 and err.endswith("is a model in parts, of which 2 nodes run on the host; npu run takes it\n")
    status, out, _ = npu("objdump", container)
    assert status == 0 and out.startswith("g: 2 nodes on the NPU in 2 parts, 2 nodes on the host in 1 part\n")
    assert json.loads(npu("objdump", container, "--json")[1])["parts"] == out.splitlines()
    status, _, err = npu("objdump", container, "--tasks")
    assert status == 1 and err.endswith("is a model in parts; unzip takes its blobs out\n")
    status, _, err = npu("power", parted)
    assert status == 1 and "2 nodes would run on the host" in err
    status, _, err = npu("run", container, "--strict")
    assert status == 1 and "compiled already" in err


def test_a_file_that_is_another_archive(npu, tmp_path):
    np.savez(tmp_path / "other.npz", x=np.zeros(1))
    status, _, err = npu("run", tmp_path / "other.npz")
    assert status == 1 and "a damaged model in parts" in err
