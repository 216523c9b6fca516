"""What the programs in python/ share. Each is run with a folder of blobs as its argument (blobs.py)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import libnpu
from libnpu.errors import NpuError, Result
from tests.coverage import ledger
from tests.coverage.pairs import result_names

BLOBS = Path(sys.argv[1])


@contextlib.contextmanager
def expect(result: str) -> Iterator[None]:
    """Expect the `with` block to raise an NpuError of this result (`IN_USE`); MemoryError is OUT_OF_HOST_MEMORY."""
    try:
        yield
    except (NpuError, MemoryError) as error:
        found = Result(error.result).name if isinstance(error, NpuError) else "NPU_ERROR_OUT_OF_HOST_MEMORY"
        assert found == result_names()[result], f"{error}, not {result}"
        ledger.compare(error)
    else:
        raise AssertionError(f"success, not {result}")


def equal(found: object, wanted: object) -> bool:
    """Return whether a call returned what was wanted. If so, its result has been compared."""
    if found == wanted:
        ledger.compare(found)
    return found == wanted


def take_all(device: libnpu.Device) -> list[libnpu.Buffer]:
    """Take all memory of a device, in pieces of half the size."""
    memory: list[libnpu.Buffer] = []
    piece = device.memory_info()[0]
    while piece >= 4096:
        try:
            memory.append(device.alloc(piece))
        except NpuError as error:
            assert Result(error.result).name == "NPU_ERROR_OUT_OF_DEVICE_MEMORY"
            ledger.compare(error)
            piece = piece // 2 // 4096 * 4096
    return memory


def open_device(semantics: str = "ascend") -> libnpu.Device:
    """Return a new device with 64 MiB of memory."""
    return libnpu.open(str(BLOBS / "profile.json"), semantics=semantics)


def blob(name: str) -> str:
    """Return the path of a blob."""
    return str(BLOBS / f"{name}.blob")
