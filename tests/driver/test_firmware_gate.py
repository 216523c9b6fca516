"""A firmware that is older than cache-coherent DMA: cached mappings are refused; forced ones show old bytes."""

from __future__ import annotations

import errno

import npu_abi
import numpy as np
import pytest
from npu_abi import C
from npu_driver.platform import firmware_image, start
from npu_model.profile import load_profile

import libnpu
from libnpu.tools.fw import describe, of_release
from tests.driver.calls import Calls

CACHED, UNCACHED = C.NPU_BO_MAPPABLE, C.NPU_BO_MAPPABLE | C.NPU_BO_UNCACHED
NON_SNOOPED, COMBINED = CACHED | C.NPU_BO_NON_SNOOPED, CACHED | C.NPU_BO_WC
SIGNAL = 0x1122334455667788


class Process(Calls):
    """An open file of a device whose firmware is of a release."""

    def __init__(self, tmp_path, release, params=""):
        path = tmp_path / "npu_fw.bin"
        path.write_bytes(of_release(firmware_image(), release))
        text = f"firmware={path} allow_uncached=1 {params}"
        self.kernel = start(
            load_profile("unit"), compute=True, numerics="exact", fidelity="fast", trace=False, module_params=text
        )
        super().__init__(self.kernel.syscall)

    def mmap(self, flags, policy=0):
        """Make an object and map it: (result, memory)."""
        bo = self.create(4096, flags)
        offset = self.info(bo.handle).mmap_offset
        ret, _, replies = self.call(C.NPU_SYS_MMAP, "npu_mmap", offset=offset, length=4096, flags=policy)
        return ret, replies[0] if ret == 0 else None

    def signal(self, heap):
        """Run a job that writes SIGNAL at the beginning of an object."""
        command = npu_abi.new("npu_cmd_fence", value=SIGNAL)
        command.h.type, command.h.size = C.NPU_CMD_FENCE_SIGNAL, npu_abi.sizeof("npu_cmd_fence")
        header = npu_abi.new(
            "npu_cmd_buffer_header", cmd_buffer_size=64 + command.h.size, cmd_offset=64,
            api_version=C.NPU_CMD_API_VERSION, fence_heap_va=self.info(heap).npu_va,
        )  # fmt: skip
        handle = self.create(4096, UNCACHED).handle
        data = npu_abi.pack(header) + npu_abi.pack(command)
        self.map(handle)[: len(data)] = data
        handles = np.array([handle, heap], np.uint32).tobytes()
        fields = {"buffers_ptr": 1, "buffer_count": 2, "cmdq_id": self.queue()}
        assert self.call(C.NPU_IOCTL_CMDQ_SUBMIT, "npu_cmdq_submit", [handles], **fields)[0] == 0
        ret, arg, _ = self.call(C.NPU_IOCTL_BO_WAIT, "npu_bo_wait", handle=handle, deadline_ps=(1 << 63) - 1)
        assert (ret, arg.job_status) == (0, C.NPU_JOB_SUCCESS)


@pytest.mark.parametrize("release", ["0.0.0", "2.0.9", "2.0.255"])
def test_an_older_firmware_refuses_cached_mappings_alone(tmp_path, release):
    process = Process(tmp_path, release)
    free = process.param(C.NPU_PARAM_DDR_FREE_BYTES)
    assert process.mmap(CACHED)[0] == -errno.EOPNOTSUPP
    assert f"firmware {release} has no cache-coherent DMA, which came with 2.1.0" in process.kernel.log[-1]
    assert process.mmap(UNCACHED, C.NPU_MMAP_POLICY)[0] == -errno.EOPNOTSUPP
    pages = [bytes(4096)]
    before = process.param(C.NPU_PARAM_DDR_FREE_BYTES)
    ret = process.call(C.NPU_IOCTL_BO_CREATE_FROM_USERPTR, "npu_bo_userptr", pages, ptr=1 << 20, size=4096)[0]
    assert ret == -errno.EOPNOTSUPP
    assert process.param(C.NPU_PARAM_DDR_FREE_BYTES) == before < free
    for flags in (UNCACHED, NON_SNOOPED, COMBINED):
        assert process.mmap(flags)[0] == 0
    assert process.create(4096, 0).handle  # nobody maps it


@pytest.mark.parametrize("release", ["2.1.0", "2.1.1", "3.0.0"])
def test_a_newer_firmware_makes_them_and_they_show_what_the_device_writes(tmp_path, release):
    process = Process(tmp_path, release)
    heap = process.create(4096, CACHED).handle
    memory = process.map(heap)
    memory[:8] = bytes(8)
    process.signal(heap)
    assert int.from_bytes(memory[:8], "little") == SIGNAL
    assert process.param(C.NPU_PARAM_FW_RELEASE) == int.from_bytes(map(int, release.split(".")), "big")


def test_a_forced_one_shows_old_bytes_until_it_is_invalidated(tmp_path):
    process = Process(tmp_path, "2.0.9", "force_coherent=1")
    heap = process.create(4096, CACHED).handle
    assert not process.info(heap).flags & C.NPU_BO_NON_SNOOPED  # nobody has said so
    memory = process.map(heap)
    memory[:8] = bytes(8)
    process.signal(heap)
    assert bytes(memory[:8]) == bytes(8)
    assert (
        process.call(C.NPU_IOCTL_BO_SYNC, "npu_bo_sync", handle=heap, size=64, direction=C.NPU_SYNC_TO_DEVICE)[0] == 0
    )
    process.signal(heap)
    sync = {"handle": heap, "size": 64, "direction": C.NPU_SYNC_FROM_DEVICE}
    assert process.call(C.NPU_IOCTL_BO_SYNC, "npu_bo_sync", **sync)[0] == 0
    assert int.from_bytes(memory[:8], "little") == SIGNAL


def test_a_kernel_drivers_memory_is_maintained_with_an_older_firmware(tmp_path):
    assert Process(tmp_path, "2.1.0").kernel.firmware.dma.coherent
    assert not Process(tmp_path, "2.0.9").kernel.firmware.dma.coherent


def test_the_device_snoops_nothing_with_an_older_firmware(tmp_path):
    for release, snooping in (("2.0.9", False), ("2.1.0", True)):
        kernel = Process(tmp_path, release).kernel
        assert kernel.device.fabric.mmu.snooping is snooping
        kernel.recovery.full("a test asks", warm=True)
        assert kernel.device.fabric.mmu.snooping is snooping


@pytest.mark.parametrize(("release", "ret"), [("2.1.255", -errno.EOPNOTSUPP), ("2.2.0", 0)])
def test_r037_an_older_firmware_sets_no_priority_and_one_can_be_read(tmp_path, release, ret):
    process = Process(tmp_path, release)
    assert process.call(C.NPU_IOCTL_SET_PARAM, "npu_param_arg", param=C.NPU_PARAM_NOC_PRIORITY, value=7)[0] == ret
    assert process.param(C.NPU_PARAM_NOC_PRIORITY) == (0 if ret else 7)
    if ret:
        said = "firmware 2.1.255 sets no priority of the network on chip, which came with 2.2.0"
        assert said in process.kernel.log[-1]


def test_a_program_is_told_and_works_on_a_board_that_does_not_snoop(tmp_path):
    path = tmp_path / "npu_fw.bin"
    path.write_bytes(of_release(firmware_image(), "2.0.9"))
    with libnpu.open("unit", module_params=f"firmware={path}") as device:
        assert device.info().firmware_release == "2.0.9"
        with pytest.raises(libnpu.Unimplemented, match=r"firmware 2\.0\.9 has no cache-coherent DMA"):
            device.to_device(np.ones(64, np.float32))
    with libnpu.open("unit", module_params=f"firmware={path} coherent=0") as device:
        x, y = device.to_device(np.ones(64, np.float32)), device.alloc(256)
        device.kernel("add").launch(None, x, x, y, 64).wait()
        assert y.read(np.float32).tolist() == [2.0] * 64


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory"),
        (b"", "0 bytes are less than its header"),
        (bytes(4096), "magic is 0x0, not NPU_FW_IMAGE_MAGIC"),
    ],
)
def test_a_file_that_is_no_firmware_is_named(tmp_path, content, message):
    path = tmp_path / "npu_fw.bin"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(libnpu.NpuError, match=message) as error:
        libnpu.open("unit", module_params=f"firmware={path}")
    assert error.value.errno == errno.EINVAL


def test_an_image_of_another_release_differs_in_nothing_else():
    image = firmware_image()
    assert describe(image)["release"] == "2.2.0"
    older = of_release(image, "2.0.9")
    said, was = describe(older), describe(image)
    differ = [said.pop(name) for name in ("release", "version", "coherent_dma", "noc_priority")]
    assert differ == ["2.0.9", "libnpu firmware 2.0.9", False, False]
    assert said.items() <= was.items()
    assert of_release(older, "2.2.0") == image
