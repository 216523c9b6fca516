"""The byte ranges that each task of a blob touches: npu_model's footprints, with every symbol in an address range of its own.

CMX keeps its addresses, so that each tile is a range of its own; a descriptor that writes to several tiles has a box in each.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from npu_abi import C
from npu_model import footprint
from npu_model.descriptors import Dma

from libnpu.blob import elf, symbols
from libnpu.blob.records import field_offset
from libnpu.blob.shave_tasks import ShaveTasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npu_model.footprint import Box, Footprint
    from npu_model.profile import Profile

    from libnpu.blob.image import BlobImage
    from libnpu.blob.walk import Step

_ENDS = ("transaction_src", "transaction_dst")
_WRITABLE = (elf.SCRATCH, "out:")
_FILLED = (elf.WEIGHTS, "in:")  # before the first task starts


class Space(NamedTuple):
    """An address range that tasks share: the part of one tile's CMX that the job uses, or what a symbol names."""

    name: str
    first: int
    past: int
    writable: bool
    filled: bool  # holds values when the first task starts
    is_cmx: bool


class Accesses:
    """Footprints of the tasks of one image. `dpu` are those of invariants that are known already, by index."""

    def __init__(self, image: BlobImage, profile: Profile, dpu: dict[int, Footprint]) -> None:
        self._image = image
        self._dpu = dpu
        self._shave = ShaveTasks(image, profile)
        self._transactions = {
            section: self._patched(section) for section in image.tasks if section.startswith(".npu.tasks.dma")
        }
        self.spaces = [*self._cmx(), *self._symbols()]  # by address
        self._firsts = [space.first for space in self.spaces]

    def of(self, step: Step) -> Footprint:
        """Return (reads, writes) of a task. ShaveFault, BlobError for a SHAVE program that depends on more than its arguments."""
        kind = step.engine[0]
        if kind == C.NPU_ENGINE_DMA:
            return footprint.dma_boxes(Dma.of(self._transactions[step.section][step.index]))
        if kind == C.NPU_ENGINE_DPU:
            known = self._dpu.get(step.index)
            return known if known is not None else self._invariant(step.index)
        return self._shave.touched(step.index)

    def space(self, box: Box) -> Space | None:
        """Return what a box lies in; None when it lies in nothing that the job has, or not as a whole."""
        found = self.spaces[bisect_right(self._firsts, box.addr) - 1]
        return found if found.first <= box.addr and box.end <= found.past else None

    def name(self, first: int, past: int) -> tuple[str, int, int]:
        """Return what addresses are of, for people: a symbol and offsets, or "memory" and the addresses."""
        base = self._shave.base
        symbol = max((name for name in base if base[name] <= first), key=base.__getitem__, default="")
        return (symbol, first - base[symbol], past - base[symbol]) if symbol else ("memory", first, past)

    def _invariant(self, index: int) -> Footprint:
        record = self._image.tasks[".npu.tasks.dpu_invariant"][index]
        first, count = int(record["variant_first"]), int(record["variant_count"])
        return footprint.dpu_footprint(record, self._image.tasks[".npu.tasks.dpu_variant"][first : first + count])

    def _patched(self, section: str) -> list[tuple[int, ...]]:
        """Return the fields of the descriptors of a DMA list, relocated."""
        array = self._image.tasks[section]
        names = [name for name in array.dtype.names or () if name.startswith("transaction_")]
        columns = {name: array[name].tolist() for name in names}
        fields_at = {field_offset(section, name): name for name in _ENDS}
        for relocation in self._image.relocations:
            if relocation.section == section:
                index, offset = divmod(relocation.offset, array.dtype.itemsize)
                columns[fields_at[offset]][index] = self._shave.base[relocation.symbol] + relocation.addend
        return list(zip(*(columns[name] for name in names[: len(Dma._fields)]), strict=True))

    def _cmx(self) -> Iterator[Space]:
        for tile in range(self._image.tile_count):
            first = int(C.NPU_CMX_BASE) + tile * int(C.NPU_CMX_TILE_STRIDE)
            yield Space(f"CMX of tile {tile}", first, first + self._image.cmx_bytes, True, False, True)

    def _symbols(self) -> Iterator[Space]:
        sizes = symbols.sizes(self._image)
        for name, first in self._shave.base.items():
            if name.startswith((*_WRITABLE, *_FILLED)):
                past = first + sizes[name]
                yield Space(name, first, past, name.startswith(_WRITABLE), name.startswith(_FILLED), False)
