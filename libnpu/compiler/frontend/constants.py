"""Evaluation at compile time: source nodes whose operands are all known, by ONNX's own reference operators."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from libnpu.compiler import products
from libnpu.compiler.frontend.source import ModelError
from libnpu.compiler.hollow import hollow, is_hollow
from libnpu.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

MAX_BYTES = 1 << 32  # of a constant that is made from its shape: what the smallest real device holds
# Every run must give the same graph, so what draws random numbers is never evaluated.
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
# The reference operators add these up in BLAS's order. Those without a function here are left to handlers and bodies.
BLAS = frozenset(
    ("AffineGrid", "Attention", "Conv", "ConvTranspose", "Det", "Einsum", "GRU", "Gemm", "GridSample", "LSTM",
     "LinearAttention", "MatMul", "RNN", "Resize", "Upsample")
)  # fmt: skip
# The reference operators are wrong in these for some opsets, types or attributes, or refuse them. They are left to handlers, whose nodes are folded;
# that of DequantizeLinear keeps what the integers were.
LEFT = frozenset(
    ("AveragePool", "BatchNormalization", "Col2Im", "DequantizeLinear", "GatherElements", "GlobalAveragePool", "GlobalMaxPool", "Hardmax",
     "InstanceNormalization", "LRN", "LayerNormalization", "LogSoftmax", "LpNormalization", "LpPool", "MaxPool",
     "MeanVarianceNormalization", "OneHot",
     "QLinearConv", "QLinearMatMul", "ReduceL2", "ReduceLogSumExp",
     "ReduceSumSquare", "Softmax")
)  # fmt: skip
# NumPy's float32 forms of these differ in the last bit between processors. Here they are computed in float64 and rounded once.
TRANSCENDENTAL = frozenset(
    ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp", "Gelu",
     "Log", "Mish", "Pow", "ReduceL1", "ReduceLogSum", "ReduceMean", "ReduceProd", "ReduceSum", "Selu", "Sigmoid", "Sin", "Sinh", "Softplus", "Swish", "Tan", "Tanh")
)  # fmt: skip

FIRST_DEQUANTIZE = 19  # the first version that the reference has; it does what the ones before it do


def tensor_array(tensor: onnx.TensorProto) -> NDArray[Any]:
    """Return the data of an initialiser. Raises ModelError when size or type do not fit, naming it."""
    try:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(f"initialiser {tensor.name}: {error}") from error


def hollow_array(tensor: onnx.TensorProto) -> NDArray[Any]:
    """Return an initialiser without its values."""
    return hollow(tuple(tensor.dims), np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)))


def constant_of(node: onnx.NodeProto) -> NDArray[Any]:
    """Return the array that a Constant node holds. Raises Unsupported for strings."""
    attribute = node.attribute[0]
    value = onnx.helper.get_attribute_value(attribute)
    match attribute.name:
        case "value":
            return np.asarray(onnx.numpy_helper.to_array(value))
        case "value_int" | "value_ints":
            return np.asarray(value, np.int64)
        case "value_float" | "value_floats":
            return np.asarray(value, np.float32)
    raise Unsupported(f"node {node.name or node.output[0]}: Constant with {attribute.name}")


def evaluate(node: onnx.NodeProto, opset: int, operands: Sequence[NDArray[Any] | None]) -> list[NDArray[Any]]:
    """Return the outputs of `node` for known operands, hollow ones for a hollow operand. Raises ModelError when the operator rejects them."""
    if any(map(is_hollow, operands)):
        return _hollow_results(node, opset, operands)
    if node.op_type in LEFT:
        raise ModelError(f"node {node.name or node.output[0]}: {node.op_type} of constants is its handler's")
    known = _evaluate_common(node, operands)
    if known is None and node.op_type in BLAS and operands[0] is not None and _is_float(operands[0]):
        known = _evaluate_product(node, operands)
    if known is not None:
        return [known]
    first = operands[0] if operands else None
    if first is not None and _is_float(first) and (node.op_type in TRANSCENDENTAL or _is_half(node, first)):
        wide = [x.astype(np.float64) if x is not None and _is_float(x) else x for x in operands]
        with np.errstate(over="ignore"):
            return [x.astype(first.dtype) if x.dtype == np.float64 else x for x in _run(node, opset, wide)]
    return _run(node, opset, operands)


def _hollow_results(node: onnx.NodeProto, opset: int, operands: Sequence[NDArray[Any] | None]) -> list[NDArray[Any]]:
    """Return results of which only shape and type are known, as ONNX infers them."""
    types, data = {}, {}
    for name, operand in zip(node.input, operands, strict=True):
        if operand is not None:
            element = onnx.helper.np_dtype_to_tensor_dtype(operand.dtype)
            types[name] = onnx.helper.make_tensor_type_proto(element, operand.shape)
            if not is_hollow(operand):
                data[name] = onnx.numpy_helper.from_array(np.asarray(operand), name)
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    try:
        found = onnx.shape_inference.infer_node_outputs(
            schema, node, types, data, opset_imports=[onnx.helper.make_opsetid("", opset)]
        )
    except Exception as error:  # of onnx's own kinds
        raise ModelError(f"node {node.name or node.output[0]}: {node.op_type} of constants: {error}") from error
    results = []
    for name in filter(None, node.output):
        if name not in found or not all(dim.HasField("dim_value") for dim in found[name].tensor_type.shape.dim):
            raise ModelError(f"node {node.name or name}: {node.op_type}: its shape depends on values that a plan lacks")
        tensor = found[name].tensor_type
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        results.append(hollow(tuple(dim.dim_value for dim in tensor.shape.dim), dtype))
    return results


def _is_float(array: NDArray[Any]) -> bool:
    return array.dtype.kind not in "iubcOSU"  # bfloat16 is of no kind of NumPy's


def _is_half(node: onnx.NodeProto, first: NDArray[Any]) -> bool:
    """Whether the reference operator would round to 16 bits on the way."""
    return first.dtype.itemsize == 2 and node.op_type not in ("Cast", "CastLike")


def _run(node: onnx.NodeProto, opset: int, operands: Sequence[NDArray[Any] | None]) -> list[NDArray[Any]]:
    """Return the outputs that ONNX's reference operator gives."""
    # Operands get fresh names: a node may use one name twice, and "" marks a left out operand.
    names = ["" if operand is None else f"in{index}" for index, operand in enumerate(operands)]
    renamed = onnx.NodeProto()
    renamed.CopyFrom(node)
    del renamed.input[:]
    renamed.input.extend(names)
    from onnx.reference import ReferenceEvaluator

    feeds = {name: operand for name, operand in zip(names, operands, strict=True) if operand is not None}
    wanted = [name for name in node.output if name]
    inputs = [onnx.ValueInfoProto(name=name) for name in feeds]
    graph = onnx.helper.make_graph([renamed], "node", inputs, [onnx.ValueInfoProto(name=name) for name in wanted])
    try:
        evaluator = ReferenceEvaluator(
            onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
        )
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a mean of nothing, for one
            results = evaluator.run(wanted, feeds)
    except Exception as error:
        raise ModelError(f"node {node.name or node.output[0]}: {node.op_type} of constants: {error}") from error
    return [np.asarray(result) for result in results]


def dequantised(
    opset: int, attributes: Mapping[str, Any], operands: Sequence[NDArray[Any] | None], name: str
) -> NDArray[Any]:
    """Return what DequantizeLinear gives for known operands. Raises ModelError."""
    inputs = [f"in{index}" if operand is not None else "" for index, operand in enumerate(operands)]
    node = onnx.helper.make_node("DequantizeLinear", inputs, ["y"], name, **attributes)
    return _run(node, max(opset, FIRST_DEQUANTIZE), operands)[0]


def _evaluate_common(node: onnx.NodeProto, operands: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    """The operators of shape arithmetic, which large models hold by the hundred."""
    first = operands[0] if operands else None
    if first is None:
        return None
    attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    match node.op_type:
        case "ConstantOfShape":
            value = np.zeros(1, np.float32)
            for attribute in node.attribute:
                value = onnx.numpy_helper.to_array(attribute.t)
            shape = tuple(first.reshape(-1).tolist())
            if math.prod(shape) * value.dtype.itemsize > MAX_BYTES:
                raise Unsupported(
                    f"node {node.name or node.output[0]}: a constant of shape {shape}, over {MAX_BYTES} bytes"
                )
            return np.full(shape, value.reshape(-1)[0], value.dtype)
        case "Identity":
            return first
        case "Unsqueeze" if attributes:
            return np.expand_dims(first, tuple(attributes["axes"]))
        case "Cast" if first.dtype.kind == "f":
            return _saturated(first, next(item.i for item in node.attribute if item.name == "to"))
    return None


def _evaluate_product(node: onnx.NodeProto, operands: Sequence[NDArray[Any] | None]) -> NDArray[Any]:
    """The operators of `BLAS`, in an order of additions that is the same everywhere, rounded once."""
    name = f"node {node.name or node.output[0]}: {node.op_type} of constants"
    attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    a, b, *rest = (*operands, None)
    if node.op_type == "Einsum":
        return _einsum(name, attributes["equation"].decode(), [x for x in operands if x is not None])
    if node.op_type not in ("MatMul", "Gemm", "Conv"):
        raise ModelError(f"{name}: its additions have no order that is the same everywhere")
    assert a is not None
    if b is None or any(operand is not None and operand.dtype != a.dtype for operand in (b, *rest)):
        raise ModelError(f"{name}: operands of types {[None if x is None else str(x.dtype) for x in operands]}")
    addend = rest[0].astype(np.float64) if rest[0] is not None else np.zeros(1)
    try:
        match node.op_type:
            case "MatMul":
                wide = products.matmul(a, b)
            case "Gemm" if attributes.get("broadcast", 1):
                left, right = (a.T if attributes.get("transA") else a), (b.T if attributes.get("transB") else b)
                wide = products.matmul(left, right) * float(attributes.get("alpha", 1.0))
                wide = wide + addend * float(attributes.get("beta", 1.0))
            case "Conv" if attributes.get("auto_pad", b"NOTSET") == b"NOTSET":
                rank = a.ndim - 2
                window = {
                    "pads": attributes.get("pads", [0] * 2 * rank),
                    "strides": attributes.get("strides", [1] * rank),
                    "dilations": attributes.get("dilations", [1] * rank),
                }
                wide = products.convolve(a, b, window, int(attributes.get("group", 1)))
                wide = wide + addend.reshape(-1, *[1] * rank)
            case _:
                raise ValueError("attributes of a form that only a handler knows")
    except (ValueError, IndexError) as error:
        raise ModelError(f"{name}: {error}") from error
    with np.errstate(over="ignore"):
        return wide.astype(a.dtype)


def _einsum(name: str, equation: str, operands: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return an Einsum of floats, without NumPy's search for matrix products in it."""
    wide = [operand.astype(np.float64) for operand in operands]
    try:
        with np.errstate(all="ignore"):
            return np.asarray(np.einsum(equation, *wide, optimize=False)).astype(operands[0].dtype)
    except ValueError as error:
        raise ModelError(f"{name}: {error}") from error


def _saturated(array: NDArray[Any], element: int) -> NDArray[Any] | None:
    """Return floats as an integer type of up to 32 bits as the engine converts them, None for other types."""
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element))
    if dtype.kind not in "iu" or dtype.itemsize > 4:
        return None
    info = np.iinfo(dtype)
    whole = np.nan_to_num(np.trunc(array.astype(np.float64)), nan=0.0, posinf=math.inf, neginf=-math.inf)
    return np.asarray(np.clip(whole, info.min, info.max).astype(dtype))
