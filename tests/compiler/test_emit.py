"""Blob images from schedules: lists, relocations, arguments, debug records."""

import numpy as np
import pytest
from npu_abi import C

from libnpu import blob
from libnpu.compiler import CompileOptions, compile_model
from libnpu.compiler.emit import _stays
from libnpu.compiler.ir import Graph, Node, Value
from libnpu.compiler.lower import CompileError
from libnpu.compiler.pipeline import compile_graph
from libnpu.compiler.program import Buffer, Engine, TileOp
from libnpu.compiler.schedule import Queue, Schedule, ScheduledOp

F16 = np.dtype(np.float16)
SMALL_CMX = 40 << 10


@pytest.fixture
def graph():
    """Convolution, sigmoid, sum: all three engines."""
    random = np.random.default_rng(0)
    x = Value("x", (1, 16, 40, 40), F16)
    weight = Value("w", (32, 16, 3, 3), F16, random.standard_normal((32, 16, 3, 3)).astype(F16))
    bias = Value("b", (32,), np.dtype(np.float32), random.standard_normal(32).astype(np.float32))
    a, b, c = (Value(name, (1, 32, 40, 40), F16) for name in ("a", "b", "c"))
    attrs = {"strides": [1, 1], "pads": [1, 1, 1, 1], "dilations": [1, 1], "group": 1, "act": None}
    nodes = [
        Node("Conv", "conv", [x, weight, bias], [a], attrs, ["layer one"]),
        Node("Elementwise", "gate", [a], [b], {"expr": ("sigmoid", ("in", 0))}),
        Node("Elementwise", "sum", [a, b], [c], {"expr": ("add", ("in", 0), ("in", 1))}),
    ]
    return Graph("three engines", [x], [c], nodes)


@pytest.fixture
def image(graph):
    return compile_graph(graph, CompileOptions(cmx_bytes=SMALL_CMX)).image


def test_task_ids_number_all_lists_together(image):
    names = (".npu.tasks.dma0", ".npu.tasks.dma1", ".npu.tasks.dpu_invariant", ".npu.tasks.shave_invocation")
    ids = [int(i) for name in names for i in image.tasks[name]["task_id"]]
    assert sorted(ids) == list(range(len(image.debug["tasks"])))
    assert all(list(image.tasks[name]["task_id"]) == sorted(image.tasks[name]["task_id"]) for name in names)


def test_every_ddr_address_is_a_relocation_and_every_cmx_address_final(image):
    places = {(r.section, r.offset): r for r in image.relocations}
    for section in (".npu.tasks.dma0", ".npu.tasks.dma1"):
        records = image.tasks[section]
        for index, record in enumerate(records):
            for field in ("transaction_src", "transaction_dst"):
                place = (section, index * records.itemsize + records.dtype.fields[field][1])
                tile, offset = divmod(int(record[field]) - C.NPU_CMX_BASE, C.NPU_CMX_TILE_STRIDE)
                in_cmx = 0 <= tile < image.tile_count and offset < image.cmx_bytes
                assert in_cmx != (place in places)
    assert image.cmx_bytes <= SMALL_CMX


def test_equal_programs_are_stored_once_and_arguments_are_aligned(image):
    invocations = image.tasks[".npu.tasks.shave_invocation"]
    assert len(invocations) > 2
    assert len(image.tasks[".npu.tasks.shave_range"]) == 2  # sigmoid, and the input's channels side by side
    addends = [r.addend for r in image.relocations if r.symbol == ".data.shave_args"]
    assert len(addends) == len(invocations)
    assert all(a % 64 == 0 for a in addends)
    assert {int(s) for s in invocations["shave"]} == {0, 1}


def test_variants_belong_to_their_invariants(image):
    invariants, variants = image.tasks[".npu.tasks.dpu_invariant"], image.tasks[".npu.tasks.dpu_variant"]
    assert int(invariants["variant_count"].sum()) == len(variants)
    for index, record in enumerate(invariants):
        first, count = int(record["variant_first"]), int(record["variant_count"])
        assert {int(v) for v in variants["invariant_index"][first : first + count]} == {index}


def test_the_blob_verifies_and_survives_the_container(graph):
    compiled = compile_graph(graph, CompileOptions(cmx_bytes=SMALL_CMX))
    assert blob.verify(compiled.image) == []
    assert blob.read(compiled.blob) == compiled.image


def test_two_compilations_give_the_same_bytes(graph):
    options = CompileOptions(cmx_bytes=SMALL_CMX)
    assert compile_graph(graph, options).blob == compile_graph(graph, options).blob


def test_the_debug_record_names_layers_engines_and_cmx(image):
    tasks = image.debug["tasks"]
    assert {t["layer"] for t in tasks} == {"layer one", "gate", "sum"}
    assert {t["engine"] for t in tasks} == {"DMA", "DPU", "SHAVE"}
    for _, address, size, first, last in image.debug["cmx"]:
        assert address % C.NPU_CMX_TILE_STRIDE + size <= SMALL_CMX
        assert 0 <= first <= last < len(tasks)
    assert image.debug["stats"]["macs"] == 32 * 16 * 9 * 1600


def test_stages_are_dumped_on_demand(graph):
    dumps = compile_graph(graph, CompileOptions(dump=("tiles", "schedule", "barriers", "blob"))).report["dumps"]
    assert list(dumps) == ["tiles", "schedule", "barriers", "blob"]
    assert dumps["tiles"].startswith("program three engines:")
    assert "dpu conv.Conv" in dumps["tiles"]
    assert compile_graph(graph, CompileOptions()).report["dumps"] == {}


def test_a_graph_that_cannot_fit_names_the_operation(graph):
    with pytest.raises(CompileError, match=r"conv \(Conv\): .* needs \d+ bytes"):
        compile_graph(graph, CompileOptions(cmx_bytes=4 << 10))


def test_an_onnx_model_compiles_from_bytes():
    from onnx import TensorProto, helper

    io = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 8]) for n in ("x", "y")]
    model = helper.make_model(
        helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", io[:1], io[1:]),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    compiled = compile_model(model.SerializeToString(), CompileOptions(dump=("import", "precision")))
    assert list(compiled.report["dumps"]) == ["import", "precision"]
    assert [(t.name, t.shape) for t in compiled.image.inputs] == [("x", (2, 8))]


def test_a_buffer_that_comes_back_to_its_place_stays_twice():
    buffer, other = Buffer("a", 64), Buffer("b", 64)

    def scheduled(number, touched, kind="op"):
        op = TileOp(f"op {number}", "layer", Engine.DMA, 1, [], [], None)
        return ScheduledOp(op, Queue(Engine.DMA, 0), number, number + 1, dict.fromkeys(touched, 0), kind)

    steps = [([buffer], "op"), ([buffer], "spill_out"), ([other], "op"), ([buffer], "spill_in"), ([buffer], "op")]
    ops = [scheduled(number, *step) for number, step in enumerate(steps)]
    found = _stays(Schedule(ops, 5, 0, 0, 0, 0, [], [], []))
    assert found == [(buffer, 0, 0, 1), (other, 0, 2, 2), (buffer, 0, 3, 4)]
