"""Relocation tables: list of Relocation <-> .rela.* sections, one table per patched section in order of offset.

MappedInference's relocations follow from which task sections exist; they are written, and checked when read, but are no part
of an image.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.blob import elf
from libnpu.blob.image import TASK_SECTIONS, BlobError, Relocation
from libnpu.blob.records import mapped_ref_offset

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray


def mapped_relocations(sections: Iterable[str]) -> list[Relocation]:
    """Return the relocations of MappedInference's references to those task sections that are among `sections`."""
    present = set(sections)
    return [Relocation(elf.MAPPED, mapped_ref_offset(name), name, 0) for name in TASK_SECTIONS if name in present]


def pack_relocations(
    relocations: Iterable[Relocation], sizes: Mapping[str, int], names: Sequence[str]
) -> dict[str, bytes]:
    """Return patched section -> its table. `sizes` are the sections' sizes, `names` the symbols by index.

    Raises BlobError when a relocation leaves its section, overlaps another, or names an unknown section or symbol.
    """
    import numpy as np

    index = {name: i for i, name in enumerate(names) if name not in ("", elf.ENTRY_SYMBOL)}
    grouped: dict[str, list[Relocation]] = {}
    for relocation in relocations:
        if relocation.section not in elf.PATCHABLE or relocation.section not in sizes:
            raise BlobError(f"relocation of {relocation.section} at {relocation.offset:#x}: no such section to patch")
        grouped.setdefault(relocation.section, []).append(relocation)
    if elf.MAPPED in sizes:
        grouped[elf.MAPPED] = mapped_relocations(sizes)
    tables = {}
    for section, entries in grouped.items():
        entries.sort(key=attrgetter("offset"))
        rows = []
        for entry in entries:
            if entry.symbol not in index:
                raise BlobError(f"relocation of {section} at {entry.offset:#x}: no symbol {entry.symbol!r} to refer to")
            if entry.width not in (4, 8) or not -(1 << 63) <= entry.addend < 1 << 63 or not 0 <= entry.offset < 1 << 63:
                raise BlobError(f"{entry}: expected width 4 or 8, offset and addend within 64 bits")
            kind = C.NPU_R_64 if entry.width == 8 else C.NPU_R_32
            rows.append((entry.offset, index[entry.symbol] << 32 | kind, entry.addend))
        table = np.array(rows, elf.RELA_DTYPE)
        _check(section, table, sizes[section])
        if len(table):
            tables[section] = table.tobytes()
    return tables


def unpack_relocations(section: str, content: memoryview, size: int, names: Sequence[str]) -> list[Relocation]:
    """Return the table that patches `section`, which has `size` bytes.

    Raises BlobError on an unknown type or symbol, an offset outside the section, or an overlap.
    """
    import numpy as np

    if len(content) % elf.RELA_BYTES:
        raise BlobError(f".rela{section}: {len(content)} bytes; expected a multiple of {elf.RELA_BYTES}")
    table = np.frombuffer(content, elf.RELA_DTYPE)
    _check(section, table, size)
    symbols, kinds = table["info"] >> np.uint64(32), table["info"] & np.uint64(0xFFFFFFFF)
    entry = names.index(elf.ENTRY_SYMBOL)
    bad = (symbols == 0) | (symbols >= len(names)) | (symbols == entry)
    if bad.any():
        at = int(bad.argmax())
        raise BlobError(
            f".rela{section}+{at * elf.RELA_BYTES:#x}: symbol {symbols[at]}; expected a section's or a tensor's"
        )
    width = {C.NPU_R_64: 8, C.NPU_R_32: 4}
    return [
        Relocation(section, offset, names[symbol], addend, width[kind])
        for offset, symbol, addend, kind in zip(
            table["offset"].tolist(), symbols.tolist(), table["addend"].tolist(), kinds.tolist(), strict=True
        )
    ]


def _check(section: str, table: NDArray[np.void], size: int) -> None:
    """Check types and offsets of a table: known, in the section, ascending, not overlapping."""
    import numpy as np

    kinds, offsets = table["info"] & np.uint64(0xFFFFFFFF), table["offset"]
    unknown = (kinds != C.NPU_R_64) & (kinds != C.NPU_R_32)
    if unknown.any():
        at = int(unknown.argmax())
        raise BlobError(f".rela{section}+{at * elf.RELA_BYTES:#x}: type {kinds[at]}; expected NPU_R_64 or NPU_R_32")
    widths = np.where(kinds == C.NPU_R_64, np.uint64(8), np.uint64(4))
    outside = (offsets > np.uint64(size)) | (widths > np.uint64(size) - np.minimum(offsets, np.uint64(size)))
    if outside.any():
        at = int(outside.argmax())
        raise BlobError(
            f".rela{section}+{at * elf.RELA_BYTES:#x}: patches {widths[at]} bytes at {offsets[at]:#x}; "
            f"expected an offset within the section's {size:#x} bytes"
        )
    overlap = offsets[1:] < offsets[:-1] + widths[:-1]
    if overlap.any():
        at = int(overlap.argmax()) + 1
        raise BlobError(
            f".rela{section}+{at * elf.RELA_BYTES:#x}: offset {offsets[at]:#x} overlaps or precedes the entry before"
        )
