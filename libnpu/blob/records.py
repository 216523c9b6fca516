"""Sections made of fixed records: the ABI note, the task lists, and MappedInference, which follows from the task lists."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import npu_abi
from npu_abi import C

from libnpu.blob import elf
from libnpu.blob.image import TASK_SECTIONS, BlobError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray


def abi_note() -> bytes:
    """Return the content of .note.npu.abi for the ABI of the headers."""
    return struct.pack("<III4sII", 4, 8, C.NPU_NOTE_ABI, b"NPU\0", C.NPU_BLOB_ABI_MAJOR, C.NPU_BLOB_ABI_MINOR)


def check_note(data: bytes) -> None:
    """Raise BlobError unless `data` is the note of an ABI that this library reads."""
    expected = abi_note()
    if len(data) != len(expected) or data[:16] != expected[:16]:
        raise BlobError(f"{elf.NOTE}: {data[:32].hex()}; expected one note of owner NPU, type {C.NPU_NOTE_ABI}")
    major, minor = struct.unpack_from("<II", data, 16)
    if major != C.NPU_BLOB_ABI_MAJOR or minor > C.NPU_BLOB_ABI_MINOR:
        ours = f"{C.NPU_BLOB_ABI_MAJOR}.{C.NPU_BLOB_ABI_MINOR}"
        raise BlobError(
            f"{elf.NOTE}+0x10: blob ABI {major}.{minor}; this library reads {C.NPU_BLOB_ABI_MAJOR}.0 to {ours}"
        )


def field_mask(dtype: np.dtype[np.void]) -> NDArray[np.uint8]:
    """Return one byte per byte of a record: 0xff where a named field is, 0 where it is reserved."""
    import numpy as np

    mask = np.zeros(dtype.itemsize, np.uint8)
    for field, offset, *_ in (dtype.fields or {}).values():
        mask[offset : offset + field.itemsize] = 0xFF
    return mask


def pack_tasks(section: str, array: NDArray[np.void]) -> bytes:
    """Return the content of task section `section`: the records of `array` with every reserved byte zero.

    Raises BlobError when the array is not a list of the section's structure or is too long.
    """
    import numpy as np

    if section not in TASK_SECTIONS:
        raise BlobError(f"{section}: no such task section; there are {', '.join(TASK_SECTIONS)}")
    dtype = npu_abi.dtype(TASK_SECTIONS[section])
    if array.dtype != dtype or array.ndim != 1:
        raise BlobError(
            f"{section}: {array.ndim}-d array of {array.dtype}; expected a list of struct {TASK_SECTIONS[section]}"
        )
    if len(array) > C.NPU_MAX_TASKS:
        raise BlobError(f"{section}: {len(array)} entries; expected at most {C.NPU_MAX_TASKS}")
    raw = np.ascontiguousarray(array).view(np.uint8).reshape(len(array), dtype.itemsize)
    return (raw & field_mask(dtype)).tobytes()


def unpack_tasks(section: str, content: memoryview) -> NDArray[np.void]:
    """Return the records of task section `section` in memory of their own.

    Raises BlobError when the size does not fit the structure or a reserved byte is not zero.
    """
    import numpy as np

    dtype = npu_abi.dtype(TASK_SECTIONS[section])
    if len(content) % dtype.itemsize or len(content) // dtype.itemsize > C.NPU_MAX_TASKS:
        raise BlobError(
            f"{section}: {len(content)} bytes; expected up to {C.NPU_MAX_TASKS} entries of {dtype.itemsize} bytes"
        )
    raw = np.frombuffer(content, np.uint8).reshape(-1, dtype.itemsize)
    mask = field_mask(dtype)
    if not mask.all():
        bad = raw[:, mask == 0].any(axis=1)
        if bad.any():
            entry = int(bad.argmax())
            raise BlobError(
                f"{section}+{entry * dtype.itemsize:#x}: entry {entry} has a reserved byte that is not zero"
            )
    return raw.copy().view(dtype).reshape(-1)


def mapped_ref_offset(section: str) -> int:
    """Return the offset in struct npu_mapped_inference of the reference (va, count) to `section`."""
    fields = npu_abi.dtype("npu_mapped_inference").fields
    assert fields is not None
    return int(fields[f"{elf.MAPPED_REFS[section]}_va"][1])


def mapped_inference(tile_count: int, barrier_count: int, counts: Mapping[str, int]) -> bytes:
    """Return struct npu_mapped_inference for task sections of `counts` entries; addresses are left to relocations."""
    head = npu_abi.new(
        "npu_mapped_inference", api_version=C.NPU_MI_API_VERSION, tile_count=tile_count, barrier_count=barrier_count
    )
    data = bytearray(npu_abi.pack(head))
    for section, count in counts.items():
        struct.pack_into("<Q", data, mapped_ref_offset(section) + 8, count)
    return bytes(data)


def check_mapped_inference(data: bytes, expected: bytes) -> None:
    """Raise BlobError, naming the first field that differs, unless `data` is what the other sections imply."""
    if len(data) != len(expected):
        raise BlobError(f"{elf.MAPPED}: {len(data)} bytes; expected {len(expected)}")
    for at in range(0, len(expected), 4):
        found, wanted = data[at : at + 4], expected[at : at + 4]
        if found != wanted:
            value, other = int.from_bytes(found, "little"), int.from_bytes(wanted, "little")
            raise BlobError(f"{elf.MAPPED}+{at:#x}: word {value:#x}; the other sections imply {other:#x}")


def field_offset(section: str, field: str) -> int:
    """Return the byte offset of `field` (flat name) in the structure of task section `section`."""
    fields = npu_abi.dtype(TASK_SECTIONS[section]).fields
    assert fields is not None
    return int(fields[field][1])
