"""Graphs of at most 60 tasks, and how far schedules of them are from the shortest that CP-SAT finds: for tests and `make bench`.

The graphs are layers cut into tiles: loads of inputs and weights, tasks of the matrix or the vector engine that read one or two
tiles of the layer before and at times one of an older layer, stores. The shortest knows no addresses, so no schedule undercuts it
where it is proved.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from npu_model.profile import load_profile

from libnpu.compiler.program import Access, Buffer, DdrKind, DdrTensor, DmaPayload, Engine, Ref, TileOp, TileProgram
from libnpu.compiler.schedule import FeasibleMemoryScheduler, Schedule, Window, solve

PROFILE = load_profile("npu-37xx")
TASKS = 60  # at most
SLACK = (1.2, 1.5, 2.5)  # bytes of CMX over those that program order needs, the least of which is tight
_US = 10**6  # picoseconds
_LATENCY_PS = int(PROFILE.ddr.latency_ns * 1000)


@dataclass(slots=True, frozen=True)
class Compared:
    """A schedule beside the shortest one that was found; `is_shortest` when there is none shorter."""

    plan: FeasibleMemoryScheduler
    schedule: Schedule
    shortest_ps: int
    is_shortest: bool

    @property
    def ratio(self) -> float:
        return self.schedule.makespan_ps / self.shortest_ps


def compare(seed: int, slack: float, effort: float) -> Compared | None:
    """Schedule the graph of a seed as -O2 does, and look for a shorter schedule with `effort` (about a second each).

    None for a schedule that moves something twice, to DDR and back or in again: the solver only orders what the graph has.
    """
    program = graph(seed)
    whole = FeasibleMemoryScheduler(program, PROFILE, PROFILE.cmx.workspace_bytes)
    cmx_bytes = max(int(max(whole.live_bytes) * slack), *whole.need_bytes)
    plan = FeasibleMemoryScheduler(program, PROFILE, cmx_bytes)
    schedule = plan.run()
    if schedule.spill_out_bytes:
        schedule = plan.instead_of(schedule) or schedule
    problem = Window(plan, schedule, tasks=len(schedule.ops)).problem
    if problem is None:
        return None
    answer = solve(problem, effort)
    assert answer
    return Compared(plan, schedule, answer.end_ps, answer.is_shortest)


def graph(seed: int) -> TileProgram:
    """Return the graph of a seed."""
    draw = random.Random(seed)
    tiles = draw.randint(2, 4)
    ops: list[TileOp] = []
    ddr: list[DdrTensor] = []

    def add(
        name: str, engine: Engine, reads: list[Buffer | DdrTensor], write: Buffer | DdrTensor, cost_ps: int
    ) -> None:
        accesses = [[Access(target, 0, target.size_bytes) for target in targets] for targets in (reads, [write])]
        payload = DmaPayload(Ref(reads[0]), Ref(write), write.size_bytes)
        path_ps = max(cost_ps - _LATENCY_PS, 0) if engine == Engine.DMA else 0
        ops.append(TileOp(name, name, engine, cost_ps, *accesses, payload, path_ps=path_ps))

    def load(name: str, kib: int, kind: DdrKind) -> Buffer:
        source, buffer = DdrTensor(name, kib << 10, kind), Buffer(name, kib << 10)
        ddr.append(source)
        add(f"load {name}", Engine.DMA, [source], buffer, _US + buffer.size_bytes * draw.randint(30, 60))
        return buffer

    last = [load(f"x{tile}", draw.randint(1, 4), DdrKind.INPUT) for tile in range(tiles)]
    older: list[Buffer] = []
    for layer in range(TASKS):
        engine = Engine.DPU if draw.random() < 0.65 else Engine.SHAVE
        shares = draw.random() < 0.7
        if len(ops) + 3 * tiles > TASKS:
            break
        weights = load(f"w{layer}", draw.randint(1, 8), DdrKind.WEIGHTS) if engine == Engine.DPU and shares else None
        skipped = older if draw.random() < 0.3 else []
        cost_us, kib, halo = draw.randint(1, 6), draw.randint(1, 4), draw.random() < 0.4
        made = []
        for tile in range(tiles):
            reads: list[Buffer | DdrTensor] = [last[tile], *last[tile - 1 : tile * halo], *skipped[tile : tile + 1]]
            if engine == Engine.DPU:
                reads.append(weights or load(f"w{layer}.{tile}", draw.randint(1, 4), DdrKind.WEIGHTS))
            made.append(Buffer(f"o{layer}.{tile}", kib << 10))
            add(f"op{layer}.{tile}", engine, reads, made[-1], cost_us * _US * draw.randint(80, 120) // 100)
        older, last = last, made
    for tile, buffer in enumerate(last):
        target = DdrTensor(f"y{tile}", buffer.size_bytes, DdrKind.OUTPUT)
        ddr.append(target)
        add(f"store {tile}", Engine.DMA, [buffer], target, _US + buffer.size_bytes * 40)
    return TileProgram(f"small{seed}", ops, ddr, [])
