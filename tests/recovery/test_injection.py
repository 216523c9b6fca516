"""A fault of each kind at each point strikes: the API reports, the next context works, and the driver holds what it held before.

Why the other pairs cannot strike is a table in docs/recovery.md.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from types import SimpleNamespace

import npu_abi
import numpy as np
import onnx
import pytest
from npu_abi import C, name_of
from npu_driver.inject import DEVICE_KINDS, DRIVER_KINDS
from onnx import TensorProto, helper, numpy_helper

import libnpu
from libnpu.blob import write
from libnpu.compiler import CompileOptions, compile_model
from tests.recovery.conftest import WANTED, X
from tests.runtime.conftest import copy_image

RECOVERY = Path(__file__).resolve().parents[2] / "docs" / "recovery.md"
BOOT = ("boot_image", "boot_start", "boot_done")
POINTS = [member.name.removeprefix("NPU_POINT_").lower() for member in npu_abi.enum("npu_fault_point")]
POINTS.remove("count")
KINDS = [member.name.removeprefix("NPU_FAULT_").lower() for member in npu_abi.enum("npu_fault_kind")]


def _names():
    for point, kinds in sorted((DRIVER_KINDS | DEVICE_KINDS).items()):
        for kind in sorted(kinds):
            yield (
                name_of("npu_fault_point", point).removeprefix("NPU_POINT_").lower(),
                name_of("npu_fault_kind", kind).removeprefix("NPU_FAULT_").lower(),
            )


EVERY = list(_names())


@pytest.fixture(scope="module")
def every_engine(tmp_path_factory):
    """A model with tasks of DMA, DPU and SHAVE, which passes every point: (blob, input, output)."""
    prng = np.random.default_rng(1)
    weights = prng.integers(-4, 5, (16, 16, 1, 1)).astype(np.float32) / 4
    x = prng.integers(-4, 5, (1, 16, 4, 4)).astype(np.float32) / 4
    shape = [1, 16, 4, 4]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Softmax", ["c"], ["y"], axis=1)],
        "every_engine",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path_factory.mktemp("model") / "every_engine.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), path)
    compiled = compile_model(str(path), CompileOptions(shapes={}, precision="fp16", profile="npu-37xx"))
    for section in (".npu.tasks.dma0", ".npu.tasks.dpu_invariant", ".npu.tasks.shave_invocation"):
        assert len(compiled.image.tasks[section])
    powers = np.exp(np.einsum("oi,nihw->nohw", weights[:, :, 0, 0], x))
    return compiled.blob, x, powers / powers.sum(axis=1, keepdims=True)


@pytest.fixture
def attempt(every_engine):
    """Returns a function that loads, runs and unloads the model in a context of its own: None, or the error that it came to."""
    blob, x, wanted = every_engine

    def run(device):
        try:
            with device.create_context() as context:
                assert np.allclose(context.load(blob).run({"x": x})["y"], wanted, atol=2e-3)
        except libnpu.NpuError as error:
            return error
        return None

    return run


@pytest.mark.parametrize(("point", "kind"), [pair for pair in EVERY if pair[0] not in (*BOOT, "reset")])
def test_every_fault_strikes_and_is_survived(rig, attempt, point, kind):
    device = rig.device
    assert attempt(device) is None
    base = rig.held()
    device.inject(point, kind, seed=5)
    assert device.faults_struck(point, kind) == 0
    error = attempt(device)
    assert device.faults_struck(point, kind) == 1
    if kind == "unplug":
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
    assert rig.held() == base


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize(
    "kind", ["fw_crash", "fw_silent", "message_lost", "message_twice", "message_garbage", "irq_lost"]
)
def test_replies_that_fail_one_after_the_other(rig, attempt, kind, after):
    assert attempt(rig.device) is None
    base = rig.held()
    rig.device.inject("message_reply", kind, after=after, count=2, seed=11)
    attempt(rig.device)
    assert 1 <= rig.device.faults_struck("message_reply", kind) <= 2
    rig.device.disarm_faults()
    assert attempt(rig.device) is None
    assert rig.held() == base


@pytest.mark.parametrize(("point", "kind"), [pair for pair in EVERY if pair[0] in BOOT])
def test_a_boot_that_fails_is_reported_and_the_next_one_works(faults_file, monkeypatch, attempt, point, kind):
    monkeypatch.setenv("NPU_FAULTS", faults_file({"point": point, "kind": kind, "seed": 100}))
    try:
        device = libnpu.open("npu-37xx")
    except libnpu.NpuError as error:
        assert error.errno in (errno.EIO, errno.ENODEV, errno.ENOMEM)
        assert kind not in ("message_twice", "irq_lost")
    else:
        with device:
            assert kind in ("message_twice", "irq_lost", "fw_crash", "fw_silent")
            assert device.faults_struck(point, kind) == 1
            assert attempt(device) is None
    with libnpu.open("npu-37xx") as device:
        assert device.faults_struck(point, kind) == 0
        assert attempt(device) is None


def test_faults_of_the_environment_are_the_processs(faults_file, monkeypatch):
    monkeypatch.setenv(
        "NPU_FAULTS", faults_file({"point": "boot_start", "kind": "image_bitflip", "after": 1, "count": 2})
    )
    boots = []
    for _ in range(5):
        try:
            libnpu.open("unit").close()
            boots.append(True)
        except libnpu.NpuError as error:
            boots.append(False)
            assert error.errno == errno.EIO
    assert boots == [True, False, False, True, True]


def test_faults_of_a_file_that_is_named_are_the_devices(faults_file, monkeypatch):
    path = faults_file({"point": "boot_start", "kind": "image_bitflip"})
    monkeypatch.setenv("NPU_FAULTS", path)
    libnpu.open("unit", faults="").close()
    for _ in range(2):
        with pytest.raises(libnpu.NpuError, match="the firmware did not boot: BOOT_STATUS is NPU_BOOT_BAD_IMAGE"):
            libnpu.open("unit", faults=path)


def test_a_file_of_faults_that_cannot_strike_is_invalid(faults_file):
    path = faults_file({"point": "irq", "kind": "no_memory"})
    with pytest.raises(libnpu.NpuError, match="NPU_FAULT_NO_MEMORY cannot strike at NPU_POINT_IRQ") as caught:
        libnpu.open("unit", faults=path)
    assert caught.value.result == C.NPU_ERROR_INVALID_VALUE


def test_only_regular_files_are_faults(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "deep").write_text("[" * 100_000)
    for path, result, why in (
        (f"{tmp_path}/pipe", C.NPU_ERROR_FILE, "it is not a regular file"),
        (str(tmp_path), C.NPU_ERROR_FILE, "it is a directory"),
        (f"{tmp_path}/no", C.NPU_ERROR_FILE, "No such file or directory"),
        ("a\0b", C.NPU_ERROR_FILE, "embedded null byte"),
        (f"{tmp_path}/deep", C.NPU_ERROR_INVALID_VALUE, "recursion"),
    ):
        with pytest.raises(libnpu.NpuError, match=why) as caught:
            libnpu.open("unit", faults=path)
        assert caught.value.result == result


@pytest.mark.parametrize("kind", ["fw_crash", "fw_silent", "unplug"])
def test_a_reset_that_fails_loses_the_device_until_it_is_opened_again(rig, kind):
    rig.device.inject("reset", kind)
    try:
        rig.device.recover()
    except libnpu.NpuError as error:
        assert error.result == C.NPU_ERROR_DEVICE_LOST
    assert rig.device.faults_struck("reset", kind) == rig.device.faults_struck("boot_start", kind) == 1
    if kind == "unplug":
        assert rig.kernel.removed
        return
    rig.device.reset()
    assert rig.run() == WANTED


def documented():
    """The table of docs/recovery.md: kind -> the points at which it can strike."""
    section = RECOVERY.read_text().split("| kind | strikes at |")[1].split("\n\n")[0]
    found = {}
    for row in section.splitlines()[2:]:
        _, kinds, where, why, _ = row.split("|")
        assert len(why.split()) > 3, row
        named = re.findall(r"`(\w+)`", where)
        for kind in re.findall(r"`(\w+)`", kinds):
            found[kind] = {point for point in POINTS if (point in named) != where.strip().startswith("all but")}
    return found


def test_the_document_says_where_each_kind_strikes():
    assert documented() == {kind: {point for point, other in EVERY if other == kind} for kind in KINDS}


def test_every_other_pair_is_invalid_to_arm_and_to_ask_for(rig):
    for point, kind in ((point, kind) for point in POINTS for kind in KINDS if (point, kind) not in EVERY):
        for call in (rig.device.inject, rig.device.faults_struck):
            with pytest.raises(libnpu.NpuError) as caught:
                call(point, kind)
            assert caught.value.result == C.NPU_ERROR_INVALID_VALUE


def test_a_kind_that_cannot_strike_at_a_point_is_invalid(rig):
    with pytest.raises(libnpu.NpuError, match="NPU_FAULT_NO_MEMORY cannot strike at NPU_POINT_IRQ") as caught:
        rig.device.inject("irq", "no_memory")
    assert caught.value.result == C.NPU_ERROR_INVALID_VALUE
    with pytest.raises(libnpu.NpuError, match="'moon' is none of boot_image, "):
        rig.device.inject("moon", "no_memory")


def registers_of(rig):
    return [rig.device.mmio(C.NPU_REG_NOC_QOS_BASE + 4 * client) for client in range(3)]


@pytest.mark.parametrize(
    "kind", ["message_lost", "message_twice", "message_garbage", "irq_lost", "fw_silent", "fw_crash"]
)
def test_a_priority_whose_answer_fails_is_set(rig, kind):
    rig.device.set_noc_priority("npu_code", 2)
    rig.device.inject("message_reply", kind)
    rig.device.set_noc_priority("npu_dma", 7)
    assert registers_of(rig) == [7, 2, 0]
    assert rig.run() == WANTED


def test_a_priority_that_the_firmware_does_not_take_is_none(rig):
    rig.device.set_noc_priority("npu_code", 2)
    rig.kernel.device.core.replace(SimpleNamespace(step=lambda: 0))
    with pytest.raises(
        libnpu.NpuError, match="SET_PARAM NOC_PRIORITY: no answer to NPU_JSM_SET_NOC_PRIORITY"
    ) as caught:
        rig.device.set_noc_priority("npu_dma", 7)
    assert caught.value.errno == errno.ETIMEDOUT
    assert registers_of(rig) == [0, 2, 0]  # the firmware was silent, and has been started again
    assert rig.kernel.recovery.full_resets == 1


def test_a_firmware_that_is_silent_after_each_boot_leaves_the_priorities_of_the_memory_system(rig):
    rig.device.set_noc_priority("npu_dma", 7)
    rig.device.set_noc_priority("npu_code", 2)
    rig.device.inject("message_reply", "fw_silent", count=1000)
    rig.device.recover()
    assert registers_of(rig) == [7, 0, 0]
    assert "no priorities of the network on chip: ETIMEDOUT: no answer to NPU_JSM_SET_NOC_PRIORITY" in rig.log
    assert rig.kernel.recovery.full_resets == 1
    rig.device.disarm_faults()
    rig.device.recover()
    assert registers_of(rig) == [7, 2, 0]


def test_a_fault_strikes_at_its_count(rig):
    rig.device.inject("dma_task", "mmu", after=2, seed=0x5000)
    blob = rig.device.load(write(copy_image()))
    assert blob.run({"x": X})["y"].tolist() == WANTED
    assert rig.device.faults_struck("dma_task", "mmu") == 0
    with pytest.raises(libnpu.NpuError, match="address 0x5000, task 'step0'"):
        blob.run({"x": X})
    assert rig.device.faults_struck("dma_task", "mmu") == 1


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
