"""Firmware: find the image, check it, load it, start the core.

1. read the file that the module parameter `firmware` names, else npu_fw.bin from the npu_firmware package without importing it; check magic, sizes, checksum and API versions;
2. put image and struct npu_boot_params in DRAM; write their addresses in BOOT_PARAMS and BOOT_ENTRY (LO last, with
   DONE);
3. the boot ROM checks the image again, and the firmware answers BOOT_DONE. `Firmware.boot` waits for it.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import stat
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_abi import C, ffi, new, offsetof, pack, sizeof

from npu_driver.error import KernelError

if TYPE_CHECKING:
    from npu_driver.ipc import Area
    from npu_driver.memory import Memory
    from npu_driver.registers import Registers

IMAGE_NAME = "npu_fw.bin"
HEADER_VERSION = 1
BOOT_TIMEOUT_PS = 10**12  # 1000 ms, as the public driver
OWN_API = {
    C.NPU_FW_API_BOOT: (C.NPU_FW_BOOT_API_MAJOR, C.NPU_FW_BOOT_API_MINOR),
    C.NPU_FW_API_JSM: (C.NPU_FW_JSM_API_MAJOR, C.NPU_FW_JSM_API_MINOR),
}


def read_image(name: str = "") -> bytes:
    """Return the firmware file `name`, of the npu_firmware package for "". ENODEV when there is none, or no file that an image can be."""
    if name:
        try:
            return _read_regular(name)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise KernelError(errno.ENODEV, f"firmware={name}: {getattr(error, 'strerror', None) or error}") from None
    spec = importlib.util.find_spec("npu_firmware")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / IMAGE_NAME
        if path.is_file():
            return path.read_bytes()
    raise KernelError(errno.ENODEV, f"no firmware image {IMAGE_NAME} in package npu_firmware")


def _read_regular(path: str) -> bytes:
    """Return what is in a regular file; pipes and devices are refused, never waited for. Raises OSError, ValueError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        if status.st_size > C.NPU_FW_MAX_IMAGE_BYTES:
            raise ValueError(f"{status.st_size} bytes; NPU_FW_MAX_IMAGE_BYTES is {C.NPU_FW_MAX_IMAGE_BYTES}")
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(status.st_size)
    finally:
        os.close(fd)


def check_image(image: bytes) -> Any:
    """Return the struct npu_fw_header of `image`. ENODEV for an image that this driver must not start."""
    if len(image) < sizeof("npu_fw_header"):
        raise _bad(f"{len(image)} bytes are less than its header")
    header = new("npu_fw_header")  # a copy, which the kernel keeps
    ffi.memmove(header, image[: sizeof("npu_fw_header")], sizeof("npu_fw_header"))
    if header.magic != C.NPU_FW_IMAGE_MAGIC:
        raise _bad(f"magic is {header.magic:#x}, not NPU_FW_IMAGE_MAGIC {C.NPU_FW_IMAGE_MAGIC:#x}")
    if header.header_version != HEADER_VERSION:
        raise _bad(f"header version is {header.header_version}, not {HEADER_VERSION}")
    if header.image_size != len(image):
        raise _bad(f"image_size is {header.image_size}, the file has {len(image)} bytes")
    crc_at = offsetof("npu_fw_header", "crc32")
    crc = zlib.crc32(image[:crc_at] + bytes(4) + image[crc_at + 4 :])
    if header.crc32 != crc:
        raise _bad(f"crc32 is {header.crc32:#x}, computed {crc:#x}")
    for index, (major, minor) in OWN_API.items():
        found_major, found_minor = header.api_version[index]
        if found_major != major or found_minor < minor:
            raise _bad(f"API {index} is {found_major}.{found_minor}, the driver needs {major}.{minor}")
    return header


def release_text(release: int) -> str:
    """Return a release of struct npu_fw_header as "major.minor.patch"."""
    return f"{release >> 16}.{release >> 8 & 0xFF}.{release & 0xFF}"


def _bad(why: str) -> KernelError:
    return KernelError(errno.ENODEV, f"firmware image refused: {why}")


def place(memory: Memory, image_bytes: int) -> tuple[int, int]:
    """Return the physical addresses of room for an image and for boot parameters. ENOMEM."""
    page = int(C.NPU_PAGE_SIZE)
    image_pa, _ = memory.alloc_zeroed(-(-image_bytes // page))
    try:
        params_pa, _ = memory.alloc_zeroed(1)
    except KernelError:
        memory.free(image_pa)
        raise
    return image_pa, params_pa


def write_params(
    memory: Memory,
    params_pa: int,
    *,
    tx: Area,
    rx: Area,
    tile_config: int,
    frequency_hz: int,
    now_ps: int,
    boot_type: int,
) -> None:
    """Write struct npu_boot_params."""
    params = new(
        "npu_boot_params",
        magic=C.NPU_BOOT_MAGIC,
        boot_type=boot_type,
        tile_config=tile_config,
        scheduling_mode=0,
        ipc_tx_va=tx.va,
        ipc_rx_va=rx.va,
        ipc_tx_slots=tx.count,
        ipc_rx_slots=rx.count,
        frequency_hz=frequency_hz,
        system_time_ps=now_ps,
    )
    data = pack(params)
    memory.view(params_pa, len(data))[:] = data


def start(registers: Registers, image_pa: int, params_pa: int) -> None:
    """Start the management core. DONE in BOOT_ENTRY_LO is the last write."""
    registers.write(C.NPU_REG_BOOT_PARAMS_HI, params_pa >> 32)
    registers.write(C.NPU_REG_BOOT_PARAMS_LO, params_pa & 0xFFFFFFFF)
    registers.write(C.NPU_REG_BOOT_ENTRY_HI, image_pa >> 32)
    registers.write(C.NPU_REG_BOOT_ENTRY_LO, image_pa & 0xFFFFFFFF | C.NPU_BOOT_ENTRY_DONE)
