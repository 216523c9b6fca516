"""Handlers of LSTM, GRU and RNN, and of an LSTM of integers: unrolled, a matrix product with the recurrent weights and an expression or two per step.

The products of all inputs with the input weights are one for the sequence. Sequences shorter than the longest keep their
state, and give zeros, from their end on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.compiler.frontend.ops_quantised import dynamically_quantised, product, scaled
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from libnpu.compiler.frontend.builder import Builder
    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Expr, Value

X: Expr = ("in", 0)
Y: Expr = ("in", 1)
MAX_STEPS = 1024  # chosen: a graph of some ten nodes for each
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


@dataclass(slots=True)
class _Weights:
    """Weights [inputs or hidden, gates · hidden]; of 8 bits when they have a scale, and a zero point, of one number or one per column."""

    value: Value
    scale: Value | None = None
    zero: Value | None = None


@dataclass(slots=True)
class _Pass:
    """One direction: weights of the gates, biases [gates · hidden] or None, activations."""

    call: Call
    w: _Weights
    r: _Weights
    w_bias: Value | None
    r_bias: Value | None
    peepholes: Value | None
    functions: list[Callable[[Expr], Expr]]
    hidden: int

    @property
    def build(self) -> Builder:
        return self.call.build

    def clipped(self, expr: Expr) -> Expr:
        limit = self.call.attrs.get("clip")
        return expr if limit is None else ("clip", expr, ("const", -float(limit)), ("const", float(limit)))

    def gate(self, x: Value, index: int) -> Value:
        """Return columns of gate `index` of [batch, gates · hidden]."""
        return self.build.slice(x, {1: (index * self.hidden, (index + 1) * self.hidden, 1)})

    def product(self, a: Value, b: _Weights, bias: Value | None) -> Value:
        """Return a · b plus a bias; for weights of 8 bits `a` becomes uint8 over its own range."""
        build = self.build
        if b.scale is not None:
            whole, scale, zero = dynamically_quantised(build, a)
            return scaled(self.call, product(self.call, whole, b.value, zero, b.zero), scale, b.scale, bias)
        own = bias if bias is None or bias.const is not None else None
        result = build.emit("MatMul", [a, b.value, own], {"act": None, "scale": 1.0})
        return (
            result if bias is own else build.elementwise(("add", X, Y), [result, bias]) if bias is not None else result
        )

    def peephole(self, index: int) -> Value | None:
        return None if self.peepholes is None else self.gate(self.peepholes, index)


def dynamic_lstm(call: Call) -> list[Value]:
    """DynamicQuantizeLSTM: an LSTM of weights of 8 bits [directions, inputs or hidden, gates · hidden]."""
    w, r = (call.build.transpose(call.input(index), [0, 2, 1]) for index in (1, 2))
    inputs = [call.input(0), w, r, *call.inputs[3:8]]
    return recurrent(replace(call, op="LSTM", inputs=inputs), [call.input(index) for index in range(8, 12)])


def recurrent(call: Call, scales: Sequence[Value] = ()) -> list[Value]:
    """Return Y [steps, directions, batch, hidden], Y_h and of an LSTM Y_c [directions, batch, hidden], as `layout` says.

    `scales` are scale and zero point of input weights, then of recurrent ones, by direction, where they are of 8 bits.
    """
    x, w, r, build = call.input(0), call.input(1), call.input(2), call.build
    batch_first = bool(call.attrs.get("layout", 0))
    if batch_first:
        x = build.transpose(x, [1, 0, 2])
    steps, batch, inputs = x.shape
    gates, direction = GATES[call.op], call.attrs.get("direction", b"forward").decode()
    hidden, count = r.shape[2], 2 if direction == "bidirectional" else 1
    if w.shape != (count, gates * hidden, inputs) or r.shape != (count, gates * hidden, hidden):
        raise ModelError(f"node {call.name}: {call.op} with weights {w.shape} and {r.shape}, inputs {x.shape}")
    call.expect(3, (count, 2 * gates * hidden))
    call.expect(7, (count, 3 * hidden))
    if steps > MAX_STEPS:
        raise call.unimplemented(f"{steps} steps, at most {MAX_STEPS}")
    functions = _activations(call, count)
    lengths = call.optional(4)
    ends: list[list[Value]] = []
    sequences: list[Value] = []
    for index in range(count):
        bias = _row(build, call.optional(3), index)
        half = gates * hidden
        steps_of = [_row(build, value, index) for value in scales]
        one = _Pass(
            call,
            _Weights(build.transpose(_row(build, w, index), [1, 0]), *steps_of[:2]),
            _Weights(build.transpose(_row(build, r, index), [1, 0]), *steps_of[2:]),
            None if bias is None else _part(build, bias, 0, half),
            None if bias is None else _part(build, bias, half, 2 * half),
            None if call.optional(7) is None else build.reshape(_row(build, call.optional(7), index), (1, 3 * hidden)),
            functions[index],
            hidden,
        )
        states = [_initial(call, place, index, (count, batch, hidden), batch_first) for place in (5, 6)]
        backward = direction == "reverse" or index == 1
        outputs, last = _unrolled(one, x, states[: 2 if call.op == "LSTM" else 1], lengths, backward)
        sequences.append(build.reshape(outputs, (steps, 1, batch, hidden)))
        ends.append([build.reshape(state, (1, batch, hidden)) for state in last])
    y = sequences[0] if count == 1 else build.emit("Concat", sequences, {"axis": 1})
    finals = [
        parts[0] if count == 1 else build.emit("Concat", list(parts), {"axis": 0}) for parts in zip(*ends, strict=True)
    ]
    if batch_first:
        y = build.transpose(y, [2, 0, 1, 3])
        finals = [build.transpose(final, [1, 0, 2]) for final in finals]
    return [y, *finals]


def _row(build: Builder, value: Value | None, index: int) -> Any:
    """Return a direction's part of a value that has directions first; None of None."""
    if value is None:
        return None
    if value.const is not None:
        return build.const(np.ascontiguousarray(value.const[index]), value.name)
    return build.reshape(build.slice(value, {0: (index, index + 1, 1)}), value.shape[1:])


def _part(build: Builder, row: Value, start: int, stop: int) -> Value:
    if row.const is not None:
        return build.const(row.const[start:stop], row.name)
    return build.slice(row, {0: (start, stop, 1)})


def _initial(call: Call, place: int, index: int, shape: tuple[int, ...], batch_first: bool) -> Value:
    """Return the state [batch, hidden] that a direction begins with; zeros when none is given."""
    given, build = call.optional(place), call.build
    if given is None or (place == 6 and call.op != "LSTM"):
        return build.const(np.zeros(shape[1:], call.input(0).dtype), f"{call.name}.start")
    if batch_first:
        given = build.transpose(given, [1, 0, 2])
    if given.shape != shape:
        raise ModelError(f"node {call.name}: {call.op}: {given.name} has shape {given.shape}, expected {shape}")
    start: Value = _row(build, given, index)
    return start


def _unrolled(
    one: _Pass, x: Value, states: list[Value], lengths: Value | None, backward: bool
) -> tuple[Value, list[Value]]:
    """Return the outputs [steps, batch, hidden] and the states after the last step of each sequence."""
    build = one.build
    steps, batch, inputs = x.shape
    flat = one.product(build.reshape(x, (steps * batch, inputs)), one.w, one.w_bias)
    step_of = {"LSTM": _lstm_step, "GRU": _gru_step, "RNN": _rnn_step}[one.call.op]
    outputs: list[Value] = []
    for step in range(steps)[:: -1 if backward else 1]:
        fed = build.slice(flat, {0: (step * batch, (step + 1) * batch, 1)})
        new = step_of(one, fed, states)
        shown = new[0]
        if lengths is not None:
            goes_on: Expr = ("gt", ("in", 2), ("const", step))
            length = build.reshape(lengths, (batch, 1))
            shown = build.elementwise(("where", ("gt", Y, ("const", step)), X, ("const", 0.0)), [new[0], length])
            new = [
                build.elementwise(("where", goes_on, X, Y), [after, before, length])
                for after, before in zip(new, states, strict=True)
            ]
        states = new
        outputs.append(build.reshape(shown, (1, batch, one.hidden)))
    outputs = outputs[::-1] if backward else outputs
    return (build.emit("Concat", outputs, {"axis": 0}) if steps > 1 else outputs[0]), states


def _rnn_step(one: _Pass, fed: Value, states: list[Value]) -> list[Value]:
    recurrence = one.product(states[0], one.r, one.r_bias)
    return [one.build.elementwise(one.functions[0](one.clipped(("add", X, Y))), [fed, recurrence])]


def _gru_step(one: _Pass, fed: Value, states: list[Value]) -> list[Value]:
    """Gates z, r, h; the reset gate works on the state, or with linear_before_reset on its product."""
    build, (state,) = one.build, states
    f, g = one.functions
    recurrence = one.product(state, one.r, one.r_bias)
    update, reset = (
        build.elementwise(f(one.clipped(("add", X, Y))), [one.gate(fed, i), one.gate(recurrence, i)]) for i in (0, 1)
    )
    if one.call.attrs.get("linear_before_reset", 0):
        inputs = [one.gate(fed, 2), reset, one.gate(recurrence, 2)]
        new = build.elementwise(g(one.clipped(("add", X, ("mul", Y, ("in", 2))))), inputs)
    else:
        kept = build.elementwise(("mul", X, Y), [reset, state])
        bias = None if one.r_bias is None else _part(build, one.r_bias, 2 * one.hidden, 3 * one.hidden)
        weights = _Weights(build.slice(one.r.value, {1: (2 * one.hidden, 3 * one.hidden, 1)}))
        new = build.elementwise(g(one.clipped(("add", X, Y))), [one.gate(fed, 2), one.product(kept, weights, bias)])
    mixed: Expr = ("add", ("mul", ("sub", ("const", 1.0), X), Y), ("mul", X, ("in", 2)))
    return [build.elementwise(mixed, [update, new, state])]


def _lstm_step(one: _Pass, fed: Value, states: list[Value]) -> list[Value]:
    """Gates i, o, f, c; peepholes i, o, f look at the cell, that of o at the new one."""
    build, (state, cell) = one.build, states
    f, g, h = one.functions
    total = build.elementwise(("add", X, Y), [fed, one.product(state, one.r, one.r_bias)])

    def gate(index: int, place: int, looked_at: Value) -> Value:
        look, part = one.peephole(place), one.gate(total, index)
        if look is None:
            return build.elementwise(f(one.clipped(X)), [part])
        return build.elementwise(f(one.clipped(("add", X, ("mul", Y, ("in", 2))))), [part, look, looked_at])

    entry = gate(0, 0, cell)
    one_minus: Expr = ("sub", ("const", 1.0), X)
    forget = build.elementwise(one_minus, [entry]) if one.call.attrs.get("input_forget", 0) else gate(2, 2, cell)
    candidate = build.elementwise(g(one.clipped(X)), [one.gate(total, 3)])
    mixed: Expr = ("add", ("mul", X, Y), ("mul", ("in", 2), ("in", 3)))
    new_cell = build.elementwise(mixed, [forget, cell, entry, candidate])
    shown = build.elementwise(("mul", X, h(Y)), [gate(1, 1, new_cell), new_cell])
    return [shown, new_cell]


def _activations(call: Call, count: int) -> list[list[Callable[[Expr], Expr]]]:
    """Return the functions of each direction."""
    each = _DEFAULTS[call.op]
    names = [name.decode() for name in call.attrs.get("activations", [])] or each * count
    if len(names) != len(each) * count:
        raise ModelError(f"node {call.name}: {call.op} with activations {names}, {len(each) * count} expected")
    alphas, betas = list(call.attrs.get("activation_alpha", [])), list(call.attrs.get("activation_beta", []))
    found = []
    for name in names:
        if name not in _FUNCTIONS:
            raise call.unimplemented(f"activation {name}")
        function, alpha, beta = _FUNCTIONS[name]
        alpha = alpha if alpha is None or not alphas else float(alphas.pop(0))
        beta = beta if beta is None or not betas else float(betas.pop(0))
        found.append(_bound(function, alpha, beta))
    return [found[index * len(each) : (index + 1) * len(each)] for index in range(count)]


def _bound(
    function: Callable[[Expr, Expr, Expr], Expr], alpha: float | None, beta: float | None
) -> Callable[[Expr], Expr]:
    return lambda x: function(x, ("const", alpha or 0.0), ("const", beta or 0.0))


# The function of x, alpha and beta, and the defaults of these; None where it has no such parameter.
_FUNCTIONS: dict[str, tuple[Callable[[Expr, Expr, Expr], Expr], float | None, float | None]] = {
    "Relu": (lambda x, a, b: ("relu", x), None, None),
    "Tanh": (lambda x, a, b: ("tanh", x), None, None),
    "Sigmoid": (lambda x, a, b: ("sigmoid", x), None, None),
    "Softsign": (lambda x, a, b: ("div", x, ("add", ("const", 1.0), ("abs", x))), None, None),
    "Affine": (lambda x, a, b: ("add", ("mul", a, x), b), 1.0, 0.0),
    "LeakyRelu": (lambda x, a, b: ("leaky_relu", x, a), 0.01, None),
    "ThresholdedRelu": (lambda x, a, b: ("where", ("gt", x, a), x, ("const", 0.0)), 1.0, None),
    "ScaledTanh": (lambda x, a, b: ("mul", a, ("tanh", ("mul", b, x))), 1.0, 1.0),
    "HardSigmoid": (lambda x, a, b: ("hard_sigmoid", x, a, b), 0.2, 0.5),
    "Elu": (lambda x, a, b: ("where", ("gt", x, ("const", 0.0)), x, ("mul", a, ("sub", ("exp", x), ("const", 1.0)))), 1.0, None),
}  # fmt: skip
CONTRIBUTED: dict[str, Callable[[Call], list[Value]]] = {"DynamicQuantizeLSTM": dynamic_lstm}
