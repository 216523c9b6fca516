"""Hangs, crashes, silence, lost messages and interrupts, unplugging: found in virtual time, reported with the enqueue site, and over afterwards."""

from __future__ import annotations

import errno

import numpy as np
import pytest
from npu_abi import C

import libnpu
from libnpu.blob import write
from tests.recovery.conftest import WANTED, Rig, X
from tests.runtime.conftest import copy_image

SECOND_PS = 10**12
BLOB = write(copy_image())


def fails(device):
    """Run the model on a context of its own, which fails; the error."""
    with device.create_context() as context, pytest.raises(libnpu.NpuError) as caught:
        context.load(BLOB).run({"x": X})
    return caught.value


def test_a_task_that_hangs_is_found_and_ends_its_context_alone(rig):
    innocent = rig.device.load(BLOB)
    rig.device.inject("dma_task", "engine_hang")
    error = fails(rig.device)
    assert error.result == C.NPU_ERROR_WATCHDOG_TIMEOUT
    assert (error.job_status, error.error_detail) == (C.NPU_JOB_ABORTED, C.NPU_ABORT_HUNG)
    assert "test_watchdog.py:" in error.enqueue_site
    assert (rig.kernel.recovery.engine_resets, rig.kernel.recovery.full_resets) == (1, 0)
    assert 2 * SECOND_PS < rig.device.now_ps < 7 * SECOND_PS
    assert innocent.run({"x": X})["y"].tolist() == WANTED


def test_the_guilty_context_is_banned(rig):
    context = rig.device.create_context()
    blob = context.load(BLOB)
    rig.device.inject("dma_task", "engine_hang")
    with pytest.raises(libnpu.NpuError) as caught:
        blob.run({"x": X})
    assert caught.value.result == C.NPU_ERROR_WATCHDOG_TIMEOUT
    with pytest.raises(libnpu.NpuError) as caught:
        context.alloc(4096)
    assert caught.value.result == C.NPU_ERROR_DEVICE_LOST
    assert not rig.kernel.doorbells
    context.destroy(force=True)
    assert rig.held() == rig.base


def lose(rig, kind):
    """Lose a context with several queues by a fault, and look for its rings before it is closed."""
    with rig.device.create_context() as context:
        blob, streams = context.load(BLOB), [context.create_stream() for _ in range(3)]
        buffer = context.alloc(4096)
        for stream in streams:
            stream.fill(buffer, 1)
            stream.synchronize()
        (ssid,) = (ssid for ssid, known in rig.kernel.contexts.items() if known.queues)
        queues = rig.kernel.contexts[ssid].queues.values()
        rings = {queue.pa for queue in queues}
        assert len(rings) >= 3
        assert rings <= rig.kernel.memory._sizes.keys()
        rig.device.inject("dma_task", kind)
        with pytest.raises(libnpu.NpuError):
            blob.run({"x": X})
        assert rig.kernel.contexts[ssid].lost
        assert not rings & rig.kernel.memory._sizes.keys()
        assert all(queue.pages is None for queue in queues)
        rig.device.recover()  # which empties the rings that there are
        with rig.device.create_context() as neighbour:
            assert rig.run(neighbour) == WANTED
        context.destroy(force=True)
    return rig.held()


@pytest.mark.parametrize("kind", ["engine_hang", "mmu"])
def test_the_rings_of_a_lost_context_are_free_before_it_is_closed(rig, kind):
    before = lose(rig, kind)
    assert lose(rig, kind) == before


def test_a_timed_wait_for_a_hung_job_times_out_before_the_watchdog(rig):
    blob, (x, y) = rig.device.load(BLOB), (rig.device.alloc(1024), rig.device.alloc(1024))
    rig.device.inject("dma_task", "engine_hang")
    stream = rig.device.create_stream()
    stream.launch(blob, {"x": x}, {"y": y})
    with pytest.raises(libnpu.NpuError) as caught:
        stream.synchronize(timeout_ns=10**6)
    assert caught.value.result == C.NPU_TIMEOUT
    assert rig.device.now_ps < SECOND_PS // 100


def test_a_host_that_works_for_long_finds_that_the_watchdog_has_struck(rig):
    blob, (x, y) = rig.device.load(BLOB), (rig.device.alloc(1024), rig.device.alloc(1024))
    rig.device.inject("dma_task", "engine_hang")
    stream = rig.device.create_stream()
    stream.launch(blob, {"x": x}, {"y": y})
    rig.device.host_delay(100e9)
    with pytest.raises(libnpu.NpuError) as caught:
        stream.query()
    assert caught.value.result == C.NPU_ERROR_WATCHDOG_TIMEOUT
    assert rig.kernel.recovery.engine_resets == 1


def test_without_recovery_a_hang_is_reported_and_nothing_reset():
    with libnpu.open("npu-37xx", module_params="disable_recovery=1") as device:
        rig = Rig(device)
        device.inject("dma_task", "engine_hang")
        error = fails(device)
        assert error.errno == errno.EDEADLK
        assert (rig.kernel.recovery.engine_resets, rig.kernel.recovery.full_resets) == (0, 0)


def test_a_core_that_crashes_is_booted_again_at_once(rig):
    rig.device.inject("command", "fw_crash")
    error = fails(rig.device)
    assert (error.result, error.error_detail) == (C.NPU_ERROR_DEVICE_LOST, C.NPU_ABORT_RESET)
    assert rig.kernel.recovery.full_resets == 1
    assert rig.device.now_ps < SECOND_PS // 1000
    assert rig.run() == WANTED


def test_a_core_that_falls_silent_is_asked_and_booted_again(rig):
    rig.device.inject("command", "fw_silent")
    error = fails(rig.device)
    assert (error.result, error.error_detail) == (C.NPU_ERROR_DEVICE_LOST, C.NPU_ABORT_RESET)
    assert "the firmware is silent" in rig.log
    assert SECOND_PS // 2 < rig.device.now_ps < 2 * SECOND_PS
    assert rig.run() == WANTED


def test_an_interrupt_that_is_lost_costs_time_and_nothing_else(rig):
    rig.device.inject("job_done", "irq_lost")
    assert rig.run() == WANTED
    assert rig.kernel.recovery.lost_interrupts == 1
    assert rig.device.now_ps < SECOND_PS


def test_a_doorbell_that_is_lost_is_rung_again(rig):
    rig.device.inject("doorbell", "message_lost")
    assert rig.run() == WANTED
    assert "was lost" in rig.log


def test_a_job_whose_end_is_not_reported_is_the_only_one_that_fails(rig):
    rig.device.inject("job_done", "message_lost")
    error = fails(rig.device)
    assert (error.result, error.error_detail) == (C.NPU_ERROR_DEVICE_LOST, C.NPU_ABORT_NOT_REPORTED)
    assert (rig.kernel.recovery.engine_resets, rig.kernel.recovery.full_resets) == (0, 0)
    assert rig.run() == WANTED


def test_a_barrier_post_that_is_lost_is_a_deadlock(rig):
    rig.device.inject("barrier", "barrier_lost")
    assert fails(rig.device).result == C.NPU_ERROR_BARRIER_DEADLOCK
    assert rig.run() == WANTED


def test_a_device_that_is_unplugged_answers_every_call_with_enodev_and_closes(rig):
    device, kernel = rig.device, rig.kernel
    context = device.create_context()
    blob, buffer = context.load(BLOB), context.alloc(4096)
    device.inject("task_dispatch", "unplug")
    with pytest.raises(libnpu.NpuError, match="the device is gone") as caught:
        blob.run({"x": X})
    assert (caught.value.result, caught.value.errno) == (C.NPU_ERROR_DEVICE_LOST, errno.ENODEV)
    for call in (lambda: device.alloc(64), device.state_dump, device.recover, device.create_context, buffer.free):
        with pytest.raises(libnpu.NpuError) as caught:
            call()
        assert caught.value.errno == errno.ENODEV
    device.close()
    assert (kernel.contexts, kernel.files, kernel.doorbells) == ({}, {}, {})


def test_recover_boots_warm_and_contexts_live_on(rig):
    assert rig.run() == WANTED
    rig.device.recover()
    assert "warm boot" in rig.log
    assert rig.run() == WANTED


def test_the_state_dump_says_who_does_what(rig):
    rig.run()
    text = rig.device.state_dump()
    assert "1 contexts" in text
    assert "0 engine resets, 0 full resets, 0 lost interrupts" in text
    assert "heartbeat" in text


def neighbours(rig, rounds):
    """One context faults, hangs and is reset `rounds` times while another runs a model: how often its output was not the first's."""
    quiet = rig.device.create_context()
    blob, y = quiet.load(BLOB), quiet.alloc(1024)
    x = quiet.alloc(1024)
    x.write(X)
    stream, wrong = quiet.create_stream(), 0
    for number in range(rounds):
        kind = ("mmu", "engine_hang")[number % 2]
        with rig.device.create_context() as noisy:
            module, a, b = noisy.load(BLOB), noisy.alloc(1024), noisy.alloc(1024)
            y.write(np.zeros(1024, np.uint8))
            rig.device.inject("dma_task", kind, seed=number)
            bad = noisy.create_stream()
            bad.launch(module, {"x": a}, {"y": b})
            stream.launch(blob, {"x": x}, {"y": y})
            with pytest.raises(libnpu.NpuError):
                bad.synchronize()
            stream.synchronize()
            wrong += y.read(np.uint8, (1024,)).tolist() != WANTED
    return wrong


def test_a_neighbour_of_faults_and_hangs_computes_the_same(rig):
    assert neighbours(rig, 6) == 0
    assert rig.kernel.recovery.engine_resets == 3
    assert rig.kernel.recovery.full_resets == 0


@pytest.mark.slow
def test_a_neighbour_of_200_faults_and_hangs_computes_the_same(rig):
    assert neighbours(rig, 200) == 0
    assert rig.kernel.recovery.full_resets == 0
