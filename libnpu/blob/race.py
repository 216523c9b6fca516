"""Hazards of a blob: pairs of tasks that touch the same bytes, one of them writing, and that nothing orders.

Proven from the blob alone: a task is ordered after another when the other surely has ended before it starts, through its
engine's queue, through barriers, or through `start_after`, in any number of steps. Bytes are those of npu_model's
footprints; a SHAVE program is run for its accesses, without values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npu_abi import C
from npu_model import footprint
from npu_model.profile import Profile, load_profile
from npu_model.shave_faults import ShaveFault

from libnpu.blob.image import BlobError
from libnpu.blob.problem import Problem
from libnpu.blob.records import field_offset
from libnpu.blob.shave_tasks import SYMBOL_BITS, ShaveTasks
from libnpu.blob.walk import Step, walk

if TYPE_CHECKING:
    from npu_model.footprint import Box, Footprint

    from libnpu.blob.image import BlobImage


def hazards(image: BlobImage, profile: Profile | None = None) -> list[Problem]:
    """Return every unordered pair of conflicting tasks of a blob that `verify` finds no problem in.

    Takes time with the square of the tasks that share bytes. A SHAVE task whose accesses depend on data is a problem, too.
    Raises ValueError when `verify` would find one.
    """
    profile = profile or load_profile(image.profile)
    steps: list[Step] = []
    if walk(image, profile.core.fifo_depth, steps):
        raise ValueError("hazards are defined for blobs that verify finds no problem in")
    before = _ended_before(steps)
    accesses = _Accesses(image, profile)
    unknown: list[Problem] = []
    touched: list[tuple[int, int, bool, Box]] = []  # address, step, writes, box
    for number, step in enumerate(steps):
        try:
            reads, writes = accesses.of(step)
        except (ShaveFault, BlobError) as error:
            unknown.append(Problem("hazard", f"{step.section}[{step.index}]", f"its accesses cannot be told: {error}"))
            continue
        touched += [(box.addr, number, False, box) for box in reads]
        touched += [(box.addr, number, True, box) for box in writes]
    touched.sort(key=lambda t: t[:3])
    found: dict[tuple[int, int], Problem] = {}
    active: list[tuple[int, int, bool, Box]] = []
    for addr, number, writes_here, box in touched:
        active = [entry for entry in active if entry[0] > addr]
        for _, other, writes_there, other_box in active:
            if not (writes_here or writes_there) or other == number:
                continue
            first, second = min(other, number), max(other, number)
            if before[second] >> first & 1 or (first, second) in found or not footprint.overlaps(box, other_box):
                continue
            found[first, second] = _problem(steps, first, second, box, writes_here and writes_there)
        active.append((box.end, number, writes_here, box))
    return [*unknown, *(found[pair] for pair in sorted(found))]


def _problem(steps: list[Step], first: int, second: int, box: Box, both_write: bool) -> Problem:
    a, b = steps[first], steps[second]
    what = "both write" if both_write else "one reads and one writes"
    place = f"{what} bytes from {box.addr:#x}" if box.addr < 1 << SYMBOL_BITS else what
    return Problem("hazard", f"{b.section}[{b.index}]", f"not ordered after {a.section}[{a.index}]; {place}")


def _ended_before(steps: list[Step]) -> list[int]:
    """Return, for each step, the bit set of steps that surely have ended when it starts. Steps come in one legal order."""
    before: list[int] = []
    engine_done: dict[tuple[int, int], int] = {}  # tasks ended when the engine is free again
    posted: dict[int, int] = {}  # virtual barrier -> tasks ended when it is ready
    list_after: dict[str, int] = {}  # a list is dispatched in order: start_after holds for what follows, too
    prefix, prefix_end = [0], 0  # prefix[n]: tasks ended when virtual barriers < n have retired
    for number, step in enumerate(steps):
        key = step.section
        after = max(step.start_after, list_after.get(key, -1))
        list_after[key] = after
        while prefix_end <= after:
            prefix.append(prefix[-1] | posted.get(prefix_end, 0))
            prefix_end += 1
        ended = engine_done.get(step.engine, 0) | prefix[after + 1]
        for virtual in step.waits:
            ended |= posted.get(virtual, 0)
        before.append(ended)
        done = ended | 1 << number
        engine_done[step.engine] = done
        for virtual in step.posts:
            posted[virtual] = posted.get(virtual, 0) | done
    return before


class _Accesses:
    """Footprints of tasks, with symbols placed in address ranges of their own."""

    def __init__(self, image: BlobImage, profile: Profile) -> None:
        self.image = image
        self.shave = ShaveTasks(image, profile)

    def of(self, step: Step) -> Footprint:
        """Return (reads, writes) of a task."""
        record = self.image.tasks[step.section][step.index]
        if step.engine[0] == C.NPU_ENGINE_DMA:
            return self._dma(step, record)
        if step.engine[0] == C.NPU_ENGINE_DPU:
            first, count = int(record["variant_first"]), int(record["variant_count"])
            return footprint.dpu_footprint(record, self.image.tasks[".npu.tasks.dpu_variant"][first : first + count])
        return self._shave(step)

    def _dma(self, step: Step, record: Any) -> Footprint:
        patched = record.copy()
        for field in ("transaction_src", "transaction_dst"):
            offset = step.index * record.dtype.itemsize + field_offset(step.section, field)
            relocation = self.shave.by_place.get((step.section, offset))
            if relocation is not None:
                patched[field] = self.shave.base[relocation.symbol] + relocation.addend
        return footprint.dma_footprint(patched)

    def _shave(self, step: Step) -> Footprint:
        result = self.shave.run(step.index).result()
        return [box for box in result.reads if box.addr not in self.shave.arguments], result.writes
