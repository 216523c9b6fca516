"""What the NPU cannot do becomes parts on the host: which nodes, in which parts, and nothing where it is not needed."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from libnpu.compiler import CompileOptions, HostPartWarning, compile_model
from libnpu.compiler.frontend.nested import captured
from libnpu.compiler.frontend.source import ModelError
from libnpu.compiler.lower import LOWERINGS
from libnpu.compiler.partition.report import partition_text, warning_of
from libnpu.errors import Unimplemented, Unsupported
from libnpu.parts import HostPart, NpuPart, unpack

FP32 = CompileOptions(precision="fp32")
CUSTOM = ("Foo", ["x"], ["y"], {"domain": "mine"})


def in_parts(model, options=FP32):
    with pytest.warns(HostPartWarning):
        return compile_model(model, options)


def sides(compiled):
    return ["npu" if isinstance(part, NpuPart) else [node.op for node in part.nodes] for part in compiled.parts.parts]


def if_node(condition, branches, output, name="choose"):
    """An If whose branches, (operator, inputs), are an operator of outer values each."""
    graphs = []
    for op, sources in branches:
        node = helper.make_node(op, sources, [f"{output}.{op}"], name=op)
        graphs.append(helper.make_graph([node], op, [], [onnx.ValueInfoProto(name=f"{output}.{op}")]))
    return helper.make_node("If", [condition], [output], name=name, then_branch=graphs[0], else_branch=graphs[1])


def model_of(nodes, inputs, outputs, constants=None):
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(t)), s)
        for n, (t, s) in inputs.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    model = helper.make_model(
        helper.make_graph(nodes, "g", infos, results, tensors),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=10,
    )  # fmt: skip
    return onnx.shape_inference.infer_shapes(model)


def test_a_model_that_the_npu_does_is_one_blob_without_a_word(make_model, rng, recwarn):
    model = make_model([("Relu", ["x"], ["y"], {})], {"x": (np.float32, (2, 3))}, ["y"])
    compiled = compile_model(model, FP32)
    assert compiled.parts is None and compiled.blob[:4] == b"\x7fELF" and not recwarn.list
    assert compiled.blob == compile_model(model, CompileOptions(precision="fp32", strict=True)).blob


def test_a_node_in_the_middle_runs_on_the_host_between_two_blobs(make_model):
    nodes = [("Relu", ["x"], ["a"], {}), ("NonZero", ["a"], ["b"], {}), ("Shape", ["b"], ["s"], {}),
             ("Add", ["s", "two"], ["t"], {}), ("Neg", ["a"], ["y"], {})]  # fmt: skip
    model = make_model(nodes, {"x": (np.float32, (2, 3))}, ["y", "t"], {"two": np.array([2, 2])})
    compiled = in_parts(model)
    assert sides(compiled) == ["npu", ["NonZero", "Shape"], "npu"]
    parts = compiled.parts.parts
    assert [(part.inputs, part.outputs) for part in parts] == [(("x",), ("a", "y")), (("a",), ("s",)), (("s",), ("t",))]
    assert [node.reason for node in compiled.parts.host_nodes] == [
        "not implemented: operator NonZero",
        "value b has a shape that only a run tells",
    ]


def test_the_container_holds_what_the_compiler_says_and_is_the_same_in_every_run(make_model):
    model = make_model([("Relu", ["x"], ["a"], {}), ("NonZero", ["a"], ["y"], {})], {"x": (np.float32, (4,))}, ["y"])
    compiled = in_parts(model)
    assert unpack(compiled.blob) == compiled.parts and in_parts(model).blob == compiled.blob
    assert compiled.parts.tensors["y"].shape == (1, -1)


def test_a_side_branch_waits_for_the_blob_that_uses_it(make_model):
    """Small x grows to a large value, which would cross if it were made in the first blob."""
    nodes = [("Expand", ["x", "shape"], ["large"], {}), ("Relu", ["x"], ["a"], {}), ("NonZero", ["a"], ["n"], {}),
             ("Size", ["n"], ["count"], {}), ("Cast", ["count"], ["f"], {"to": 1}), ("Mul", ["large", "f"], ["y"], {})]  # fmt: skip
    model = make_model(nodes, {"x": (np.float32, (1, 4))}, ["y"], {"shape": np.array([64, 4])})
    compiled = in_parts(model)
    assert sides(compiled) == ["npu", ["NonZero", "Size"], "npu"]
    assert compiled.parts.parts[2].inputs == ("x", "count")
    assert "large" not in compiled.parts.tensors


def test_two_nodes_on_the_host_at_one_depth_are_one_part(make_model):
    nodes = [("NonZero", ["x"], ["y"], {}), ("Relu", ["x"], ["a"], {}), ("NonZero", ["a"], ["z"], {})]
    compiled = in_parts(make_model(nodes, {"x": (np.float32, (4,))}, ["y", "z"]))
    assert sides(compiled) == ["npu", ["NonZero", "NonZero"]]


def test_what_nobody_needs_is_not_on_the_host(make_model, recwarn):
    nodes = [("Relu", ["x"], ["y"], {}), ("NonZero", ["x"], ["unused"], {})]
    compiled = compile_model(make_model(nodes, {"x": (np.float32, (4,))}, ["y"]), FP32)
    assert compiled.parts is None and not recwarn.list


@pytest.mark.parametrize("last", ["Relu", "NonZero"])
def test_a_declared_shape_that_is_not_the_computed_one_is_told_of_a_model_in_parts_too(last, make_model):
    nodes = [("Relu", ["x"], ["a"], {}), ("NonZero", ["a"], ["unused"], {}), (last, ["a"], ["y"], {})]
    model = make_model(nodes, {"x": (np.float32, (4,))}, ["y"])
    model.graph.value_info.append(helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [5]))
    compiled = compile_model(model, FP32) if last == "Relu" else in_parts(model)
    assert compiled.report["warnings"][-1] == "a is computed as [4], declared as [5]; what is computed counts"


def test_an_if_reads_what_its_branches_read():
    """A gather may fault where the other branch is wanted, so that it cannot run in vain."""
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="relu"), helper.make_node("ReduceMax", ["x"], ["m"], name="max", keepdims=0),
             helper.make_node("Greater", ["m", "zero"], ["c"], name="greater"), helper.make_node("ArgMax", ["x"], ["i"], name="arg", axis=1),
             if_node("c", (("Neg", ["a"]), ("GatherElements", ["a", "i"])), "b"), helper.make_node("Relu", ["b"], ["y"], name="last")]  # fmt: skip
    model = model_of(nodes, {"x": (np.float32, [2, 1])}, ["y"], {"zero": np.float32(0)})
    assert captured(nodes[4]) == ["a", "i"]
    compiled = in_parts(model)
    assert sides(compiled)[:2] == ["npu", ["If", "Relu"]] or sides(compiled) == ["npu", ["If"], "npu"]
    assert {"a", "c", "i"} <= set(compiled.parts.parts[1].inputs)
    reason = compiled.parts.host_nodes[0].reason
    assert reason.startswith(
        "not supported: If with a condition that is computed at run time, and a branch that may fault"
    )


def test_strict_refuses_with_all_reasons(make_model):
    nodes = [("NonZero", ["x"], ["y"], {}), ("Unique", ["x"], ["z"], {})]
    model = make_model(nodes, {"x": (np.float32, (4,))}, ["y", "z"])
    with pytest.raises(Unsupported) as error:
        compile_model(model, CompileOptions(precision="fp32", strict=True))
    assert error.value.message == (
        "2 nodes would run on the host: node NonZero_0: not implemented: operator NonZero; "
        "node Unique_1: not implemented: operator Unique"
    )
    with pytest.raises(Unimplemented, match="node NonZero_0: operator NonZero"):
        compile_model(make_model(nodes[:1], {"x": (np.float32, (4,))}, ["y"]), CompileOptions(strict=True))


def test_a_plan_has_no_parts_on_the_host(make_model):
    model = make_model([("NonZero", ["x"], ["y"], {})], {"x": (np.float32, (4,))}, ["y"])
    with pytest.raises(Unimplemented, match="operator NonZero"):
        compile_model(model, CompileOptions(plan_only=True))


def test_an_operator_that_no_evaluator_knows_is_refused(make_model):
    model = make_model([CUSTOM], {"x": (np.float32, (4,))}, ["y"])
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [4]))
    with pytest.raises(Unsupported, match=r"node Foo_0: .*the host cannot run it either"):
        compile_model(model, FP32)


def test_an_operator_that_only_onnxruntime_knows_takes_itself_alone_to_the_host(make_model):
    nodes = [
        ("Relu", ["x"], ["a"], {}),
        ("Inverse", ["a"], ["b"], {"domain": "com.microsoft"}),
        ("Neg", ["b"], ["y"], {}),
    ]
    model = make_model(nodes, {"x": (np.float32, (2, 3, 3))}, ["y"])
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3, 3]))
    compiled = in_parts(model)
    assert sides(compiled) == ["npu", ["Inverse"], "npu"]
    assert compiled.parts.tensors["b"].shape == (2, 3, 3)


def test_random_results_are_on_no_side(make_model):
    nodes = [("NonZero", ["x"], ["y"], {}), ("RandomUniformLike", ["x"], ["z"], {})]
    with pytest.raises(Unsupported, match="results must be the same in every run"):
        compile_model(make_model(nodes, {"x": (np.float32, (4,))}, ["y", "z"]), FP32)


def test_errors_of_the_model_stay_errors(make_model):
    nodes = [("NonZero", ["x"], ["y"], {}), ("MatMul", ["x", "x"], ["z"], {})]
    model = make_model(nodes[:1], {"x": (np.float32, (2, 3))}, ["y"])
    model.graph.node.append(helper.make_node(*nodes[1][:3]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 3]))
    with pytest.raises(ModelError, match="MatMul"):
        compile_model(model, FP32)


def test_a_single_image_of_a_model_in_parts_is_refused_by_name(make_model):
    compiled = in_parts(make_model([("NonZero", ["x"], ["y"], {})], {"x": (np.float32, (4,))}, ["y"]))
    with pytest.raises(Unsupported, match="g is a model in parts"):
        _ = compiled.image


def test_report_and_warning(make_model, rng):
    nodes = [("Conv", ["x", "w"], ["c"], {}), ("NonZero", ["c"], ["n"], {}), ("Size", ["n"], ["y"], {})]
    weights = rng.standard_normal((2, 3, 1, 1)).astype(np.float32)
    compiled = in_parts(make_model(nodes, {"x": (np.float32, (1, 3, 4, 4))}, ["y"], {"w": weights}))
    assert partition_text(compiled.parts) == [
        "g: 1 node on the NPU in 1 part, 2 nodes on the host in 1 part",
        "multiplications on the NPU: 100.0% of 96",
        "bytes between host and NPU in an inference: 128 to the host, 0 to the NPU",
        "part 0 on the NPU: 1 node, 96 MACs: Conv_0",
        "  in  x [1, 3, 4, 4] f32, 192 bytes",
        "  out c [1, 2, 4, 4] f32, 128 bytes",
        "part 1 on the host: 2 nodes, 0 MACs, by onnx.reference",
        "  in  c [1, 2, 4, 4] f32, 128 bytes",
        "  out y [] i64, 8 bytes",
        "  NonZero_1 (NonZero): not implemented: operator NonZero",
        "  Size_2 (Size): value n has a shape that only a run tells",
    ]
    assert warning_of(compiled.parts) == (
        "g: 2 nodes of 3 run on the host, between 1 blob (NonZero, Size); --partition report says why, --strict refuses"
    )
    assert compiled.report["warnings"][0] == warning_of(compiled.parts)


def test_what_the_back_end_cannot_do_goes_to_the_host_by_the_node_that_it_names(make_model, monkeypatch):
    def refuse(builder, node):
        raise Unsupported(f"softmax of {node.inputs[0].shape}")

    monkeypatch.setitem(LOWERINGS, "Softmax", refuse)
    nodes = [("Relu", ["x"], ["a"], {}), ("Softmax", ["a"], ["b"], {"axis": 1}), ("Neg", ["b"], ["c"], {}),
             ("LogSoftmax", ["c"], ["d"], {"axis": 1}), ("Abs", ["d"], ["y"], {})]  # fmt: skip
    compiled = in_parts(make_model(nodes, {"x": (np.float32, (2, 3))}, ["y"]))
    assert sides(compiled) == ["npu", ["Softmax"], "npu", ["LogSoftmax"], "npu"]
    assert {node.reason for node in compiled.parts.host_nodes} == {"not supported: softmax of (2, 3)"}


@pytest.mark.parametrize(
    ("op", "shape", "weights", "attrs", "macs"),
    [
        ("Conv", (1, 4, 5, 5), (6, 2, 3, 3), {"group": 2}, 6 * 9 * 2 * 9),  # outputs · window's pixels · taps
        ("MatMul", (2, 3, 4), (4, 5), {}, 2 * 3 * 5 * 4),
        ("Gemm", (4, 3), (4, 5), {"transA": 1}, 3 * 5 * 4),
        ("LinearRegressor", (2, 3), None, {"domain": "ai.onnx.ml", "coefficients": [1.0] * 6, "targets": 2}, 2 * 2 * 3),
        ("LSTM", (5, 1, 3), (1, 16, 3), {"hidden_size": 4}, None),
    ],
)
def test_multiplications_on_the_host_are_counted(op, shape, weights, attrs, macs, make_model, monkeypatch):
    def refuse(builder, node):
        raise Unsupported("products")

    for name in ("Conv", "MatMul"):
        monkeypatch.setitem(LOWERINGS, name, refuse)
    constants = {} if weights is None else {"w": np.ones(weights, np.float32)}
    constants |= {"r": np.ones((1, 16, 4), np.float32)} if op == "LSTM" else {}
    model = make_model([(op, ["x", *constants], ["y"], attrs)], {"x": (np.float32, shape)}, ["y"], constants)
    declared = [2, 2] if op == "LinearRegressor" else None  # whose shape onnx does not infer
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, declared))
    (part,) = in_parts(model).parts.parts
    assert part.macs == macs


def test_an_output_without_elements_is_the_hosts(make_model):
    compiled = in_parts(
        make_model([("Relu", ["x"], ["y"], {}), ("Shape", ["x"], ["z"], {"start": 1, "end": 1})],
                   {"x": (np.float32, (4,))}, ["y", "z"])
    )  # fmt: skip
    assert isinstance(compiled.parts.parts[-1], HostPart)
    assert compiled.parts.host_nodes[0].reason == "not supported: output z: shape (0,) has no element"


def test_an_older_operator_set_is_looked_at_by_operator(make_model, recwarn):
    """Relu is the same since 6; Add said in an attribute how it broadcasts."""
    relu = make_model([("Relu", ["x"], ["y"], {})], {"x": (np.float32, (4,))}, ["y"], opset=6)
    assert compile_model(relu, FP32).parts is None and not recwarn.list
    add = make_model([("Add", ["x", "x"], ["y"], {})], {"x": (np.float32, (4,))}, ["y"], opset=6)
    with pytest.raises(Unsupported, match="node Add_0: Add of operator set 6; 7 to"):
        compile_model(add, CompileOptions(strict=True))


def test_types_of_other_domains_are_inferred():
    """A model of ai.onnx.ml alone imports no standard operators."""
    node = helper.make_node("OneHotEncoder", ["x"], ["y"], domain="ai.onnx.ml", name="b", cats_int64s=[0, 1])
    info = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3, 2][:rank]) for name, rank in (("x", 2), ("y", 3))
    ]
    graph = helper.make_graph([node], "g", info[:1], info[1:])
    compiled = in_parts(helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 1)], ir_version=10))
    assert sides(compiled) == [["OneHotEncoder"]] and compiled.parts.tensors["y"].shape == (2, 3, 2)


def test_an_if_with_a_branch_that_does_not_fit_the_shapes_runs_on_the_host(make_model):
    """A branch for operands of another rank, that no run of these shapes takes: a model for two sample rates has one."""
    branches = [("Softmax", ["x"]), ("LRN", ["x"])]
    node = if_node("c", branches, "y")
    (other,) = (item.g.node[0] for item in node.attribute if item.g.node[0].op_type == "LRN")
    other.attribute.append(helper.make_attribute("size", 3))
    model = model_of(
        [node, helper.make_node("Relu", ["y"], ["z"])], {"x": (np.float32, (6,)), "c": (np.bool_, ())}, ["z"]
    )
    compiled = in_parts(model)
    assert sides(compiled)[0] == ["If"]
    (reason,) = (node.reason for node in compiled.parts.host_nodes if node.op == "If")
    assert "a branch that does not fit" in reason
