"""A SHAVE program with the layout of its argument block, and the operands that fill it.

`Program.args(operands)` does all packing that does not need addresses and returns an `ArgsTemplate`; the emitter calls that
with the addresses of the operands. Arguments are 64-bit little-endian words.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operand:
    """A strided tensor: `dims` in elements, `strides` in bytes (0 broadcasts), outermost first.

    `dtype` is an enum npu_dtype. `address_index` says which of the addresses given to the template is its first element.
    """

    address_index: int
    dtype: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ArgsTemplate:
    """An argument block without its addresses: `slots` are (word, address_index); that word receives words[word] + address."""

    words: tuple[int, ...]
    slots: tuple[tuple[int, int], ...]

    def __call__(self, addresses: Sequence[int]) -> bytes:
        """Return the block for operands at `addresses`, in the order of `Operand.address_index`."""
        words = list(self.words)
        for word, index in self.slots:
            words[word] += addresses[index]
        return struct.pack(f"<{len(words)}q", *words)

    @property
    def size_bytes(self) -> int:
        """Size of the block."""
        return 8 * len(self.words)


@dataclass(frozen=True, slots=True)
class Program:
    """SHAVE code and the function that lays its arguments out. Equal code is shared by content."""

    code: bytes
    name: str
    packer: Callable[[Sequence[Operand]], ArgsTemplate]

    def args(self, operands: Sequence[Operand]) -> ArgsTemplate:
        """Return the argument block of `operands`: inputs in order, then the output. Unsupported when they do not fit."""
        return self.packer(operands)
