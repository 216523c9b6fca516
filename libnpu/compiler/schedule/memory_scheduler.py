"""FeasibleMemoryScheduler: a list scheduler that never starts what does not fit in CMX.

It walks virtual time. Compute operations keep their program order per engine; what they need is loaded on demand, or ahead of
time up to `prefetching_level_limit` compute operations. CMX is placed by linear scan and freed at last use; when nothing can run
otherwise, the buffer whose next use is farthest leaves (dropped when DDR still has its bytes, else written to DDR and read back).
It fails only when one operation's own buffers do not fit. Four decisions are recorded: alloc, prefetch, spill, ping-pong.

This module knows the program: orders, levels, sizes. `scheduler_pass.py` walks time once, for one level limit. The order that
comes out is a real schedule; `dependences` and `barriers` derive the synchronisation from it afterwards.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from npu_abi import C
from npu_model.footprint import box
from npu_model.profile import Profile

from libnpu.compiler.program import FAR, Buffer, DdrKind, DdrTensor, DpuPayload, Engine, TileOp, TileProgram
from libnpu.compiler.schedule.cmx_allocator import CmxAllocator
from libnpu.compiler.schedule.dependences import Touch, byte_dependences
from libnpu.compiler.schedule.justify import late_order
from libnpu.compiler.schedule.packing import packings
from libnpu.compiler.schedule.schedule import DoesNotFit, Queue, Schedule
from libnpu.compiler.schedule.scheduler_pass import SchedulerPass

_FIRST_LEVELS = (
    2000  # of a program of more than twice as many, which are tried for all; chosen: some layers of a large model
)
_LIMITS = (256, 128, 64, 32, 16, 8, 6, 4, 3, 2, 1, 0)


WITHOUT_SPILLS = 105  # percent of the time of a schedule that spills, which one that does not may take; chosen
_ORDERS = 3  # other orders that are tried; chosen by trials
_REORDERED = 6000  # operations of all of them, at most: what they may cost
_NEAR = 110  # percent of what is to be undercut, with which an order is a start for others; chosen by trials


class _Tried(NamedTuple):
    """A pass with its level limit, the time that it took and its schedule, None of a part."""

    time_ps: int
    limit: int
    alternate: bool
    schedule: Schedule | None


def _tried(one: SchedulerPass, level: int | None) -> _Tried | None:
    """Run a pass, up to a level unless None; return None when it takes longer than it may."""
    if level is not None:
        time_ps = one.time_to(level)
        return None if time_ps is None else _Tried(time_ps, one.limit, one.alternate, None)
    found = one.run()
    return None if found is None else _Tried(found.makespan_ps, one.limit, one.alternate, found)


class FeasibleMemoryScheduler:
    """Schedules a tile program for `tiles` tiles of `profile` with `cmx_bytes` of CMX each.

    `pingpong=False` loads an operation's operands only when the one before it has left the engine. With `restarts`, level limits 0 to 4, 6, 8, 16,
    32 and so on up to `prefetching_level_limit` are tried, largest first, until two in a row make nothing faster; then
    the best one and half of it with results at alternate ends of CMX; then the same in other orders (`justify.py`). Of a long program
    the first part is tried so, and the best goes on. `known` are the predecessors of the operations, where they are known; with
    `keeps_loads`, a load's level is that of its place in the program.
    """

    def __init__(
        self,
        program: TileProgram,
        profile: Profile,
        cmx_bytes: int,
        prefetching_level_limit: int = 35,
        pingpong: bool = True,
        tiles: int = 1,
        restarts: bool = True,
        known: list[set[int]] | None = None,
        keeps_loads: bool = False,
    ) -> None:
        self.restarts = restarts
        self.program = program
        self.profile = profile
        self.tiles = tiles
        self.cmx_bytes = min(cmx_bytes, profile.cmx.workspace_bytes)
        self.level_limit = prefetching_level_limit if pingpong else 0
        ops = program.ops
        self.predecessors = _predecessors(ops) if known is None else known
        self.successors: list[list[int]] = [[] for _ in ops]
        for op, before in enumerate(self.predecessors):
            for other in sorted(before):
                self.successors[other].append(op)
        self.buffers: list[list[Buffer]] = [
            list(dict.fromkeys(a.target for a in (*op.reads, *op.writes) if isinstance(a.target, Buffer))) for op in ops
        ]
        self.uses: dict[Buffer, list[int]] = {}
        for index, touched in enumerate(self.buffers):
            for buffer in touched:
                self.uses.setdefault(buffer, []).append(index)
        self.work_ps = {engine: sum(op.cost_ps for op in ops if op.engine == engine) for engine in Engine}
        self.path_ps = sum(op.path_ps for op in ops)
        allocator = self.allocator()
        self.rounded = {b: allocator.rounded(b.size_bytes) * b.copies for b in self.uses}
        self.need_bytes = [sum(self.rounded[buffer] for buffer in touched) for touched in self.buffers]
        self.operands: list[list[tuple[Buffer, int]]] = [
            [
                (ref.target, FAR[name])
                for name, ref in op.payload.refs.items()
                if name in FAR and isinstance(ref.target, Buffer)
            ]
            if isinstance(op.payload, DpuPayload)
            else []
            for op in ops
        ]
        self.results = [{a.target for a in op.writes if isinstance(a.target, Buffer)} for op in ops]
        self.queues = [
            *(Queue(Engine.DMA, port) for port in range(profile.dma_ports)),
            *(Queue(Engine.DPU, tile) for tile in range(tiles)),
            *(Queue(Engine.SHAVE, shave) for shave in range(tiles * profile.shaves_per_tile)),
        ]
        self.is_dma = [op.engine == Engine.DMA for op in ops]
        self.compute = [index for index, op in enumerate(ops) if op.engine != Engine.DMA]  # by level
        self.is_load = [self._is_load(index) for index in range(len(ops))]
        self.is_constant_load = [load and self._is_constant_load(index) for index, load in enumerate(self.is_load)]
        self.reader_levels = self._levels(False)
        self.levels = self._levels(True) if keeps_loads else self.reader_levels
        self.spans = self._spans()
        self.live_bytes = self._live_bytes()
        self.far_side = self._far_side()
        self._check_fit()

    def run(self) -> Schedule:
        """Return the best schedule found."""
        found = self.better_than(None) if self.restarts else SchedulerPass(self, self.level_limit).run()
        assert found is not None
        return found

    def better_than(self, bound_ps: int | None) -> Schedule | None:
        """Return the best schedule found that takes less than `bound_ps`, if any: in program order, then by latest start while that helps."""
        plan = self
        last = best = self.of_this_order(bound_ps and bound_ps * _NEAR // 100)
        orders = min(_ORDERS, _REORDERED // max(len(self.program.ops), 1)) if self.level_limit else 0
        for _ in range(orders):
            if last is None:
                break
            order, source, last = late_order(plan, last), plan, None
            for keeps_loads in (True, False):
                other = source.in_order(order, keeps_loads)
                found = other.of_this_order(min(best.makespan_ps, bound_ps or best.makespan_ps) if best else bound_ps)
                if found is not None:
                    plan, last, best = other, found, found
        return best if best is not None and (bound_ps is None or best.makespan_ps < bound_ps) else None

    def instead_of(self, spilling: Schedule) -> Schedule | None:
        """Return the best schedule found that writes nothing to DDR to make room, and takes little longer than one that does."""
        return self.without_spills(spilling.makespan_ps * WITHOUT_SPILLS // 100)

    def without_spills(self, bound_ps: int) -> Schedule | None:
        """Return the best schedule found that takes at most `bound_ps` and writes nothing to DDR to make room; None when there is none."""
        best: Schedule | None = None
        for limit in [k for k in _LIMITS if k <= self.level_limit][::3]:
            for alternate in (False, True):
                found = SchedulerPass(self, limit, bound_ps, alternate, spills=False).run()
                if found is not None:
                    best, bound_ps = found, found.makespan_ps - 1
        for places in packings(self):
            found = SchedulerPass(self, self.level_limit, bound_ps, spills=False, places=places).run()
            if found is not None:
                best, bound_ps = found, found.makespan_ps - 1
        return best

    def of_this_order(self, bound_ps: int | None) -> Schedule | None:
        """Return the best schedule with operations in program order that takes less than `bound_ps`, if any. Of a long program the first
        part says which it is.
        """
        if len(self.compute) <= 2 * _FIRST_LEVELS:
            tried = self._search(bound_ps, None)
            return tried.schedule if tried is not None else None
        first = self._search(None, _FIRST_LEVELS)
        assert first is not None
        return SchedulerPass(self, first.limit, bound_ps, first.alternate).run()

    def _search(self, bound_ps: int | None, level: int | None) -> _Tried | None:
        """Return the pass that is done first, of those that take no more than `bound_ps`: with all or, unless None, with the levels below `level`."""
        best: _Tried | None = None
        reach = self.level_limit
        slower = 0
        for limit in (k for k in _LIMITS if k <= self.level_limit):
            if limit > reach:
                continue  # no load ran that far ahead: the schedule would be the same
            one = SchedulerPass(self, limit, best.time_ps if best else bound_ps)
            found = _tried(one, level)
            slower = 0 if found is not None and (best is None or found.time_ps < best.time_ps) else slower + 1
            if slower == 2:
                break
            if found is None:
                continue
            reach = one.reach - 1
            if best is None or found.time_ps <= best.time_ps:  # of equals, the one that needs least CMX
                best = found
        if best is not None and self.far_side:
            for limit in dict.fromkeys((best.limit, best.limit // 2)):
                best = _tried(SchedulerPass(self, limit, best.time_ps - 1, alternate=True), level) or best
        return best

    def in_order(self, order: list[int], keeps_loads: bool) -> FeasibleMemoryScheduler:
        """Return a scheduler of the same operations in another order that is correct too; with `keeps_loads` a load starts no sooner than there."""
        ops = [self.program.ops[index] for index in order]
        number = {index: n for n, index in enumerate(order)}
        return FeasibleMemoryScheduler(
            replace(self.program, ops=ops),
            self.profile,
            self.cmx_bytes,
            self.level_limit,
            tiles=self.tiles,
            known=[{number[other] for other in self.predecessors[index]} for index in order],
            keeps_loads=keeps_loads,
        )

    def allocator(self) -> CmxAllocator:
        """Return the CMX of all tiles, free."""
        return CmxAllocator(self.cmx_bytes, self.profile.cmx.alignment_bytes, self.tiles, int(C.NPU_CMX_TILE_STRIDE))

    def _far_side(self) -> frozenset[Buffer]:
        """Return the results that lie at the top when each is at the other end than the largest result that it is made of."""
        found: set[Buffer] = set()
        made: set[Buffer] = set()
        for op, results in zip(self.program.ops, self.results, strict=True):
            operands = [a.target for a in op.reads if isinstance(a.target, Buffer) and a.target in made]
            largest = max(operands, key=lambda b: b.size_bytes, default=None)
            for buffer in results:
                if op.engine != Engine.DMA and buffer not in made:
                    made.add(buffer)
                    if largest is not None and largest not in found:
                        found.add(buffer)
        return frozenset(found)

    def _levels(self, keeps_loads: bool) -> list[int]:
        """Level of a compute operation: its rank among them. Of any other: that of the first compute operation it feeds, or that is behind it."""
        ops = self.program.ops
        levels = [0] * len(ops)
        rank = sum(op.engine != Engine.DMA for op in ops)
        for index in range(len(ops) - 1, -1, -1):
            if ops[index].engine != Engine.DMA:
                rank -= 1
                levels[index] = rank
            elif keeps_loads:
                levels[index] = rank
            else:
                levels[index] = min((levels[s] for s in self.successors[index]), default=rank)
        return levels

    def _is_load(self, index: int) -> bool:
        """A load brings bytes from DDR into buffers that nobody has touched before."""
        op = self.program.ops[index]
        return (
            op.engine == Engine.DMA
            and all(isinstance(a.target, DdrTensor) for a in op.reads)
            and all(isinstance(a.target, Buffer) and self.uses[a.target][0] == index for a in op.writes)
        )

    def _is_constant_load(self, index: int) -> bool:
        """A load into one buffer of bytes that DDR will have for ever: the buffer can be dropped and loaded again."""
        sources = [a.target for a in self.program.ops[index].reads]
        return len(self.buffers[index]) == 1 and all(
            isinstance(s, DdrTensor) and s.kind in (DdrKind.WEIGHTS, DdrKind.INPUT) for s in sources
        )

    def _spans(self) -> dict[Buffer, tuple[int, int]]:
        """First and last level of each buffer when everything runs in program order and every load comes at its level."""
        ops = self.program.ops
        level_at: list[int] = []
        level = 0
        for index, op in enumerate(ops):
            if op.engine != Engine.DMA:
                level = self.levels[index]
            level_at.append(self.levels[index] if self.is_load[index] else level)
        found = {}
        for buffer, uses in self.uses.items():
            levels = [level_at[index] for index in uses]
            found[buffer] = min(levels), max(levels)
        return found

    def _live_bytes(self) -> list[int]:
        """Bytes of CMX in use at each level of `_spans`."""
        change = [0] * (max((*self.levels, *(last for _, last in self.spans.values())), default=0) + 2)
        for buffer, (first, last) in self.spans.items():
            change[first] += self.rounded[buffer]
            change[last + 1] -= self.rounded[buffer]
        return list(accumulate(change[:-1]))

    def _check_fit(self) -> None:
        size = self.allocator().size_bytes // self.tiles
        for op, touched, need in zip(self.program.ops, self.buffers, self.need_bytes, strict=True):
            if (
                need > size
                and self.allocator().alloc_all([(b.size_bytes, False, b.copies > 1) for b in touched]) is None
            ):
                raise DoesNotFit(
                    f"{op.layer}: {op.name} needs {need} bytes of CMX at once ("
                    + ", ".join(f"{b.name} {b.size_bytes}" for b in touched)
                    + f"); there are {size}"
                    + (f" in each of {self.tiles} tiles" if self.tiles > 1 else "")
                )


def _predecessors(ops: list[TileOp]) -> list[set[int]]:
    """Return for each operation those that it must follow."""
    return byte_dependences(
        [
            [
                Touch(access.target, box(access.offset, access.width, access.dims), write)
                for write, accesses in ((False, op.reads), (True, op.writes))
                for access in accesses
            ]
            for op in ops
        ]
    )
