"""A macro assembler for the built-in kernels: integer expressions, counted loops, conditions; its output is SHAVE assembly.

Values live in registers that `let` takes and `scope` gives back. An expression is a tree until something needs its value;
then it is computed with as few temporaries as it takes. At entry r1 is the argument block, r2 the number of this block, r3
how many there are, r4 the address of its CMX and r5 the bytes there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from npu_model.shave_isa import INT_REGISTERS
from npu_model.shave_machine import STRIDED_WORK

from libnpu.kernels.work import BY_STRIDE, TYPE_SIZES, Meter

_FIRST_FREE = 6  # r0 to r5 have their meaning
KEPT_AT, KEPT_WORDS = 448, 16  # where in the block's CMX `keep` puts values; behind the descriptors of `operations`
_BRANCH_OVER = {"<": "bge", ">=": "blt", "==": "bne", "!=": "beq"}  # taken when the condition does not hold


class Expr:
    """An integer that the program computes."""

    __slots__ = ()

    def __add__(self, other: Value) -> Expr:
        return Op("add", self, expr(other))

    def __radd__(self, other: int) -> Expr:
        return Op("add", self, Const(other))

    def __sub__(self, other: Value) -> Expr:
        return Op("add", self, Const(-other)) if isinstance(other, int) else Op("sub", self, other)

    def __rsub__(self, other: int) -> Expr:
        return Op("sub", Const(other), self)

    def __mul__(self, other: Value) -> Expr:
        return Op("mul", self, expr(other))

    def __rmul__(self, other: int) -> Expr:
        return Op("mul", self, Const(other))

    def __floordiv__(self, other: Value) -> Expr:
        """Divide towards zero."""
        return Op("div", self, expr(other))

    def __rfloordiv__(self, other: int) -> Expr:
        return Op("div", Const(other), self)

    def __mod__(self, other: Value) -> Expr:
        return Op("rem", self, expr(other))


@dataclass(frozen=True, slots=True)
class Reg(Expr):
    """An integer register."""

    index: int


@dataclass(frozen=True, slots=True)
class Const(Expr):
    """A number that is known when the program is made."""

    value: int


@dataclass(frozen=True, slots=True)
class Word(Expr):
    """A 64-bit word in memory, loaded where it is used: in the argument block, or what `keep` has put in CMX."""

    base: Reg
    offset: int


@dataclass(frozen=True, slots=True)
class Op(Expr):
    """`name` of the instruction that computes it from two operands."""

    name: str
    left: Expr
    right: Expr


Value: TypeAlias = Expr | int

ZERO, ARGS, BLOCK, GRID, CMX, CMX_BYTES = map(Reg, range(_FIRST_FREE))


def expr(value: Value) -> Expr:
    """Return `value` as an expression."""
    return Const(value) if isinstance(value, int) else value


def minimum(a: Value, b: Value) -> Expr:
    """Return the smaller of two."""
    return Op("min", expr(a), expr(b))


def maximum(a: Value, b: Value) -> Expr:
    """Return the larger of two."""
    return Op("max", expr(a), expr(b))


def ceil_div(a: Value, b: Value) -> Expr:
    """Return a / b rounded up, for a >= 0 and b > 0."""
    return (expr(a) + (expr(b) - 1)) // b


def align(value: Value, alignment: int = 64) -> Expr:
    """Return the smallest multiple of `alignment` that is >= value."""
    return (expr(value) + (alignment - 1)) // alignment * alignment


class Program:
    """One program in the making. `params` names the words of the argument block in order; `p["name"]` is their value."""

    def __init__(self, params: Sequence[str]) -> None:
        self._params = {name: Word(ARGS, 8 * index) for index, name in enumerate(params)}
        self._kept = 0
        self._lines: list[str] = []
        self._labels = 0
        self._free = list(range(_FIRST_FREE, INT_REGISTERS))
        self.meter = Meter()
        self._element_work = STRIDED_WORK  # of the load or store that is being emitted

    @property
    def params(self) -> tuple[str, ...]:
        """The words of the argument block."""
        return tuple(self._params)

    def __getitem__(self, name: str) -> Word:
        return self._params[name]

    def text(self) -> str:
        """Return the assembly of everything emitted, ended by a halt."""
        return "\n".join([*self._lines, "halt"]) + "\n"

    # ---- values ----

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Give back, at the end, the registers that were taken inside."""
        free = list(self._free)
        yield
        self._free = free

    def let(self, value: Value) -> Reg:
        """Return a new register that holds `value`."""
        register = self._take()
        self.set(register, value)
        return register

    def keep(self, value: Value) -> Word:
        """Put `value` in memory, for when registers are short. A load costs more than a register, so not in inner loops."""
        assert self._kept < KEPT_WORDS
        word = Word(CMX, KEPT_AT + 8 * self._kept)
        self._kept += 1
        self.rekeep(word, value)
        return word

    def rekeep(self, word: Word, value: Value) -> None:
        """Replace what `keep` has put in memory."""
        self.emit("st.i64", expr(value), word.base, word.offset)

    def set(self, register: Reg, value: Value) -> None:
        """Compute `value` into `register`, which may occur in it."""
        value = expr(value)
        if isinstance(value, Op) and _occurs(register, value.right) and not isinstance(value.left, Reg):
            temporary = self._take()
            self.set(temporary, value.left)
            self._compute(register, value.name, temporary, value.right)
            self._give(temporary)
        elif isinstance(value, Op):
            if isinstance(value.left, Reg):
                self._compute(register, value.name, value.left, value.right)
            else:
                self.set(register, value.left)
                self._compute(register, value.name, register, value.right)
        elif isinstance(value, Const):
            self._emit("li", register, value.value)
        elif isinstance(value, Word):
            self._emit("ld.i64", register, value.base, value.offset)
        elif isinstance(value, Reg) and value != register:
            self._emit("mov", register, value)

    def _compute(self, register: Reg, name: str, left: Reg, right: Expr) -> None:
        if isinstance(right, Const) and name in ("add", "mul") and -(1 << 31) <= right.value < 1 << 31:
            self._emit(name + "i", register, left, right.value)
            return
        operand, own = self._read(right)
        self._emit(name, register, left, operand)
        if own:
            self._give(operand)

    def _read(self, value: Expr) -> tuple[Reg, bool]:
        """Return a register with `value`, and whether the caller has to give it back."""
        if isinstance(value, Reg):
            return value, False
        if value == Const(0):
            return ZERO, False
        return self.let(value), True

    def _take(self) -> Reg:
        assert self._free, "no integer register left: keep a value in memory, or give some back with a scope"
        return Reg(self._free.pop(0))

    def _give(self, register: Reg) -> None:
        self._free.append(register.index)
        self._free.sort()

    # ---- instructions ----

    def emit(self, mnemonic: str, *operands: Expr | int | float | str) -> None:
        """Append one instruction: an expression is a register with its value, a number an immediate, text stays as it is."""
        words: list[Reg | int | float | str] = []
        temporaries = []
        for operand in operands:
            if isinstance(operand, Expr):
                register, own = self._read(operand)
                words.append(register)
                if own:
                    temporaries.append(register)
            else:
                words.append(operand)
        self._emit(mnemonic, *words)
        for register in temporaries:
            self._give(register)

    def _emit(self, mnemonic: str, *operands: Reg | int | float | str) -> None:
        words = [f"r{operand.index}" if isinstance(operand, Reg) else str(operand) for operand in operands]
        line = f"{mnemonic} {', '.join(words)}"
        self._lines.append(f"    {line}")
        name, *rest = line.replace(",", " ").split()
        self.meter.count(name, rest, self._element_work)

    def length(self, rows: Value, cols: Value) -> None:
        """Set the vector length."""
        self.emit("setvl", expr(rows), expr(cols))

    def load(self, vector: str, dtype: str, address: Expr, row_bytes: Value, col_bytes: Value, shape: str = "") -> None:
        """Load a tile whose rows and columns are `row_bytes` and `col_bytes` apart; `shape` is "", ".row" or ".col"."""
        self._move("vld", vector, dtype, address, row_bytes, col_bytes, shape)

    def store(
        self, vector: str, dtype: str, address: Expr, row_bytes: Value, col_bytes: Value, shape: str = ""
    ) -> None:
        """Store a tile; as `load`."""
        self._move("vst", vector, dtype, address, row_bytes, col_bytes, shape)

    def _move(
        self, name: str, vector: str, dtype: str, address: Expr, row_bytes: Value, col_bytes: Value, shape: str
    ) -> None:
        if not isinstance(col_bytes, int):
            self._element_work = BY_STRIDE
        elif col_bytes == TYPE_SIZES[dtype]:  # elements beside each other count by their bytes
            self._element_work = col_bytes
        self.emit(f"{name}.{dtype}{shape}", vector, address, expr(row_bytes), expr(col_bytes), 0)
        self._element_work = STRIDED_WORK

    # ---- control ----

    @contextmanager
    def when(self, left: Value, comparison: str, right: Value) -> Iterator[None]:
        """Run the body when the comparison (<, >=, ==, !=) holds."""
        end = self._branch_over(left, comparison, right)
        yield
        self._lines.append(f"{end}:")

    def _branch_over(self, left: Value, comparison: str, right: Value) -> str:
        """Branch to a label, which is returned, unless the comparison holds."""
        end = self._label()
        self.emit(_BRANCH_OVER[comparison], expr(left), expr(right), end)
        return end

    @contextmanager
    def repeat_while(self, left: Value, comparison: str, right: Value, part: str = "") -> Iterator[None]:
        """Run the body as long as the comparison holds, which is looked at before each turn.

        `part` is what `meter` calls the body, with the comparison; the last comparison, which fails, belongs to the part around it.
        """
        part = part or f"loop {self._labels}"
        top = self._label()
        self._lines.append(f"{top}:")
        with self.meter.part(*self.meter.current, part):
            end = self._branch_over(left, comparison, right)
        with self.meter.part(part), self.scope():
            yield
            self._emit("jmp", top)
        self._lines.append(f"{end}:")

    @contextmanager
    def loop(self, start: Value, stop: Value, step: Value = 1, part: str = "") -> Iterator[Reg]:
        """Run the body with a register that is start, start + step, ... below `stop`; `part` as in `repeat_while`."""
        with self.scope():
            counter = self.let(start)
            with self.repeat_while(counter, "<", stop, part):
                yield counter
                self.set(counter, counter + step)

    def trap_when(self, left: Value, comparison: str, right: Value, code: int) -> None:
        """End the program with a TRAP fault when the comparison holds."""
        with self.when(left, comparison, right):
            self._emit("trap", code)

    def _label(self) -> str:
        self._labels += 1
        return f"L{self._labels}"


def _occurs(register: Reg, value: Expr) -> bool:
    if isinstance(value, Op):
        return _occurs(register, value.left) or _occurs(register, value.right)
    return value == register
