"""The container's ELF layout as data: which sections there are, in what order, with which type and flags; records; digest.

Shared by writer and reader, so that both speak of the same table. Only the subset of ELF64 that blobs use; the comment in
npu_blob.h is the contract.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.blob.image import TASK_SECTIONS, BlobError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# gABI names and values.
SHT_NULL, SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_RELA, SHT_NOTE, SHT_NOBITS = 0, 1, 2, 3, 4, 7, 8
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR, SHF_INFO_LINK = 0x1, 0x2, 0x4, 0x40
SHN_ABS = 0xFFF1
STB_LOCAL, STB_GLOBAL = 0, 1
STT_OBJECT, STT_FUNC, STT_SECTION = 1, 2, 3

EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
SHDR = struct.Struct("<IIQQQQIIQQ")
SYM = struct.Struct("<IBBHQQ")
RELA_DTYPE = [("offset", "<u8"), ("info", "<u8"), ("addend", "<i8")]
RELA_BYTES = 24
IDENT = b"\x7fELF" + bytes([2, 1, 1, C.NPU_ELF_OSABI]) + bytes(8)  # 64-bit, little endian, version 1

PLATFORM, NETDESC, MAPPED = ".npu.platform", ".npu.netdesc", ".npu.mapped_inference"
NOTE, KERNELS, DEBUG, DIGEST = ".note.npu.abi", ".npu.kernels", ".npu.debug", ".npu.digest"
TEXT, ARGS, WEIGHTS, SCRATCH = ".text.shave", ".data.shave_args", ".data.weights", ".bss.scratch"
INPUT, OUTPUT = ".npu.io.input", ".npu.io.output"
SYMTAB, STRTAB, SHSTRTAB = ".symtab", ".strtab", ".shstrtab"
ENTRY_SYMBOL = "MappedInference"

DIGEST_BYTES = 32
MAX_SECTIONS = 64
MAX_STRTAB_BYTES = 1 << 16
MAX_FILE_BYTES = 1 << 34
MAX_TENSORS = 4096  # of one direction
MAX_KERNELS = 1024
MAX_MEMORY_BYTES = C.NPU_VA_USER_END - C.NPU_VA_USER_BASE  # what one context can address


@dataclass(frozen=True, slots=True)
class SectionKind:
    """What the ELF header of a section must say. `entsize` is 0 where entries have no fixed size."""

    name: str
    type: int
    flags: int
    align: int
    entsize: int = 0


def _kinds() -> dict[str, SectionKind]:
    alloc, low = SHF_ALLOC, SHF_ALLOC | C.NPU_SHF_LOW
    table = [
        SectionKind(NOTE, SHT_NOTE, 0, 4),
        SectionKind(PLATFORM, SHT_PROGBITS, 0, 8),
        SectionKind(NETDESC, SHT_PROGBITS, 0, 8),
        SectionKind(MAPPED, SHT_PROGBITS, alloc, 64),
        *(SectionKind(name, SHT_PROGBITS, alloc, 64) for name in TASK_SECTIONS),
        SectionKind(TEXT, SHT_PROGBITS, low | SHF_EXECINSTR, 64),
        SectionKind(ARGS, SHT_PROGBITS, low, 64),
        SectionKind(WEIGHTS, SHT_PROGBITS, alloc, 64),
        SectionKind(SCRATCH, SHT_NOBITS, alloc | SHF_WRITE, 64),
        SectionKind(INPUT, SHT_NOBITS, alloc | C.NPU_SHF_IO_INPUT, 64),
        SectionKind(OUTPUT, SHT_NOBITS, alloc | SHF_WRITE | C.NPU_SHF_IO_OUTPUT, 64),
        *(SectionKind(f".rela{name}", SHT_RELA, SHF_INFO_LINK, 8, RELA_BYTES) for name in (MAPPED, *PATCHABLE)),
        SectionKind(KERNELS, SHT_PROGBITS, 0, 8),
        SectionKind(DEBUG, SHT_PROGBITS, 0, 1),
        SectionKind(DIGEST, SHT_PROGBITS, 0, 1),
        SectionKind(SYMTAB, SHT_SYMTAB, 0, 8, SYM.size),
        SectionKind(STRTAB, SHT_STRTAB, 0, 1),
        SectionKind(SHSTRTAB, SHT_STRTAB, 0, 1),
    ]
    return {kind.name: kind for kind in table}


# All that a kernel library may have.
LIBRARY = (NOTE, PLATFORM, NETDESC, TEXT, KERNELS, DEBUG, DIGEST, SYMTAB, STRTAB, SHSTRTAB)
# Sections that a relocation may patch (beside MappedInference, whose relocations follow from the task lists) ...
PATCHABLE = (*TASK_SECTIONS, ARGS)
# ... and sections that it may refer to; the others are tensors, "in:NAME" and "out:NAME".
REFERABLE = (*TASK_SECTIONS, TEXT, ARGS, WEIGHTS, SCRATCH)
KINDS = _kinds()  # name -> kind, in file order
# The reference of struct npu_mapped_inference to each task section.
MAPPED_REFS = dict(
    zip(
        TASK_SECTIONS,
        (
            "dma_tasks_0",
            "dma_tasks_1",
            "invariants",
            "variants",
            "shave_ranges",
            "shave_invocations",
            "barrier_configs",
        ),
        strict=True,
    )
)


def kind_of(name: str, is_absent: bool) -> SectionKind:
    """Return what the header of a section must say; that of the weights of a plan says that their bytes are absent."""
    return replace(KINDS[name], type=SHT_NOBITS) if name == WEIGHTS and is_absent else KINDS[name]


def digest(sections: Iterable[tuple[str, int, int, bytes | memoryview]]) -> bytes:
    """Return SHA-256 over (name, type, size, content) of `sections`, which come in index order without the digest itself.

    A name counts with its NUL, type as u32, size as u64; a NOBITS section has no content. The null section does not count.
    """
    state = hashlib.sha256()
    for name, kind, size, content in sections:
        state.update(name.encode() + b"\0" + struct.pack("<IQ", kind, size))
        state.update(content)
    return state.digest()


def align_up(value: int, alignment: int) -> int:
    """Return the smallest multiple of `alignment` that is >= `value`."""
    return -(-value // alignment) * alignment


def check_sizes(sizes: Mapping[str, int]) -> None:
    """Raise BlobError when a section is empty or larger than the address range that it must fit into."""
    for name, size in sizes.items():
        low = KINDS[name].flags & C.NPU_SHF_LOW
        limit = C.NPU_VA_LOW_END - C.NPU_VA_LOW_BASE if low else MAX_MEMORY_BYTES
        if not 0 < size <= limit:
            raise BlobError(f"{name}: {size} bytes; expected 1 to {limit}, and no section when empty")
