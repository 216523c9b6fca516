"""A blob as a program gives it, a path or bytes, read into its image."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.blob import TASK_SECTIONS, BlobError, read
from libnpu.errors import NpuError
from libnpu.regular_file import open_regular
from libnpu.runtime.arguments import path_of, wrong

if TYPE_CHECKING:
    from libnpu.blob import BlobImage

PARTS_MAGIC = b"PK\x03\x04"  # of a model in parts (`libnpu.parts`), which is loaded when there is one


def read_source(source: str | os.PathLike[str] | bytes | bytearray | memoryview, limit_bytes: int = 1 << 32) -> bytes:
    """Return what is in a file, or in bytes. Raises FILE when it cannot be read, INVALID_BLOB when it is larger than `limit_bytes`."""
    match source:
        case str() | os.PathLike():
            return _read_file(path_of(source, "source"), limit_bytes)
        case bytes() | bytearray() | memoryview():
            return bytes(source)  # one copy, whatever a view strides over and whoever writes to it meanwhile
        case _:
            raise wrong(source, "source", "a path or bytes")


def read_blob(data: bytes) -> BlobImage:
    """Return the image that a blob's bytes hold. Raises INVALID_BLOB when they are damaged or foreign."""
    try:
        image = read(data)
    except BlobError as error:
        raise NpuError(C.NPU_ERROR_INVALID_BLOB, str(error)) from error
    assert all(name in TASK_SECTIONS for name in image.tasks)
    return image


def _read_file(path: str, limit_bytes: int) -> bytes:
    """Return what is in a regular file."""
    with open_regular(path) as (file, size):
        if size > limit_bytes:
            why = f"{size} bytes; a blob for this device has {limit_bytes} at most: {path!r}"
            raise NpuError(C.NPU_ERROR_INVALID_BLOB, why)
        return file.read(size)  # not the limit: that much memory would be asked for
