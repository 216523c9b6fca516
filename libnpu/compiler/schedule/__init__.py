"""Scheduling: when and where each operation of a tile program runs, and which barriers keep it correct.

`FeasibleMemoryScheduler` orders operations, places CMX buffers and spills (`memory_scheduler.py`, `scheduler_pass.py`,
`cmx_allocator.py`);
`dependences.py` finds every ordering that the placed bytes need; `barriers.py` expresses them in barriers.
"""

from libnpu.compiler.schedule.barriers import BarrierPlan, OutOfBarriers, assign_barriers
from libnpu.compiler.schedule.cmx_allocator import CmxAllocator
from libnpu.compiler.schedule.dependences import byte_dependences, kept_dependences, reduce_dependences
from libnpu.compiler.schedule.memory_scheduler import FeasibleMemoryScheduler
from libnpu.compiler.schedule.schedule import Decision, DecisionKind, DoesNotFit, Queue, Schedule, ScheduledOp
from libnpu.compiler.schedule.synchronise import synchronise, unordered_pairs

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
    "assign_barriers",
    "byte_dependences",
    "kept_dependences",
    "reduce_dependences",
    "synchronise",
    "unordered_pairs",
]
