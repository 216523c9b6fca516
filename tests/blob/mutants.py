"""Blobs with one fault: an edge of a barrier less, two tasks that change places across a dependence, a CMX address elsewhere."""

import collections
import copy
import random

import numpy as np
from npu_abi import C
from npu_model.footprint import any_overlap
from npu_model.profile import load_profile

from libnpu.blob import Relocation, prove
from libnpu.blob.accesses import Accesses
from libnpu.blob.walk import walk

BARRIERS, VARIANTS = ".npu.barriers", ".npu.tasks.dpu_variant"
LISTS = (".npu.tasks.dma0", ".npu.tasks.dma1", ".npu.tasks.dpu_invariant", ".npu.tasks.shave_invocation")
STAYS = ("barriers_wait_mask", "barriers_post_mask", "sched_start_after", "tile", "shave")  # of a place in a list
ADDRESSES = {
    ".npu.tasks.dma0": ("transaction_src", "transaction_dst"),
    ".npu.tasks.dma1": ("transaction_src", "transaction_dst"),
    ".npu.tasks.dpu_invariant": ("act_addr", "act2_addr", "wt_addr", "wt_table_addr", "out_addr"),
}
KINDS = ("edge", "edge and count", "swap", "move")


class Mutator:
    """Makes mutants of one image; `make(kind)` returns one with what was done to it."""

    def __init__(self, image, rng):
        self.image, self.rng = image, rng
        profile = load_profile(image.profile)
        self.steps = []
        assert walk(image, profile.core.fifo_depth, self.steps) == []
        accesses = Accesses(image, profile, {})
        touched = {(step.section, step.index): accesses.of(step) for step in self.steps}
        self.dependent = [
            (section, i, j)
            for section in LISTS
            for i in range(len(image.tasks.get(section, ())))
            for j in range(i + 1, min(i + 6, len(image.tasks[section])))
            if depends(touched[section, i], touched[section, j])
        ]

    def make(self, kind):
        mutant = copy.copy(self.image)
        mutant.tasks = {name: array.copy() for name, array in self.image.tasks.items()}
        if kind == "swap":
            return mutant, self.swap(mutant)
        return mutant, self.move(mutant) if kind == "move" else self.drop(mutant, kind == "edge and count")

    def drop(self, mutant, adapt):
        end, count = self.rng.choice((("post", "producer_count"), ("wait", "consumer_count")))
        step, virtual = self.rng.choice([(s, v) for s in self.steps for v in (s.posts if end == "post" else s.waits)])
        configs = mutant.tasks[BARRIERS]
        bit = np.uint64(1 << int(configs["real_id"][virtual]))
        mutant.tasks[step.section][f"barriers_{end}_mask"][step.index] &= ~bit
        if adapt:
            configs[count][virtual] -= 1
        return f"{step.section}[{step.index}] does not {end} at virtual barrier {virtual}"

    def swap(self, mutant):
        section, i, j = self.rng.choice(self.dependent)
        array = mutant.tasks[section]
        before = array[[i, j]].copy()
        array[[i, j]] = array[[j, i]]
        for name in STAYS:
            if name in array.dtype.names:
                array[name][[i, j]] = before[name]
        place = {i: j, j: i}
        mutant.relocations = [
            Relocation(section, place.get(at, at) * array.itemsize + offset, r.symbol, r.addend, r.width)
            if r.section == section
            else r
            for r in self.image.relocations
            for at, offset in [divmod(r.offset, array.itemsize)]
        ]
        if "variant_first" in array.dtype.names:
            for k in (i, j):
                first, count = int(array[k]["variant_first"]), int(array[k]["variant_count"])
                mutant.tasks[VARIANTS]["invariant_index"][first : first + count] = k
        return f"{section}[{i}] and [{j}] change places"

    def move(self, mutant):
        while True:
            section = self.rng.choice([name for name in ADDRESSES if len(mutant.tasks.get(name, ()))])
            array, field = mutant.tasks[section], self.rng.choice(ADDRESSES[section])
            index = self.rng.randrange(len(array))
            old = int(array[field][index])
            new = old + self.rng.choice((-64, 64)) * self.rng.randint(1, 64)
            if self.rng.random() < 0.5:
                new = C.NPU_CMX_BASE + 64 * self.rng.randrange(mutant.cmx_bytes // 64)
            if old and new != old:
                array[field][index] = new
                return f"{section}[{index}].{field} is {new:#x} and not {old:#x}"


def depends(first, second):
    (reads, writes), (later_reads, later_writes) = first, second
    return any(any_overlap(a, b) for a, b in ((writes, later_reads), (reads, later_writes), (writes, later_writes)))


def run(image, count, seed, kinds=KINDS):
    """Return how many mutants each kind had, and (kind, what was done, mutant) of those that the proof does not find."""
    assert prove(image) == []
    mutator = Mutator(image, random.Random(seed))
    made, missed = collections.Counter(), []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        mutant, done = mutator.make(kind)
        made[kind] += 1
        if not prove(mutant):
            missed.append((kind, done, mutant))
    return made, missed
