"""SHAVE tasks of a blob, run without values: what their programs touch and how much they do, with symbols in address ranges of their own."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C
from npu_model.shave_decode import ProgramCache, run_closed
from npu_model.shave_machine import Machine

from libnpu.blob import elf
from libnpu.blob.image import BlobError
from libnpu.blob.records import field_offset

if TYPE_CHECKING:
    from npu_model.profile import Profile
    from numpy.typing import NDArray

    from libnpu.blob.image import BlobImage

ARGS_VA = C.NPU_VA_LOW_BASE
SYMBOL_BITS = 40  # symbols get address ranges of this size, above everything that a blob can name directly
INVOCATIONS, RANGES = ".npu.tasks.shave_invocation", ".npu.tasks.shave_range"


@dataclass(slots=True)
class _Arguments:
    """Device memory as a SHAVE program sees it here: the argument blocks."""

    content: NDArray[np.uint8]

    def view(self, addr: int, nbytes: int, write: bool) -> NDArray[Any]:
        first = addr - ARGS_VA
        if write or first < 0 or first + nbytes > len(self.content):
            raise BlobError(f"a SHAVE program reads {nbytes} bytes at {addr:#x}, outside its arguments")
        return self.content[first : first + nbytes]

    def check(self, addr: int, nbytes: int, write: bool) -> None:
        """Accept anything: symbols have addresses of their own here, and the footprint tells what is touched."""


class ShaveTasks:
    """The tasks of one blob on one profile. `base`: symbol -> its first address."""

    def __init__(self, image: BlobImage, profile: Profile) -> None:
        self._image, self._profile = image, profile
        names = (*elf.REFERABLE, *(f"in:{t.name}" for t in image.inputs), *(f"out:{t.name}" for t in image.outputs))
        self.base = {name: number << SYMBOL_BITS for number, name in enumerate(names, 1)}
        self.by_place = {(r.section, r.offset): r for r in image.relocations}
        self._programs = ProgramCache()
        content = bytearray(image.shave_args)
        for r in image.relocations:
            if r.section == elf.ARGS:
                value = (self.base[r.symbol] + r.addend) & ((1 << 8 * r.width) - 1)
                struct.pack_into("<Q" if r.width == 8 else "<I", content, r.offset, value)
        self._arguments = _Arguments(np.frombuffer(bytes(content), np.uint8))
        self.arguments = range(ARGS_VA, ARGS_VA + len(content))  # addresses of the argument blocks

    def run(self, index: int) -> Machine:
        """Return the machine on which invocation `index` has halted. ShaveFault; BlobError for a program that depends on data."""
        record = self._image.tasks[INVOCATIONS][index]
        ranges = self._image.tasks[RANGES]
        number = int(record["range_index"])
        text = self.by_place[RANGES, number * ranges.dtype.itemsize].addend
        code = self._image.text[text : text + int(ranges[number]["code_bytes"])]
        relocation = self.by_place.get(
            (INVOCATIONS, index * record.dtype.itemsize + field_offset(INVOCATIONS, "args_va"))
        )
        args_va = ARGS_VA + relocation.addend if relocation else 0
        machine = Machine(args_va, self._arguments, self._profile.shave, False)
        run_closed(machine, self._programs.rows(code))
        return machine
