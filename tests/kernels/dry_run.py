"""Runs a block of a built-in kernel without a device and without values, and says what the watchdog would count for it.

What a built-in program does depends on its integers alone. So memory holds the argument block, and of CMX what scalars store there;
operations of other engines end at once. `tests/kernels/test_work.py` compares it with a device.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from unittest import mock

import npu_abi
import numpy as np
from npu_abi import C
from npu_model import cycles, shave_machine, shave_operations, shave_scalar
from npu_model.shave_decode import translate
from npu_model.shave_machine import Machine, Start
from npu_model.shave_runs import fuse

from libnpu.kernels.operations import HEADER_BYTES
from tests.kernels.launcher import KERNELS, LIBRARY

_ARGS, _CMX, _DDR = 0x1000, 1 << 32, 1 << 33  # outside the CMX window, whose scalars are not followed without values


@dataclass(frozen=True)
class Spent:
    """What a block used of what the watchdog allows."""

    work: int
    cycles: int
    starts: int


class _Memory:
    def __init__(self, arguments):
        self.arguments = np.frombuffer(arguments, np.uint8)
        self.header = np.zeros(HEADER_BYTES, np.uint8)

    def view(self, addr, nbytes, write):
        start, memory = (_CMX, self.header) if addr >= _CMX else (_ARGS, self.arguments)
        found = memory[addr - start : addr - start + nbytes]
        assert len(found) == nbytes, hex(addr)
        return found

    def check(self, addr, nbytes, write):
        pass


def spent(name, numbers, profile, cmx_bytes, grid, block):
    """Return what block `block` of `grid` does, however much that is; `numbers` are the scalars of the kernel, in order. All buffers are there."""
    entry = KERNELS[name]
    words, rest = b"", list(numbers)
    for number, param in enumerate(entry.params):
        if param.kind == C.NPU_ARG_BUFFER:
            words += struct.pack("<q", _DDR + (number << 36))
        else:
            value = rest.pop(0)
            words += struct.pack("<fI", value, 0) if param.kind == C.NPU_ARG_FLOAT else struct.pack("<q", value)
    memory = _Memory(words)
    rows = _rows(LIBRARY.text[entry.text_offset : entry.text_offset + entry.code_bytes])
    machine = Machine(_ARGS, memory, profile.shave, compute=False)
    machine.r[2:6] = block, grid, _CMX, cmx_bytes
    machine.cycles = 0
    machine.max_cycles = 1 << 62
    with mock.patch.multiple(shave_machine, MAX_WORK=1 << 62, MAX_STARTS=1 << 62):
        while not machine.run(rows):
            request = machine.suspension
            machine.segment()
            if isinstance(request, Start):
                machine.charge(_operation(memory, request))
    return Spent(machine.total_work(), machine.cycles, machine.starts)


@cache
def _rows(text):
    """Return the rows of a program, in which scalars are stored also without values."""
    stores = shave_scalar.HANDLERS["st"]
    return fuse([(_store if row[0] is stores else row[0], *row[1:]) for row in translate(text)])


def _store(machine, argument):
    machine.compute = True
    shave_scalar.st(machine, argument)
    machine.compute = False


def _operation(memory, request):
    """Return the work of an operation, as npu_device.shave_operations.work_of."""
    if request.engine == C.NPU_ENGINE_DMA:
        raw = memory.view(request.address, shave_operations.DMA_BYTES, False).tobytes()
        return int(cycles.dma_bytes(np.frombuffer(raw, npu_abi.dtype("npu_dma_descriptor")))[0])
    raw = memory.view(request.address, shave_operations.INVARIANT_BYTES, False).tobytes()
    address = request.address + shave_operations.INVARIANT_BYTES
    variant = np.frombuffer(
        memory.view(address, shave_operations.VARIANT_BYTES, False).tobytes(), npu_abi.dtype("npu_dpu_variant")
    )
    invariant = np.frombuffer(raw, npu_abi.dtype("npu_dpu_invariant"))
    outputs = int(variant["size_x"][0]) * int(variant["size_y"][0]) * int(variant["size_z"][0])
    item = 2 if invariant["out_dtype"][0] == C.NPU_DT_F16 else 4
    read = int(cycles.dpu_read_bytes(invariant, variant)[0])
    return (int(cycles.dpu_macs(invariant, variant)[0]) >> 3) + read + outputs * item
