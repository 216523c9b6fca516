"""Reading files that a program names: regular ones only. Pipes and devices are refused, never waited for."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from npu_abi import C

from libnpu.errors import NpuError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def open_regular(path: str | os.PathLike[str]) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file for reading, and tell how many bytes it has. Raises FILE, which names the path, when it cannot be opened or read."""
    name = os.fspath(path)
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _refused(error, name) from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            what = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise NpuError(C.NPU_ERROR_FILE, f"it is {what}: {name!r}")
        with os.fdopen(fd, "rb", closefd=False) as file:
            yield file, status.st_size
    except OSError as error:
        raise _refused(error, name) from None
    finally:
        os.close(fd)


def _refused(error: OSError | ValueError, name: str) -> NpuError:
    return NpuError(C.NPU_ERROR_FILE, f"{getattr(error, 'strerror', None) or error}: {name!r}")
