"""Mutants of compiled blobs: the proof finds every one; with the blob's own bytes alone, every edge that counts."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from libnpu.blob import prove, read
from libnpu.compiler import CompileOptions, compile_model

_spec = importlib.util.spec_from_file_location("mutants", Path(__file__).with_name("mutants.py"))
mutants = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(mutants)


def network():
    """Two convolutions with a sum around the second, a pooling and a product: DMA, DPU and SHAVE tasks that hand on values."""
    rng = np.random.default_rng(5)
    shapes = {"w1": (16, 16, 3, 3), "w2": (16, 16, 3, 3), "w3": (16, 32)}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1] * 4),
            helper.make_node("HardSwish", ["a"], ["b"]),
            helper.make_node("Conv", ["b", "w2"], ["c"], pads=[1] * 4),
            helper.make_node("Add", ["b", "c"], ["d"]),
            helper.make_node("GlobalAveragePool", ["d"], ["e"]),
            helper.make_node("Flatten", ["e"], ["f"]),
            helper.make_node("MatMul", ["f", "w3"], ["g"]),
            helper.make_node("Softmax", ["g"], ["y"]),
        ],
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32])],
        [numpy_helper.from_array((rng.standard_normal(s) / 8).astype(np.float32), name) for name, s in shapes.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def compiled():
    return read(compile_model(network(), CompileOptions(cmx_bytes=16 << 10)).blob)


def test_mutants_of_a_small_blob_are_found(compiled):
    made, missed = mutants.run(compiled, 100, 1)
    assert len(made) == len(mutants.KINDS)
    assert [done for _, done, _ in missed] == []


def test_edges_and_swaps_are_found_without_the_map(compiled):
    """By what the tasks do alone."""
    compiled = mutants.copy.copy(compiled)
    compiled.debug = {}
    _, missed = mutants.run(compiled, 60, 2, ("edge", "edge and count"))
    assert [done for _, done, _ in missed] == []


def test_an_address_within_its_own_buffer_is_found(compiled):
    """Task and map name the byte of the buffer that a descriptor means: rows further on are other values, though they are there in time."""
    mutant = mutants.copy.copy(compiled)
    mutant.tasks = {name: array.copy() for name, array in compiled.tasks.items()}
    section = ".npu.tasks.dpu_invariant"
    index = next(i for i, at in enumerate(compiled.tasks[section]["act_addr"]) if at % (1 << 16) >= 64)
    mutant.tasks[section]["act_addr"][index] -= 64
    found = [problem for problem in prove(mutant) if problem.message.startswith("act_addr is ")]
    assert [(problem.rule, problem.where) for problem in found] == [("cmx-map", f"{section}[{index}]")]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_thousand_mutants_are_found(compiled):
    _, missed = mutants.run(compiled, 2000, 4)
    assert [done for _, done, _ in missed] == []
