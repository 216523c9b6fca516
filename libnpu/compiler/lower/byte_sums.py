"""Sums of two 8-bit values that become 8-bit values: on the matrix engine where all 65,536 pairs of operands give the same there.

The engine adds both, multiplies by one scale, adds a bias, and rounds: so the values need one scale. Where the vector cores round
in between, a result may differ in its last bit; then the expression stays theirs.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C

from libnpu.compiler.ir import Node, Value
from libnpu.compiler.lower.invariant import ppe_fields
from libnpu.compiler.products import matmul
from libnpu.compiler.reference import run_node

if TYPE_CHECKING:
    from libnpu.compiler.ir import Expr

_BYTES = (np.dtype(np.int8), np.dtype(np.uint8))
_LARGEST = 255  # byte, and zero point of bytes
_SAME = 1e-5  # relative difference of scales that are meant to be one; all pairs are looked at anyway

Linear = tuple[float, float, float]  # a · first + b · second + c


def byte_sum(node: Node) -> tuple[list[Value], dict[str, Any]] | None:
    """Return operands and the fields of an invariant of an Elementwise node; None where the engine would not give every bit."""
    values, out, expr = [value for value in node.inputs if value is not None], node.outputs[0], node.attrs["expr"]
    if (
        len(values) != 2
        or out.dtype not in _BYTES
        or values[0].dtype not in _BYTES
        or values[1].dtype != values[0].dtype
    ):
        return None
    if any(value.const is not None or value.shape != out.shape for value in values):
        return None
    fields = _fields(expr, values[0].dtype, out.dtype)
    return None if fields is None else (values, dict(fields))


@cache
def _fields(expr: Expr, dtype: np.dtype[Any], out: np.dtype[Any]) -> dict[str, Any] | None:
    """Return the fields of an invariant for an expression of two operands of `dtype`."""
    found = _rounded(expr[1]) if expr[0] == "cast_i32" else None
    if found is None:
        return None
    (first, second, bias), act, zero = found
    if not 0 < first <= np.finfo(np.float32).max or abs(first - second) > _SAME * first:
        return None
    fields = ppe_fields(act) | {"op": C.NPU_DPU_ELTWISE_ADD, "ppe_scale": float(np.float32(first))}
    fields |= {"ppe_bias": float(np.float32(bias)), "out_zero_point": zero}
    return fields if _gives_every_bit(expr, dtype, out, fields) else None


def _rounded(expr: Expr) -> tuple[Linear, tuple[Any, ...] | None, int] | None:
    """Return what is rounded, what is clipped before, and the zero point, of `clip(round(...) + zero)`, which saturates."""
    if expr[0] != "clip" or expr[1][0] not in ("add", "round"):
        return None
    moved, zero = expr[1], 0.0
    if moved[0] == "add":
        place = _linear(moved[2])
        if place is None or any(place[:2]):
            return None
        moved, zero = moved[1], place[2]
    if moved[0] != "round" or not zero.is_integer() or abs(zero) > _LARGEST:
        return None
    act: tuple[Any, ...] | None = None
    scaled, factor = moved[1], 1.0
    if scaled[0] in ("mul", "div") and scaled[1][0] in ("relu", "clip"):
        by = _linear(scaled[2])
        if by is None or any(by[:2]) or not by[2] > 0:
            return None
        factor, scaled = (by[2] if scaled[0] == "mul" else 1 / by[2]), scaled[1]
    if scaled[0] == "relu":
        scaled, act = scaled[1], ("relu",)
    elif scaled[0] == "clip":
        ends = [_linear(end) for end in scaled[2:]]
        if any(end is None or any(end[:2]) for end in ends):
            return None
        scaled, act = scaled[1], ("clip", *(end[2] * factor for end in ends if end is not None))
    found = _linear(scaled)
    if found is None:
        return None
    first, second, bias = (number * factor for number in found)
    return (first, second, bias), act, int(zero)


def _linear(expr: Expr) -> Linear | None:
    """Return an expression as a sum of multiples of the two operands and a number; None where it is not one."""
    if expr[0] == "in":
        return (1.0, 0.0, 0.0) if expr[1] == 0 else (0.0, 1.0, 0.0)
    if expr[0] == "const":
        return (0.0, 0.0, float(expr[1]))
    parts = [_linear(part) for part in expr[1:]]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    match expr[0]:
        case "cast_f32":
            return known[0]
        case "add" | "sub":
            sign = 1 if expr[0] == "add" else -1
            first, second, number = (a + sign * b for a, b in zip(*known, strict=True))
            return first, second, number
        case "mul" | "div":
            left, right = known if not any(known[1][:2]) else known[::-1]
            if any(right[:2]) or (expr[0] == "div" and (left is not known[0] or not right[2])):
                return None
            factor = right[2] if expr[0] == "mul" else 1 / right[2]
            return left[0] * factor, left[1] * factor, left[2] * factor
    return None


def _gives_every_bit(expr: Expr, dtype: np.dtype[Any], out: np.dtype[Any], fields: dict[str, Any]) -> bool:
    """Whether the engine's result is the expression's for all pairs of operands, step by step in float32 as it computes."""
    info = np.iinfo(out)
    each = np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1).astype(dtype)
    a, b = (np.ascontiguousarray(grid) for grid in np.meshgrid(each, each, indexing="ij"))
    table = Value("table", a.shape, out)
    wanted = run_node(Node("Elementwise", "table", [None, None], [table], {"expr": expr}), [a, b], matmul)
    v = (a.astype(np.float32) + b.astype(np.float32)) * np.float32(fields["ppe_scale"]) + np.float32(fields["ppe_bias"])
    if fields["ppe_fn"] == C.NPU_PPE_RELU:
        v = np.where(v < 0, np.float32(0), v)
    v = np.clip(v, np.float32(fields["clamp_low"]), np.float32(fields["clamp_high"]))
    found = np.clip(np.rint(v.astype(np.float64)) + fields["out_zero_point"], info.min, info.max)
    return bool(np.array_equal(found, wanted))
