"""The commands of docs/compiler.md work on a model, in the order in which they stand there."""

import re
import shlex
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "compiler.md").read_text()


def test_the_commands_work(npu, tmp_path, monkeypatch):
    weights = np.random.default_rng(1).standard_normal((16, 16, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Softmax", ["c"], ["y"], axis=-1),
    ]
    ends = ([helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 16, 8, 8])] for n in "xy")
    graph = helper.make_graph(nodes, "model", *ends, [numpy_helper.from_array(weights, "w")])
    monkeypatch.chdir(tmp_path)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "model.onnx")
    commands = [line for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S) for line in block.splitlines()]
    assert len(commands) == 13
    for command in commands:
        program, *arguments = shlex.split(command)
        if program == "mkdir":
            Path(*arguments).mkdir()
            continue
        status, out, err = npu(*arguments)
        assert (status, err) == (0, ""), command
    assert re.search(r"^tensors +1 +0 +0\.0%$", out, re.M)  # of the last one: all weights are at aligned places
