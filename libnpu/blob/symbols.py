"""The symbol table of a blob. It follows from the sections and the tensors, so that reader and writer both derive it.

Locals are one section symbol per section that relocations may refer to; globals are `MappedInference` and one object per
tensor, "in:NAME" or "out:NAME"; of a kernel library one function per kernel instead, "kernel:NAME".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import npu_abi

from libnpu.blob import elf, netdesc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libnpu.blob.image import BlobImage, IoTensor, Kernel


@dataclass(frozen=True, slots=True)
class SymbolTable:
    """Content of .symtab and .strtab; `names[i]` is symbol i as relocations name it ("" = the null symbol)."""

    names: tuple[str, ...]
    local_count: int  # null symbol included
    symtab: bytes
    strtab: bytes


def symbol_table(
    sections: Sequence[str], inputs: Sequence[IoTensor], outputs: Sequence[IoTensor], kernels: Sequence[Kernel]
) -> SymbolTable:
    """Return the symbols of a blob with `sections`, in index order without the null section."""
    index = {name: i + 1 for i, name in enumerate(sections)}
    names = [""]
    strtab, symtab = bytearray(1), bytearray(elf.SYM.size)
    for section in sections:
        if section in elf.REFERABLE:
            names.append(section)
            symtab += elf.SYM.pack(0, elf.STB_LOCAL << 4 | elf.STT_SECTION, 0, index[section], 0, 0)
    local_count = len(names)
    objects = [("kernel:" + k.name, elf.TEXT, k.text_offset, k.code_bytes) for k in kernels]
    kind = elf.STT_FUNC if kernels else elf.STT_OBJECT
    if not kernels:
        objects.append((elf.ENTRY_SYMBOL, elf.MAPPED, 0, npu_abi.sizeof("npu_mapped_inference")))
    for prefix, section, tensors in (("in:", elf.INPUT, inputs), ("out:", elf.OUTPUT, outputs)):
        offsets = netdesc.io_offsets(tensors)
        objects += [(prefix + t.name, section, at, t.size_bytes) for t, at in zip(tensors, offsets, strict=True)]
    for name, section, offset, size in objects:
        names.append(name)
        # A section whose tensors are all empty is absent; its symbols are absolute then.
        shndx = index.get(section, elf.SHN_ABS)
        symtab += elf.SYM.pack(len(strtab), elf.STB_GLOBAL << 4 | kind, 0, shndx, offset, size)
        strtab += name.encode() + b"\0"
    return SymbolTable(tuple(names), local_count, bytes(symtab), bytes(strtab))


def sizes(image: BlobImage) -> dict[str, int]:
    """Return the bytes of all that relocations of `image` may refer to: its sections, inputs and outputs."""
    return {
        **dict.fromkeys(elf.REFERABLE, 0),
        **{name: len(array) * array.dtype.itemsize for name, array in image.tasks.items()},
        elf.TEXT: len(image.text),
        elf.ARGS: len(image.shave_args),
        elf.WEIGHTS: image.weight_bytes,
        elf.SCRATCH: image.scratch_bytes,
        **{f"in:{t.name}": t.size_bytes for t in image.inputs},
        **{f"out:{t.name}": t.size_bytes for t in image.outputs},
    }
