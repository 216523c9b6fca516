"""Scan and Loop, unrolled: the body once for each step, on slices of the scanned inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.compiler.frontend.source import ModelError
from libnpu.errors import Unimplemented, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from libnpu.compiler.frontend.builder import Builder
    from libnpu.compiler.ir import Value

    Body = Callable[[list[Value], int], list[Value]]  # of a step's inputs and its number

MAX_STEPS = 1024  # chosen: the body's nodes so many times


def scan(build: Builder, name: str, attrs: Mapping[str, Any], inputs: Sequence[Value], body: Body) -> list[Value]:
    """Return the states after the last step and what the steps stacked up."""
    scanned = int(attrs["num_scan_inputs"])
    states, sequences = list(inputs[: len(inputs) - scanned]), list(inputs[len(inputs) - scanned :])
    backward = attrs.get("scan_input_directions", [0] * scanned)
    axes = [
        _axis(name, axis, len(x.shape))
        for axis, x in zip(attrs.get("scan_input_axes", [0] * scanned), sequences, strict=True)
    ]
    lengths = {x.shape[axis] for axis, x in zip(axes, sequences, strict=True)}
    if len(lengths) != 1:
        raise ModelError(f"node {name}: Scan over sequences of {sorted(lengths)} elements")
    (steps,) = lengths
    if not 0 < steps <= MAX_STEPS:
        raise Unimplemented(f"node {name}: Scan of {steps} steps, 1 to {MAX_STEPS}")
    rows: list[list[Value]] = []
    for step in range(steps):
        elements = [
            taken(build, x, axis, steps - 1 - step if turned else step)
            for x, axis, turned in zip(sequences, axes, backward, strict=True)
        ]
        results = body([*states, *elements], step)
        states = results[: len(states)]
        rows.append(results[len(states) :])
    columns = [list(column) for column in zip(*rows, strict=True)]
    out_backward = attrs.get("scan_output_directions", [0] * len(columns))
    out_axes = attrs.get("scan_output_axes", [0] * len(columns))
    stacks = [
        stacked(build, column[::-1] if turned else column, _axis(name, axis, len(column[0].shape) + 1))
        for column, turned, axis in zip(columns, out_backward, out_axes, strict=True)
    ]
    return [*states, *stacks]


def loop(build: Builder, name: str, inputs: Sequence[Value | None], body: Body) -> list[Value]:
    """Return the states behind the last step of a Loop, and what the steps stacked up.

    How many steps there are must be known when the model is compiled. Raises Unsupported naming what is not.
    """
    count, condition, *states = inputs
    for value, what in ((count, "trip count"), (condition, "condition")):
        if value is not None and value.const is None:
            raise Unsupported(f"node {name}: {what} of Loop ({value.name}) is not a constant")
    most = MAX_STEPS + 1 if count is None or count.const is None else int(count.const.reshape(-1)[0])
    goes_on = condition is None or condition.const is None or bool(condition.const.reshape(-1)[0])
    current: list[Value] = [value for value in states if value is not None]
    rows: list[list[Value]] = []
    while goes_on and len(rows) < most:
        if len(rows) == MAX_STEPS:
            raise Unimplemented(f"node {name}: Loop of more than {MAX_STEPS} steps")
        step = build.const(np.array(len(rows), np.int64), "step")
        again = build.const(np.array(True), "goes on")
        found, *results = body([step, again, *current], len(rows))
        if found.const is None:
            raise Unsupported(f"node {name}: Loop with a condition that is computed at run time")
        goes_on = bool(found.const.reshape(-1)[0])
        current = results[: len(states)]
        rows.append(results[len(states) :])
    if not rows:
        raise Unsupported(f"node {name}: Loop of no step")
    return [*current, *(stacked(build, list(column), 0) for column in zip(*rows, strict=True))]


def batched_scan(
    build: Builder, name: str, attrs: Mapping[str, Any], inputs: Sequence[Value | None], body: Body
) -> list[Value]:
    """Return what Scan of operator set 8 gives: lengths first, which must be left out, and a batch axis in front of everything."""
    if inputs[0] is not None:
        raise Unimplemented(f"node {name}: Scan with lengths of its sequences")
    present = [value for value in inputs[1:] if value is not None]
    plain = {"num_scan_inputs": attrs["num_scan_inputs"]}
    if "directions" in attrs:
        plain["scan_input_directions"] = attrs["directions"]
    count = present[0].shape[0]
    results = [
        scan(build, name, plain, [taken(build, value, 0, index) for value in present], body) for index in range(count)
    ]
    return [stacked(build, list(parts), 0) for parts in zip(*results, strict=True)]


def taken(build: Builder, x: Value, axis: int, place: int) -> Value:
    """Return the element at `place` of an axis, without that axis."""
    one = build.slice(x, {axis: (place, place + 1, 1)})
    return build.reshape(one, [dim for index, dim in enumerate(x.shape) if index != axis])


def stacked(build: Builder, parts: list[Value], axis: int) -> Value:
    """Return values of one shape beside each other on a new axis."""
    shape = parts[0].shape
    rows = [build.reshape(part, (*shape[:axis], 1, *shape[axis:])) for part in parts]
    return rows[0] if len(rows) == 1 else build.emit("Concat", rows, {"axis": axis})


def _axis(name: str, axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ModelError(f"node {name}: Scan on axis {axis} of rank {rank}")
    return axis % rank
