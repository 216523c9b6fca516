"""An account of DMA mappings, and what drivers do wrong with them: what Linux reports with CONFIG_DMA_API_DEBUG, in its words.

Besides what Linux finds by its books, it finds a CPU that writes lines which the device owns, by difference: in a mapping that the
device only reads every change is the CPU's, and in memory that the device does not snoop every change of the CPU's shadow is. What
a CPU writes in snooped memory that the device writes too cannot be told from the device's.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from npu_driver.cpu_cache import LINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_driver.dma import DmaDirection, Mapping

OWN_MODULES = ("npu_driver.dma", "npu_driver.dma_debug")
BIDIRECTIONAL, TO_DEVICE, FROM_DEVICE = 0, 1, 2  # enum dma_data_direction


@dataclass(frozen=True, slots=True)
class Report:
    """A mistake. `site` is the file and line that made it, `line` a line of 64 bytes in kernel memory (its index), -1 when it is about none."""

    text: str
    address: int
    line: int
    site: str


@dataclass(slots=True, eq=False)
class _Entry:
    """A mapping in the books. `snapshot` is what the CPU saw when the device got it, None while the CPU has it."""

    kind: str
    mapping: Mapping
    site: str
    checked: bool
    snapshot: Any = None


class DmaDebug:
    """The books of one device. `reports` are all mistakes, oldest first; each goes to `log` too."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self.reports: list[Report] = []
        self._log = log
        self._entries: dict[int, _Entry] = {}

    def mapped(self, kind: str, mapping: Mapping) -> None:
        """A mapping was made."""
        entry = _Entry(kind, mapping, call_site(), checked=kind == "coherent")
        if kind != "coherent":
            self._check_overlap(mapping)
            entry.snapshot = _snapshot(mapping)
        self._entries[mapping.address] = entry

    def error_checked(self, address: int) -> None:
        """The driver has asked whether a mapping failed."""
        if entry := self._entries.get(address):
            entry.checked = True

    def unmapping(self, kind: str, address: int, size: int, direction: DmaDirection) -> None:
        """The driver ends a mapping."""
        entry = self._entries.pop(address, None)
        if entry is None:
            self._report(
                f"device driver tries to free DMA memory it has not allocated [device address={address:#x}] [size={size} bytes]",
                address,
            )
            return
        found = entry.mapping
        where = f"[device address={address:#x}]"
        if found.size != size:
            self._report(
                f"device driver frees DMA memory with different size {where} [map size={found.size} bytes] [unmap size={size} bytes]",
                address,
            )
        if entry.kind != kind:
            self._report(
                f"device driver frees DMA memory with wrong function {where} [mapped as {entry.kind}] [unmapped as {kind}]",
                address,
            )
        if found.direction != direction:
            self._report(
                f"device driver frees DMA memory with different direction {where} [mapped with DMA_{found.direction.name}] "
                f"[unmapped with DMA_{direction.name}]", address,
            )  # fmt: skip
        if not entry.checked:
            self._report(
                f"device driver failed to check map error {where} [size={found.size} bytes] [mapped as {entry.kind}]",
                address,
            )
        self._check_untouched(entry)

    def syncing(self, address: int, size: int, direction: DmaDirection, *, for_cpu: bool) -> None:
        """The driver synchronises a range."""
        where = f"[device address={address:#x}] [size={size} bytes]"
        entry = next(
            (e for e in self._entries.values() if e.mapping.address <= address < e.mapping.address + e.mapping.size),
            None,
        )
        if entry is None:
            self._report(f"device driver tries to sync DMA memory it has not allocated {where}", address)
            return
        found = entry.mapping
        offset = address - found.address
        if offset + size > found.size:
            self._report(
                f"device driver syncs DMA memory outside allocated range {where} [allocation size={found.size} bytes] "
                f"[sync offset+size={offset + size}]", address,
            )  # fmt: skip
        if found.direction == BIDIRECTIONAL:
            pass
        elif direction != found.direction:
            self._report(
                f"device driver syncs DMA memory with different direction {where} [mapped with DMA_{found.direction.name}] "
                f"[synced with DMA_{direction.name}]", address,
            )  # fmt: skip
        elif for_cpu and direction == TO_DEVICE:
            self._report(f"device driver syncs device read-only DMA memory for cpu {where}", address)
        elif not for_cpu and direction == FROM_DEVICE:
            self._report(f"device driver syncs device write-only DMA memory to device {where}", address)
        if for_cpu:
            self._check_untouched(entry)

    def synced(self, address: int, *, for_cpu: bool) -> None:
        """The mapping at `address` belongs to the CPU now, or to the device again."""
        if entry := self._entries.get(address):
            entry.snapshot = None if for_cpu else _snapshot(entry.mapping)

    def check(self) -> list[Report]:
        """Look for CPU writes in what the device owns now, and return all reports."""
        for entry in self._entries.values():
            self._check_untouched(entry)
        return self.reports

    def device_released(self) -> None:
        """The driver lets the device go: what is left was leaked."""
        if self._entries:
            first = next(iter(self._entries.values()))
            self._report(
                f"device driver has pending DMA allocations while released from device [count={len(self._entries)}] "
                f"one of leaked entries: [device address={first.mapping.address:#x}] [size={first.mapping.size} bytes] "
                f"[mapped with DMA_{first.mapping.direction.name}] [mapped as {first.kind}] at {first.site}",
                first.mapping.address,
            )
        self._entries.clear()

    def _check_overlap(self, mapping: Mapping) -> None:
        """Two mappings in one line lose bytes when the device writes one of them, unless neither is written."""
        for entry in self._entries.values():
            other = entry.mapping
            if entry.kind == "coherent" or other.memory is not mapping.memory:
                continue
            first = max(_lines(mapping).start, _lines(other).start)
            if first < min(_lines(mapping).stop, _lines(other).stop) and not (
                mapping.direction == other.direction == TO_DEVICE
            ):
                self._report(
                    f"cacheline tracking EEXIST, overlapping mappings aren't supported [device address={mapping.address:#x}] "
                    f"[overlaps={other.address:#x}]", mapping.address, first,
                )  # fmt: skip

    def _check_untouched(self, entry: _Entry) -> None:
        if entry.snapshot is None:
            return
        now = _snapshot(entry.mapping)
        changed = np.flatnonzero(now != entry.snapshot)
        if len(changed):
            line = (entry.mapping.offset + int(changed[0])) // LINE_BYTES
            self._report(
                f"cpu touching an active dma mapped cacheline [cln={line:#x}] [device address={entry.mapping.address:#x}]",
                entry.mapping.address, line,
            )  # fmt: skip
            entry.snapshot = now

    def _report(self, text: str, address: int, line: int = -1) -> None:
        site = call_site()
        self.reports.append(Report(text, address, line, site))
        self._log(f"DMA-API: {text} at {site}")


def _lines(mapping: Mapping) -> range:
    return range(mapping.offset // LINE_BYTES, -(-(mapping.offset + mapping.size) // LINE_BYTES))


def _snapshot(mapping: Mapping) -> Any:
    """Return what the CPU sees of a mapping, None when it cannot be told who changes it."""
    memory = mapping.memory
    if mapping.direction != TO_DEVICE and not memory.is_shadowed:
        return None
    return np.frombuffer(memory.view[mapping.offset : mapping.offset + mapping.size], np.uint8).copy()


def call_site() -> str:
    """Return file and line of the call into the DMA API."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") in OWN_MODULES:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "?"
