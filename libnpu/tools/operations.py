"""Single operations as ONNX models, for tools that measure one: `vadd`, `matmul`, `softmax`; `vadd-scalar` is scalar_add.py's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from libnpu.tools.console import ToolError

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZES = {
    "vadd": (1 << 20,),
    "vadd-scalar": (4096,),
    "matmul": (1024,),
    "softmax": (768, 64),
}  # when none is given; softmax: 12 heads of 64 rows
DTYPES = ("fp32", "fp16")
MAX_ELEMENTS = 1 << 28  # of a tensor: chosen


def operation_model(op: str, size: Sequence[int], dtype: str) -> Any:
    """Return an onnx.ModelProto of one operation. `size`: elements of vadd; M, N, K of matmul, or one number for all; rows and columns
    of softmax. Raises ToolError for another number of sizes, and for too much.
    """
    from onnx import TensorProto, helper

    shapes: dict[str, tuple[int, ...]]
    out: tuple[int, ...]
    if op == "vadd" and len(size) == 1:
        kind, shapes, out = "Add", {"a": (size[0],), "b": (size[0],)}, (size[0],)
    elif op == "matmul" and len(size) in (1, 3):
        m, n, k = size if len(size) == 3 else (*size, *size, *size)
        kind, shapes, out = "MatMul", {"a": (m, k), "b": (k, n)}, (m, n)
    elif op == "softmax" and len(size) == 2:
        kind, shapes, out = "Softmax", {"a": tuple(size)}, tuple(size)
    else:
        wanted = {"vadd": "N", "matmul": "N or M,N,K", "softmax": "ROWS,COLUMNS"}[op]
        raise ToolError(f"--size {','.join(map(str, size))}: expected {wanted} for {op}")
    for shape in (*shapes.values(), out):
        elements = 1
        for dim in shape:
            elements *= dim
        if not 0 < elements <= MAX_ELEMENTS:
            raise ToolError(
                f"--size {','.join(map(str, size))}: a tensor of {elements} elements; 1 to {MAX_ELEMENTS} are allowed"
            )
    element = TensorProto.FLOAT16 if dtype == "fp16" else TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node(kind, list(shapes), ["y"], name=op)],
        f"{op} {dtype}",
        [helper.make_tensor_value_info(name, element, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("y", element, out)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
