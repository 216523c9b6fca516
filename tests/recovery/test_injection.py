"""A fault of each kind at each point: the API reports, the next context works, and the driver holds what it held before."""

from __future__ import annotations

import errno

import pytest
from npu_abi import C, name_of
from npu_driver.inject import DEVICE_KINDS, DRIVER_KINDS

import libnpu
from libnpu.blob import write
from tests.recovery.conftest import WANTED, X
from tests.runtime.conftest import copy_image

BOOT = ("boot_image", "boot_start", "boot_done", "reset")
UNSEEN = {"dpu_task", "shave_task"}  # the copy model has no such tasks


def _names():
    for point, kinds in sorted((DRIVER_KINDS | DEVICE_KINDS).items()):
        for kind in sorted(kinds):
            yield (
                name_of("npu_fault_point", point).removeprefix("NPU_POINT_").lower(),
                name_of("npu_fault_kind", kind).removeprefix("NPU_FAULT_").lower(),
            )


EVERY = list(_names())


def attempt(device):
    """Load, run and unload the model in a context of its own: None, or the error that it came to."""
    try:
        with device.create_context() as context:
            assert context.load(write(copy_image())).run({"x": X})["y"].tolist() == WANTED
    except libnpu.NpuError as error:
        return error
    return None


@pytest.mark.parametrize(("point", "kind"), [pair for pair in EVERY if pair[0] not in BOOT])
def test_every_fault_is_survived(rig, point, kind):
    device = rig.device
    device.inject(point, kind, seed=5)
    error = attempt(device)
    if kind == "unplug" and point not in UNSEEN:
        assert rig.kernel.removed
        assert error is not None or point in ("close", "queue_destroy", "ssid_release", "message_reply", "irq", "wait")
        device.close()
        assert not rig.kernel.contexts
        assert not rig.kernel.doorbells
        return
    if error is not None:
        assert error.result != C.NPU_ERROR_INTERNAL
    device.disarm_faults()
    assert attempt(device) is None
    assert rig.held() == rig.base


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize(
    "kind", ["fw_crash", "fw_silent", "message_lost", "message_twice", "message_garbage", "irq_lost"]
)
def test_replies_that_fail_one_after_the_other(rig, kind, after):
    rig.device.inject("message_reply", kind, after=after, count=2, seed=11)
    attempt(rig.device)
    rig.device.disarm_faults()
    assert attempt(rig.device) is None
    assert rig.held() == rig.base


@pytest.mark.parametrize(
    ("point", "kind"), [pair for pair in EVERY if pair[0] in ("boot_image", "boot_start", "boot_done")]
)
def test_a_boot_that_fails_is_reported_and_the_next_one_works(tmp_path, monkeypatch, point, kind):
    faults = tmp_path / "faults.json"
    faults.write_text(f'[{{"point": "{point}", "kind": "{kind}", "seed": 100}}]')
    monkeypatch.setenv("NPU_FAULTS", str(faults))
    try:
        device = libnpu.open("npu-37xx")
    except libnpu.NpuError as error:
        assert error.errno in (errno.EIO, errno.ENODEV, errno.ENOMEM)
        assert kind not in ("message_twice", "irq_lost")
    else:
        with device:
            assert kind in ("message_twice", "irq_lost", "fw_crash", "fw_silent")
            device.disarm_faults()
            assert attempt(device) is None


@pytest.mark.parametrize("kind", ["fw_crash", "fw_silent", "unplug"])
def test_a_reset_that_fails_loses_the_device_until_it_is_opened_again(rig, kind):
    rig.device.inject("reset", kind)
    try:
        rig.device.recover()
    except libnpu.NpuError as error:
        assert error.result == C.NPU_ERROR_DEVICE_LOST
    if kind == "unplug":
        assert rig.kernel.removed
        return
    rig.device.reset()
    assert rig.run() == WANTED


def test_a_kind_that_cannot_strike_at_a_point_is_invalid(rig):
    with pytest.raises(libnpu.NpuError, match="NPU_FAULT_NO_MEMORY cannot strike at NPU_POINT_IRQ") as caught:
        rig.device.inject("irq", "no_memory")
    assert caught.value.result == C.NPU_ERROR_INVALID_VALUE
    with pytest.raises(libnpu.NpuError, match="'moon' is none of boot_image, "):
        rig.device.inject("moon", "no_memory")


def test_a_fault_strikes_at_its_count(rig):
    rig.device.inject("dma_task", "mmu", after=2, seed=0x5000)
    blob = rig.device.load(write(copy_image()))
    assert blob.run({"x": X})["y"].tolist() == WANTED
    with pytest.raises(libnpu.NpuError, match="address 0x5000, task 'step0'"):
        blob.run({"x": X})


def test_nothing_is_in_the_way_when_nothing_is_armed(rig):
    rig.device.inject("irq", "irq_lost", after=1000)
    rig.device.inject("alloc", "no_memory", after=1000)
    rig.device.disarm_faults()
    device, kernel = rig.kernel.device, rig.kernel
    assert kernel.faults is None
    assert kernel.registers.bus is device.bus
    assert kernel.memory.dram is device.dram
    for part in (device.fabric.interrupts, device.core, device.core.hal, *device.fabric.engines):
        assert not {"deliver", "start", "finish", "store", "post_message"} & set(part.__dict__)
