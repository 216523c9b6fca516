"""Faults to inject: what to break, where and when, by the names of npu_uapi.h in small letters ("dma_task", "engine_hang").

A file of faults is a JSON list of {"point", "kind", "after", "count", "seed"}, of which the last three may be left out. Its faults are armed before
the device boots. NPU_FAULTS names one for the process: every device that the process opens passes its points, and a fault that has struck is spent.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import npu_abi
from npu_abi import C
from npu_model.armed import Armed

from libnpu.errors import NpuError
from libnpu.regular_file import open_regular

if TYPE_CHECKING:
    from enum import IntEnum

MAX_FILE_BYTES = 1 << 20  # chosen: room for ten thousand faults
FIELDS = ("point", "kind", "after", "count", "seed")


def fault_of(point: str, kind: str, after: int = 0, count: int = 1, seed: int = 0) -> Armed:
    """Return a fault; `count` 0 is as 1. Raises INVALID_VALUE for an unknown name or a number that does not fit."""
    return Armed(
        _named("npu_fault_point", "NPU_POINT_", point),
        _named("npu_fault_kind", "NPU_FAULT_", kind),
        _number(after, "after", 32),
        _number(count, "count", 32) or 1,
        _number(seed, "seed", 64),
    )


def _number(value: object, name: str, bits: int) -> int:
    from libnpu.runtime.arguments import whole  # the runtime knows faults, too

    number = whole(value, name)
    if number >> bits:
        raise _bad(f"{name} {number}; it has {bits} bits")
    return number


def _named(enum: str, prefix: str, name: object) -> int:
    members: type[IntEnum] = npu_abi.enum(enum)
    known = {member.name.removeprefix(prefix).lower(): int(member) for member in sorted(members)}
    known.pop("count", None)
    if not isinstance(name, str) or name not in known:
        from libnpu.runtime.arguments import shown

        raise _bad(f"{shown(name)} is none of {', '.join(known)}")
    return known[name]


@cache
def faults_of_process(path: str) -> tuple[Armed, ...]:
    """Return the faults of the file that NPU_FAULTS names, none for "": always the same ones, as far as they have counted down.

    Raises as `read_faults`.
    """
    return tuple(read_faults(path)) if path else ()


def read_faults(path: str) -> list[Armed]:
    """Return the faults of a file. Raises FILE when it cannot be read, INVALID_VALUE for what is in it."""
    with open_regular(path) as (file, size):
        if size > MAX_FILE_BYTES:
            raise _bad(f"{path} has {size} bytes; a file of faults has {MAX_FILE_BYTES} at most")
        data = file.read(size)
    try:
        found = json.loads(data)
    except UnicodeDecodeError as error:
        raise NpuError(C.NPU_ERROR_FILE, f"faults {path}: {error}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise _bad(f"{path}: {error}") from None
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise _bad(f"{path}: a list of objects is needed")
    return [_entry(path, entry) for entry in found]


def _entry(path: str, entry: dict[str, Any]) -> Armed:
    unknown = [name for name in entry if name not in FIELDS]
    if unknown or "point" not in entry or "kind" not in entry:
        raise _bad(f"{path}: {entry} needs point and kind, and may have after, count, seed")
    return fault_of(**entry)


def _bad(why: str) -> NpuError:
    return NpuError(C.NPU_ERROR_INVALID_VALUE, f"fault: {why}")
