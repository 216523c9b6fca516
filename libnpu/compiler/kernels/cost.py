"""What a kernel costs: the program itself, run on a SHAVE core without values. Device and compiler cannot disagree."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from npu_abi import C
from npu_model.profile import Profile, Shave
from npu_model.shave_decode import run_closed, translate
from npu_model.shave_faults import ShaveUnsupported
from npu_model.shave_machine import Machine
from numpy.typing import NDArray

from libnpu.compiler.kernels.program import ArgsTemplate, Program
from libnpu.errors import Unsupported

_ARGS_VA = int(C.NPU_VA_LOW_BASE)
_CMX = int(C.NPU_CMX_BASE)


class _Arguments:
    """A memory that holds one argument block."""

    def __init__(self, block: bytes) -> None:
        self._bytes = np.frombuffer(block, np.uint8)

    def view(self, addr: int, nbytes: int, write: bool) -> NDArray[Any]:
        """Return bytes of the block."""
        first = addr - _ARGS_VA
        assert not write and first >= 0 and first + nbytes <= len(self._bytes), "a kernel reads beyond its arguments"
        return self._bytes[first : first + nbytes]

    def check(self, addr: int, nbytes: int, write: bool) -> None:
        """Accept anything: operands have no place yet."""


def cost_cycles(program: Program, args: ArgsTemplate, profile: Profile) -> int:
    """Return the SHAVE cycles of one invocation, start-up included. Does not depend on addresses. Memoised.

    Unsupported for a program that starts DMA or DPU operations: what it waits for has no cost of its own.
    """
    return _cost(program.code, args, msgspec.json.encode(profile.shave))


_rows = lru_cache(maxsize=256)(translate)


@lru_cache(maxsize=4096)
def _cost(code: bytes, args: ArgsTemplate, shave_json: bytes) -> int:
    shave = msgspec.json.decode(shave_json, type=Shave)
    count = 1 + max((index for _, index in args.slots), default=0)
    machine = Machine(_ARGS_VA, _Arguments(args([_CMX] * count)), shave, compute=False)
    try:
        run_closed(machine, _rows(code))
    except ShaveUnsupported as error:
        raise Unsupported(f"the cost of a SHAVE program: {error}") from None
    return machine.cycles
