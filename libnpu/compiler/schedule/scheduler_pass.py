"""One walk of the FeasibleMemoryScheduler through virtual time, with one level limit. All its state is here.

At each time at which an operation ends: free what was used last, start the compute operations that can start (with the loads
that they lack), then stores and other moves, then loads ahead of time. Where nothing runs and nothing fits, make room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.compiler.program import FAR, Access, Buffer, DdrKind, DdrTensor, DmaPayload, Engine, Ref, TileOp
from libnpu.compiler.schedule.schedule import Decision, DecisionKind, Queue, Schedule, ScheduledOp

if TYPE_CHECKING:
    from libnpu.compiler.schedule.memory_scheduler import FeasibleMemoryScheduler
    from libnpu.compiler.schedule.packing import Place

_WINDOW = 64  # levels that a computation may run ahead of the one before it on its engine; chosen by trials
_LOOK = 32  # steps after which to look whether the pass can still be in time
_FRAGMENTATION = 16  # one part in so many is left free by loads that run ahead, as gaps do not add up; chosen by trials


class SchedulerPass:
    """One run of the scheduler with one level limit; all its state. It gives up when it must take longer than `bound_ps`.

    Loads are placed from the top of CMX down, results from the bottom up; with `alternate`, a result from the end that its
    largest operand is not at, so that the gap which that leaves is beside the one that was there before. With `places` each buffer
    has its own. Without `spills` nothing is written to DDR to make room.
    """

    def __init__(
        self,
        plan: FeasibleMemoryScheduler,
        level_limit: int,
        bound_ps: int | None = None,
        alternate: bool = False,
        spills: bool = True,
        places: dict[Buffer, Place] | None = None,
    ) -> None:
        self.plan = plan
        self.at_top = plan.far_side if alternate else frozenset()  # results that are not placed from the bottom up
        self.limit, self.alternate = level_limit, alternate
        self.spills = spills
        self.places = places
        self.bound_ps = bound_ps
        self.reach = 0  # levels that a load ran ahead, at most
        profile = plan.profile
        ops = plan.program.ops
        self.ops = ops
        self.dma_latency_ps = int(profile.ddr.latency_ns * 1000)
        self.path_free = 0  # when the path to DDR is
        core = profile.core
        self.task_ps = (core.fetch_cycles + core.dispatch_cycles + core.barrier_cycles) * 10**12 // core.clock_hz
        self.core_free = 0  # when the management core is, that puts tasks into the queues one after the other
        self.now = 0
        self.free_at: dict[Queue, int] = dict.fromkeys(plan.queues, 0)
        # Of the latest tasks, as many as a queue holds.
        self.starts = {queue: deque([0] * core.fifo_depth, core.fifo_depth) for queue in plan.queues}
        self.units: dict[Engine, list[Queue]] = {e: [q for q in self.free_at if q.engine == e] for e in Engine}
        self.heads: dict[Engine, list[int]] = {
            e: [i for i in range(len(ops) - 1, -1, -1) if ops[i].engine == e] for e in (Engine.DPU, Engine.SHAVE)
        }
        self.prepared: dict[Engine, list[int]] = {e: [] for e in self.heads}  # heaps: only a unit and room are lacking
        self.work_left = dict(plan.work_ps)
        self.path_left = plan.path_ps
        self.unretired = [len(p) for p in plan.predecessors]
        self.end: list[int | None] = [None] * len(ops)
        self.retired = [False] * len(ops)
        self.remaining = len(ops)
        self.last_level = self.wanted_level = -1
        self.ahead_bytes = [0] * len(plan.live_bytes)  # at each level: of loads for later levels that have started
        self.allocator = plan.allocator()
        self.resident: dict[Buffer, int] = {}  # address
        self.since: dict[Buffer, int] = {}
        self.saved: dict[Buffer, DdrTensor | int] = {}  # evicted: where its bytes are (an int: the load to run again)
        self.clean: dict[Buffer, DdrTensor | int] = {}  # resident, and DDR has the same bytes
        # By an operation, a load included: another load does not bring all of its bytes.
        self.written: set[Buffer] = set()
        self.homes: dict[Buffer, DdrTensor] = {}
        self.busy: dict[Buffer, int] = {}  # scheduled operations that touch it and have not retired
        self.uses_left = {buffer: len(uses) for buffer, uses in plan.uses.items()}
        self.next_use = dict.fromkeys(plan.uses, 0)  # position in plan.uses
        self.arriving: dict[Buffer, int] = {}  # spill-ins and reloads under way: when they end
        self.leaving: set[Buffer] = set()  # spill-outs under way: nothing may use them until they are back
        self.running: list[tuple[int, int, int, ScheduledOp]] = []
        self.serial = 0
        self.loads: list[tuple[int, int]] = []  # ready: (level, index)
        self.moves: list[int] = []  # ready DMA operations that are not loads
        self.done: list[ScheduledOp] = []
        self.peak = 0
        self.spill_out = self.spill_in = 0
        self.residency: list[tuple[Buffer, int, int, int]] = []
        self.decisions: list[Decision] = []
        for index in range(len(ops)):
            if not self.unretired[index]:
                self._ready(index)

    def time_to(self, level: int) -> int | None:
        """Return when the computation of a level can start; None when the pass would end after `bound_ps`. For a pass that is not run."""
        return self.now if self._walk(level) else None

    def _walk(self, level: int) -> bool:
        """Go on until a computation of `level` or beyond has started, or all is done.

        Return False when that ends after `bound_ps`, or would have to spill and may not.
        """
        step = 0
        while (self.remaining or self.running) and self.last_level < level:
            self._retire()
            step += 1
            if self.bound_ps is not None and not step % _LOOK and self._earliest_end() > self.bound_ps:
                return False
            fits = self._start_compute()
            self._start_moves()
            if fits or self.places:
                self._prefetch()
            if self.running:
                self.now = max(self.now, self.running[0][0])
            elif self.remaining and not self._make_room():
                return False
        return True

    def run(self) -> Schedule | None:
        """Return the schedule; None when it would end after `bound_ps`, or would have to spill and may not."""
        if not self._walk(len(self.ops)):
            return None
        makespan_ps = max((s.end_ps for s in self.done), default=0)
        if self.bound_ps is not None and makespan_ps > self.bound_ps:
            return None
        self.done.sort(key=lambda s: (s.start_ps, s.end_ps))
        return Schedule(
            self.done,
            makespan_ps,
            self.limit,
            self.peak,
            self.spill_out,
            self.spill_in,
            list(self.homes.values()),
            self.residency,
            self.decisions,
        )

    def _earliest_end(self) -> int:
        """Return a time before which the pass cannot end: each engine, and the path to DDR, still has its work to do."""
        found = max(self.now, self.path_free) + self.path_left
        for engine, work in self.work_left.items():
            units = self.units[engine]
            found = max(found, max(self.now, min(self.free_at[queue] for queue in units)) + work // len(units))
        return found

    # -- retiring ------------------------------------------------------------------------------------

    def _retire(self) -> None:
        while self.running and self.running[0][0] <= self.now:
            _, _, index, scheduled = heappop(self.running)
            for buffer in scheduled.addresses:
                self.busy[buffer] -= 1
            if index < 0:
                if scheduled.kind == "spill_out":
                    for buffer in scheduled.addresses:
                        self.leaving.discard(buffer)
                        self._release(buffer)
                else:
                    for buffer in scheduled.addresses:
                        self.arriving.pop(buffer, None)
                continue
            self.retired[index] = True
            for buffer in scheduled.addresses:
                self.uses_left[buffer] -= 1
                if not self.uses_left[buffer] and buffer in self.resident:
                    self._release(buffer)
            for successor in self.plan.successors[index]:
                self.unretired[successor] -= 1
                if not self.unretired[successor]:
                    self._ready(successor)

    def _ready(self, index: int) -> None:
        op = self.ops[index]
        if op.engine != Engine.DMA:
            heappush(self.prepared[op.engine], index)
        elif self.plan.is_load[index]:
            heappush(self.loads, (self.plan.levels[index], index))
        else:
            heappush(self.moves, index)

    def _release(self, buffer: Buffer) -> None:
        address = self.resident.pop(buffer)
        self.clean.pop(buffer, None)
        self.allocator.free(address, buffer.size_bytes, buffer.copies > 1)
        self.residency.append((buffer, address, self.since.pop(buffer), self.now))

    # -- starting --------------------------------------------------------------------------------------

    def _start_compute(self) -> bool:
        """Start the head of each idle compute engine; return False when one did not fit."""
        fits = True
        again = True
        self.wanted_level = self.last_level if any(self.heads.values()) else len(self.ops)
        while again:
            again = False
            heads = sorted((heads[-1], engine) for engine, heads in self.heads.items() if heads)
            for index, engine in heads:
                queue = self._unit_for(index, engine)
                if self.free_at[queue] > self.now:
                    continue
                started = self._try(index, queue)
                if started:
                    self.last_level = max(self.last_level, self.plan.levels[index])
                    again = True
                else:
                    level, first = self.plan.levels[index], index == heads[0][0]
                    if first or level <= self.last_level + _WINDOW:  # what is far ahead holds nothing back
                        fits = fits and started is not None
                        if first or self._lacks_only_moves(index):
                            self.wanted_level = max(self.wanted_level, level)
                    again = again or (started is False and self._start_prepared(engine))
                while self.heads[engine] and self.end[self.heads[engine][-1]] is not None:
                    self.heads[engine].pop()
        return fits

    def _start_prepared(self, engine: Engine) -> bool:
        """Start an operation behind the head of an idle engine, when all that it needs is there and it leaves room."""
        prepared = self.prepared[engine]
        while prepared and self.end[prepared[0]] is not None:
            heappop(prepared)
        if not prepared:
            return False
        index, level = prepared[0], self.plan.levels[prepared[0]]
        need = sum(self.plan.rounded[b] for b in self.plan.results[index] if b not in self.resident)
        if level > self.last_level + _WINDOW or (need and not self._leaves_room(level, need)):
            return False
        if not self._try(index, self._unit_for(index, engine)):
            return False
        for between in range(max(self.last_level, 0), level):
            self.ahead_bytes[between] += need
        return True

    def _lacks_only_moves(self, index: int) -> bool:
        """Tell whether every computation that operation `index` follows has been scheduled."""
        return all(self.plan.is_dma[o] or self.end[o] is not None for o in self.plan.predecessors[index])

    def _start_moves(self) -> None:
        waiting = []
        while self.moves:
            queue = self._free_port()
            if queue is None:
                break
            index = heappop(self.moves)
            if not self._try(index, queue):
                waiting.append(index)
        for index in waiting:
            heappush(self.moves, index)

    def _prefetch(self) -> None:
        while self.loads:
            level, index = self.loads[0]
            if self.end[index] is not None:
                heappop(self.loads)
                continue
            queue = self._free_port()
            # An idle engine's head may need loads that no limit should hold back.
            if queue is None or level > max(self.last_level + self.limit, self.wanted_level):
                return
            if self.plan.reader_levels[index] > max(self.last_level + self.plan.level_limit, self.wanted_level):
                return
            need = self.plan.need_bytes[index]
            if level > self.wanted_level and not self._leaves_room(level, need):
                return
            if not self._try(index, queue):
                return
            heappop(self.loads)
            for between in range(max(self.last_level, 0), level):
                self.ahead_bytes[between] += need
            if level > self.wanted_level:
                self.reach = max(self.reach, level - self.last_level)
            if level > self.last_level:
                self._note_prefetch(index, level)

    def _note_prefetch(self, index: int, level: int) -> None:
        kind = DecisionKind.PREFETCH
        if self.last_level < 0:
            self._note(kind, self.ops[index].name, "for level {} before the first operation", level)
            return
        if level < len(self.plan.compute):
            now, then = (self.plan.compute[k] for k in (self.last_level, level))
            end = self.end[now]
            if self.ops[now].layer == self.ops[then].layer and end is not None and end > self.now:
                kind = DecisionKind.PING_PONG
        self._note(kind, self.ops[index].name, "for level {} at level {}", level, self.last_level)

    def _note(self, kind: DecisionKind, subject: str, detail: str, *numbers: int) -> None:
        self.decisions.append(Decision(self.now, kind, subject, detail, numbers))

    def _leaves_room(self, level: int, need: int) -> bool:
        """Tell whether the operations up to `level` can all run with `need` bytes more taken for that level already."""
        if self.places:
            return True
        if self.allocator.free_bytes - need < self._reserve():
            return False
        live, ahead = self.plan.live_bytes, self.ahead_bytes
        size = self.allocator.size_bytes - self.allocator.size_bytes // _FRAGMENTATION
        return all(live[k] + ahead[k] + need <= size for k in range(max(self.last_level, 0), level))

    def _reserve(self) -> int:
        """Bytes that the next compute operations still have to allocate for their results, those of what is far ahead left out."""
        return sum(
            self.plan.rounded[buffer]
            for heads in self.heads.values()
            if heads and self.plan.levels[heads[-1]] <= self.last_level + _WINDOW
            for buffer in self.plan.results[heads[-1]]
            if buffer not in self.resident
        )

    def _free_port(self) -> Queue | None:
        queue = self._first_free(Engine.DMA)
        return queue if self.free_at[queue] <= self.now else None

    def _first_free(self, engine: Engine) -> Queue:
        """Return the unit of an engine that is free first, of equals the one with the lowest number."""
        free_at, units = self.free_at, self.units[engine]
        first = units[0]
        for queue in units:
            if free_at[queue] < free_at[first]:
                first = queue
        return first

    def _unit_for(self, index: int, engine: Engine) -> Queue:
        """Return the unit on which the next operation of an engine would end first, by where its operands are; it may be busy yet."""
        queue = self._first_free(engine)
        if not self.ops[index].far_ps or self.free_at[queue] > self.now:
            return queue
        now, free_at = self.now, self.free_at
        return min(
            self.units[engine], key=lambda q: (max(free_at[q], now) + self._cost_ps(index, q), free_at[q] > now, q.unit)
        )

    def _cost_ps(self, index: int, queue: Queue) -> int:
        """Return the duration of an operation on a unit; operands that have no place yet count as near."""
        op = self.ops[index]
        if not op.far_ps:
            return op.cost_ps
        resident, tile_of, mask = self.resident, self.allocator.tile_of, 0
        for target, bit in self.plan.operands[index]:
            if target.copies > 1:
                mask |= bit & FAR["out_addr"]
            elif target in resident and tile_of(resident[target]) != queue.unit:
                mask |= bit
        return op.far_ps[mask]

    def _try(self, index: int, queue: Queue) -> bool | None:
        """Schedule operation `index` with the loads it lacks: True done, False not ready, None does not fit."""
        plan, retired = self.plan, self.retired
        demand: list[int] = []
        ready_at = self.now
        for other in plan.predecessors[index]:
            if retired[other]:
                continue
            end = self.end[other]
            if end is not None:
                if not plan.is_dma[other]:
                    return False
                ready_at = max(ready_at, end)
            elif self.unretired[other] == 0 and plan.is_load[other]:
                demand.append(other)
            else:
                return False
        wanted = plan.buffers[index]
        if demand:
            demand.sort(key=lambda i: (plan.levels[i], i))
            wanted = list(dict.fromkeys(b for i in (*demand, index) for b in plan.buffers[i]))
        if self.leaving and not self.leaving.isdisjoint(wanted):
            return None
        missing = [b for b in wanted if b not in self.resident]
        if missing:
            loaded = {b for i in demand for b in plan.buffers[i]}
            if plan.is_load[index]:
                loaded.update(plan.buffers[index])
            near = queue.unit if queue.engine == Engine.DPU else self.allocator.emptiest()
            at_top = self.at_top
            sizes = [(b.size_bytes, b in at_top or b in loaded or b in self.saved, b.copies > 1) for b in missing]
            addresses = self._planned(missing) if self.places else self.allocator.alloc_all(sizes, near)
            if addresses is None:
                return None
            for buffer, address in zip(missing, addresses, strict=True):
                self.resident[buffer] = address
                self.since[buffer] = self.now
                self._note(DecisionKind.ALLOC, buffer.name, "{} bytes at {:#x}", buffer.size_bytes, address)
            self.peak = max(self.peak, *self.allocator.used_bytes)
            for buffer in missing:
                if buffer in self.saved:
                    ready_at = max(ready_at, self._bring_back(buffer))
        for buffer in wanted:
            ready_at = max(ready_at, self.arriving.get(buffer, 0))
        for other in demand:
            port = self._first_free(Engine.DMA)
            ready_at = max(ready_at, self._schedule(other, port, self.now))
        self._schedule(index, queue, ready_at)
        return True

    def _planned(self, buffers: list[Buffer]) -> list[int] | None:
        """Take the places that are meant for buffers, None when others have yet to leave them."""
        assert self.places
        found = [self.places[buffer] for buffer in buffers]
        if any(self.uses_left[other] for place in found for other in place.after):
            return None
        for buffer, place in zip(buffers, found, strict=True):
            self.allocator.take(place.address, buffer.size_bytes, buffer.copies > 1)
        return [place.address for place in found]

    def _schedule(self, index: int, queue: Queue, ready_at: int) -> int:
        op = self.ops[index]
        touched = self.plan.buffers[index]
        end = self._place(op, queue, ready_at, index, touched, "op")
        self.end[index] = end
        self.remaining -= 1
        for buffer in touched:
            uses = self.plan.uses[buffer]
            position = self.next_use[buffer]
            while position < len(uses) and self.end[uses[position]] is not None:
                position += 1
            self.next_use[buffer] = position
        for buffer in self.plan.results[index]:
            self.clean.pop(buffer, None)
        if self.plan.is_constant_load[index] and touched[0] not in self.written:
            self.clean[touched[0]] = index
        self.written |= self.plan.results[index]
        self.work_left[op.engine] -= op.cost_ps
        self.path_left -= op.path_ps
        return end

    def _place(self, op: TileOp, queue: Queue, ready_at: int, index: int, touched: Iterable[Buffer], kind: str) -> int:
        starts = self.starts[queue]
        self.core_free = max(self.core_free, starts[0]) + self.task_ps  # there is room when the first of them has left
        start = max(self.now, ready_at, self.free_at[queue], self.core_free)
        starts.append(start)
        end = start + max(self._cost_ps(index, queue) if index >= 0 else op.cost_ps, 1)
        if op.path_ps:
            # The path serves one after the other, as fast as it is: ports overlap latency, and what they lose on short runs.
            self.path_free = max(start + self.dma_latency_ps, self.path_free) + op.path_ps
            end = max(end, self.path_free)
        self.free_at[queue] = end
        scheduled = ScheduledOp(op, queue, start, end, {b: self.resident[b] for b in touched}, kind)
        for buffer in scheduled.addresses:
            self.busy[buffer] = self.busy.get(buffer, 0) + 1
        self.done.append(scheduled)
        heappush(self.running, (end, self.serial, index, scheduled))
        self.serial += 1
        return end

    # -- spilling --------------------------------------------------------------------------------------

    def _make_room(self) -> bool:
        """Nothing runs and nothing fits: evict until the first operation in program order can start; return False where that may not be."""
        if self.places:
            return False
        candidates = [heads[-1] for heads in self.heads.values() if heads] + self.moves[:1]
        if not candidates:
            candidates = [index for _, index in self.loads if self.end[index] is None][:1]
        target = min(candidates)
        needed = {
            b for i in (target, *self.plan.predecessors[target]) for b in self.plan.buffers[i] if not self.retired[i]
        }
        lacking = sum(self.allocator.rounded(b.size_bytes) for b in needed if b not in self.resident)
        victims = sorted(
            (b for b in self.resident if b not in needed and not self.busy.get(b)),
            key=lambda b: (b not in self.clean, -self._next(b), -b.size_bytes, b.name),
        )
        if not victims:  # the operation's own buffers lie in each other's way: move them too
            victims = sorted((b for b in self.resident if not self.busy.get(b)), key=lambda b: b.name)
        if not victims:
            raise AssertionError(f"the scheduler is stuck before {self.ops[target].name}")
        freed = self.allocator.free_bytes
        for buffer in victims:
            if not self.spills and buffer not in self.clean:
                return False
            self._evict(buffer)
            freed += self.allocator.rounded(buffer.size_bytes)
            if freed >= lacking:
                break
        return True

    def _next(self, buffer: Buffer) -> int:
        uses = self.plan.uses[buffer]
        position = self.next_use[buffer]
        return uses[position] if position < len(uses) else len(self.ops)

    def _evict(self, buffer: Buffer) -> None:
        copy = self.clean.get(buffer)
        if copy is not None:
            self.saved[buffer] = copy
            self._note(DecisionKind.SPILL, buffer.name, "0 bytes, DDR has them; next use {}", self._next(buffer))
            self._release(buffer)
            return
        home = self.homes.get(buffer)
        if home is None:
            home = DdrTensor(f"spill:{buffer.name}", buffer.size_bytes, DdrKind.SCRATCH)
            self.homes[buffer] = home
        self.saved[buffer] = home
        self.spill_out += buffer.size_bytes
        self._note(DecisionKind.SPILL, buffer.name, "{} bytes; next use {}", buffer.size_bytes, self._next(buffer))
        queue = self._first_free(Engine.DMA)
        op = self._copy(f"spill_out {buffer.name}", Ref(buffer), Ref(home), buffer.size_bytes)
        self._place(op, queue, self.now, -1, [buffer], "spill_out")
        self.leaving.add(buffer)

    def _bring_back(self, buffer: Buffer) -> int:
        """Read an evicted buffer back to its new address; return when it is there."""
        source = self.saved.pop(buffer)
        if isinstance(source, int):
            end = self._place(self.ops[source], self._first_free(Engine.DMA), self.now, -1, [buffer], "reload")
        else:
            end = 0
            for tile in range(buffer.copies):
                copy = Ref(buffer, tile * int(C.NPU_CMX_TILE_STRIDE))
                op = self._copy(f"spill_in {buffer.name}", Ref(source), copy, buffer.size_bytes)
                end = max(end, self._place(op, self._first_free(Engine.DMA), self.now, -1, [buffer], "spill_in"))
                self.spill_in += buffer.size_bytes
        self.arriving[buffer] = end
        self.clean[buffer] = source
        return end

    def _copy(self, name: str, src: Ref, dst: Ref, size_bytes: int) -> TileOp:
        profile = self.plan.profile
        cycles = profile.dma.setup_cycles + -(-size_bytes // profile.dma.bytes_per_cycle)
        path_ps = size_bytes * 10**12 // profile.ddr.bytes_per_second
        cost = self.dma_latency_ps + max(cycles * 10**12 // profile.dma.clock_hz, path_ps)
        return TileOp(
            name,
            "spill",
            Engine.DMA,
            cost,
            [Access(src.target, src.offset, size_bytes)],
            [Access(dst.target, dst.offset, size_bytes)],
            DmaPayload(src, dst, size_bytes),
            path_ps=path_ps,
        )
