"""A blob as a program gives it, a path or bytes, read into its image."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.blob import TASK_SECTIONS, BlobError, read
from libnpu.errors import NpuError

if TYPE_CHECKING:
    from libnpu.blob import BlobImage


def read_blob(source: str | os.PathLike[str] | bytes | bytearray | memoryview, limit_bytes: int = 1 << 32) -> BlobImage:
    """Return the image in a file or in bytes.

    Raises FILE when it cannot be read, INVALID_BLOB when it is damaged or foreign or larger than `limit_bytes`.
    """
    match source:
        case str() | os.PathLike():
            data = _read_file(os.fspath(source), limit_bytes)
        case bytes() | bytearray() | memoryview():
            data = bytes(source)  # one copy, whatever a view strides over and whoever writes to it meanwhile
        case _:
            raise TypeError(f"a blob is a path or bytes, not {type(source).__name__}")
    try:
        image = read(data)
    except BlobError as error:
        raise NpuError(C.NPU_ERROR_INVALID_BLOB, str(error)) from error
    assert all(name in TASK_SECTIONS for name in image.tasks)
    return image


def _read_file(path: str, limit_bytes: int) -> bytes:
    """Return what is in a regular file. Pipes and devices are refused, never waited for."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                what = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
                raise NpuError(C.NPU_ERROR_FILE, f"it is {what}: {path!r}")
            if status.st_size > limit_bytes:
                why = f"{status.st_size} bytes; a blob for this device has {limit_bytes} at most: {path!r}"
                raise NpuError(C.NPU_ERROR_INVALID_BLOB, why)
            with os.fdopen(fd, "rb", closefd=False) as file:
                return file.read(status.st_size)  # not the limit: that much memory would be asked for
        finally:
            os.close(fd)
    except OSError as error:
        raise NpuError(C.NPU_ERROR_FILE, f"{error.strerror}: {path!r}") from None
    except ValueError as error:  # a NUL in the path
        raise NpuError(C.NPU_ERROR_FILE, f"{error}: {path!r}") from None
