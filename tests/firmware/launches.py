"""Kernel launches for tests: programs, commands, records."""

from __future__ import annotations

import numpy as np
from npu_abi import C, dtype, new, sizeof
from npu_model.shave_isa import assemble

from tests.device.rig import JOBQ, SSID, Blob

RECORD = dtype("npu_kernel_record")
DOORBELL = C.NPU_REG_DOORBELL_BASE
ELEMENT = 4


def kernel(text_va, code_bytes, **fields):
    """Return struct npu_cmd_kernel."""
    command = new("npu_cmd_kernel", text_va=text_va, code_bytes=code_bytes, **({"grid": 1} | fields))
    command.h.type, command.h.size = C.NPU_CMD_KERNEL_LAUNCH, sizeof("npu_cmd_kernel")
    return command


class Program:
    """A program in the memory of a rig, with arguments of 64-bit words."""

    def __init__(self, rig, text, *args, pad_to=0):
        code = assemble(text)
        code += assemble("nop") * ((pad_to - len(code)) // 16)
        self.rig = rig
        self.fields = {"text_va": rig.alloc(code), "code_bytes": len(code)}
        if args:
            words = np.array(args, np.int64).tobytes()
            self.fields |= {"args_va": rig.alloc(words), "args_bytes": len(words)}
        self.record_va = 0

    def command(self, grid=1, record=True, **fields):
        """Return a command; its records are those that `records` returns."""
        if record:
            self.record_va = self.rig.alloc(bytes(grid * RECORD.itemsize))
            fields = {"record_va": self.record_va} | fields
        return kernel(**(self.fields | {"grid": grid} | fields))

    def records(self, grid=1):
        """Return the records of the latest launch."""
        return self.rig.memory(self.record_va)[: grid * RECORD.itemsize].view(RECORD).copy()

    def launch(self, grid=1, **fields):
        """Launch it alone and return its records; it must succeed."""
        done = self.run(grid, **fields)
        assert done.job_status == C.NPU_JOB_SUCCESS, (done.job_status, hex(done.error_detail), hex(done.error_info))
        return self.records(grid)

    def run(self, grid=1, **fields):
        """Launch it alone and return its JOB_DONE."""
        return self.rig.execute(self.rig.command_buffer([self.command(grid, **fields)]))


def queues(rig, count):
    """Register `count` queues; return (ring address, doorbell) of each."""
    found = [(JOBQ, 1)]
    for doorbell in range(2, count + 1):
        va = JOBQ + 0x2000 * doorbell
        rig.alloc(bytes(4096), 0, va)
        assert rig.register_db(doorbell, va, SSID).result == C.NPU_JSM_OK
        found.append((va, doorbell))
    return found


def enqueue_all(rig, buffers):
    """Put each command buffer in a queue of its own, then ring all doorbells; return the job ids."""
    places = queues(rig, len(buffers))
    ids = [
        rig.enqueue(buffer, jobq=va, doorbell=doorbell, ring=False)
        for buffer, (va, doorbell) in zip(buffers, places, strict=True)
    ]
    for _, doorbell in places:
        rig.bus.write32(DOORBELL + C.NPU_DOORBELL_STRIDE * doorbell, 1)
    return ids


def busy(cycles_log2):
    """Return text that keeps a SHAVE of npu-37xx busy for about 2**cycles_log2 cycles, without memory."""
    if cycles_log2 < 13:
        count, body = 1 << max(cycles_log2 - 1, 0), ""
    else:
        count, body = (1 << cycles_log2 - 12) - 1, "vmov v14, v15"  # 4 + 16384 / 4 cycles
    return f"""
        li r20, {128 if body else 1}
        setvl r20, r20
        viota.i32 v15
        li r20, 0
        li r21, {count}
    spin:
        {body}
        addi r20, r20, 1
        blt r20, r21, spin
    """


def spinning(rig, tiles, cycles_log2=14):
    """Return a command buffer of an inference that keeps every SHAVE of `tiles` tiles busy."""
    program = Program(rig, busy(cycles_log2) + "halt")
    blob = Blob(tiles)
    index = blob.add_range(program.fields["text_va"], program.fields["code_bytes"])
    for tile in range(tiles):
        for shave in range(2):
            blob.add_shave(index, tile=tile, shave=shave)
    return rig.inference(blob)
