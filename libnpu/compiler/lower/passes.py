"""Expressions as passes of the matrix engine: sums and products of two tensors, and what its post-processing does to one.

A pass reads tensors as they are, or what earlier passes made, in float32; its accumulator times a scale plus a bias goes through
an activation. One tensor passes as an average over windows of one element. So nothing is rounded to fewer bits than the vector
cores round it to. This module says what the passes of an expression are, and whether they are faster; `pass_tiler.py` emits them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, prod
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C

if TYPE_CHECKING:
    from npu_model.profile import Dpu, Profile
    from numpy.typing import NDArray

    from libnpu.compiler.ir import Expr, Node, Value

_FLOATS = (np.dtype(np.float16), np.dtype(np.float32))
_SINGLE = 4  # bytes of what lies between two passes
_MOST = 4  # passes that are tried; chosen: more take longer than the vector cores
_GAIN = (
    1.5  # times as fast as the vector cores that passes have to be, by this rough prediction; chosen: both may be busy
)

_INSTRUCTIONS = {"hard_swish": 4, "hard_sigmoid": 3, "prelu": 3, "clip": 2, "leaky_relu": 2}  # where there are several

Source = tuple[str, int]  # ("in", operand of the node) or ("pass", number)


@dataclass(slots=True, frozen=True)
class Pass:
    """(The sum or product of two sources, or one alone) * scale + bias, then the activation. Scale and bias: of all channels or of each."""

    op: int  # enum npu_dpu_op
    sources: tuple[Source, ...]
    scale: NDArray[Any]
    bias: NDArray[Any]
    act: tuple[Any, ...] | None = None

    @property
    def is_linear(self) -> bool:
        """Whether nothing follows the bias."""
        return self.act is None

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two passes the same."""
        return self.op, self.sources, self.scale.tobytes(), self.bias.tobytes(), self.act

    @property
    def per_channel(self) -> bool:
        """Whether channels differ."""
        return self.scale.size > 1 or self.bias.size > 1


class _NoPassError(Exception):
    """The engine does not have the expression."""


def passes_of(node: Node, profile: Profile, tiles: int) -> tuple[Pass, ...] | None:
    """Return the passes of an Elementwise node on so many tiles; None where the vector cores do it: the engine cannot, or is not faster.

    The last pass makes the result, each other one a float32 tensor of its shape.
    """
    out = node.outputs[0]
    computed = [value for value in node.inputs if value is not None and value.const is None]
    if (
        out.dtype not in _FLOATS
        or node.attrs["expr"][0] == "in"  # a change of type is one of order as well
        or any(value.dtype not in _FLOATS or value.shape != out.shape for value in computed)
    ):
        return None
    try:
        found = _Parser(node).passes()
    except _NoPassError:
        return None
    shave = profile.shave
    sizes = sum(value.dtype.itemsize for value in (*computed, out))
    each = max(sizes / shave.load_bytes_per_cycle, _operators(node.attrs["expr"]) / shave.lanes["f32"])
    vector = (shave.startup_cycles + prod(out.shape) * each / (tiles * profile.shaves_per_tile)) / shave.clock_hz
    return found if passes_cycles(found, node, profile.dpu) / tiles / profile.dpu.clock_hz * _GAIN < vector else None


def passes_cycles(passes: tuple[Pass, ...], node: Node, dpu: Dpu) -> float:
    """Return the cycles that passes take one DPU at least, without start-up."""
    out, total = node.outputs[0], 0.0
    for number, one in enumerate(passes):
        sizes = [_SINGLE if kind == "pass" else _operand(node, index).dtype.itemsize for kind, index in one.sources]
        written = out.dtype.itemsize if number == len(passes) - 1 else _SINGLE
        rates = [max(dpu.act_read_bytes_per_cycle.values())]
        if len(sizes) == 2:
            rates = [dpu.act_read_bytes_per_cycle["8x16"], dpu.wt_read_bytes_per_cycle["8x16"]]
        total += prod(out.shape) * max(
            sum(sizes) / dpu.cmx_read_bytes_per_cycle,
            *(size / rate for size, rate in zip(sizes, rates, strict=True)),
            written / dpu.cmx_write_bytes_per_cycle,
            1 / dpu.ppe_float_elements_per_cycle,
            1 / (dpu.eltwise_elements_per_cycle if len(sizes) == 2 else max(dpu.dw_macs_per_cycle.values())),
        )
    return total


def _operators(expr: Expr) -> int:
    """Return about how many instructions the vector core has for each element."""
    return 0 if expr[0] in ("in", "const") else _INSTRUCTIONS.get(expr[0], 1) + sum(map(_operators, expr[1:]))


def _operand(node: Node, index: int) -> Value:
    value = node.inputs[index]
    assert value is not None
    return value


class _Parser:
    """Passes of one node's expression, as they are found to be needed."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.channels = node.outputs[0].shape[1] if len(node.outputs[0].shape) == 4 else 0
        self.found: list[Pass] = []
        self.terms: dict[Expr, Pass | NDArray[Any]] = {}

    def passes(self) -> tuple[Pass, ...]:
        """Return the passes. Raises _NoPassError."""
        last = self.term(self.node.attrs["expr"])
        if not isinstance(last, Pass):
            raise _NoPassError
        self.found.append(last)
        if len(self.found) > _MOST:
            raise _NoPassError
        return tuple(self.found)

    def term(self, expr: Expr) -> Pass | NDArray[Any]:
        """Return what an expression is: a pass that has not been taken yet, or constants in float64."""
        if expr not in self.terms:
            self.terms[expr] = self._term(expr)
        return self.terms[expr]

    def _term(self, expr: Expr) -> Any:
        if expr[0] == "const":
            return np.array([float(expr[1])])
        if expr[0] == "in":
            return self._input(expr[1])
        operands: list[Any] = [self.term(child) for child in expr[1:]]
        match expr[0], operands:
            case "add", [x, y]:
                return self._sum(x, y)
            case "sub", [x, y]:
                return self._sum(x, self._scaled(y, np.array([-1.0])))
            case "mul", [x, y]:
                return self._product(x, y)
            case "relu", [Pass() as x]:
                return self._activated(x, ("relu",))
            case "clip", [Pass() as x, low, high]:
                return self._activated(x, ("clip", _number(low), _number(high)))
            case "max", [Pass() as x, low] if not isinstance(low, Pass):
                return self._activated(x, ("clip", _number(low), inf))
            case "min", [Pass() as x, high] if not isinstance(high, Pass):
                return self._activated(x, ("clip", -inf, _number(high)))
            case "hard_sigmoid", [Pass() as x, alpha, beta]:
                line = self._sum(self._scaled(x, _numbers(alpha)), _numbers(beta))
                return self._activated(line, ("clip", 0.0, 1.0))
            case "hard_swish", [Pass() as x]:
                gate = self._activated(self._sum(x, np.array([3.0])), ("clip", 0.0, 6.0))
                sixth = self._scaled(x, np.array([1 / 6]))  # first, so that the product is in range
                return self._both(C.NPU_DPU_ELTWISE_MUL, sixth, gate, np.ones(1))
            case "leaky_relu" | "prelu", [Pass() as x, slope]:
                return self._leaky(x, _numbers(slope))
        raise _NoPassError

    def _input(self, index: int) -> Pass | NDArray[Any]:
        value = _operand(self.node, index)
        whole = Pass(C.NPU_DPU_AVGPOOL, (("in", index),), np.ones(1), np.zeros(1))
        if value.const is None:
            return whole
        shape = (1,) * (4 - value.const.ndim) + value.const.shape
        if value.const.size == 1 or (self.channels > 1 and shape == (1, self.channels, 1, 1)):
            return value.const.reshape(-1).astype(np.float64)
        if value.dtype not in _FLOATS or value.shape[-1:] != self.node.outputs[0].shape[-1:]:
            raise _NoPassError
        return whole

    def _taken(self, one: Pass) -> Source:
        """Return a pass as the source of another one. A constant is no pass of its own."""
        first, *others = one.sources
        if not others and first[0] == "in" and _operand(self.node, first[1]).const is not None:
            raise _NoPassError
        for number, known in enumerate(self.found):
            if known.key == one.key:
                return "pass", number
        self.found.append(one)
        return "pass", len(self.found) - 1

    def _both(self, op: int, x: Pass, y: Pass, scale: NDArray[Any]) -> Pass:
        alone = [_is_source(one) for one in (x, y)]
        types = {_operand(self.node, one.sources[0][1]).dtype for one in (x, y) if _is_source(one)}
        if (all(alone) and len(types) == 1) or types == {_FLOATS[1]}:
            sources = tuple(one.sources[0] if own else self._taken(one) for own, one in zip(alone, (x, y), strict=True))
        else:
            sources = (self._taken(x), self._taken(y))
        return Pass(op, sources, scale, np.zeros(1))

    def _sum(self, x: Pass | NDArray[Any], y: Pass | NDArray[Any]) -> Pass:
        if isinstance(x, Pass) and isinstance(y, Pass):
            return self._both(C.NPU_DPU_ELTWISE_ADD, x, y, np.ones(1))
        if isinstance(y, Pass):
            x, y = y, x
        if not isinstance(x, Pass) or isinstance(y, Pass):
            raise _NoPassError
        if not x.is_linear:
            x = self._again(x)
        return replace(x, bias=x.bias + y)

    def _product(self, x: Pass | NDArray[Any], y: Pass | NDArray[Any]) -> Pass:
        if isinstance(x, Pass) and isinstance(y, Pass):
            scale = np.ones(1)
            if x.is_linear and not np.any(x.bias) and x.scale.size == 1:  # factors go behind the product
                scale, x = scale * x.scale, replace(x, scale=np.ones(1))
            if y.is_linear and not np.any(y.bias) and y.scale.size == 1:
                scale, y = scale * y.scale, replace(y, scale=np.ones(1))
            return self._both(C.NPU_DPU_ELTWISE_MUL, x, y, scale)
        if isinstance(y, Pass):
            x, y = y, x
        if not isinstance(x, Pass) or isinstance(y, Pass):
            raise _NoPassError
        found: Pass = self._scaled(x, y)
        return found

    def _scaled(self, x: Any, factor: NDArray[Any]) -> Any:
        """Return a pass, or constants, times a factor."""
        if not isinstance(x, Pass):
            return x * factor
        if not x.is_linear:
            x = self._again(x)
        return replace(x, scale=x.scale * factor, bias=x.bias * factor)

    def _activated(self, x: Pass, act: tuple[Any, ...]) -> Pass:
        return replace(x if x.is_linear else self._again(x), act=act)

    def _again(self, x: Pass) -> Pass:
        """Return what reads the result of a pass."""
        return Pass(C.NPU_DPU_AVGPOOL, (self._taken(x),), np.ones(1), np.zeros(1))

    def _leaky(self, x: Pass, slope: NDArray[Any]) -> Pass:
        """One slope is the engine's; of several, both sides are computed, and one of the two is 0."""
        if slope.size == 1:
            return self._activated(x, ("leaky_relu", float(slope[0])))
        below = ("clip", -inf, 0.0)
        if np.any(slope < 0):
            low = self._scaled(self._activated(x, below), slope)
        else:
            low = self._activated(self._scaled(x, slope), below)
        return self._sum(self._activated(x, ("relu",)), low)


def _is_source(one: Pass) -> bool:
    """Whether a pass is an operand as it is."""
    kind, _ = one.sources[0]
    plain = np.all(one.scale == 1) and not np.any(one.bias) and one.is_linear
    return len(one.sources) == 1 and kind == "in" and bool(plain)


def _numbers(term: Pass | NDArray[Any]) -> NDArray[Any]:
    if isinstance(term, Pass):
        raise _NoPassError
    return term


def _number(term: Pass | NDArray[Any]) -> float:
    numbers = _numbers(term)
    if numbers.size != 1:
        raise _NoPassError
    return float(numbers[0])
