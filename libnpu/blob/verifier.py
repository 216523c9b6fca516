"""Static verification of a blob, independent of who made it: would firmware and engines find every operand and every barrier?

Checks, in this order: resources against the hardware profile, barrier configurations and their chains, masks and counts of
all tasks, DMA ranges, DPU operands in CMX, SHAVE programs and arguments; then, if these hold, an abstract run of the task
lists (`walk`). Values are not its business.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from npu_abi import C, dtype
from npu_model import footprint, shave_isa
from npu_model.descriptors import DescriptorError
from npu_model.dtypes import DtypeError
from npu_model.profile import Profile, ProfileError, load_profile

from libnpu.blob import elf, symbols
from libnpu.blob.image import TASK_SECTIONS, BlobImage, Relocation
from libnpu.blob.problem import Problem
from libnpu.blob.records import field_offset
from libnpu.blob.walk import Step, bits, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_MASKED = (".npu.tasks.dma0", ".npu.tasks.dma1", ".npu.tasks.dpu_invariant", ".npu.tasks.shave_invocation")
_BARRIERS = ".npu.barriers"
# Sections and tensors that the device may write.
_WRITABLE = (elf.SCRATCH, "out:")
_DATA = (*_WRITABLE, elf.WEIGHTS, "in:")

_DIMENSIONS = ("in_x", "in_y", "in_z", "out_x", "out_y", "out_z")


def verify(image: BlobImage, profile: Profile | None = None) -> list[Problem]:
    """Return every broken rule; an empty list is a blob that the device can run to its end.

    Of a kernel library only the code is checked: what it does depends on its arguments.

    `profile` is the image's own by default; a profile of that name must exist.
    """
    return examine(image, profile).problems


@dataclass(frozen=True, slots=True)
class Examined:
    """What `examine` found. `steps` (in one legal order) and `footprints` (of invariants, by index) are whole when there is no problem."""

    problems: list[Problem]
    steps: list[Step] = dataclasses.field(default_factory=list)
    footprints: dict[int, footprint.Footprint] = dataclasses.field(default_factory=dict)
    profile: Profile | None = None


def examine(image: BlobImage, profile: Profile | None = None) -> Examined:
    """Do what `verify` does, and keep what a proof goes on with."""
    if image.kernels:
        return Examined([*_kernels(image)])
    if profile is None:
        try:
            profile = load_profile(image.profile)
        except ProfileError as error:
            return Examined([Problem("profile", elf.PLATFORM, str(error))])
    verifier = _Verifier(image, profile)
    problems = [*verifier.resources(), *verifier.barriers(), *verifier.masks()]
    consistent = not problems
    problems += [*verifier.dma(), *verifier.dpu(), *verifier.shave(), *verifier.stray_relocations()]
    steps: list[Step] = []
    if consistent:
        problems += walk(image, profile.core.fifo_depth, steps)
    return Examined(problems, steps, verifier.footprints, profile)


def _kernels(image: BlobImage) -> Iterator[Problem]:
    """Check the programs of a kernel library; where they lie the reader has checked."""
    for kernel in image.kernels:
        code = image.text[kernel.text_offset : kernel.text_offset + kernel.code_bytes]
        yield from _code(code, f"kernel {kernel.name!r}")


def _code(code: bytes, where: str) -> Iterator[Problem]:
    for pc, insn in enumerate(shave_isa.decode(code)):
        reason = shave_isa.check(insn)
        if reason:
            yield Problem("shave-code", where, f"instruction at {pc * 16:#x}: {reason}")


class _Verifier:
    """The checks of one image, with its relocations by place. `used` collects the relocations that a field needs."""

    def __init__(self, image: BlobImage, profile: Profile) -> None:
        self.image = image
        self.profile = profile
        self.by_place = {(r.section, r.offset): r for r in image.relocations}
        self.used: set[tuple[str, int]] = set()
        self.sizes = symbols.sizes(image)
        self.footprints: dict[int, footprint.Footprint] = {}  # of invariants

    def count(self, section: str) -> int:
        return len(self.image.tasks.get(section, ()))

    def resources(self) -> Iterator[Problem]:
        image, profile = self.image, self.profile
        for field, found, low, high in (
            ("tile_count", image.tile_count, 1, min(profile.tiles, C.NPU_MAX_TILES)),
            ("cmx_bytes", image.cmx_bytes, 0, profile.cmx.workspace_bytes),
            (
                "barrier_count",
                image.barrier_count,
                0,
                min(profile.barriers_per_tile * image.tile_count, C.NPU_MAX_BARRIER_IDS),
            ),
        ):
            if not low <= found <= high:
                yield Problem("resources", elf.PLATFORM, f"{field} is {found}; {profile.name} allows {low} to {high}")
        if profile.dma_ports < 2 and self.count(".npu.tasks.dma1"):
            yield Problem("resources", ".npu.tasks.dma1", f"{profile.name} has {profile.dma_ports} DMA port")

    def barriers(self) -> Iterator[Problem]:
        """Check each configuration, and that those of one physical id are chained in array order."""
        if not self.count(_BARRIERS):
            return
        following: dict[int, int] = {}
        configs = self.image.tasks[_BARRIERS]
        for index in reversed(range(len(configs))):
            entry, where = configs[index], f"{_BARRIERS}[{index}]"
            real_id, chained = int(entry["real_id"]), int(entry["next_same_id"])
            if real_id >= self.image.barrier_count:
                yield Problem("barrier-id", where, f"real_id {real_id}; expected below {self.image.barrier_count}")
            if not 1 <= entry["producer_count"] <= C.NPU_MAX_BARRIER_COUNT:
                yield Problem("barrier-count", where, f"producer_count {entry['producer_count']}; expected 1 to 255")
            if entry["consumer_count"] > C.NPU_MAX_BARRIER_COUNT:
                yield Problem("barrier-count", where, f"consumer_count {entry['consumer_count']}; expected 0 to 255")
            expected = following.get(real_id, C.NPU_BARRIER_NONE)
            if chained != expected:
                yield Problem(
                    "barrier-chain", where, f"next_same_id {chained:#x}; the next on id {real_id} is {expected:#x}"
                )
            following[real_id] = index

    def masks(self) -> Iterator[Problem]:
        """Check that masks name existing ids, and that per id all posts and waits add up to the configured counts."""
        barriers = self.count(_BARRIERS)
        used: dict[str, dict[int, int]] = {"wait": {}, "post": {}}
        for section in _MASKED:
            if not self.count(section):
                continue
            array = self.image.tasks[section]
            for what, totals in used.items():
                masks = array[f"barriers_{what}_mask"].tolist()
                for index, mask in enumerate(masks):
                    if mask >> self.image.barrier_count:
                        yield Problem(
                            "barrier-id",
                            f"{section}[{index}]",
                            f"{what}_mask {mask:#x}; expected ids below {self.image.barrier_count}",
                        )
                    for physical in bits(mask):
                        totals[physical] = totals.get(physical, 0) + 1
            after = array["sched_start_after"]
            for index in np.flatnonzero((after != C.NPU_BARRIER_NONE) & (after >= barriers)).tolist():
                found = int(after[index])
                yield Problem(
                    "barrier-id", f"{section}[{index}]", f"start_after {found}; there are {barriers} virtual barriers"
                )
        configured: dict[str, dict[int, int]] = {"wait": {}, "post": {}}
        if barriers:
            configs = self.image.tasks[_BARRIERS]
            for real_id, posts, waits in zip(
                *(configs[f].tolist() for f in ("real_id", "producer_count", "consumer_count")), strict=True
            ):
                configured["post"][real_id] = configured["post"].get(real_id, 0) + posts
                configured["wait"][real_id] = configured["wait"].get(real_id, 0) + waits
        for what, totals in used.items():
            for physical in sorted({*totals, *configured[what]}):
                found, expected = totals.get(physical, 0), configured[what].get(physical, 0)
                if found != expected:
                    where = f"{_BARRIERS} id {physical}"
                    yield Problem("barrier-count", where, f"{found} tasks {what}; the configurations count {expected}")

    def dma(self) -> Iterator[Problem]:
        for section in (".npu.tasks.dma0", ".npu.tasks.dma1"):
            if not self.count(section):
                continue
            array = self.image.tasks[section]
            fields = {
                name.removeprefix("transaction_"): array[name].astype(np.int64) for name in array.dtype.names or ()
            }
            bad = (fields["length"] == 0) | (fields["num_planes"] == 0)
            for end in ("src", "dst"):
                width = np.maximum(fields[f"{end}_width"], 1)
                bad |= (fields[f"{end}_width"] == 0) | (fields["length"] % width != 0)
            for index in np.flatnonzero(bad).tolist():
                shape = ", ".join(f"{f} {fields[f][index]}" for f in ("length", "num_planes", "src_width", "dst_width"))
                yield Problem(
                    "dma-shape", f"{section}[{index}]", f"{shape}; expected > 0, and widths that divide the length"
                )
            if bad.any():
                continue
            for end in ("src", "dst"):
                low, high = _extent(fields, end)
                column = array[f"transaction_{end}"].tolist()
                base = field_offset(section, f"transaction_{end}")
                for index, (value, first, past) in enumerate(zip(column, low.tolist(), high.tolist(), strict=True)):
                    yield from self._operand(
                        section,
                        index,
                        f"transaction.{end}",
                        base + index * array.dtype.itemsize,
                        value,
                        first,
                        past,
                        end == "dst",
                    )

    def _operand(
        self, section: str, index: int, field: str, offset: int, value: int, low: int, high: int, written: bool
    ) -> Iterator[Problem]:
        """Check bytes [low, high) relative to an address field: in CMX, or in what a relocation refers to."""
        where = f"{section}[{index}]"
        relocation = self._use(section, offset)
        if relocation is None:
            if not self.in_cmx(value + low, value + high):
                yield Problem(
                    "range",
                    where,
                    f"{field}: {value + low:#x} to {value + high:#x} is not CMX of the job, and has no relocation",
                )
            return
        if value or relocation.width != 8:
            yield Problem("relocation", where, f"{field}: value {value:#x}, width {relocation.width}; expected 0 and 8")
        allowed = _WRITABLE if written else _DATA
        if not relocation.symbol.startswith(allowed):
            yield Problem("range", where, f"{field}: refers to {relocation.symbol}; expected {', '.join(allowed)}")
        size = self.sizes.get(relocation.symbol, 0)
        first, past = relocation.addend + low, relocation.addend + high
        if first < 0 or past > size:
            yield Problem(
                "range", where, f"{field}: {first:#x} to {past:#x} of {relocation.symbol}, which has {size:#x} bytes"
            )

    def _use(self, section: str, offset: int) -> Relocation | None:
        self.used.add((section, offset))
        return self.by_place.get((section, offset))

    def in_cmx(self, first: int, past: int) -> bool:
        """Tell whether [first, past) lies in the used part of one tile of the job."""
        tile, start = divmod(first - C.NPU_CMX_BASE, C.NPU_CMX_TILE_STRIDE)
        return 0 <= tile < self.image.tile_count and start + past - first <= self.image.cmx_bytes

    def dpu(self) -> Iterator[Problem]:
        invariants, variants = ".npu.tasks.dpu_invariant", ".npu.tasks.dpu_variant"
        entries, parts = (
            self.image.tasks.get(section, np.zeros(0, dtype(TASK_SECTIONS[section])))
            for section in (invariants, variants)
        )
        owners, names = [0] * len(parts), parts["invariant_index"].tolist()
        footprints = footprint.DpuFootprints(entries, parts)
        large = np.logical_or.reduce([entries[field] > C.NPU_CMX_TILE_STRIDE for field in _DIMENSIONS]).tolist()
        columns = (entries[field].tolist() for field in ("tile", "variant_first", "variant_count"))
        for index, (tile, first, length) in enumerate(zip(*columns, strict=True)):
            where = f"{invariants}[{index}]"
            if tile >= self.image.tile_count:
                yield Problem("tile", where, f"tile {tile}; expected below {self.image.tile_count}")
            if not length or first + length > len(parts):
                yield Problem(
                    "variants", where, f"variants {first} to {first + length}; expected 1 or more of {len(parts)}"
                )
                continue
            for at in range(first, first + length):
                owners[at] += 1
            if names[first : first + length].count(index) != length:
                yield Problem("variants", where, f"a variant of {first} to {first + length} names another invariant")
            if large[index]:
                field = next(f for f in _DIMENSIONS if entries[index][f] > C.NPU_CMX_TILE_STRIDE)
                yield Problem(
                    "dpu-shape", where, f"{field} is {entries[index][field]}; more elements than a tile has bytes"
                )
                continue
            try:
                reads, writes = footprints.of(index)
            except (DescriptorError, DtypeError) as error:
                yield Problem("dpu-shape", where, str(error))
                continue
            self.footprints[index] = reads, writes
            for what, boxes in (("reads", reads), ("writes", writes)):
                for box in boxes:
                    if not self.in_cmx(box.addr, box.end):
                        yield Problem("range", where, f"{what} {box.addr:#x} to {box.end:#x}, not CMX of the job")
        for index, number in enumerate(owners):
            if number != 1:
                yield Problem("variants", f"{variants}[{index}]", f"belongs to {number} invariants; expected 1")

    def shave(self) -> Iterator[Problem]:
        ranges, invocations = ".npu.tasks.shave_range", ".npu.tasks.shave_invocation"
        for index in range(self.count(ranges)):
            entry, where = self.image.tasks[ranges][index], f"{ranges}[{index}]"
            size = int(entry["code_bytes"])
            relocation = self._use(ranges, index * entry.dtype.itemsize + field_offset(ranges, "text_va"))
            if relocation is None or relocation.symbol != elf.TEXT or relocation.width != 8 or entry["text_va"]:
                yield Problem("relocation", where, f"text_va: expected 0 and an 8-byte relocation to {elf.TEXT}")
                continue
            start = relocation.addend
            if size == 0 or size % 16 or start % 16 or not 0 <= start <= start + size <= len(self.image.text):
                text_bytes = len(self.image.text)
                yield Problem(
                    "range",
                    where,
                    f"{size} bytes at {start:#x} of {elf.TEXT}, which has {text_bytes}; expected multiples of 16",
                )
                continue
            yield from _code(self.image.text[start : start + size], where)
        for index in range(self.count(invocations)):
            entry, where = self.image.tasks[invocations][index], f"{invocations}[{index}]"
            if entry["range_index"] >= self.count(ranges):
                yield Problem(
                    "shave-range", where, f"range_index {entry['range_index']}; there are {self.count(ranges)}"
                )
            if entry["tile"] >= self.image.tile_count or entry["shave"] >= self.profile.shaves_per_tile:
                tiles, shaves = self.image.tile_count, self.profile.shaves_per_tile
                found = f"tile {entry['tile']} shave {entry['shave']}"
                yield Problem("tile", where, f"{found}; expected below {tiles} and {shaves}")
            size = int(entry["args_bytes"])
            relocation = self._use(invocations, index * entry.dtype.itemsize + field_offset(invocations, "args_va"))
            if relocation is None:
                if size or entry["args_va"]:
                    yield Problem(
                        "relocation", where, f"args_va {entry['args_va']:#x}, {size} bytes, and no relocation"
                    )
            elif relocation.symbol != elf.ARGS or relocation.width != 4 or entry["args_va"]:
                yield Problem("relocation", where, f"args_va: expected 0 and a 4-byte relocation to {elf.ARGS}")
            elif not 0 <= relocation.addend <= relocation.addend + size <= len(self.image.shave_args):
                total = len(self.image.shave_args)
                yield Problem(
                    "range", where, f"{size} bytes at {relocation.addend:#x} of {elf.ARGS}, which has {total}"
                )

    def stray_relocations(self) -> Iterator[Problem]:
        """Check that task lists are patched only where an address is. Argument blocks are the programs' own business."""
        for place, relocation in self.by_place.items():
            if place[0] in TASK_SECTIONS and place not in self.used:
                yield Problem("relocation", f"{place[0]}+{place[1]:#x}", f"patches no address with {relocation.symbol}")


def _extent(fields: dict[str, NDArray[np.int64]], end: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first byte and the byte after the last that a descriptor touches, relative to its address."""
    width = fields[f"{end}_width"]
    rows = (fields["length"] // width - 1) * fields[f"{end}_stride"]
    planes = (fields["num_planes"] - 1) * fields[f"{end}_plane_stride"]
    low = np.minimum(rows, 0) + np.minimum(planes, 0)
    return low, np.maximum(rows, 0) + np.maximum(planes, 0) + width
