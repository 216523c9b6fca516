"""npu compare: one launch against one per layer, and the walk against the run-time scheduler."""

import json
from argparse import Namespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from libnpu.compiler.layers import compile_layers
from libnpu.kernels import builtin_library
from libnpu.tools import reference, source

SHAPE = ("--shape", "x=1,3,8,8")
OPTIONS = {
    "precision": None,
    "profile": None,
    "cmx_bytes": None,
    "tiles": None,
    "prefetching_level_limit": None,
    "shape": ["x=1,3,8,8"],
    "no_pingpong": False,
}


def test_a_blob_is_one_interaction_and_layers_are_one_each(npu, model_path):
    status, out, err = npu("compare", "--mode", "blob,launch", model_path, *SHAPE)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].rstrip() == "small on npu-37xx"
    assert lines[1].split()[:3] == ["interactions", "interrupts", "host"]
    layers = len(compile_layers(model_path, source.compile_options(Namespace(**OPTIONS))).blobs)
    assert layers > 1
    assert [line.split()[:2] for line in lines[3:5]] == [["blob", "1"], ["launch", str(layers)]]
    assert lines[-2].split() == ["y", "same"]


def test_the_host_s_time_of_a_launch_per_layer_is_a_multiple(npu, model_path):
    found = json.loads(npu("compare", "--mode", "blob,launch", model_path, *SHAPE, "--json")[1])
    blob, launch = found["runs"]
    assert (blob["name"], launch["name"]) == ("blob", "launch")
    assert blob["interactions"] == blob["interrupts"] == blob["launches"] == 1
    assert launch["interactions"] == launch["launches"] > 1
    assert launch["host_overhead_us"] > (launch["launches"] - 1) * blob["host_overhead_us"]
    assert launch["makespan_ps"] > blob["makespan_ps"]
    for run in (blob, launch):
        assert run["wall_ps"] > run["makespan_ps"]
        assert round((run["host_overhead_us"] + run["host_blocked_us"]) * 1e6) == run["wall_ps"]
    assert found["max_abs_diff"] == {"y": 0.0}


def test_both_schedulers_run_a_blob_with_the_same_outputs(npu, blob_path):
    found = json.loads(npu("compare", "--sched", "dynamic,static", blob_path, "--json")[1])
    assert [run["name"] for run in found["runs"]] == ["dynamic", "static"]
    dynamic, static = (run["makespan_ps"] for run in found["runs"])
    assert dynamic != static
    assert found["max_abs_diff"] == {"y": 0.0}
    status, out, _ = npu("compare", "--sched", "static,dynamic", blob_path)
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()[3:5]] == ["static", "dynamic"]


def test_inputs_can_come_from_a_file(npu, tmp_path, blob_path):
    path = tmp_path / "x.npz"
    np.savez(path, x=np.ones((1, 3, 8, 8), np.float32))
    assert npu("compare", "--sched", "static,dynamic", blob_path, "--inputs", path)[0] == 0
    np.savez(path, x=np.ones((1, 3, 8, 9), np.float32))
    status, _, err = npu("compare", "--sched", "static,dynamic", blob_path, "--inputs", path)
    assert status == 1
    assert "'x' is float32 [1, 3, 8, 9]" in err


def test_a_difference_is_reported_and_fails(npu, monkeypatch, blob_path):
    monkeypatch.setattr(reference, "max_abs_difference", lambda found, expected: 0.25)
    status, out, err = npu("compare", "--sched", "static,dynamic", blob_path)
    assert status == 1
    assert "0.25" in out
    assert err.endswith("output 'y' differs by 0.25 from the one of static\n")


def test_outputs_that_no_layer_makes_are_there_too(npu, tmp_path):
    path = tmp_path / "ends.onnx"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    outs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("y", [2, 3]), ("z", [2, 3]), ("k", [2]))
    ]
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Identity", ["x"], ["z"])]
    graph = helper.make_graph(nodes, "ends", [x], outs, [numpy_helper.from_array(np.ones(2, np.float32), "k")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    found = json.loads(npu("compare", "--mode", "launch,blob", path, "--json")[1])
    assert found["max_abs_diff"] == {"y": 0.0, "z": 0.0, "k": 0.0}


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["{blob}"], 2, "one of the arguments --mode --sched --vf is required"),
        (["--mode", "blob,launch", "--sched", "static,dynamic", "{blob}"], 2, "not allowed with argument"),
        (
            ["--mode", "blob", "{blob}"],
            2,
            "argument --mode: expected some of blob,launch,streaming,resident, found 'blob'",
        ),
        (["--mode", "blob,blob", "{blob}"], 2, "expected some of blob,launch,streaming,resident, found 'blob,blob'"),
        (
            ["--mode", "blob,static", "{blob}"],
            2,
            "expected some of blob,launch,streaming,resident, found 'blob,static'",
        ),
        (
            ["--sched", "static,lazy", "{blob}"],
            2,
            "argument --sched: expected some of static,dynamic, found 'static,lazy'",
        ),
        (["--mode", "blob,launch"], 2, "the following arguments are required: MODEL|BLOB"),
        (["--sched", "static,dynamic", "{library}"], 1, "builtin.npu: is a kernel library; expected a model"),
        (["--mode", "blob,launch", "{blob}"], 1, "is a blob already; expected an ONNX model"),
        (["--mode", "blob,launch", "{model}"], 1, "give one with --shape x=N,N,..."),
        (["--sched", "static,dynamic", "/no/such.blob"], 1, "/no/such.blob: No such file or directory"),
        (["--sched", "static,dynamic", "{blob}", "--precision", "fp32"], 1, "is a blob, compiled already"),
        (["--sched", "static,dynamic", "{blob}", "--profile", "unit"], 1, "unit"),
    ],
)
def test_a_mistake_is_one_line_on_stderr(npu, model_path, blob_path, arguments, status, message):
    found, out, err = npu(
        "compare", *(a.format(model=model_path, blob=blob_path, library=builtin_library()) for a in arguments)
    )
    assert (found, out) == (status, "")
    assert err.startswith("npu: error: ")
    assert err.count("\n") == 1
    assert message in err
