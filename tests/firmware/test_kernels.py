"""Kernel launches: blocks, registers, records, and what a command can have wrong."""

import numpy as np
import pytest
from npu_abi import C

from tests.device.rig import CMX, Rig
from tests.firmware.launches import Program

STORE_REGISTERS = """
    ld.i64 r10, r1, 0       # the output: four words for each block
    muli r11, r2, 32
    add r10, r10, r11
    st.i64 r2, r10, 0
    st.i64 r3, r10, 8
    st.i64 r4, r10, 16
    st.i64 r5, r10, 24
    halt
"""


def test_every_block_runs_with_its_registers():
    rig = Rig("npu-37xx")
    out = rig.alloc(bytes(4096))
    Program(rig, STORE_REGISTERS, out).launch(6)
    words = rig.memory(out)[: 6 * 32].view(np.int64).reshape(6, 4)
    assert words.tolist() == [[block, 6, CMX, 991232] for block in range(6)]  # 1982464 bytes over two SHAVEs


@pytest.mark.parametrize("compute", [True, False])
def test_records_are_in_order(compute):
    rig = Rig("npu-37xx", compute=compute)
    records = Program(rig, STORE_REGISTERS, rig.alloc(bytes(4096))).launch(6)
    names = ["taken_ps", "picked_ps", "load_ps", "start_ps", "end_ps"]
    for record in records:
        times = [int(record[name]) for name in names]
        assert times == sorted(times), times
