"""Scheduling: when and where each operation of a tile program runs, and which barriers keep it correct.

`FeasibleMemoryScheduler` orders operations, places CMX buffers and spills (`memory_scheduler.py`, `scheduler_pass.py`,
`cmx_allocator.py`);
`justify.py` finds other orders, `packing.py` places that need no spills; `solver.py` finds the best order of few operations, `windows.py` asks it for those of a schedule, window by window;
`dependences.py` finds every ordering that the placed bytes need; `barriers.py` expresses them in barriers.
"""

from libnpu.compiler.schedule.barriers import BarrierPlan, OutOfBarriers, assign_barriers
from libnpu.compiler.schedule.cmx_allocator import CmxAllocator
from libnpu.compiler.schedule.dependences import byte_dependences, kept_dependences, reduce_dependences
from libnpu.compiler.schedule.memory_scheduler import FeasibleMemoryScheduler
from libnpu.compiler.schedule.schedule import Decision, DecisionKind, DoesNotFit, Queue, Schedule, ScheduledOp
from libnpu.compiler.schedule.solver import solve
from libnpu.compiler.schedule.synchronise import synchronise, unordered_pairs
from libnpu.compiler.schedule.windows import Window, improve

__all__ = [
    "BarrierPlan",
    "CmxAllocator",
    "Decision",
    "DecisionKind",
    "DoesNotFit",
    "FeasibleMemoryScheduler",
    "OutOfBarriers",
    "Queue",
    "Schedule",
    "ScheduledOp",
    "Window",
    "assign_barriers",
    "byte_dependences",
    "improve",
    "kept_dependences",
    "reduce_dependences",
    "solve",
    "synchronise",
    "unordered_pairs",
]
