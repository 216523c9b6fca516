"""SHAVE tasks of a blob, run without values: what their programs touch and how much they do, with symbols in address ranges of their own."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from npu_abi import C
from npu_model.footprint import Box, Dims
from npu_model.shave_decode import ProgramCache, run_closed
from npu_model.shave_faults import ShaveFault
from npu_model.shave_free import freed, pointer_of
from npu_model.shave_machine import Machine
from npu_model.shave_pointers import address_words

from libnpu.blob import elf, symbols
from libnpu.blob.image import BlobError
from libnpu.blob.records import field_offset
from libnpu.blob.shadow import coalesce

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npu_model.footprint import Footprint
    from npu_model.profile import Profile
    from numpy.typing import NDArray

    from libnpu.blob.image import BlobImage

ARGS_VA = C.NPU_VA_LOW_BASE
SYMBOLS_VA = 1 << 40  # symbols get address ranges from here on, above everything that a blob can name directly,
SYMBOL_STEP = 1 << 32  # of a multiple of this size, with as much free before the next
INVOCATIONS, RANGES = ".npu.tasks.shave_invocation", ".npu.tasks.shave_range"


Free: TypeAlias = tuple[int, int, int, Dims]  # pointer from 1, 0 = none; offset from it; width and dimensions of a box


@dataclass(slots=True)
class _Arguments:
    """Device memory as a SHAVE program sees it here: the argument blocks."""

    content: NDArray[np.uint8]
    va: int = ARGS_VA

    def view(self, addr: int, nbytes: int, write: bool) -> NDArray[Any]:
        first = addr - self.va
        if write or first < 0 or first + nbytes > len(self.content):
            raise BlobError(f"a SHAVE program reads {nbytes} bytes at {addr:#x}, outside its arguments")
        return self.content[first : first + nbytes]

    def check(self, addr: int, nbytes: int, write: bool) -> None:
        """Accept anything: symbols have addresses of their own here, and the footprint tells what is touched."""


class ShaveTasks:
    """The tasks of one blob on one profile. `base`: symbol -> its first address."""

    def __init__(self, image: BlobImage, profile: Profile) -> None:
        self._image, self._profile = image, profile
        self.base = _addresses(symbols.sizes(image))
        self.by_place = {(r.section, r.offset): r for r in image.relocations}
        self._programs = ProgramCache()
        self._words: dict[
            tuple[bytes, frozenset[int]], list[int]
        ] = {}  # of code and words: those that are addresses alone
        self._touched: dict[tuple[bytes, bytes], tuple[list[Free], list[Free]]] = {}
        content = bytearray(image.shave_args)
        for r in image.relocations:
            if r.section == elf.ARGS:
                value = (self.base[r.symbol] + r.addend) & ((1 << 8 * r.width) - 1)
                struct.pack_into("<Q" if r.width == 8 else "<I", content, r.offset, value)
        self._arguments = _Arguments(np.frombuffer(bytes(content), np.uint8))

    def run(self, index: int) -> Machine:
        """Return the machine on which invocation `index` has halted. ShaveFault; BlobError for a program that depends on data."""
        code, args_va = self._program(index)
        machine = Machine(args_va, self._arguments, self._profile.shave, False)
        run_closed(machine, self._programs.rows(code))
        return machine

    def _program(self, index: int) -> tuple[bytes, int]:
        """Return code and argument block of an invocation."""
        record = self._image.tasks[INVOCATIONS][index]
        ranges = self._image.tasks[RANGES]
        number = int(record["range_index"])
        text = self.by_place[RANGES, number * ranges.dtype.itemsize].addend
        code = self._image.text[text : text + int(ranges[number]["code_bytes"])]
        place = index * record.dtype.itemsize + field_offset(INVOCATIONS, "args_va")
        relocation = self.by_place.get((INVOCATIONS, place))
        return code, ARGS_VA + relocation.addend if relocation else 0

    def touched(self, index: int) -> Footprint:
        """Return (reads, writes) of invocation `index`, without its argument block. Raises as `run`.

        A program is run once for all invocations whose arguments differ in nothing but addresses.
        """
        code, args_va = self._program(index)
        first = args_va - ARGS_VA
        size = int(self._image.tasks[INVOCATIONS]["args_bytes"][index]) if args_va else 0
        block = self._arguments.content[max(first, 0) : max(first, 0) + size].tobytes()
        values = np.frombuffer(block[: size // 8 * 8], np.int64)
        candidates = frozenset((8 * np.flatnonzero(values >= C.NPU_CMX_BASE)).tolist())
        words = self._words.get((code, candidates))
        if words is None:
            words = self._words[code, candidates] = sorted(address_words(code, candidates))
        free_block, pointers = freed(block, words)
        key = code, free_block
        found = self._touched.get(key)
        if found is None:
            try:
                found = self._touched[key] = self._run(code, args_va, free_block)
            except ShaveFault:  # of the watchdog perhaps: apart, accesses do not continue those through another pointer
                found = self._run(code, args_va, block)
        places = [0, *pointers]
        reads, writes = ([Box(places[p] + addr, width, dims) for p, addr, width, dims in boxes] for boxes in found)
        return reads, writes

    def _run(self, code: bytes, args_va: int, block: bytes) -> tuple[list[Free], list[Free]]:
        """Run a program with `block` as its arguments, in which pointers may be free."""
        machine = Machine(args_va, _Arguments(np.frombuffer(block, np.uint8), args_va), self._profile.shave, False)
        run_closed(machine, self._programs.rows(code))
        result = machine.result()
        arguments = range(args_va, args_va + len(block))
        return _free([box for box in result.reads if box.addr not in arguments]), _free(result.writes)


def _free(boxes: Iterable[Box]) -> list[Free]:
    """Return boxes by the pointer that they are reached by, those of one joined that can be."""
    by_pointer: dict[int, list[Box]] = {}
    for box in boxes:
        number, offset = pointer_of(box.addr)
        by_pointer.setdefault(number, []).append(Box(offset, box.width, box.dims))
    return [(number, box.addr, box.width, box.dims) for number, group in by_pointer.items() for box in coalesce(group)]


def _addresses(sizes: dict[str, int]) -> dict[str, int]:
    """Return the first address of each symbol, ascending."""
    found = {}
    at = SYMBOLS_VA
    for name, size in sizes.items():
        found[name] = at
        at += (-(-size // SYMBOL_STEP) + 1) * SYMBOL_STEP
    return found
