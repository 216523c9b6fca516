"""Launches kernels of the built-in library on a device, without the runtime: arrays in, arrays out."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from npu_abi import C

from libnpu.blob import read
from libnpu.kernels import builtin_library
from tests.device.rig import Rig
from tests.firmware.launches import RECORD, kernel

LIBRARY = read(Path(builtin_library()).read_bytes())
KERNELS = {k.name: k for k in LIBRARY.kernels}


class Launcher:
    """A booted device with the library's text in its memory."""

    def __init__(self, profile="npu-37xx", library=LIBRARY, **options):
        self.rig = Rig(profile, **options)
        self.kernels = {k.name: k for k in library.kernels}
        self.text_va = self.rig.alloc(library.text)

    def run(self, name, *args, grid=4):
        """Launch `name`; return its JOB_DONE and the arrays of its buffers, in order, as the device left them.

        Arguments: arrays for buffers (None = address 0), ints and floats. A launch without a record of success has no arrays.
        """
        rig, entry = self.rig, self.kernels[name]
        assert len(args) == len(entry.params), (name, [p.name for p in entry.params])
        words, buffers = b"", []
        for param, arg in zip(entry.params, args, strict=True):
            if param.kind == C.NPU_ARG_BUFFER and arg is not None:
                va = rig.alloc(np.ascontiguousarray(arg).tobytes())
                buffers.append((va, arg))
                words += struct.pack("<q", va)
            elif param.kind == C.NPU_ARG_FLOAT:
                words += struct.pack("<fI", arg, 0)
            else:
                words += struct.pack("<q", arg or 0)
        self.record_va = rig.alloc(bytes(grid * RECORD.itemsize))
        command = kernel(
            self.text_va + entry.text_offset, entry.code_bytes, args_va=rig.alloc(words), args_bytes=len(words),
            record_va=self.record_va, grid=grid,
        )  # fmt: skip
        done = rig.execute(rig.command_buffer([command]))
        found = [rig.memory(va)[: a.nbytes].view(a.dtype).reshape(a.shape).copy() for va, a in buffers]
        self.records = rig.memory(self.record_va)[: grid * RECORD.itemsize].view(RECORD).copy()
        return done, found

    def compute(self, name, *args, grid=4):
        """Launch `name`, which must succeed; return the arrays of its buffers."""
        done, found = self.run(name, *args, grid=grid)
        assert done.job_status == C.NPU_JOB_SUCCESS, (done.job_status, hex(done.error_detail), hex(done.error_info))
        return found

    @property
    def duration_ps(self):
        """Return the time from the first start to the last end of the latest launch's blocks."""
        return int(self.records["end_ps"].max() - self.records["start_ps"].min())
