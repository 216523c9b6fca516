"""ELF bytes -> BlobImage, for bytes that nobody vouches for. Every failure is a BlobError.

Order: sizes and offsets of headers, before anything is followed; the digest over all sections; each section's header against
the table of `elf.py`; then content. Nothing is allocated from a size that the file merely claims. The symbol table follows
from the sections and tensors, so it is compared and never interpreted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from npu_abi import C

from libnpu.blob import elf, kernels, netdesc, records
from libnpu.blob.image import TASK_SECTIONS, BlobError, BlobImage, Kernel, Relocation
from libnpu.blob.relocations import mapped_relocations, unpack_relocations
from libnpu.blob.symbols import symbol_table

_KNOWN_TYPES = sorted({kind.type for kind in elf.KINDS.values()})
_REQUIRED = (elf.NOTE, elf.PLATFORM, elf.NETDESC, elf.SYMTAB, elf.STRTAB, elf.SHSTRTAB)
_MODEL_OR_LIBRARY = (elf.MAPPED, elf.KERNELS)


@dataclass(frozen=True, slots=True)
class Section:
    """A section header with its name looked up. `content` is empty for NOBITS, else proven to lie in the file."""

    index: int
    name: str
    type: int
    flags: int
    addr: int
    offset: int
    size_bytes: int
    link: int
    info: int
    align: int
    entsize: int
    content: memoryview


def read(data: bytes | bytearray | memoryview) -> BlobImage:
    """Return the image in an ELF file.

    Raises BlobError on anything that `write` would not have written: wrong sizes, a digest that does not match, an
    unknown section, a reserved byte that is not zero, a relocation outside its section.
    """
    sections = _sections(memoryview(data).cast("B").toreadonly())
    _check_digest(sections)
    _check_headers(sections)
    elf.check_sizes({name: section.size_bytes for name, section in sections.items()})

    def content(name: str, default: bytes = b"") -> bytes:
        return bytes(sections[name].content) if name in sections else default

    records.check_note(content(elf.NOTE))
    platform = netdesc.unpack_platform(content(elf.PLATFORM))
    net = netdesc.unpack_netdesc(content(elf.NETDESC))
    _check_sizes(sections, net)
    tasks = {name: records.unpack_tasks(name, sections[name].content) for name in TASK_SECTIONS if name in sections}
    counts = {name: len(array) for name, array in tasks.items()}
    if elf.KERNELS in sections:
        resources = platform["tile_count"], platform["cmx_bytes"], platform["barrier_count"]
        kernels.check_library(sections, platform["profile"], resources)
        library = kernels.unpack_kernels(content(elf.KERNELS), len(content(elf.TEXT)))
    else:
        library = []
        expected = records.mapped_inference(platform["tile_count"], platform["barrier_count"], counts)
        records.check_mapped_inference(content(elf.MAPPED), expected)
    return BlobImage(
        name=net["name"],
        **platform,
        inputs=net["inputs"],
        outputs=net["outputs"],
        tasks=tasks,
        text=content(elf.TEXT),
        shave_args=content(elf.ARGS),
        weights=content(elf.WEIGHTS),
        planned_weight_bytes=_absent_bytes(sections.get(elf.WEIGHTS)),
        scratch_bytes=net["scratch_bytes"],
        relocations=_relocations(sections, net, library),
        macs=net["macs"],
        kernels=library,
        debug=_debug(content(elf.DEBUG, b"{}")),
    )


def _absent_bytes(section: Section | None) -> int:
    return section.size_bytes if section is not None and section.type == elf.SHT_NOBITS else 0


def section_table(data: bytes | bytearray | memoryview) -> list[Section]:
    """Return the sections of a blob's file in index order. Raises BlobError when they do not lie within it."""
    return [*_sections(memoryview(data).cast("B").toreadonly()).values()]


def _sections(data: memoryview) -> dict[str, Section]:
    """Return the sections by name, in index order."""
    shoff, count, names_index = _check_file_header(data)
    table = [elf.SHDR.unpack_from(data, shoff + i * elf.SHDR.size) for i in range(count)]
    if any(table[0]):
        raise BlobError("section 0: expected all zeros")
    end = elf.EHDR.size
    for i, (_, kind, _, _, offset, size, *_) in enumerate(table[1:], 1):
        if kind not in _KNOWN_TYPES:
            raise BlobError(f"section {i}: type {kind:#x}; expected one of {_KNOWN_TYPES}")
        if kind == elf.SHT_NOBITS:
            continue
        if offset < end or offset + size > shoff:
            raise BlobError(f"section {i}: {size} bytes at {offset:#x}; expected within {end:#x} to {shoff:#x}")
        if offset - end >= 64 or any(data[end:offset]):
            raise BlobError(f"section {i}: {offset - end} bytes before it; expected fewer than 64, all zero")
        end = offset + size
    if shoff - end >= 8 or any(data[end:shoff]):
        raise BlobError(f"section headers: {shoff - end} bytes before them; expected fewer than 8, all zero")
    names = table[names_index]
    if names[1] != elf.SHT_STRTAB or names[5] > elf.MAX_STRTAB_BYTES:
        raise BlobError(
            f"section {names_index}: type {names[1]}, {names[5]} bytes; expected the strings of section names"
        )
    strings = bytes(data[names[4] : names[4] + names[5]])
    found: dict[str, Section] = {}
    for i, (name_at, kind, flags, addr, offset, size, link, info, align, entsize) in enumerate(table[1:], 1):
        name = _section_name(i, strings, name_at)
        if name in found:
            raise BlobError(f"section {i}: a second section named {name!r}")
        content = data[:0] if kind == elf.SHT_NOBITS else data[offset : offset + size]
        found[name] = Section(i, name, kind, flags, addr, offset, size, link, info, align, entsize, content)
    return found


def _check_file_header(data: memoryview) -> tuple[int, int, int]:
    """Return where the section headers are, how many, and which one holds their names."""
    if not elf.EHDR.size <= len(data) <= elf.MAX_FILE_BYTES:
        raise BlobError(f"file: {len(data)} bytes; expected {elf.EHDR.size} to {elf.MAX_FILE_BYTES}")
    header = elf.EHDR.unpack_from(data)
    ident, kind, machine, version, entry, phoff, shoff, flags, ehsize, phentsize, phnum, shentsize, shnum, shstrndx = (
        header
    )
    for field, found, expected in (
        ("e_ident", ident.hex(), elf.IDENT.hex()),
        ("e_type", kind, C.NPU_ELF_TYPE),
        ("e_machine", machine, C.NPU_ELF_MACHINE),
        ("e_version", version, 1),
        ("e_entry", entry, 0),
        ("e_phoff", phoff, 0),
        ("e_flags", flags, 0),
        ("e_ehsize", ehsize, elf.EHDR.size),
        ("e_phentsize", phentsize, 0),
        ("e_phnum", phnum, 0),
        ("e_shentsize", shentsize, elf.SHDR.size),
    ):
        if found != expected:
            raise BlobError(f"ELF header: {field} is {found}; expected {expected}")
    if not 2 <= shnum <= elf.MAX_SECTIONS or not 0 < shstrndx < shnum:
        raise BlobError(
            f"ELF header: e_shnum {shnum}, e_shstrndx {shstrndx}; expected 2 to {elf.MAX_SECTIONS} and one of them"
        )
    if shoff < elf.EHDR.size or shoff + shnum * elf.SHDR.size != len(data):
        raise BlobError(
            f"ELF header: {shnum} section headers at {shoff:#x}; expected to end with the file at {len(data):#x}"
        )
    return shoff, shnum, shstrndx


def _section_name(index: int, strings: bytes, offset: int) -> str:
    end = strings.find(b"\0", offset)
    if offset >= len(strings) or end < 0:
        raise BlobError(f"section {index}: name at {offset:#x}; expected a string within {len(strings)} bytes")
    name = strings[offset:end].decode("ascii", "backslashreplace")
    if name not in elf.KINDS:
        raise BlobError(f"section {index}: unknown name {name[:64]!r}")
    return name


def _check_digest(sections: dict[str, Section]) -> None:
    if elf.DIGEST not in sections:
        raise BlobError(f"{elf.DIGEST}: absent; expected in every blob")
    stored = bytes(sections[elf.DIGEST].content[: elf.DIGEST_BYTES])
    found = elf.digest((s.name, s.type, s.size_bytes, s.content) for s in sections.values() if s.name != elf.DIGEST)
    if stored != found or sections[elf.DIGEST].size_bytes != elf.DIGEST_BYTES:
        raise BlobError(
            f"{elf.DIGEST}+0x0: {stored.hex()}; the sections give {found.hex()}: the file was changed or damaged"
        )


def _check_headers(sections: dict[str, Section]) -> None:
    """Check presence, order, types, flags and links of all sections against the table."""
    for name in _REQUIRED:
        if name not in sections:
            raise BlobError(f"{name}: absent; expected in every blob")
    if not any(name in sections for name in _MODEL_OR_LIBRARY):
        raise BlobError(f"{elf.MAPPED}: absent, as is {elf.KERNELS}; expected one of them in every blob")
    expected_order = [name for name in elf.KINDS if name in sections]
    if [*sections] != expected_order:
        raise BlobError(f"sections are in the order {', '.join(sections)}; expected {', '.join(expected_order)}")
    local_count = 1 + sum(name in elf.REFERABLE for name in sections)
    for section in sections.values():
        kind = elf.kind_of(section.name, section.type == elf.SHT_NOBITS)
        link = info = 0
        if kind.type == elf.SHT_RELA:
            target = sections.get(section.name.removeprefix(".rela"))
            link, info = sections[elf.SYMTAB].index, target.index if target else 0
        elif kind.type == elf.SHT_SYMTAB:
            link, info = sections[elf.STRTAB].index, local_count
        for field, found, expected in (
            ("type", section.type, kind.type),
            ("flags", section.flags, kind.flags),
            ("address", section.addr, 0),
            ("link", section.link, link),
            ("info", section.info, info),
            ("alignment", section.align, kind.align),
            ("entry size", section.entsize, kind.entsize),
            ("misalignment", section.offset % kind.align if kind.type != elf.SHT_NOBITS else 0, 0),
        ):
            if found != expected:
                raise BlobError(f"{section.name}: {field} is {found:#x}; expected {expected:#x}")


def _check_sizes(sections: dict[str, Section], net: dict[str, Any]) -> None:
    for name, expected in (
        (elf.WEIGHTS, net["weight_bytes"]),
        (elf.SCRATCH, net["scratch_bytes"]),
        (elf.INPUT, netdesc.io_bytes(net["inputs"])),
        (elf.OUTPUT, netdesc.io_bytes(net["outputs"])),
    ):
        found = sections[name].size_bytes if name in sections else 0
        if found != expected:
            raise BlobError(f"{name}: {found} bytes; {elf.NETDESC} implies {expected}")


def _relocations(sections: dict[str, Section], net: dict[str, Any], library: list[Kernel]) -> list[Relocation]:
    """Return all relocations but MappedInference's, which must be the ones that its references need."""
    own = [*sections][: next(i for i, name in enumerate(sections) if name.startswith((".rela", elf.DEBUG, elf.DIGEST)))]
    table = symbol_table(own, net["inputs"], net["outputs"], library)
    for name, expected in ((elf.SYMTAB, table.symtab), (elf.STRTAB, table.strtab)):
        if sections[name].content != expected:
            raise BlobError(
                f"{name}: not the symbols that the sections and {elf.KERNELS if library else elf.NETDESC} imply"
            )
    found: dict[str, list[Relocation]] = {}
    for target in (elf.MAPPED, *elf.PATCHABLE):
        section = sections.get(f".rela{target}")
        if section is not None:
            if target not in sections:
                raise BlobError(f"{section.name}: patches a section that is absent")
            found[target] = unpack_relocations(target, section.content, sections[target].size_bytes, table.names)
    if found.pop(elf.MAPPED, []) != mapped_relocations(sections):
        raise BlobError(f".rela{elf.MAPPED}: not the addresses of the task sections")
    return [relocation for entries in found.values() for relocation in entries]


def _debug(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BlobError(f"{elf.DEBUG}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BlobError(f"{elf.DEBUG}: a JSON {type(found).__name__}; expected an object")
    return found
