"""Faults to inject: what to break, where and when, by the names of npu_uapi.h in small letters ("dma_task", "engine_hang").

A file of faults is a JSON list of {"point", "kind", "after", "count", "seed"}, of which the last three may be left out. NPU_FAULTS names one;
its faults are armed before the device boots.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import npu_abi
from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.arguments import whole

if TYPE_CHECKING:
    from enum import IntEnum

FIELDS = ("point", "kind", "after", "count", "seed")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: struct npu_emu_inject. It strikes at the `after`-th time (0: the next) that its point is passed, `count` times in a row."""

    point: int  # enum npu_fault_point
    kind: int  # enum npu_fault_kind
    after: int = 0
    count: int = 1
    seed: int = 0

    @property
    def fields(self) -> dict[str, int]:
        """The fields of struct npu_emu_inject."""
        return {name: getattr(self, name) for name in FIELDS}


def fault_of(point: str, kind: str, after: int = 0, count: int = 1, seed: int = 0) -> Fault:
    """Return a fault. Raises INVALID_VALUE for an unknown name or a number that does not fit."""
    return Fault(
        _named("npu_fault_point", "NPU_POINT_", point),
        _named("npu_fault_kind", "NPU_FAULT_", kind),
        _number(after, "after", 32),
        _number(count, "count", 32),
        _number(seed, "seed", 64),
    )


def _number(value: object, name: str, bits: int) -> int:
    number = whole(value, name)
    if number >> bits:
        raise _bad(f"{name} {number}; it has {bits} bits")
    return number


def _named(enum: str, prefix: str, name: object) -> int:
    members: type[IntEnum] = npu_abi.enum(enum)
    known = {member.name.removeprefix(prefix).lower(): int(member) for member in sorted(members)}
    known.pop("count", None)
    if not isinstance(name, str) or name not in known:
        raise _bad(f"{name!r} is none of {', '.join(known)}")
    return known[name]


def read_faults(path: str) -> list[Fault]:
    """Return the faults of a file. Raises FILE when it cannot be read, INVALID_VALUE for what is in it."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise NpuError(C.NPU_ERROR_FILE, f"faults {path}: {error}") from None
    except json.JSONDecodeError as error:
        raise _bad(f"{path}: {error}") from None
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise _bad(f"{path}: a list of objects is needed")
    return [_entry(path, entry) for entry in found]


def _entry(path: str, entry: dict[str, Any]) -> Fault:
    unknown = [name for name in entry if name not in FIELDS]
    if unknown or "point" not in entry or "kind" not in entry:
        raise _bad(f"{path}: {entry} needs point and kind, and may have after, count, seed")
    return fault_of(**entry)


def _bad(why: str) -> NpuError:
    return NpuError(C.NPU_ERROR_INVALID_VALUE, f"fault: {why}")


def faults_of_environment() -> list[Fault]:
    """Return the faults of the file that NPU_FAULTS names. Raises as `read_faults`."""
    path = os.environ.get("NPU_FAULTS", "")
    return read_faults(path) if path else []
