"""Models that are loaded: silent as the compiler makes them, reported by their two tasks with an edge less."""

import importlib.util
import random
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import libnpu
from libnpu.blob import prove, read, write
from libnpu.compiler import CompileOptions, compile_model

_spec = importlib.util.spec_from_file_location("mutants", Path(__file__).parents[1] / "blob" / "mutants.py")
mutants = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(mutants)


@pytest.fixture(scope="module")
def blob():
    """A convolution and an activation: loads, a DPU task, a SHAVE task and a store that hand on values."""
    weights = (np.random.default_rng(5).standard_normal((16, 16, 3, 3)) / 8).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("HardSwish", ["a"], ["b"]),
        helper.make_node("Softmax", ["b"], ["y"]),
    ]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, 8, 8]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "network", tensors[:1], tensors[1:], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return compile_model(model, CompileOptions()).blob


def load(content):
    """Return what is found of a program that loads a blob."""
    with libnpu.check() as checker, libnpu.open() as device:
        device.load(content)
    return checker.records()


def test_a_model_as_it_was_compiled_is_silent(blob):
    assert load(blob) == []


def test_with_an_edge_less_the_two_tasks_are_named(blob):
    """Each edge, both what posts and what waits: reported exactly when it is not proved to be one too many."""
    mutator = mutants.Mutator(read(blob), random.Random(1))
    edges = [
        (end, step, virtual)
        for step in mutator.steps
        for end, ids in (("post", step.posts), ("wait", step.waits))
        for virtual in ids
    ]
    reported = 0
    for end, step, virtual in edges:
        image = without(read(blob), end, step, virtual)
        problems = [problem for problem in prove(image) if problem.rule == "missing-barrier"]
        records = [record for record in load(write(image)) if record["rule"] == "MISSING-BARRIER"]
        assert {r["fix"].split(", and compile")[0] for r in records} == {
            f"let {p.other} post a barrier that {p.where} waits for" for p in problems
        }
        assert all(record["certain"] and record["acts"][0]["site"].startswith(__file__) for record in records)
        reported += bool(records)
    assert reported > len(edges) / 2


def without(image, end, step, virtual):
    """Take a post or a wait at a barrier away, and count it no more."""
    configs, tasks = changed(image, mutants.BARRIERS), changed(image, step.section)
    tasks[f"barriers_{end}_mask"][step.index] &= ~np.uint64(1 << int(configs["real_id"][virtual]))
    configs["producer_count" if end == "post" else "consumer_count"][virtual] -= 1
    return image


def counts_one_too_many(image):
    changed(image, mutants.BARRIERS)["producer_count"][0] += 1


def waits_for_itself(image):
    """The last SHAVE task that posts waits for its own post."""
    step = [step for step in mutants.Mutator(image, random.Random(1)).steps if "shave" in step.section and step.posts][
        -1
    ]
    configs, tasks = changed(image, mutants.BARRIERS), changed(image, step.section)
    tasks["barriers_wait_mask"][step.index] |= np.uint64(1 << int(configs["real_id"][step.posts[0]]))
    configs["consumer_count"][step.posts[0]] += 1


def reads_elsewhere(image):
    changed(image, ".npu.tasks.dpu_invariant")["act_addr"][0] += np.uint64(1 << 21)


def loads_elsewhere(image):
    changed(image, ".npu.tasks.dma0")["transaction_dst"][0] += np.uint64(1 << 16)


@pytest.mark.parametrize(
    ("change", "rules"),
    [
        (counts_one_too_many, {"BARRIER-COUNT"}),
        (waits_for_itself, {"UNREACHABLE-TASK"}),
        (reads_elsewhere, {"CMX-OVERLAP", "READ-BEFORE-WRITE"}),
        (loads_elsewhere, {"OUT-OF-TILE"}),
    ],
)
def test_what_else_is_wrong_inside_is_named(blob, change, rules):
    image = read(blob)
    change(image)
    records = load(write(image))
    assert {record["rule"] for record in records} == rules
    assert all(r["acts"][0]["site"].startswith(__file__) for r in records)


def changed(image, section):
    """Return a section to change."""
    image.tasks[section] = image.tasks[section].copy()
    return image.tasks[section]
