"""Damaged blobs through loader, driver, firmware and engines: an error or an answer, never a crash, a hang or a foreign byte.

Half of the flips get a new digest, so that they pass the loader's first check and reach its parser, the firmware's and the
engines. A neighbour, another context of the same device, holds a pattern and a good blob: its bytes and its answers stay right.
"""

import random

import numpy as np
import pytest
from npu_abi import C
from onnx import TensorProto, helper, numpy_helper

import libnpu
from libnpu.blob import elf, section_table
from libnpu.compiler import CompileOptions, compile_model
from libnpu.runtime.device import Device


@pytest.fixture(scope="module")
def good():
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array((rng.standard_normal((16, 4, 3, 3)) / 6).astype(np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("HardSwish", ["c"], ["h"]),
        helper.make_node("Softmax", ["h"], ["y"], axis=-1),
    ]
    info = helper.make_tensor_value_info
    shapes = [info("x", TensorProto.FLOAT, [1, 4, 8, 8])], [info("y", TensorProto.FLOAT, [1, 16, 8, 8])]
    model = helper.make_model(
        helper.make_graph(nodes, "fuzz", *shapes, [weights]), opset_imports=[helper.make_opsetid("", 17)]
    )
    return compile_model(model, CompileOptions()).blob


FEEDS = {"x": np.random.default_rng(1).standard_normal((1, 4, 8, 8)).astype(np.float32)}


def resealed(data, sections):
    """Return `data` with the digest that its content asks for; `sections` are those of the undamaged blob."""
    (seal,) = [s for s in sections if s.name == ".npu.digest"]
    covered = [s for s in sections if s.name != ".npu.digest"]
    content = [data[s.offset : s.offset + len(s.content)] for s in covered]
    found = elf.digest((s.name, s.type, s.size_bytes, c) for s, c in zip(covered, content, strict=True))
    return data[: seal.offset] + found + data[seal.offset + 32 :]


def flips(good, count, seed):
    rng = random.Random(seed)
    sections = section_table(good)
    for n in range(count):
        data = bytearray(good)
        for _ in range(rng.choice([1, 1, 1, 2, 8])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        yield resealed(bytes(data), sections) if n % 2 else bytes(data)


def survive(good, count, seed):
    answered = refused = failed = 0
    with libnpu.open() as device:
        neighbour = Device(device.node.sibling(), compute=True)
        pattern = np.arange(1 << 16, dtype=np.uint8)
        canary = neighbour.alloc(pattern.nbytes)
        canary.write(pattern)
        resident = neighbour.load(good)
        expected = {name: array.tobytes() for name, array in resident.run(FEEDS).items()}
        for n, data in enumerate(flips(good, count, seed)):
            try:
                blob = device.load(data)
            except libnpu.NpuError as error:
                assert error.result == C.NPU_ERROR_INVALID_BLOB, error
                refused += 1
                continue
            try:
                blob.run(FEEDS)
                answered += 1
            except libnpu.NpuError as error:
                failed += 1
                assert len(str(error)) > 20
                device.reset()  # a fault ends the context; a new one works
            except ValueError:  # the damaged metadata asks for other tensors
                failed += 1
            else:
                blob.unload()
            if n % 100 == 99:
                assert {name: array.tobytes() for name, array in resident.run(FEEDS).items()} == expected
        assert np.array_equal(canary.read(np.uint8, pattern.shape), pattern)
        assert {name: array.tobytes() for name, array in resident.run(FEEDS).items()} == expected
    return answered, refused, failed


def test_damaged_blobs_neither_crash_nor_reach_a_neighbour(good):
    _, refused, failed = survive(good, 150, 1)
    assert refused > 50 and failed > 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_five_thousand_damaged_blobs_neither_crash_nor_reach_a_neighbour(good):
    print("answered, refused, failed:", survive(good, 5000, 2))
