"""Under a seed tasks last up to a million times as long; an engine reset still tells them from one that hangs."""

import numpy as np
import pytest
from npu_abi import C

import libnpu

ELEMENTS = 20_000


def lost_contexts(seed, fault):
    """Launch an addition in each of three contexts; return the results of those that lost theirs. The others are right."""
    lost = []
    with libnpu.open() as device:
        contexts = [device.create_context() for _ in range(3)]
        work = [
            (c.kernel("add"), c.create_stream(), c.to_device(np.ones(ELEMENTS, np.float32)), c.alloc(4 * ELEMENTS))
            for c in contexts
        ]
        device.set_schedule(f"seed:{seed}")
        if fault:
            device.inject("dma_task", "engine_hang")
        for kernel, stream, x, y in work:
            kernel.launch(stream, x, x, y, ELEMENTS)
        if not fault:
            device.host_delay(20_000)
            device.recover(engine=True)
        for _, stream, _, y in work:
            try:
                stream.synchronize()
            except libnpu.NpuError as error:
                lost.append(error.result)
            else:
                assert (y.read(np.float32) == 2).all()
    return lost


@pytest.mark.parametrize("seed", [1, 3, 7])
def test_only_the_context_whose_task_hangs_is_lost(seed):
    assert lost_contexts(seed, fault=True) == [C.NPU_ERROR_WATCHDOG_TIMEOUT]


@pytest.mark.parametrize("seed", [1, 3, 7])
def test_a_reset_of_engines_on_which_nothing_hangs_loses_nobody(seed):
    assert lost_contexts(seed, fault=False) == []
