"""Small models and blobs for the rows, and the command line."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from libnpu.blob import assemble, write

FLOAT = TensorProto.FLOAT


class ModelMaker:
    """Collects nodes and seeded constants; `model` makes the ONNX model."""

    def __init__(self, seed=1):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.constants = [], []

    def weights(self, name, *shape, values=None):
        """Add a constant; by default normal values that keep a layer's magnitude."""
        if values is None:
            values = self.rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))
        self.constants.append(numpy_helper.from_array(np.asarray(values, np.float32).reshape(shape), name))
        return name

    def node(self, op, inputs, output, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def model(self, inputs, outputs, name="rows"):
        """`inputs` and `outputs` are name -> shape."""
        ins, outs = (
            [helper.make_tensor_value_info(n, FLOAT, s) for n, s in tensors.items()] for tensors in (inputs, outputs)
        )
        graph = helper.make_graph(self.nodes, name, ins, outs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def chain_model(layers=6, channels=64, side=12):
    """3x3 convolutions with ReLU in a row: weights 73,728 bytes a layer in fp16."""
    make = ModelMaker()
    last = "x"
    for n in range(layers):
        make.weights(f"w{n}", channels, channels, 3, 3)
        make.node("Conv", [last, f"w{n}"], f"c{n}", pads=[1, 1, 1, 1])
        last = make.node("Relu", [f"c{n}"], f"r{n}")
    shape = [1, channels, side, side]
    return make.model({"x": shape}, {last: shape}, "chain")


def attention_model(length=32, width=32):
    """One head: scaled scores, a mask of the size of the scores, softmax, values."""
    make = ModelMaker(2)
    make.weights("scale", values=1 / np.sqrt(width))
    mask = np.where(np.arange(length)[None, :] > np.arange(length)[:, None], -1e4, 0)
    make.weights("mask", length, length, values=mask)
    make.node("MatMul", ["q", "k"], "scores")
    make.node("Mul", ["scores", "scale"], "scaled")
    make.node("Add", ["scaled", "mask"], "masked")
    make.node("Softmax", ["masked"], "p", axis=-1)
    make.node("MatMul", ["p", "v"], "y")
    return make.model({"q": [length, width], "k": [width, length], "v": [length, width]}, {"y": [length, width]})


def skips_model():
    """Six results that stay live until they are added up in reverse order."""
    make = ModelMaker(3)
    last = "x"
    for n in range(6):
        make.weights(f"w{n}", 16, 16, 1, 1)
        last = make.node("Conv", [last, f"w{n}"], f"c{n}")
    for n in range(4, -1, -1):
        last = make.node("Add", [last, f"c{n}"], f"s{n}")
    return make.model({"x": [1, 16, 20, 20]}, {last: [1, 16, 20, 20]}, "skips")


@pytest.fixture(scope="session")
def maker():
    """The class that makes models."""
    return ModelMaker


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """The models by name, as paths."""
    folder = tmp_path_factory.mktemp("rows")
    found = {}
    for name, model in (
        ("chain", chain_model()),
        ("small chain", chain_model(side=8)),
        ("attention", attention_model()),
        ("skips", skips_model()),
    ):
        found[name] = str(folder / f"{name}.onnx")
        onnx.save(model, found[name])
    return found


@pytest.fixture(scope="session")
def npu_json(npu):
    """Return a function that runs a command with --json and returns what it printed; it must succeed."""

    def run(*arguments):
        status, out, err = npu(*arguments, "--json")
        assert status == 0, err
        return json.loads(out)

    return run


@pytest.fixture(scope="session")
def chain_blob(models, npu, tmp_path_factory):
    """The chain, compiled for 192 KiB of CMX: its weights do not fit at once."""
    path = str(tmp_path_factory.mktemp("blob") / "chain.blob")
    assert npu("compile", models["chain"], "--cmx", "192K", "-o", path)[0] == 0
    return path


PROGRAM = """
blob "program" abi=1.0
profile "npu-37xx"
resources tiles=1 cmx_bytes=1024 barriers=0 scratch_bytes=0 macs=0
section .npu.tasks.shave_range
  0: text_va=@.text.shave code_bytes={bytes}
section .npu.tasks.shave_invocation
  0: sched_start_after=none
section .text.shave shave
{code}
end
"""


@pytest.fixture(scope="session")
def program_blob():
    """Return a function that makes a blob of one SHAVE task, which runs these instructions."""
    return lambda code: write(assemble(PROGRAM.format(bytes=16 * len(code), code="\n".join(code))))


COPY = """
blob "copy" abi=1.0
profile "npu-37xx"
resources tiles=1 cmx_bytes=1024 barriers=1 scratch_bytes=0 macs=0
input "x" u8 [1024]
output "y" u8 [1024]
section .npu.tasks.dma0
  0: transaction_src=@"in:x" transaction_dst=0x2e000000 {size} barriers_post_mask=0x1 sched_start_after=none
  1: transaction_src=0x2e000000 transaction_dst=@"out:y" {size} barriers_wait_mask=0x1 sched_start_after=none task_id=1
section .npu.barriers
  0: next_same_id=none producer_count=1 consumer_count=1
""".format(
    size="transaction_length=1024 transaction_num_planes=1 transaction_src_width=1024 transaction_dst_width=1024"
)


@pytest.fixture
def copy_blob():
    """Return a function that makes a blob from the text of a copy of "x" to "y" through CMX, with words replaced."""

    def make(*replacements):
        text = COPY
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        return write(assemble(text))

    make.text = COPY
    return make
