"""Where a blob's sections go in device memory, and the relocations that follow from it.

Shared by all launches: SHAVE text and arguments (below 4 GiB), weights (read-only to the device). Per instance,
because a launch patches or writes it: MappedInference with the task lists, and scratch. Sections are 64-byte aligned
in their buffer object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C

from libnpu.blob import TASK_SECTIONS
from libnpu.blob.kernels import LIBRARY_PROFILE
from libnpu.blob.records import mapped_inference, mapped_ref_offset
from libnpu.errors import NpuError, Unsupported

if TYPE_CHECKING:
    from libnpu.blob import BlobImage, Relocation

MAPPED, TEXT, ARGS, WEIGHTS, SCRATCH = (
    ".npu.mapped_inference", ".text.shave", ".data.shave_args", ".data.weights", ".bss.scratch",
)  # fmt: skip
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Layout:
    """Sections of one buffer object: name -> offset, and the content of each. `size` 0: no buffer object is needed."""

    offsets: dict[str, int]
    contents: dict[str, bytes]
    size: int

    def copy_to(self, view: memoryview) -> None:
        """Write the sections to the buffer object's memory; gaps become zero."""
        end = 0
        for name, offset in self.offsets.items():
            content = self.contents[name]
            view[end:offset] = bytes(offset - end)
            end = offset + len(content)
            view[offset:end] = content


def layout(sections: list[tuple[str, bytes]]) -> Layout:
    """Return the layout of the non-empty `sections`, in order."""
    offsets: dict[str, int] = {}
    end = 0
    for name, data in sections:
        if data:
            offsets[name] = end + -end % ALIGNMENT
            end = offsets[name] + len(data)
    return Layout(offsets, dict(sections), end)


def weights_layout(image: BlobImage) -> Layout:
    """Return the layout of the weights; those of a plan have a place, and no content."""
    if image.planned_weight_bytes:
        return Layout({WEIGHTS: 0}, {WEIGHTS: b""}, image.planned_weight_bytes)
    return layout([(WEIGHTS, image.weights)])


def task_layout(image: BlobImage) -> Layout:
    """Return the layout of MappedInference and the task lists."""
    counts = {name: len(array) for name, array in image.tasks.items()}
    mapped = mapped_inference(image.tile_count, image.barrier_count, counts)
    return layout([(MAPPED, mapped), *((name, array.tobytes()) for name, array in image.tasks.items())])


class Patch:
    """Relocations into one buffer object as arrays.

    `symbols` are in the order that `apply` wants their addresses in.
    """

    __slots__ = ("_addends", "_groups", "_index", "symbols")

    def __init__(self, layout: Layout, relocations: list[Relocation], image: BlobImage) -> None:
        """Prepare `relocations`, all of whose sections are in `layout`.

        Raises INVALID_BLOB for one that leaves its section.
        """
        self.symbols = sorted({relocation.symbol for relocation in relocations})
        number = {symbol: i for i, symbol in enumerate(self.symbols)}
        sizes = _section_sizes(image)
        for relocation in relocations:
            if not 0 <= relocation.offset <= sizes.get(relocation.section, 0) - relocation.width:
                raise NpuError(
                    C.NPU_ERROR_INVALID_BLOB,
                    f"relocation at {relocation.offset:#x} + {relocation.width} leaves section {relocation.section}",
                )
        where = np.array([layout.offsets[r.section] + r.offset for r in relocations], np.int64)
        width = np.array([r.width for r in relocations], np.int64)
        self._index = np.array([number[r.symbol] for r in relocations], np.int64)
        self._addends = np.array([r.addend & 0xFFFFFFFFFFFFFFFF for r in relocations], np.uint64)
        self._groups: list[tuple[int, bool, Any, Any]] = []  # width, aligned, selection, positions
        for bytes_wide in (4, 8):
            chosen = np.flatnonzero(width == bytes_wide)
            if len(chosen):
                at = where[chosen]
                aligned = not (at % bytes_wide).any()
                self._groups.append((bytes_wide, aligned, chosen, at // bytes_wide if aligned else at))

    def apply(self, view: memoryview, addresses: dict[str, int]) -> None:
        """Write S + A of every relocation into `view`. Raises INVALID_BLOB when a 32-bit one does not fit."""
        if not self._groups:
            return
        table = np.array([addresses[symbol] for symbol in self.symbols], np.uint64)
        values = table[self._index] + self._addends
        target = np.frombuffer(view, np.uint8)
        for width, aligned, chosen, at in self._groups:
            words = values[chosen]
            if width == 4:
                if (words >> np.uint64(32)).any():
                    raise NpuError(C.NPU_ERROR_INVALID_BLOB, "a 32-bit relocation refers to an address above 4 GiB")
                words = words.astype("<u4")
            if aligned:
                target[: len(target) // width * width].view(f"<u{width}")[at] = words
            else:
                target[at[:, None] + np.arange(width)] = words.view(np.uint8).reshape(-1, width)


def _section_sizes(image: BlobImage) -> dict[str, int]:
    sizes = {name: array.nbytes for name, array in image.tasks.items()}
    return sizes | {MAPPED: C.NPU_PAGE_SIZE, TEXT: len(image.text), ARGS: len(image.shave_args)}


def split_relocations(image: BlobImage) -> tuple[list[Relocation], list[Relocation], list[Relocation]]:
    """Return the relocations of the shared sections, of an instance at its making, and of an instance at a launch.

    Raises Unsupported for a shared section that refers to something of an instance or a launch.
    """
    from libnpu.blob import Relocation

    shared: list[Relocation] = []
    made: list[Relocation] = []
    launched: list[Relocation] = []
    for relocation in image.relocations:
        if relocation.section in TASK_SECTIONS:
            per_launch = relocation.symbol.startswith(("in:", "out:"))
            (launched if per_launch else made).append(relocation)
        elif relocation.symbol in (TEXT, ARGS, WEIGHTS):
            shared.append(relocation)
        else:
            raise Unsupported(
                f"relocation of {relocation.section} to {relocation.symbol}: it is shared by all launches"
            )
    made += [Relocation(MAPPED, mapped_ref_offset(name), name, 0) for name in image.tasks]
    return shared, made, launched


def check_resources(image: BlobImage, profile: Any) -> None:
    """Raise INVALID_BLOB when the device of `profile` cannot hold the blob."""
    if image.profile not in (profile.name, LIBRARY_PROFILE):
        raise NpuError(
            C.NPU_ERROR_INVALID_BLOB, f"the blob was compiled for {image.profile!r}, the device is {profile.name!r}"
        )
    for what, needed, limit in (
        ("tiles", image.tile_count, profile.tiles),
        ("CMX bytes in a tile", image.cmx_bytes, profile.cmx.workspace_bytes),
        ("barriers", image.barrier_count, min(profile.barriers_per_tile * image.tile_count, C.NPU_MAX_BARRIER_IDS)),
    ):
        if needed > limit:
            raise NpuError(C.NPU_ERROR_INVALID_BLOB, f"the blob needs {needed} {what}, the device has {limit}")
