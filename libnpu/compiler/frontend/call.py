"""Call: one source node with its operands resolved, as the operator handlers see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.compiler.frontend.infer import broadcast
from libnpu.compiler.frontend.source import ModelError
from libnpu.errors import Unimplemented, Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from libnpu.compiler.frontend.builder import Builder
    from libnpu.compiler.frontend.infer import Shape
    from libnpu.compiler.ir import Expr, Value


@dataclass(slots=True)
class Call:
    """One source node. `inputs` has None where the source leaves an optional operand out."""

    op: str
    name: str
    opset: int
    inputs: list[Value | None]
    attrs: dict[str, Any]
    output_count: int
    build: Builder
    declared: list[Shape | None] = field(default_factory=list)  # shapes that the model says of the outputs
    checks: list[Value] = field(
        default_factory=list
    )  # truths on which the outputs depend, tested when the program runs

    def input(self, index: int) -> Value:
        """Return a mandatory operand; raises ModelError."""
        value = self.optional(index)
        if value is None:
            raise ModelError(f"node {self.name}: {self.op} lacks input {index}")
        return value

    def optional(self, index: int) -> Value | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def array(self, index: int, what: str) -> NDArray[Any] | None:
        """Return a constant operand's data, None if it is left out; raises Unsupported if it is computed."""
        value = self.optional(index)
        if value is None:
            return None
        if value.const is None:
            raise Unsupported(f"node {self.name}: {what} of {self.op} ({value.name}) is not a constant")
        return value.const

    def ints(self, index: int, attr: str, since: int) -> list[int] | None:
        """Return integers that are an attribute before opset `since` and an input from then on; None if absent."""
        if self.opset >= since:
            array = self.array(index, attr)
            return None if array is None else [int(item) for item in array.reshape(-1)]
        given = self.attrs.get(attr)
        return None if given is None else [int(item) for item in given]

    def implied(
        self, index: int, what: str, expected: Sequence[int] | None, alternatives: Sequence[ArrayLike] = ()
    ) -> list[int]:
        """Return integers that say a shape; of a computed operand, those that follow from what the model declares.

        The program then checks that each is as expected, or one of its `alternatives`. Raises Unsupported when nothing is declared.
        """
        value = self.input(index)
        if value.const is not None or expected is None or shape_product(value.shape) != len(expected):
            array = self.array(index, what)
            assert array is not None
            return [int(item) for item in array.reshape(-1)]
        kind = np.float32 if is_float(value) else np.int32
        choices = [self.build.const(np.broadcast_to(np.asarray(choice, kind), value.shape).copy(), "implied")
                   for choice in (np.reshape(expected, value.shape), *alternatives)]  # fmt: skip
        holds: Expr = ("eq", ("in", 0), ("in", 1))
        for other in range(2, len(choices) + 1):
            holds = ("or", holds, ("eq", ("in", 0), ("in", other)))
        self.require(holds, [value, *choices])
        return [int(item) for item in expected]

    def is_computed(self, index: int) -> bool:
        """True for an operand that is not known now, where the model declares the first output's shape."""
        value = self.optional(index)
        return value is not None and value.const is None and self.shape() is not None

    def shape(self, output: int = 0) -> Shape | None:
        """Return the declared shape of an output, None when the model says none."""
        return self.declared[output] if output < len(self.declared) else None

    def require(self, holds: Expr, inputs: list[Value]) -> None:
        """Let the program fault when not all elements of an expression are true: its outputs would be wrong."""
        self.checks.append(self.build.elementwise(holds, inputs, np.dtype(np.int32)))

    def checked(self, result: Value) -> Value:
        """Return a result that the program gives only when the checks hold: another index has no place in the table."""
        if not self.checks or result.name == "":
            return result
        build, passed = self.build, None
        for check in self.checks:
            one = build.reduce(check, "min", range(len(check.shape)), False) if check.shape else check
            passed = one if passed is None else build.elementwise(("and", ("in", 0), ("in", 1)), [passed, one])
        assert passed is not None
        place = build.elementwise(("sub", ("mul", ("in", 0), ("const", 2)), ("const", 2)), [passed])  # 0, or -2 of one
        table = build.const(np.zeros(1, np.int32), "checked")
        zero = build.reshape(build.emit("Gather", [table, build.reshape(place, (1,))], {"axis": 0}), ())
        same: Expr = ("where", ("eq", ("in", 1), ("const", 0)), ("in", 0), ("in", 0))
        return build.elementwise(same, [result, zero])

    def per_axis(
        self, attr: str, count: int, default: int, least: int, given: Sequence[int] | None = None
    ) -> list[int]:
        """Return the integers of an attribute, one for each of `count` axes (pads: ends of axes), none below `least`.

        `default` is each one's when the attribute is left out; `given` are the integers where they are no attribute. Raises ModelError.
        """
        values = [int(item) for item in (self.attrs.get(attr, [default] * count) if given is None else given)]
        if len(values) != count:
            raise ModelError(f"node {self.name}: {self.op}: {attr} {values} has {len(values)} items, expected {count}")
        if min(values, default=least) < least:
            raise ModelError(f"node {self.name}: {self.op}: {attr} {values} holds {min(values)}, the least is {least}")
        return values

    def groups(self, attr: str = "group") -> int:
        """Return how many groups of channels there are; raises ModelError."""
        count = int(self.attrs.get(attr, 1))
        if count < 1:
            raise ModelError(f"node {self.name}: {self.op}: {attr} {count}, the least is 1")
        return count

    def scalar(self, index: int, attr: str, since: int) -> float | int | None:
        """As `ints`, for one number of either type."""
        if self.opset >= since:
            array = self.array(index, attr)
            return None if array is None else array.reshape(-1)[0].item()
        given = self.attrs.get(attr)
        return None if given is None else float(given)

    def axis(self, axis: int, rank: int) -> int:
        """Return `axis` as 0..rank-1; raises ModelError."""
        if not -rank <= axis < max(rank, 1):
            raise ModelError(f"node {self.name}: axis {axis} of {self.op} is outside of rank {rank}")
        return axis + rank if axis < 0 else axis

    def axes(self, axes: list[int], rank: int) -> list[int]:
        """Return distinct axes as 0..rank-1; raises ModelError."""
        result = [self.axis(axis, rank) for axis in axes]
        if len(set(result)) != len(result):
            raise ModelError(f"node {self.name}: axes {axes} of {self.op} repeat")
        return result

    def expect(self, index: int, shape: Sequence[int]) -> None:
        """Raise ModelError unless the operand, if present, has `shape`."""
        value = self.optional(index)
        if value is not None and value.shape != tuple(shape):
            raise ModelError(
                f"node {self.name}: {self.op}: {value.name} has shape {value.shape}, expected {tuple(shape)}"
            )

    def expect_broadcast(self, index: int, shape: Shape) -> None:
        """Raise ModelError unless the operand, if present, broadcasts to `shape` without enlarging it."""
        value = self.optional(index)
        if value is not None and broadcast([value.shape, shape]) != shape:
            raise ModelError(f"node {self.name}: {self.op}: {value.name} {value.shape} does not broadcast to {shape}")

    def unimplemented(self, what: str) -> Unimplemented:
        return Unimplemented(f"node {self.name}: {self.op} with {what}")

    def unsupported(self, what: str) -> Unsupported:
        return Unsupported(f"node {self.name}: {self.op} with {what}")


def is_float(value: Value) -> bool:
    """True for floating types, bfloat16 included."""
    return value.dtype.kind == "f" or value.dtype.name == "bfloat16"


def shape_product(shape: Shape) -> int:
    return int(np.prod(shape, dtype=np.int64))
