"""The module's parameters and its reload; who uses the device."""

from __future__ import annotations

import errno
import os

import npu_abi
import pytest
from npu_abi import C
from npu_driver.error import KernelError
from npu_driver.params import parse
from npu_driver.platform import firmware_image

DEFAULT_TEXT = (
    "weight_policy=cached\nallow_uncached=0\ncoherent=1\nwc_drain_on_uc=0\nevict=lazy\ndma_debug=1\n"
    "tdr_timeout_ms=2000\ndisable_recovery=0\nmax_contexts=0\nmax_doorbells=0\nfirmware=\nforce_coherent=0\nbugs=\n"
)


def load(process, text):
    return process.call(C.NPU_SYS_MODULE_LOAD, "npu_module", [text], params_ptr=1, params_bytes=len(text))[0]


def params(process):
    needed = process.call(C.NPU_SYS_MODULE_PARAMS, "npu_module")[1].used_bytes
    ret, arg, replies = process.call(C.NPU_SYS_MODULE_PARAMS, "npu_module", params_ptr=1, params_bytes=needed)
    assert (ret, arg.used_bytes) == (0, needed)
    return bytes(replies[0]).decode()


def info(process, kind, struct, room=1 << 16):
    ret, arg, replies = process.call(C.NPU_IOCTL_GET_INFO, "npu_get_info", buffer_ptr=1, buffer_bytes=room, kind=kind)
    assert ret == 0
    size = npu_abi.sizeof(struct)
    assert arg.used_bytes == len(replies[0])
    return [npu_abi.view(struct, bytearray(replies[0]), at) for at in range(0, len(replies[0]), size)]


def test_the_parameters_are_told_one_a_line(process):
    assert params(process) == DEFAULT_TEXT


def test_a_reload_needs_all_files_closed_and_the_next_open_boots(process):
    assert load(process, b"weight_policy=uncached") == -errno.EBUSY
    assert params(process) == DEFAULT_TEXT
    assert process.call(C.NPU_SYS_CLOSE)[0] == 0
    assert load(process, b"weight_policy=uncached") == 0
    assert params(process) == DEFAULT_TEXT.replace("weight_policy=cached", "weight_policy=uncached")
    boots = [line for line in process.kernel.log if "boot," in line]
    process.fd = 0
    process.fd = process.call(C.NPU_SYS_OPEN)[0]
    assert len([line for line in process.kernel.log if "boot," in line]) == len(boots) + 1
    handle, _ = process.bo(flags=C.NPU_BO_READONLY_WEIGHT)
    flags = process.call(C.NPU_IOCTL_BO_INFO, "npu_bo_info", handle=handle)[1].flags
    assert flags & C.NPU_BO_CACHE_MASK == C.NPU_BO_UNCACHED


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"wheight_policy=cached", "wheight_policy"),
        (b"weight_policy=fast", "weight_policy=fast"),
        (b"coherent=2", "coherent=2"),
        (b"coherent=-1", "coherent=-1"),
        (b"coherent=0 coherent=0", "coherent is given twice"),
        ("bugs=é".encode(), "ASCII"),
        (b"bugs=,", "bugs=;"),
        (b"evict=seed:18446744073709551616", "evict=seed:18446744073709551616"),
        (b"evict=seed:" + b"9" * 4000, "evict=seed:9999"),
        (b"firmware=a\0b", r"'firmware=a\x00b' has characters that do not print"),
        (b"firmware=\x1b[31m", r"'firmware=\x1b[31m' has characters that do not print"),
        (b"firmware=/no/such/file", "firmware=/no/such/file: No such file or directory"),
        (b"firmware=/", "firmware=/: not a regular file"),
        (b"firmware=/dev/zero", "firmware=/dev/zero: not a regular file"),
        (b"firmware=" + b"x" * 4000, "File name too long"),
    ],
)
def test_a_wrong_parameter_is_named_and_nothing_has_changed(process, text, named):
    assert process.call(C.NPU_SYS_CLOSE)[0] == 0
    assert load(process, text) == -errno.EINVAL
    assert named in process.kernel.log[-1]
    assert params(process) == DEFAULT_TEXT
    assert process.kernel.firmware.running


def refused_firmware(process, path):
    assert load(process, f"firmware={path}".encode()) == -errno.EINVAL
    assert params(process) == DEFAULT_TEXT
    assert process.kernel.firmware.running
    return process.kernel.log[-1]


def test_a_firmware_that_cannot_be_one_is_refused_when_it_is_named(process, tmp_path):
    assert process.call(C.NPU_SYS_CLOSE)[0] == 0
    pipe, big, zeros = tmp_path / "pipe", tmp_path / "big", tmp_path / "zeros"
    os.mkfifo(pipe)
    big.touch()
    os.truncate(big, C.NPU_FW_MAX_IMAGE_BYTES + 1)
    zeros.write_bytes(bytes(4096))
    assert "not a regular file" in refused_firmware(process, pipe)
    assert "16777217 bytes; NPU_FW_MAX_IMAGE_BYTES is 16777216" in refused_firmware(process, big)
    assert "magic is 0x0" in refused_firmware(process, zeros)


def test_a_firmware_that_has_changed_since_fails_the_open_and_one_that_is_back_boots(process, tmp_path):
    path = tmp_path / "npu_fw.bin"
    path.write_bytes(firmware_image())
    assert process.call(C.NPU_SYS_CLOSE)[0] == 0
    assert load(process, f"firmware={path}".encode()) == 0
    process.fd = 0
    path.unlink()
    assert process.call(C.NPU_SYS_OPEN)[0] == -errno.ENODEV
    os.mkfifo(path)
    assert process.call(C.NPU_SYS_OPEN)[0] == -errno.ENODEV
    path.unlink()
    path.write_bytes(firmware_image()[:-1])
    assert process.call(C.NPU_SYS_OPEN)[0] == -errno.ENODEV
    path.write_bytes(firmware_image())
    process.fd = process.call(C.NPU_SYS_OPEN)[0]
    assert process.create().handle == 1


def test_parameters_in_the_process_are_ascii_too():
    with pytest.raises(KernelError, match="they are ASCII"):
        parse("firmware=é")


def test_too_many_bytes_of_parameters_and_too_little_room(process):
    limit = C.NPU_MAX_MODULE_PARAMS_BYTES
    assert load(process, b" " * (limit + 1)) == -errno.EINVAL
    call = C.NPU_SYS_MODULE_PARAMS, "npu_module"
    assert process.call(*call, params_ptr=1, params_bytes=limit + 1)[0] == -errno.EINVAL
    assert process.call(*call, params_ptr=1, params_bytes=10)[0] == -errno.ENOSPC
    assert process.call(*call, params_ptr=0, params_bytes=10)[0] == -errno.EFAULT


def test_contexts_have_their_counts(process, another, nop):
    other = another()
    handle = process.commands(nop)
    queue = process.queue()
    assert process.submit(queue, handle) == 0
    assert process.wait(handle)[0] == 0
    other.bo(3 * 4096)
    first, second = info(process, C.NPU_INFO_CONTEXTS, "npu_context_info")
    assert (first.ssid, first.objects, first.queues, first.jobs_in_flight) == (2, 1, 1, 0)
    assert (first.jobs_done, first.jobs_failed, first.memory_bytes) == (1, 0, 4096)
    assert (second.ssid, second.objects, second.memory_bytes, second.jobs_done) == (3, 1, 3 * 4096, 0)
    assert len(info(process, C.NPU_INFO_CONTEXTS, "npu_context_info", room=159)) == 1


def test_the_device_counts_jobs_of_files_that_are_closed(process, another, nop):
    other = another()
    bad = npu_abi.new("npu_cmd_header", type=0x7FFF, size=npu_abi.sizeof("npu_cmd_header"))
    for command in (nop, bad):
        handle = other.commands(command)
        assert other.submit(other.queue(), handle) == 0
        assert other.wait(handle)[0] == 0
    assert other.call(C.NPU_SYS_CLOSE)[0] == 0
    (device,) = info(process, C.NPU_INFO_DEVICE, "npu_device_info")
    assert (device.jobs_done, device.jobs_failed, device.contexts, device.module_loads) == (2, 1, 1, 1)
    assert device.mmu_faults == device.engine_resets == device.full_resets == 0
