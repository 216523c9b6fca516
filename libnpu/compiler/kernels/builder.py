"""Writes SHAVE assembly: registers by name, argument words by name, labels and counted loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from npu_model import dtypes
from npu_model.shave_isa import INT_REGISTERS, VECTOR_REGISTERS, assemble

from libnpu.compiler.kernels.program import ArgsTemplate, Operand, Program
from libnpu.errors import Unsupported

ZERO = "r0"
ARGS = "r1"


class Builder:
    """One program in the making. `words` names the argument block's 64-bit words in order."""

    def __init__(self, name: str, words: Sequence[str]) -> None:
        self.name = name
        self.words = {word: index for index, word in enumerate(words)}
        self._lines: list[str] = []
        self._labels = 0
        self._free_ints = [f"r{i}" for i in range(2, INT_REGISTERS)]
        self._free_vectors = [f"v{i}" for i in range(VECTOR_REGISTERS)]

    def emit(self, mnemonic: str, *operands: str | int) -> None:
        """Append one instruction."""
        self._lines.append(f"{mnemonic} {', '.join(map(str, operands))}")

    def reg(self, what: str = "a temporary") -> str:
        """Take an integer register. Unsupported when all are in use."""
        if not self._free_ints:
            raise Unsupported(f"kernel {self.name}: no integer register left for {what}")
        return self._free_ints.pop(0)

    def vreg(self, what: str = "a temporary") -> str:
        """Take a vector register. Unsupported when all are in use."""
        if not self._free_vectors:
            raise Unsupported(f"kernel {self.name}: no vector register left for {what}")
        return self._free_vectors.pop(0)

    @property
    def free_int_count(self) -> int:
        """Integer registers not in use."""
        return len(self._free_ints)

    def free(self, *registers: str) -> None:
        """Give registers back."""
        for register in registers:
            pool = self._free_vectors if register[0] == "v" else self._free_ints
            pool.append(register)
            pool.sort(key=lambda name: int(name[1:]))

    def arg(self, word: str, register: str | None = None) -> str:
        """Load an argument word into `register` or a new one."""
        register = register or self.reg(word)
        self.emit("ld.i64", register, ARGS, 8 * self.words[word])
        return register

    def args(self, *words: str) -> list[str]:
        """Load consecutive argument words into consecutive new registers with one instruction."""
        registers = [self.reg(word) for word in words]
        numbers = [int(register[1:]) for register in registers]
        first = self.words[words[0]]
        assert numbers == list(range(numbers[0], numbers[0] + len(words)))
        assert [self.words[word] for word in words] == list(range(first, first + len(words)))
        self.emit("ldm", registers[0], ARGS, 8 * first, len(words))
        return registers

    def label(self, label: str | None = None) -> str:
        """Place a label here (a new one by default) and return it."""
        label = label or self.new_label()
        self._lines.append(f"{label}:")
        return label

    def new_label(self) -> str:
        """Return a label to be placed later."""
        self._labels += 1
        return f"L{self._labels}"

    @contextmanager
    def loop(self, counter: str, limit: str, step: str | int = 1) -> Iterator[None]:
        """Run the body with `counter` = 0, step, ... while it is below `limit`, at least once."""
        self.emit("li", counter, 0)
        top = self.label()
        yield
        if isinstance(step, int):
            self.emit("addi", counter, counter, step)
        else:
            self.emit("add", counter, counter, step)
        self.emit("blt", counter, limit, top)

    def rest(self, result: str, limit: str, counter: str, step: str) -> None:
        """Set `result` to the size of this step: min(step, limit - counter)."""
        self.emit("sub", result, limit, counter)
        self.emit("min", result, result, step)

    def advance(self, address: str, counter: str, stride: str, temporary: str) -> None:
        """Add counter * stride to `address`."""
        self.emit("mul", temporary, counter, stride)
        self.emit("add", address, address, temporary)

    def program(self, packer: Callable[[Sequence[Operand]], ArgsTemplate]) -> Program:
        """Return the program of everything emitted, ended by a halt."""
        return Program(assemble("\n".join([*self._lines, "halt"])), self.name, packer)

    def template(self, values: dict[str, int], addresses: dict[str, int]) -> ArgsTemplate:
        """Return the block with `values` by word, and `addresses`: word -> address index."""
        unknown = [word for word in self.words if word not in values and word not in addresses]
        assert not unknown, unknown
        words = tuple(values.get(word, 0) for word in self.words)
        return ArgsTemplate(words, tuple((self.words[word], index) for word, index in addresses.items()))


INTEGER_TYPES = (
    dtypes.I8,
    dtypes.U8,
    dtypes.I16,
    dtypes.U16,
    dtypes.I32,
    dtypes.U32,
    dtypes.I64,
    dtypes.U64,
    dtypes.BOOL,
)
FLOAT_TYPES = (dtypes.F16, dtypes.BF16, dtypes.F32, dtypes.F64)


def is_float(dtype: int) -> bool:
    """Return whether the vector core computes with `dtype` in fp32 (else in s32). Unsupported for types that it cannot load."""
    if dtype in FLOAT_TYPES:
        return True
    if dtype in INTEGER_TYPES:
        return False
    raise Unsupported(f"the vector core has no type {dtype}")


def memory_type(dtype: int) -> str:
    """Return what loads and stores call `dtype`. Unsigned words are their lower 32 bits: the machine's own would saturate."""
    return "i32" if dtype in (dtypes.U32, dtypes.U64) else dtypes.name(dtype)


def store(
    b: Builder, register: str, in_float: bool, out_dtype: int, address: str, rows: str, cols: str, flags: str
) -> None:
    """Store a register of fp32 (`in_float`) or s32 as `out_dtype`: float to integer truncates as a cast does, uint64 is zero-extended.

    The register is converted in place where the store does not convert by itself.
    """
    if is_float(out_dtype):
        if not in_float:
            b.emit("vcvt.f32", register, register)
    elif in_float and out_dtype == dtypes.BOOL:
        flags += ".f"
    elif in_float:
        b.emit("vcvt.i32", register, register)
    b.emit(f"vst.{memory_type(out_dtype)}{flags}", register, address, rows, cols, 0)
    if out_dtype == dtypes.U64:
        b.emit("vxor.i32", register, register, register)
        b.emit(f"vst.i32{flags}", register, address, rows, cols, 4)
