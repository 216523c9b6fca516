"""Which streams have a preemption buffer, from when to when, and what it takes."""

from __future__ import annotations

import numpy as np
import pytest
from npu_abi import C

import libnpu
from libnpu.tools.smi import records
from tests.preemption.conftest import Pair, X


@pytest.fixture
def rig(small_blob):
    """Makes a `Pair` on a device of certain semantics; its default stream has run the model, so it has a buffer."""
    opened = []

    def make(semantics="ascend"):
        opened.append(libnpu.open("npu-37xx", semantics=semantics, trace=True))
        return Pair(opened[-1], small_blob, {"x": X})

    yield make
    for device in opened:
        device.close()


def used(pair):
    """The bytes of the context's objects, as `npu smi` prints them."""
    return records(pair.device.node, C.NPU_INFO_CONTEXTS, "npu_context_info")[0]["memory_bytes"]


def test_a_stream_makes_one_buffer_with_its_first_inference(pair):
    assert pair.buffers() == 1  # the default stream's
    before, (free, _) = used(pair), pair.device.memory_info()
    pair.launch(pair.normal, 1)
    assert pair.buffers() == 2
    assert free - pair.device.memory_info()[0] >= pair.preempt_bytes()
    assert used(pair) - before >= pair.preempt_bytes()
    pair.launch(pair.normal, 1)
    assert pair.buffers() == 2
    pair.launch(pair.idle, 0)
    assert pair.buffers() == 3


def test_realtime_streams_and_streams_without_inferences_have_none(pair):
    pair.launch(pair.urgent, 2)
    memory = pair.device.to_device(np.ones(64, np.float32))
    pair.device.kernel("relu").launch(pair.normal, memory, memory, 64)
    pair.normal.fill(memory, 0)
    pair.device.synchronize()
    assert pair.buffers() == 1


def test_the_host_cannot_map_it(pair):
    objects = pair.kernel.contexts[2].objects
    known = set(objects)
    pair.launch(pair.normal, 1)
    (new,) = [bo for handle, bo in objects.items() if handle not in known and bo.size > 1 << 21]
    assert not new.flags & C.NPU_BO_MAPPABLE
    assert (new.mmap_offset, new.size) == (0, pair.preempt_bytes())


def test_graphs_command_lists_and_dynamic_launches_bring_it(pair):
    commands = pair.context.create_command_list()
    commands.append_launch(pair.model, pair.inputs, pair.outputs[0])
    commands.close()
    jobs = [commands.submit(pair.idle), pair.launch(pair.normal, 1, dynamic=True)]
    with pair.normal.capture() as capture:
        pair.launch(pair.normal, 2)
    jobs.append(capture.graph.instantiate().launch(pair.idle))
    assert [job.preempt_index for job in jobs] == [1, 1, 1]
    pair.device.synchronize()
    assert all(pair.is_right(number) for number in range(3))


@pytest.mark.parametrize("semantics", ["ascend", "cuda"])
@pytest.mark.parametrize("in_flight", [False, True])
def test_it_goes_with_its_stream(rig, semantics, in_flight):
    pair = rig(semantics)
    pair.launch(pair.normal, 1)
    if not in_flight:
        pair.normal.synchronize()
    free, _ = pair.device.memory_info()
    pair.normal.close()
    pair.device.synchronize()
    assert pair.buffers() == 1
    assert pair.device.memory_info()[0] >= free + pair.preempt_bytes()
    assert pair.is_right(1)


def test_it_goes_with_its_context(rig, small_blob):
    pair = rig()
    other = pair.device.create_context()
    free, _ = pair.device.memory_info()
    second = Pair(pair.device, small_blob, {"x": X}, other)
    second.begin()
    assert second.buffers() == 4
    other.destroy(force=True)
    assert pair.buffers() == 1
    again = pair.device.create_context()
    assert pair.device.memory_info()[0] == free
    again.destroy()


def test_it_stays_through_failure_mode_and_abort(pair):
    pair.launch(pair.normal, 1).wait()
    pair.normal.set_failure_mode(libnpu.FailureMode.STOP)
    pair.launch(pair.normal, 1)
    pair.normal.abort()
    assert pair.buffers() == 2
    with pytest.raises(libnpu.NpuError, match="ABORTED_BY_PRIOR_ERROR"):
        pair.normal.synchronize()
    assert pair.launch(pair.normal, 1).preempt_index == 1
    pair.normal.synchronize()
    assert pair.is_right(1)
    pair.normal.close()
    assert pair.buffers() == 1


def test_it_can_be_given_back_when_a_fault_has_ended_the_context(pair, fault):
    pair.begin()
    fault(pair.context).launch(pair.urgent, grid=1)
    with pytest.raises(libnpu.NpuError, match="DEVICE_PAGE_FAULT"):
        pair.urgent.synchronize()
    for stream in (pair.idle, pair.normal, pair.urgent):
        stream.close()
    assert pair.buffers() == 1


def test_without_memory_for_it_an_inference_runs_and_the_next_one_asks_again(pair):
    pair.launch(pair.urgent, 2).wait()
    memory = pair.kernel.memory
    rest, memory.free_bytes = memory.free_bytes, pair.preempt_bytes() - 1
    assert pair.launch(pair.normal, 1).preempt_index == 0
    pair.normal.synchronize()
    assert pair.is_right(1)
    assert pair.buffers() == 1
    memory.free_bytes += rest - pair.preempt_bytes() + 1
    assert pair.launch(pair.normal, 1).preempt_index == 1
    pair.normal.synchronize()
    assert pair.is_right(1)
