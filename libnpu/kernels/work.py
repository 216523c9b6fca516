"""What the watchdog counts for a program that is being assembled (docs/shave-isa.md, "Faults").

A program is made of parts: instructions that run equally often, as the body of a loop. While the assembler emits, `Meter` adds up what one pass
through each part counts; `bounds` knows how often the parts run, and how long their vectors are. Both are upper bounds: what is behind a
condition runs, and no access to memory continues another one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntFlag

from npu_model.shave_machine import (
    ACCESS_WORK,
    INSN_WORK,
    RUN_WORK,
    SPECIAL_ELEMENTS,
    SPECIAL_WORK,
    STRIDED_WORK,
    VECTOR_WORK,
)
from npu_model.shave_math import SPECIAL
from npu_model.shave_opcodes import TYPE_BYTES, TYPE_NAMES

ONCE = "once"  # the part that a program begins with
BY_STRIDE = -1  # weight of an element whose distance to the next is known only when the program runs
TYPE_SIZES = {name: TYPE_BYTES[code] for code, name in TYPE_NAMES.items()}


class Shape(IntFlag):
    """Which dimensions of the vector length a vector has; without one it has one element along it."""

    ONE = 0
    ROWS = 1
    COLS = 2
    BOTH = 3


@dataclass(slots=True)
class Part:
    """Instructions that run equally often: what a pass counts besides elements, and its vector instructions by what an element of them counts."""

    fixed: int = 0
    vectors: Counter[tuple[Shape, int, int]] = field(
        default_factory=Counter
    )  # (shape, weight, fewest elements counted)

    def work(self, times: int, elements: int = 0, rows: int = 0, cols: int = 0, by_stride: int = STRIDED_WORK) -> int:
        """Return the most that `times` passes count whose vector lengths have `elements`, `rows` and `cols` together (0: as many as
        passes). The lengths are the same but for a last one that may be less.
        """
        counts = {Shape.ONE: times, Shape.ROWS: rows or times, Shape.COLS: cols or times, Shape.BOTH: elements or times}
        total = times * self.fixed
        for (shape, weight, least), instructions in self.vectors.items():
            counted = max(counts[shape] + least, least * times) if least else counts[shape]
            total += instructions * (by_stride if weight == BY_STRIDE else weight) * counted
        return total


class Meter:
    """The parts of a program in the making, and the shapes of its vector registers."""

    def __init__(self) -> None:
        self.parts: defaultdict[str, Part] = defaultdict(Part)
        self._open: tuple[str, ...] = (ONCE,)
        self._shapes: dict[str, Shape] = {}

    @contextmanager
    def part(self, *names: str) -> Iterator[None]:
        """Count what is emitted inside in each of these parts, and not in the one outside."""
        outer, self._open = self._open, names
        yield
        self._open = outer

    @property
    def current(self) -> tuple[str, ...]:
        """The parts in which instructions are counted now."""
        return self._open

    def count(self, mnemonic: str, operands: Sequence[str], element: int = STRIDED_WORK) -> None:
        """Count an instruction; `element` is the weight of an element of a load or store of vectors."""
        name, *modifiers = mnemonic.split(".")
        fixed, vector = INSN_WORK, None
        if name in ("ld", "st", "fld", "fst"):
            fixed += ACCESS_WORK + RUN_WORK + TYPE_SIZES[modifiers[0]]
        elif name.startswith("v"):
            fixed += VECTOR_WORK
            shape = self._shape(name, modifiers, operands)
            if name in ("vld", "vst"):
                fixed += RUN_WORK
                vector = shape, element, 0
            else:
                vector = (shape, SPECIAL_WORK, SPECIAL_ELEMENTS) if name in SPECIAL else (shape, 1, 0)
        for part in self._open:
            self.parts[part].fixed += fixed
            if vector is not None:
                self.parts[part].vectors[vector] += 1

    def _shape(self, name: str, modifiers: Sequence[str], operands: Sequence[str]) -> Shape:
        """Return the shape by whose elements an instruction counts; note that of its result."""
        row, col = Shape.COLS, Shape.ROWS  # what one row and one column have
        extent = (Shape.BOTH if "row" not in modifiers else row) & (Shape.BOTH if "col" not in modifiers else col)
        if name in ("vld", "vst", "viota"):
            shape = result = extent
        elif name == "vsplat":
            shape = result = Shape.ONE
        else:
            shape = Shape.ONE
            for operand in operands[1:]:
                shape |= self._shapes.get(operand, Shape.ONE)
            result = shape & (extent if name.startswith("vr") and name not in SPECIAL else Shape.BOTH)
        if name != "vst":
            self._shapes[operands[0]] = result
        return shape
