"""What the programs in python/ share. Each is run with a folder of blobs as its argument (blobs.py)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import libnpu
from libnpu.errors import NpuError, Result
from tests.coverage.pairs import result_names

BLOBS = Path(sys.argv[1])


@contextlib.contextmanager
def expect(result: str) -> Iterator[None]:
    """Expect the `with` block to raise an NpuError of this result (`IN_USE`)."""
    try:
        yield
    except NpuError as error:
        assert Result(error.result).name == result_names()[result], f"{error}, not {result}"
    else:
        raise AssertionError(f"success, not {result}")


def open_device(semantics: str = "ascend") -> libnpu.Device:
    """Return a new device with 64 MiB of memory."""
    return libnpu.open(str(BLOBS / "profile.json"), semantics=semantics)


def blob(name: str) -> str:
    """Return the path of a blob."""
    return str(BLOBS / f"{name}.blob")
