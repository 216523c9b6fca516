"""Guarded pages of the program, as the checker has them: pages.c does it."""

from __future__ import annotations

from typing import Any

from libnpu.checker.guarded import Fault

MOST_FAULTS = 256  # taken at once


class Pages:
    """As `checker.guarded.Pages`. `lib`: the functions of pages.c."""

    def __init__(self, ffi: Any, lib: Any) -> None:
        self._lib = lib
        self._ffi = ffi
        self._faults: Any = None

    def guard(self, key: int, address: int, size: int, *, readable: bool) -> bool:
        """Guard the pages of a range. Return False when they cannot be: the program has a handler of its own."""
        done: int = self._lib.npu_guard_pages(key, address, size, readable)
        return done == 0

    def give_up(self, key: int) -> None:
        """Guard a range no more."""
        self._lib.npu_give_up_pages(key)

    def take(self) -> list[Fault]:
        """Return the accesses that were stopped since the last time, oldest first."""
        if self._faults is None:
            self._faults = self._ffi.new("struct npu_fault[]", MOST_FAULTS)
        found = []
        while count := self._lib.npu_take_faults(self._faults, MOST_FAULTS):
            for fault in self._faults[0:count]:
                sites = tuple(site for site in fault.sites if site)
                write = fault.access == self._lib.NPU_FAULT_STORE
                found.append(Fault(fault.address, write, bool(fault.in_function), sites))
        return found
