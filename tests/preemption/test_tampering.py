"""What is in a preemption buffer is not trusted: it decides about the inference that it belongs to, and about nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from npu_abi import C

import libnpu
from tests.preemption.conftest import Pair, X
from tests.preemption.test_inferences import preempt

BARRIERS = 32  # of a tile of npu-37xx
ENTRY = np.dtype([("virtual_id", "<u4"), ("producers", "<u4"), ("consumers", "<u4")])


def scramble(entries, rng):
    """Any bytes."""
    entries[:] = np.frombuffer(rng.bytes(entries.nbytes), ENTRY)


def forget(entries, _):
    """No barrier is loaded."""
    entries["virtual_id"] = C.NPU_BARRIER_NONE


def recount(entries, rng):
    """The barriers that are there, with other counts."""
    entries["producers"], entries["consumers"] = rng.integers(0, C.NPU_MAX_BARRIER_COUNT + 1, (2, len(entries)))


def open_all(entries, _):
    """Nobody waits for anything any more."""
    entries["producers"] = entries["consumers"] = 0


def shuffle(entries, rng):
    """The barriers that are there, on other physical ones."""
    entries[:] = rng.permutation(entries)


def repeat(entries, _):
    """One virtual barrier on all physical ones."""
    entries["virtual_id"] = entries["virtual_id"].min()


def low_ids(entries, rng):
    """Virtual barriers that the inference has, in a disorder."""
    for name, end in (("virtual_id", 9), ("producers", 4), ("consumers", 4)):
        entries[name] = rng.integers(0, end, len(entries))


def test_the_firmware_finds_the_barriers_where_this_test_looks_for_them():
    with libnpu.open("npu-37xx") as device:
        assert device.profile.barriers_per_tile == BARRIERS


@pytest.mark.parametrize("at_ns", [2500, 4000, 5000])
@pytest.mark.parametrize("change", [scramble, forget, recount, open_all, shuffle, repeat, low_ids])
def test_tampered_barriers_harm_their_inference_at_most(device, small_blob, change, at_ns):
    outcome(device, small_blob, lambda view, rng: change(np.frombuffer(view, ENTRY, BARRIERS), rng), at_ns)


@pytest.mark.parametrize("at_ns", [2500, 4000, 5000])
def test_tampered_cmx_harms_its_inference_at_most(device, small_blob, at_ns):
    def change(view, rng):
        cmx = np.frombuffer(view, np.uint8)[C.NPU_PREEMPT_STATE_BYTES :]
        cmx[:] = np.frombuffer(rng.bytes(len(cmx)), np.uint8)

    outcome(device, small_blob, change, at_ns)


def test_barriers_that_the_inference_does_not_have_end_it(device, small_blob):
    error = outcome(device, small_blob, lambda view, rng: scramble(np.frombuffer(view, ENTRY, BARRIERS), rng), 4000)
    assert (error.job_status, error.error_detail) == (C.NPU_JOB_PARSING_ERR, C.NPU_PARSE_BAD_BARRIER)


def outcome(device, small_blob, change, at_ns):
    """Change the buffer of a preempted inference, and return its error, None when it has none. Its neighbours, in the other
    context and in its own, are right, and so is the next inference of its stream.
    """
    others = Pair(device, small_blob, {"x": X})
    pair = Pair(device, small_blob, {"x": X}, device.create_context())
    job, _ = preempt(pair, at_ns)
    bo = pair.kernel.contexts[3].objects[pair.idle.preemption_buffer()]
    change(pair.kernel.memory.view(bo.pa, bo.size), np.random.default_rng(at_ns))
    neighbours = others.begin()
    error = None
    try:
        pair.idle.synchronize()
    except libnpu.NpuError as caught:
        error = caught
        assert caught.job is job
        assert caught.job_status in (C.NPU_JOB_PARSING_ERR, C.NPU_JOB_DEADLOCK, C.NPU_JOB_BARRIER_UNDERFLOW)
    device.synchronize()
    assert [one.error for one in neighbours] == [None, None]
    assert others.is_right(0)
    assert others.is_right(1)
    assert pair.is_right(1)
    pair.launch(pair.idle, 0)
    pair.idle.synchronize()
    assert pair.is_right(0)
    return error
