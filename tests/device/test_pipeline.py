"""Overlap on the whiteboard device comes out of barriers and engine queues alone.

A layer is a copy into CMX, a matmul, and a vector instruction; a stage of n units is 1024 n bytes, MACs or lanes. With k input
buffers the copy of layer l waits for the matmul of layer l - k; with k output buffers the matmul for the SHAVE of l - k.
"""

import numpy as np
import pytest
from npu_abi import C
from npu_model.shave_isa import assemble

from tests.device.rig import CMX, Blob, Rig

UNIT_PS = 1_000_000
STAGES = (2, 3, 1)


@pytest.fixture(scope="module")
def rig():
    rig = Rig("unit", compute=False)
    rig.source = rig.alloc(8192)
    rig.programs = {}
    for units in range(1, 6):
        text = assemble(f"li r2, {units}\nli r3, 1024\nsetvl r2, r3\nviota.i32 v0\nhalt\n")
        rig.programs[units] = rig.alloc(text), len(text)
    return rig


def pipeline(rig, layers, stages, inputs, outputs, serial=False):
    """Return the task lists; `inputs` and `outputs` are numbers of buffers."""
    dma, dpu, shave = stages
    blob = Blob()
    program = blob.add_range(*rig.programs[shave])
    loaded = [blob.barrier() for _ in range(layers)]
    computed = [blob.barrier() for _ in range(layers)]
    consumed = [blob.barrier() for _ in range(max(layers - inputs, 0))]
    drained = [blob.barrier() for _ in range(max(layers - (1 if serial else outputs), 0))]
    for layer in range(layers):
        act = CMX + layer % inputs * 0x2000
        out = CMX + 0x8000 + layer % outputs * 0x400
        waits = [drained[layer - 1]] if serial and layer else []
        waits += [consumed[layer - inputs]] if layer >= inputs else []
        blob.add_dma(rig.source, act, 1024 * dma, waits=waits, posts=[loaded[layer]])
        waits = [loaded[layer]] + ([drained[layer - outputs]] if not serial and layer >= outputs else [])
        posts = [computed[layer]] + ([consumed[layer]] if layer < len(consumed) else [])
        k = 4 * dpu
        blob.add_matmul(act, act + 32 * k, out, 16, k, 16, waits=waits, posts=posts)
        blob.add_shave(program, waits=[computed[layer]], posts=drained[layer : layer + 1])
    return blob


def recurrence(layers, stages, inputs, outputs, serial=False):
    """Return the units that the pipeline must take."""
    dma, dpu, shave = stages
    loads, computes, drains = [], [], []

    def end(ends, layer):
        return ends[layer] if layer >= 0 else 0

    for layer in range(layers):
        free = end(drains, layer - 1) if serial else end(computes, layer - inputs)
        loads.append(max(end(loads, layer - 1), free) + dma)
        computes.append(max(end(computes, layer - 1), loads[layer], end(drains, layer - outputs)) + dpu)
        drains.append(max(end(drains, layer - 1), computes[layer]) + shave)
    return drains[-1]


def units(rig, *args, **options):
    rig.messages.clear()
    done = rig.execute(rig.inference(pipeline(rig, *args, **options)))
    assert done.job_status == C.NPU_JOB_SUCCESS, (done.job_status, done.error_detail, hex(done.error_info))
    time = done.end_ps - done.start_ps
    assert time % UNIT_PS == 0
    return time // UNIT_PS


@pytest.mark.parametrize(
    ("inputs", "outputs", "serial", "expected"),
    [(1, 1, True, 24), (1, 2, False, 21), (2, 2, False, 15), (2, 1, False, 18)],
)
def test_four_layers_overlap_as_their_buffers_allow(rig, inputs, outputs, serial, expected):
    assert units(rig, 4, STAGES, inputs, outputs, serial=serial) == expected


@pytest.mark.parametrize("layers", range(1, 9))
def test_every_pipeline_takes_what_its_recurrence_says(rig, layers):
    lengths = np.ndindex(5, 5, 5)
    for number, stages in enumerate((a + 1, b + 1, c + 1) for a, b, c in lengths):
        inputs, outputs = 1 + number % 2, 1 + number // 2 % 2
        assert units(rig, layers, stages, inputs, outputs) == recurrence(layers, stages, inputs, outputs)
