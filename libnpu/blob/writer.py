"""BlobImage -> ELF bytes. Deterministic: the same image gives the same bytes.

Refuses, with BlobError, what `reader.read` would refuse; whether the tasks make sense is `verify`'s question.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.blob import elf, kernels, netdesc, records
from libnpu.blob.image import TASK_SECTIONS, BlobError
from libnpu.blob.relocations import pack_relocations
from libnpu.blob.symbols import symbol_table

if TYPE_CHECKING:
    from libnpu.blob.image import BlobImage


@dataclass(frozen=True, slots=True)
class _Section:
    """A section on its way into the file; `size_bytes` differs from len(content) for NOBITS only."""

    kind: elf.SectionKind
    content: bytes
    size_bytes: int
    link: int = 0
    info: int = 0


def write(image: BlobImage) -> bytes:
    """Return the ELF file of `image`.

    Raises BlobError when a name is too long or not unique, a tensor's size does not match its shape, a task array has the
    wrong type, a relocation leaves its section or names an unknown symbol, or a kernel library has more than its kernels.
    """
    contents = _contents(image)
    names = [*contents]
    table = symbol_table(names, image.inputs, image.outputs, image.kernels)
    relocations = pack_relocations(image.relocations, {name: size for name, (_, size) in contents.items()}, table.names)
    try:
        debug = json.dumps(image.debug, separators=(",", ":")).encode() if image.debug else b""
    except (TypeError, ValueError, RecursionError) as error:
        raise BlobError(f"{elf.DEBUG}: not JSON: {error}") from None
    symtab_index = len(names) + len(relocations) + (2 if debug else 1) + 1
    sections = [_Section(elf.kind_of(name, not content), content, size) for name, (content, size) in contents.items()]
    for target in sorted(relocations, key=[elf.MAPPED, *elf.PATCHABLE].index):
        content = relocations[target]
        kind = elf.KINDS[f".rela{target}"]
        sections.append(_Section(kind, content, len(content), link=symtab_index, info=names.index(target) + 1))
    if debug:
        sections.append(_Section(elf.KINDS[elf.DEBUG], debug, len(debug)))
    sections += [
        _Section(elf.KINDS[elf.DIGEST], bytes(elf.DIGEST_BYTES), elf.DIGEST_BYTES),
        _Section(elf.KINDS[elf.SYMTAB], table.symtab, len(table.symtab), link=symtab_index + 1, info=table.local_count),
        _Section(elf.KINDS[elf.STRTAB], table.strtab, len(table.strtab)),
    ]
    return _assemble(sections)


def _contents(image: BlobImage) -> dict[str, tuple[bytes, int]]:
    """Return section name -> (content, size in bytes), in file order, of everything but relocations, debug and symbols."""
    tasks = {name: records.pack_tasks(name, array) for name, array in image.tasks.items()}
    counts = {name: len(array) for name, array in image.tasks.items()}
    fields = {
        elf.NOTE: records.abi_note(),
        elf.PLATFORM: netdesc.pack_platform(image),
        elf.NETDESC: netdesc.pack_netdesc(image),
        elf.MAPPED: b"" if image.kernels else records.mapped_inference(image.tile_count, image.barrier_count, counts),
        **{name: tasks[name] for name in TASK_SECTIONS if name in tasks},
        elf.TEXT: bytes(image.text),
        elf.ARGS: bytes(image.shave_args),
        elf.WEIGHTS: bytes(image.weights),
    }
    found = {name: (content, len(content)) for name, content in fields.items() if content}
    if image.planned_weight_bytes and image.weights:
        raise BlobError(f"{elf.WEIGHTS}: {len(image.weights)} bytes in a plan; expected none")
    for name, size in (
        (elf.WEIGHTS, image.planned_weight_bytes),
        (elf.SCRATCH, image.scratch_bytes),
        (elf.INPUT, netdesc.io_bytes(image.inputs)),
        (elf.OUTPUT, netdesc.io_bytes(image.outputs)),
    ):
        if size:
            found[name] = (b"", size)
    if image.kernels:
        kernels.check_library(found, image.profile, (image.tile_count, image.cmx_bytes, image.barrier_count))
        content = kernels.pack_kernels(image.kernels, len(image.text))
        found[elf.KERNELS] = content, len(content)
    elf.check_sizes({name: size for name, (_, size) in found.items()})
    return found


def _assemble(sections: list[_Section]) -> bytes:
    """Return the file: header, section contents in order, section header table. Adds section names, fills the digest in."""
    shstrtab, name_at = bytearray(1), []
    for name in (*(section.kind.name for section in sections), elf.SHSTRTAB):
        name_at.append(len(shstrtab))
        shstrtab += name.encode() + b"\0"
    sections = [*sections, _Section(elf.KINDS[elf.SHSTRTAB], bytes(shstrtab), len(shstrtab))]
    digest = elf.digest(
        (s.kind.name, s.kind.type, s.size_bytes, s.content) for s in sections if s.kind.name != elf.DIGEST
    )
    parts: list[bytes] = []
    headers = [bytes(elf.SHDR.size)]
    end = elf.EHDR.size
    for s, name_offset in zip(sections, name_at, strict=True):
        kind, content = s.kind, digest if s.kind.name == elf.DIGEST else s.content
        offset = elf.align_up(end, kind.align)
        parts += [bytes(offset - end), content]
        end = offset + len(content)
        header = (name_offset, kind.type, kind.flags, 0, offset, s.size_bytes, s.link, s.info, kind.align, kind.entsize)
        headers.append(elf.SHDR.pack(*header))
    shoff = elf.align_up(end, 8)
    counts = (elf.EHDR.size, 0, 0, elf.SHDR.size, len(headers), len(headers) - 1)
    header_bytes = elf.EHDR.pack(elf.IDENT, C.NPU_ELF_TYPE, C.NPU_ELF_MACHINE, 1, 0, 0, shoff, 0, *counts)
    return b"".join([header_bytes, *parts, bytes(shoff - end), *headers])
