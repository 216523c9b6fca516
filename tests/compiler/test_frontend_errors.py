"""Bad models get an error that names the node or value."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from libnpu.compiler import compile_model
from libnpu.compiler.frontend import ModelError, load
from libnpu.compiler.lower import CompileError
from libnpu.compiler.reference import run_reference
from libnpu.errors import Unimplemented, Unsupported


def value_info(name, shape, element=onnx.TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, element, shape)


def model_of(nodes, inputs, outputs, initializers=(), opset=13, **extra):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, **extra)


def relu_model(shape, opset=13):
    return model_of(
        [helper.make_node("Relu", ["x"], ["y"])], [value_info("x", shape)], [value_info("y", None)], (), opset
    )


def test_unknown_operator_names_node_and_operator():
    node = helper.make_node("Frobnicate", ["x"], ["y"], name="n7")
    with pytest.raises(Unsupported, match="node n7: operator Frobnicate of operator set 13 is unknown"):
        load(model_of([node], [value_info("x", [1])], [value_info("y", [1])]))


def test_foreign_domain_names_it():
    node = helper.make_node("CropAndResize", ["x", "x", "x", "x"], ["y"], name="n7", domain="com.microsoft")
    with pytest.raises(Unsupported, match=r"node n7: operator CropAndResize of domain 'com\.microsoft' is unknown"):
        load(model_of([node], [value_info("x", [1])], [value_info("y", [1])]))


def test_operator_without_handler_is_unimplemented_by_name():
    node = helper.make_node("NonZero", ["x"], ["y"], name="norm1")
    with pytest.raises(Unimplemented, match="node norm1: operator NonZero"):
        load(model_of([node], [value_info("x", [1, 3, 4, 4])], [value_info("y", None, onnx.TensorProto.INT64)]))


@pytest.mark.parametrize("opset", [0, 99])
def test_operator_set_out_of_range(opset):
    with pytest.raises(Unsupported, match=f"operator set {opset}; 7 to"):
        load(relu_model([1], opset))


def test_open_dimension_names_input_and_is_fixed_by_an_override():
    with pytest.raises(ModelError, match=r"input x: shape \[batch, 3\] is not static"):
        load(relu_model(["batch", 3]))
    graph = load(relu_model(["batch", 3]), {"x": (2, 3)})
    assert graph.inputs[0].shape == graph.outputs[0].shape == (2, 3)


def test_missing_shape_names_input_and_is_fixed_by_an_override():
    with pytest.raises(ModelError, match="input x: the model gives no shape"):
        load(relu_model(None))
    assert load(relu_model(None), {"x": (4,)}).outputs[0].shape == (4,)


def test_a_range_that_no_memory_holds_is_refused_by_name():
    bounds = [
        numpy_helper.from_array(np.float32(number), name) for name, number in zip("abc", (0, 1e12, 1), strict=True)
    ]
    nodes = [helper.make_node("Range", ["a", "b", "c"], ["r"], name="n7"), helper.make_node("Add", ["x", "r"], ["y"])]
    with pytest.raises(ModelError, match=r"node n7: Range of 0.0, 1e\+12, 1.0"):
        load(model_of(nodes, [value_info("x", [1])], [value_info("y", None)], bounds))


def test_a_value_too_large_to_count_is_refused_by_name():
    repeats = numpy_helper.from_array(np.array([1 << 33, 1 << 31]), "k")
    nodes = [helper.make_node("Tile", ["x", "k"], ["y"])]
    with pytest.raises(CompileError, match=r"shape \(8589934592, 2, 2147483648, 3\) needs \d+ bytes; device memory"):
        compile_model(model_of(nodes, [value_info("x", [2, 3])], [value_info("y", None)], [repeats]))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": (2, 4)}, r"input x: shape \(2, 4\) contradicts the model's \[batch, 3\]"),
        ({"x": (2, 3, 1)}, "contradicts"),
        ({"x": (-1, 3)}, "contradicts"),
        ({"z": (2, 3)}, "shape given for 'z', which is no input; inputs: x"),
    ],
)
def test_contradicting_override(shapes, message):
    with pytest.raises(ModelError, match=message):
        load(relu_model(["batch", 3]), shapes)


def test_shapes_that_do_not_fit_name_the_node():
    node = helper.make_node("MatMul", ["a", "b"], ["y"], name="product")
    inputs = [value_info("a", [2, 3]), value_info("b", [4, 5])]
    with pytest.raises(ModelError, match=r"node product: MatMul: matrix product of \(2, 3\) and \(4, 5\)"):
        load(model_of([node], inputs, [value_info("y", None)]))


def test_nodes_come_in_any_order_but_not_in_a_circle():
    branch = helper.make_graph([helper.make_node("Neg", ["t"], ["b"])], "b", [], [value_info("b", None)])
    choice = helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch)
    first = helper.make_node("Relu", ["x"], ["t"])
    model = model_of(
        [choice, first],
        [value_info("x", [2])],
        [value_info("y", [2])],
        [numpy_helper.from_array(np.array(True), "yes")],
    )
    assert [node.layers for node in load(model).nodes if node.op == "Elementwise"] == [["Relu_1", "If_2/Neg_3"]]
    assert [node.op_type for node in model.graph.node] == ["If", "Relu"]
    first.input[0] = "y"
    with pytest.raises(ModelError, match="topologically sorted"):
        load(model_of([choice, first], [], [value_info("y", [2])], [numpy_helper.from_array(np.array(True), "yes")]))


def test_operands_of_two_types_name_node_and_values():
    node = helper.make_node("Add", ["a", "b"], ["y"], name="sum")
    inputs = [value_info("a", [2]), value_info("b", [2], onnx.TensorProto.INT64)]
    with pytest.raises(ModelError, match=r"node sum: inputs a \(float32\) and b \(int64\) of Add must have one type"):
        load(model_of([node], inputs, [value_info("y", [2])]))


def test_operand_of_a_type_that_the_operator_does_not_take_is_named():
    node = helper.make_node("Sqrt", ["a"], ["y"], name="root")
    inputs = [value_info("a", [2], onnx.TensorProto.INT32)]
    with pytest.raises(ModelError, match="node root: input a of Sqrt has type int32; allowed: bfloat16, double"):
        load(model_of([node], inputs, [value_info("y", [2], onnx.TensorProto.INT32)]))


def test_output_declared_with_another_type_is_named():
    node = helper.make_node("Relu", ["x"], ["y"])
    with pytest.raises(ModelError, match="output y: computed as float32, declared as int64"):
        load(model_of([node], [value_info("x", [2])], [value_info("y", [2], onnx.TensorProto.INT64)]))


def test_a_value_declared_with_another_type_is_named():
    nodes = [helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Neg", ["t"], ["y"])]
    model = model_of(nodes, [value_info("x", [2])], [value_info("y", [2])])
    model.graph.value_info.append(value_info("t", [2], onnx.TensorProto.INT32))
    with pytest.raises(ModelError, match="value t: computed as float32, declared as int32"):
        load(model)


@pytest.mark.parametrize(
    ("inner", "outer", "notes"),
    [
        ([2, 3], ["n", 3], []),
        (["n", -1], None, []),
        ([2, 4], [2, 3], ["t is computed as [2, 3], declared as [2, 4]; what is computed counts"]),
        (["n", 3], [6], ["y is computed as [2, 3], declared as [6]; what is computed counts"]),
        ([6], ["n", 7], ["t is computed as [2, 3], declared as [6], and 1 more like it; what is computed counts"]),
    ],
)
def test_a_declared_shape_that_is_not_the_computed_one_is_told_and_does_not_count(inner, outer, notes):
    nodes = [helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Neg", ["t"], ["y"])]
    model = model_of(nodes, [value_info("x", [2, 3])], [value_info("y", outer)])
    model.graph.value_info.append(value_info("t", inner))
    graph = load(model)
    assert (graph.outputs[0].shape, graph.notes) == ((2, 3), notes)


def test_a_computed_shape_names_the_node():
    node = helper.make_node("Reshape", ["x", "s"], ["y"], name="r1")
    inputs = [value_info("x", [1, 3, 4, 4]), value_info("s", [2], onnx.TensorProto.INT64)]
    with pytest.raises(Unsupported, match=r"node r1: shape of Reshape \(s\) is not a constant"):
        load(model_of([node], inputs, [value_info("y", None)]))


def test_undefined_value_names_it():
    node = helper.make_node("Relu", ["nowhere"], ["y"], name="r")
    with pytest.raises(ModelError, match="nowhere"):
        load(model_of([node], [value_info("x", [1])], [value_info("y", [1])]))


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x08\x07\x12"])
def test_foreign_data_is_no_model(data):
    with pytest.raises(ModelError, match="data: "):
        load(data)


def test_truncated_model_is_refused():
    data = relu_model([1, 3]).SerializeToString()
    for length in range(len(data)):
        with pytest.raises((ModelError, Unsupported)):
            load(data[:length])


def test_initialiser_that_is_also_an_input_is_a_constant():
    weights = numpy_helper.from_array(np.full((2, 2), 3, np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    inputs = [value_info("x", [1, 2]), value_info("w", [2, 2])]
    graph = load(model_of([node], inputs, [value_info("y", [1, 2])], [weights]), precision="fp32")
    assert [value.name for value in graph.inputs] == ["x"]
    x = np.array([[1, 2]], np.float32)
    np.testing.assert_array_equal(run_reference(graph, {"x": x})["y"], [[9, 9]])


def test_external_data_is_read(tmp_path):
    weights = numpy_helper.from_array(np.arange(4096, dtype=np.float32), "w")
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])], [value_info("x", [1])], [value_info("y", None)], [weights]
    )
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin")
    graph = load(tmp_path / "m.onnx", precision="fp32")
    np.testing.assert_array_equal(run_reference(graph, {"x": np.ones(1, np.float32)})["y"], np.arange(1, 4097))


def test_model_functions_are_walked_with_their_attributes():
    body = [
        helper.make_node("Constant", [], ["k"]),
        helper.make_node("Mul", ["a", "k"], ["t"]),
        helper.make_node("LeakyRelu", ["t"], ["b"]),
    ]
    for node, name, kind in ((body[0], "value_float", "FLOAT"), (body[2], "alpha", "FLOAT")):
        item = node.attribute.add()
        item.name, item.ref_attr_name, item.type = name, name, onnx.AttributeProto.AttributeType.Value(kind)
    opsets = [helper.make_opsetid("", 13)]
    function = helper.make_function("own", "Scale", ["a"], ["b"], body, opsets, ["value_float", "alpha"])
    nodes = [
        helper.make_node("Scale", ["x"], ["m"], domain="own", value_float=2.0, alpha=0.5),
        helper.make_node("Scale", ["m"], ["y"], domain="own", value_float=-1.0, alpha=0.25),
    ]
    graph = helper.make_graph(nodes, "g", [value_info("x", [2])], [value_info("y", [2])])
    model = helper.make_model(
        graph, opset_imports=[*opsets, helper.make_opsetid("own", 1)], functions=[function], ir_version=8
    )
    result = run_reference(load(model, precision="fp32"), {"x": np.array([3, -4], np.float32)})["y"]
    np.testing.assert_array_equal(result, [-1.5, 4.0])


def test_branch_with_a_known_condition_is_walked():
    def branch(value):
        node = helper.make_node("Add", ["x", "c"], ["r"])
        constant = numpy_helper.from_array(np.float32(value), "c")
        return helper.make_graph([node], "b", [], [value_info("r", [2])], [constant])

    condition = numpy_helper.from_array(np.array(False), "cond")
    node = helper.make_node("If", ["cond"], ["y"], name="choice", then_branch=branch(1), else_branch=branch(10))
    model = model_of([node], [value_info("x", [2])], [value_info("y", [2])], [condition])
    result = run_reference(load(model, precision="fp32"), {"x": np.zeros(2, np.float32)})["y"]
    np.testing.assert_array_equal(result, [10, 10])


def choice_of(then, otherwise, shape=(2,)):
    """y = then if cond else otherwise, both of x [2] and the indices i [2]."""
    branches = [helper.make_graph([node], "b", [], [value_info("r", shape)]) for node in (then, otherwise)]
    node = helper.make_node("If", ["cond"], ["y"], name="choice", then_branch=branches[0], else_branch=branches[1])
    inputs = [
        value_info("x", [2]),
        value_info("cond", [], onnx.TensorProto.BOOL),
        value_info("i", [2], onnx.TensorProto.INT64),
    ]
    return model_of([node], inputs, [value_info("y", shape)])


@pytest.mark.parametrize(("condition", "expected"), [(True, [1, 0]), (False, [-1, 2])])
def test_of_a_computed_condition_both_branches_run_and_one_counts(condition, expected):
    model = choice_of(helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Neg", ["x"], ["r"]))
    feeds = {"x": np.array([1, -2], np.float32), "cond": np.array(condition), "i": np.zeros(2, np.int64)}
    np.testing.assert_array_equal(run_reference(load(model, precision="fp32"), feeds)["y"], expected)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (helper.make_node("Gather", ["x", "i"], ["r"]), "a branch that may fault"),
        (helper.make_node("ReduceMax", ["x"], ["r"], keepdims=1), r"results float32 \(2,\) or float32 \(1,\)"),
    ],
)
def test_branches_of_a_computed_condition_that_cannot_both_run_are_unsupported_by_name(other, why):
    with pytest.raises(Unsupported, match=f"node choice: If with a condition that is computed at run time, and {why}"):
        load(choice_of(helper.make_node("Relu", ["x"], ["r"]), other))


def test_flipped_bits_never_escape_as_another_error(make_model):
    nodes = [
        ("Conv", ["x", "w"], ["c"], {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3], "strides": [1, 1]}),
        ("MaxPool", ["c"], ["p"], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Reshape", ["p", "s"], ["r"], {}),
        ("Gemm", ["r", "g"], ["t"], {"transB": 1}),
        ("Transpose", ["t"], ["q"], {"perm": [1, 0]}),
        ("ReduceMean", ["q"], ["m"], {"axes": [1]}),
        ("Slice", ["m", "b", "e"], ["y"], {}),
    ]
    constants = {"w": np.ones((2, 1, 3, 3), np.float32), "s": np.array([1, -1]), "g": np.ones((3, 8), np.float32)}
    constants |= {"b": np.array([0]), "e": np.array([2])}
    data = make_model(nodes, {"x": (np.float32, (1, 1, 4, 4))}, ["y"], constants, 13).SerializeToString()
    rng = np.random.default_rng(3)
    outcomes = {"loaded": 0, "refused": 0}
    for place, bit in zip(rng.integers(0, len(data), 300), rng.integers(0, 8, 300), strict=True):
        damaged = bytearray(data)
        damaged[place] ^= 1 << int(bit)
        try:
            load(bytes(damaged))
            outcomes["loaded"] += 1
        except (ModelError, Unsupported, Unimplemented):
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 50


X4 = (2, 4, 3, 3)


@pytest.mark.parametrize(
    ("op", "x", "constants", "attrs", "message"),
    [
        ("Conv", X4, [(2, 4, 1, 1), (3,)], {}, r"Conv: c1 has shape \(3,\), expected \(2,\)"),
        ("Conv", X4, [(2, 4, 1, 1), (1,)], {}, r"Conv: c1 has shape \(1,\), expected \(2,\)"),
        ("Conv", X4, [(2, 4, 1, 1)], {"kernel_shape": [3, 3]}, r"Conv of x .* by c0 .*, kernel_shape \[3, 3\]"),
        ("ConvTranspose", X4, [(4, 2, 1, 1)], {"kernel_shape": [1, 2]}, r"ConvTranspose of .*, kernel_shape \[1, 2\]"),
        ("Conv", X4, [(2, 4, 1, 1)], {"strides": [-1, 0]}, r"Conv: strides \[-1, 0\] holds -1, the least is 1"),
        ("Conv", X4, [(2, 4, 1, 1)], {"strides": [1, 1, 1]}, r"Conv: strides \[1, 1, 1\] has 3 items, expected 2"),
        ("Conv", X4, [(2, 4, 1, 1)], {"dilations": [0, 1]}, r"Conv: dilations \[0, 1\] holds 0, the least is 1"),
        ("Conv", X4, [(2, 4, 1, 1)], {"pads": [0, 0, -1, 0]}, r"Conv: pads \[0, 0, -1, 0\] holds -1, the least is 0"),
        ("Conv", X4, [(2, 4, 1, 1)], {"pads": [0, 0]}, r"Conv: pads \[0, 0\] has 2 items, expected 4"),
        ("Conv", X4, [(2, 4, 1, 1)], {"group": 0}, "Conv: group 0, the least is 1"),
        ("Conv", X4, [(2, 4, 1, 1)], {"auto_pad": "SAME"}, "Conv: auto_pad 'SAME', one of NOTSET, VALID, SAME_UPPER"),
        ("ConvTranspose", X4, [(4, 2, 1, 1)], {"strides": [-1, 0]}, r"ConvTranspose: strides \[-1, 0\] holds -1"),
        (
            "ConvTranspose",
            X4,
            [(4, 2, 1, 1)],
            {"output_padding": [0]},
            r"ConvTranspose: output_padding \[0\] has 1 items",
        ),
        ("MaxPool", X4, [], {"kernel_shape": [2, 0]}, r"MaxPool: kernel_shape \[2, 0\] holds 0, the least is 1"),
        ("AveragePool", X4, [], {"kernel_shape": [2]}, r"AveragePool: kernel_shape \[2\] has 1 items, expected 2"),
        ("ConvTranspose", X4, [(4, 2, 1, 1), (3,)], {}, r"ConvTranspose: c1 has shape \(3,\), expected \(2,\)"),
        ("BatchNormalization", X4, [(1,)] * 4, {}, r"BatchNormalization: c0 has shape \(1,\), expected \(4,\)"),
        ("InstanceNormalization", X4, [(3,)] * 2, {}, r"InstanceNormalization: c0 has shape \(3,\), expected \(4,\)"),
        (
            "LayerNormalization",
            X4,
            [(5, 1, 1, 1, 3)],
            {},
            r"LayerNormalization: c0 \(5, 1, 1, 1, 3\) does not broadcast to \(2, 4, 3, 3\)",
        ),
        ("Gemm", (1, 4), [(4, 3), (2, 3)], {}, r"Gemm: c1 \(2, 3\) does not broadcast to \(1, 3\)"),
        ("Gemm", (1, 2, 4), [(4, 3)], {}, r"Gemm of x \(1, 2, 4\) and c0 \(4, 3\), rank 2 expected"),
        ("Clip", (1, 4), [(2, 4)], {}, r"Clip to c0 \(2, 4\), one number expected"),
        ("Flatten", X4, [], {"axis": 7}, "axis 7 of Flatten is outside of rank 4"),
        ("SpaceToDepth", X4, [], {"blocksize": 2}, r"SpaceToDepth: x \(2, 4, 3, 3\) cannot have shape"),
    ],
)
def test_operands_that_do_not_fit_are_refused_by_node(op, x, constants, attrs, message):
    names = [f"c{index}" for index in range(len(constants))]
    tensors = [numpy_helper.from_array(np.ones(s, np.float32), n) for n, s in zip(names, constants, strict=True)]
    node = helper.make_node(op, ["x", *names], ["y"], name="n1", **attrs)
    with pytest.raises(ModelError, match=f"node n1: {message}"):
        load(model_of([node], [value_info("x", x)], [value_info("y", None)], tensors, 17))


def test_repeats_below_zero_are_refused_by_node():
    repeats = numpy_helper.from_array(np.array([1, -1]), "r")
    node = helper.make_node("Tile", ["x", "r"], ["y"], name="n1")
    with pytest.raises(ModelError, match=r"node n1: Tile of x \(2, 3\) by \[1, -1\]"):
        load(model_of([node], [value_info("x", (2, 3))], [value_info("y", None)], [repeats]))


def test_a_constant_output_beyond_32_bits_is_refused_by_name_and_value():
    node = helper.make_node("Constant", [], ["y"], value_ints=[1, 2**40])
    output = value_info("y", (2,), onnx.TensorProto.INT64)
    with pytest.raises(
        Unsupported, match=r"output y: the constant holds 1099511627776, the device computes int64 in 32"
    ):
        load(model_of([node], [], [output]))
