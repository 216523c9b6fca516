"""Plans: tasks, memory and times of a model without the values of its weights, which it may lack."""

import gc
import resource
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
from npu_abi import C
from npu_model import dtypes
from onnx import TensorProto, helper, numpy_helper

import libnpu
from libnpu import blob
from libnpu.compiler import CompileOptions, compile_model
from libnpu.compiler.frontend import ModelError
from libnpu.compiler.hollow import hollow, is_hollow
from libnpu.errors import NpuError
from libnpu.tools.shapes import llama7b, resnet50
from libnpu.tools.weights import BETWEEN, weights_by_layer

LAYER_WEIGHTS = 4 * 4096 * 4096 + 3 * 4096 * 11008  # B03: of one layer of a 7B decoder


def bare(name, *shape, element=TensorProto.FLOAT):
    return TensorProto(name=name, data_type=element, dims=shape)


def network(weights, nodes=(), extra=()):
    """Two convolutions with a sum around the second, and a product of all that remains; `weights` makes the initialisers."""
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="first", pads=[1] * 4),
            helper.make_node("Conv", ["c1", "w2"], ["c2"], name="second", pads=[1] * 4),
            helper.make_node("Add", ["c1", "c2"], ["s"], name="sum"),
            helper.make_node("Reshape", ["s", "rows"], ["flat"], name="rows"),
            *nodes,
            helper.make_node("MatMul", ["flat", "w3"], ["y"], name="last"),
        ],
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 16, 12, 12))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (16, 64))],
        [
            weights("w1", 16, 16, 3, 3),
            weights("b1", 16),
            weights("w2", 16, 16, 3, 3),
            *([] if extra else [weights("w3", 144, 64)]),
            numpy_helper.from_array(np.array([16, 144]), "rows"),
            *extra,
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def seeded(name, *shape):
    return numpy_helper.from_array(np.random.default_rng(3).standard_normal(shape).astype(np.float32), name)


def plan(model, **options):
    return compile_model(model, CompileOptions(plan_only=True, **options))


@pytest.fixture(scope="module")
def planned():
    return plan(network(bare))


@pytest.mark.parametrize("weights", [bare, seeded])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a_plan_is_the_blob_without_the_bytes_of_its_weights(weights, precision):
    whole = compile_model(network(seeded), CompileOptions(precision=precision))
    found = plan(network(weights), precision=precision)
    assert (found.image.weights, found.image.weight_bytes) == (b"", len(whole.image.weights))
    for section, array in whole.image.tasks.items():
        assert array.tobytes() == found.image.tasks[section].tobytes()
    assert found.image.relocations == whole.image.relocations
    assert found.report["predicted_makespan_ps"] == whole.report["predicted_makespan_ps"]
    assert len(found.blob) == len(whole.blob) - len(whole.image.weights)


def test_a_plan_is_written_and_read_in_both_forms(planned):
    assert blob.read(planned.blob) == planned.image
    assert blob.write(blob.assemble(blob.disassemble(planned.image))) == planned.blob
    section = next(s for s in blob.section_table(planned.blob) if s.name == ".data.weights")
    assert (section.type, section.size_bytes) == (8, planned.image.weight_bytes)


def test_a_plan_takes_as_long_as_its_blob_and_has_no_values(planned):
    whole = compile_model(network(seeded))
    x = np.zeros((1, 16, 12, 12), np.float32)
    times = []
    for data in (planned.blob, whole.blob):
        with libnpu.open("npu-37xx", compute=False) as device:
            module = device.load(data)
            module.run({"x": x})
            times.append(device.now_ps)
    assert times[0] == times[1]
    with (
        libnpu.open("npu-37xx") as device,
        pytest.raises(NpuError, match="is a plan: its 27904 bytes") as caught,
    ):
        device.load(planned.blob)
    assert caught.value.result == C.NPU_ERROR_INVALID_BLOB


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_of_cyclic_garbage_is_as_it_was_after_a_compilation(on):
    was = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        plan(network(bare))
        assert gc.isenabled() == on
        with pytest.raises(ModelError):
            plan(b"no model")
        assert gc.isenabled() == on
    finally:
        (gc.enable if was else gc.disable)()


def test_data_that_is_elsewhere_is_not_looked_for(tmp_path):
    model = network(seeded)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=1024)
    (tmp_path / "m.data").unlink()
    assert plan(str(tmp_path / "m.onnx")).image.tasks.keys() == plan(model).image.tasks.keys()
    with pytest.raises(ModelError, match="external data"):
        compile_model(str(tmp_path / "m.onnx"))


@pytest.mark.parametrize(
    ("lacking", "name"),
    [(bare("rows", 2, element=TensorProto.INT64), "rows"), (bare("scale"), "scale"), (bare("scale", 1), "scale")],
)
def test_a_shape_or_a_scalar_without_data_is_refused_by_name(lacking, name):
    model = network(bare)
    if name == "rows":
        kept = [t for t in model.graph.initializer if t.name != "rows"]
        del model.graph.initializer[:]
        model.graph.initializer.extend(kept)
    else:
        model.graph.node.insert(3, helper.make_node("Mul", ["s", "scale"], ["scaled"], name="scaled"))
        model.graph.node[4].input[0] = "scaled"
    model.graph.initializer.append(lacking)
    with pytest.raises(ModelError, match=name):
        plan(model)


def test_constants_that_are_computed_stay_without_values_and_take_no_memory():
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "by"], ["d"], name="scaled"),
        helper.make_node("Transpose", ["d"], ["t"], name="turned", perm=[1, 0]),
        helper.make_node("Reshape", ["t", "three"], ["r"], name="shaped"),
        helper.make_node("Squeeze", ["r", "axis"], ["w3"], name="squeezed"),
    ]
    extra = [
        bare("q", 64, 144, element=TensorProto.INT8),
        numpy_helper.from_array(np.float32(0.1), "by"),
        numpy_helper.from_array(np.array([1, 144, 64]), "three"),
        numpy_helper.from_array(np.array([0]), "axis"),
    ]
    found = plan(network(bare, nodes, extra)).image
    assert found.weight_bytes == plan(network(bare)).image.weight_bytes


def test_a_hollow_array_stays_one_through_views_and_arithmetic():
    array = hollow((300, 200), np.dtype(np.float32))
    for made in (array.T, array.reshape(-1, 2), array[3:], array.astype(np.float16), array * np.float32(2)):
        assert is_hollow(made)
    assert array.base is not None
    assert array.strides == (0, 0)
    assert not is_hollow(np.zeros(3))


def test_int8_weights_take_a_byte_and_the_engine_multiplies_and_adds_int8():
    image = plan(network(bare), precision="int8").image
    invariants = image.tasks[".npu.tasks.dpu_invariant"]
    products = invariants[np.isin(invariants["op"], (C.NPU_DPU_CONV, C.NPU_DPU_MATMUL))]
    assert set(products["act_dtype"]) == set(products["wt_dtype"]) == {dtypes.I8}
    sums = invariants[invariants["op"] == C.NPU_DPU_ELTWISE_ADD]
    assert len(sums)
    assert set(sums["act_dtype"]) == set(sums["out_dtype"]) == {dtypes.I8}
    by_layer = {layer.name: layer.nbytes for layer in weights_by_layer(image)}
    assert (by_layer["second"], by_layer["last"]) == (16 * 16 * 9, 144 * 64)
    assert by_layer["first"] == 16 * 16 * 9 + 16 * 16  # with the table of the bias


def test_int4_weights_of_a_product_take_half_a_byte():
    image = plan(network(bare), precision="int4").image
    by_layer = {layer.name: layer.nbytes for layer in weights_by_layer(image)}
    assert (by_layer["second"], by_layer["last"]) == (16 * 16 * 9, 144 * 64 // 2)
    invariants = image.tasks[".npu.tasks.dpu_invariant"]
    products = invariants[invariants["flags"] == C.NPU_DPU_FLAG_WEIGHTS_4BIT]
    assert len(products)
    assert set(products["wt_dtype"]) == {dtypes.I8}
    assert set(products["act_dtype"]) == {dtypes.I8}


@pytest.mark.parametrize("precision", [pytest.param("fp16", marks=pytest.mark.slow), "int8"])
def test_layers_and_what_lies_between_them_are_all_weights(precision):
    image = plan(resnet50(), precision=precision).image
    assert sum(layer.nbytes for layer in weights_by_layer(image)) == image.weight_bytes
    stages = {layer.name: layer.nbytes for layer in weights_by_layer(image, 1)}
    width = 1 if precision == "int8" else 2
    table = 16 * (2048 + 3 * (512 + 512 + 2048))  # of the biases
    macs = 1024 * 2048 + 1024 * 512 + 2 * 2048 * 512 + 3 * (9 * 512 * 512 + 512 * 2048)
    assert sum(nbytes for name, nbytes in stages.items() if name.startswith("stage4")) == width * macs + table
    assert stages.get(BETWEEN, 0) < 64 * 60


def test_b02_b03_a_layer_of_7b_has_193_mib_of_int8_weights_and_32_have_thousands_of_tasks():
    """`npu-37xx` has the 4 MiB of CMX that the number of tasks is of."""
    image = plan(llama7b(1), precision="int8").image
    end, one = (sum(len(i.tasks[name]) for name in TASKS) for i in (plan(llama7b(0), precision="int8").image, image))
    assert 1000 <= end + 32 * (one - end) <= 20_000
    layers = {layer.name: layer for layer in weights_by_layer(image, 1)}
    assert layers["layers.0"].nbytes == LAYER_WEIGHTS + 2 * 2 * 4096  # and two normalisations in fp16
    assert LAYER_WEIGHTS == 202_375_168
    products = {layer.name: layer.nbytes for layer in weights_by_layer(image) if layer.nbytes > 1 << 20}
    assert sum(products.values()) == LAYER_WEIGHTS + 4096 * 32000


TASKS = (".npu.tasks.dma0", ".npu.tasks.dma1", ".npu.tasks.dpu_invariant", ".npu.tasks.shave_invocation")


PLAN_7B = """
from libnpu.compiler import CompileOptions, compile_model
from libnpu.tools.shapes import llama7b
from libnpu.tools.weights import weights_by_layer
image = compile_model(llama7b(), CompileOptions(precision="int8", plan_only=True)).image
assert {layer.nbytes for layer in weights_by_layer(image, 1) if layer.name.startswith("layers")} == {%d}
print(sum(len(a) for name, a in image.tasks.items() if name.endswith(("dma0", "dma1", "invariant", "invocation"))))
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_b02_a_model_of_7e9_parameters_is_planned_in_half_a_minute_and_a_gibibyte():
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PLAN_7B % (LAYER_WEIGHTS + 16384)], capture_output=True, text=True, check=True
    )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert 1000 <= int(done.stdout) <= 20_000
    assert used.ru_utime - before < 30, time.monotonic() - start
    assert used.ru_maxrss < 1 << 20  # KiB
