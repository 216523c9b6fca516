"""A SHAVE core of the device: runs programs out of the job's memory. The instruction set itself is in npu_model.

A device owns one `ProgramCache`; `run` executes one invocation from start to halt.
"""

from __future__ import annotations

from npu_model.profile import Shave
from npu_model.shave_decode import ProgramCache
from npu_model.shave_machine import ShaveResult
from npu_model.shave_memory import Memory

__all__ = ["Memory", "ProgramCache", "ShaveResult", "run"]


def run(
    text: bytes, args_va: int, memory: Memory, shave: Shave, compute: bool, cache: ProgramCache | None = None
) -> ShaveResult:
    """Run the program `text` with r1 = `args_va` and return its cycles, instructions and traffic.

    `memory.view(addr, nbytes, write)` gives uint8 views and raises the device's own fault, which passes through. ShaveFault
    on anything illegal; its subclass ShaveUnsupported without `compute` when control flow or a scalar load depends on CMX data,
    and for a program that starts DMA or DPU operations: those run as tasks of a device only. Cycles include shave.startup_cycles.
    """
    return (cache or ProgramCache()).run(text, args_va, memory, shave, compute)
