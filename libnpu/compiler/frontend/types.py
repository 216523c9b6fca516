"""Operand types of source nodes, against ONNX's schemas: what is allowed, and which operands must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from libnpu.compiler.frontend.source import MIN_OPSET, ModelError
from libnpu.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libnpu.compiler.ir import Value


def check_version(op: str, opset: int, name: str) -> None:
    """Raise Unsupported for an operator of an operator set before `MIN_OPSET` that has changed until then."""
    if opset < MIN_OPSET:
        old, known = (onnx.defs.get_schema(op, version, "").since_version for version in (opset, MIN_OPSET))
        if old != known:
            newest = onnx.defs.onnx_opset_version()
            raise Unsupported(f"node {name}: {op} of operator set {opset}; {MIN_OPSET} to {newest} are known")


def check_types(op: str, opset: int, name: str, inputs: Sequence[Value | None]) -> None:
    """Raise ModelError, naming node and value, when an operand has a type that the operator does not take."""
    schema = onnx.defs.get_schema(op, opset, "")
    parameters = schema.inputs
    agreed: dict[str, Value] = {}
    for index, value in enumerate(inputs):
        if value is None:
            continue
        if not parameters or (index >= len(parameters) and not _is_variadic(parameters[-1])):
            raise ModelError(f"node {name}: {op} has {len(inputs)} inputs, at most {len(parameters)} are allowed")
        parameter = parameters[min(index, len(parameters) - 1)]
        if type_name(value) not in parameter.types:
            allowed = ", ".join(sorted(kind.removeprefix("tensor(").rstrip(")") for kind in parameter.types))
            raise ModelError(f"node {name}: input {value.name} of {op} has type {value.dtype}; allowed: {allowed}")
        if _is_variadic(parameter) and not parameter.is_homogeneous:
            continue
        first = agreed.setdefault(parameter.type_str, value)
        if first.dtype != value.dtype:
            raise ModelError(
                f"node {name}: inputs {first.name} ({first.dtype}) and {value.name} ({value.dtype}) of {op} "
                "must have one type"
            )


def type_name(value: Value) -> str:
    """Return the type of a value as schemas spell it, e.g. tensor(float)."""
    element = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return f"tensor({onnx.TensorProto.DataType.Name(element).lower()})"


def _is_variadic(parameter: onnx.defs.OpSchema.FormalParameter) -> bool:
    return bool(parameter.option == onnx.defs.OpSchema.FormalParameterOption.Variadic)
