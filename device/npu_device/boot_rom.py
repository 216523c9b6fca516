"""Boot ROM: finds the firmware that an image names, checks it, and returns its entry point and its release.

1. The image at BOOT_ENTRY: magic, header version, size, checksum, reserved fields; else BAD_IMAGE.
2. The entry "module:function" is imported; SHA-256 over the `*.py` of its package in file-name order must be the header's
   digest; else BAD_DIGEST.
3. The boot parameters at BOOT_PARAMS: magic, modes that there are, reserved fields; else BAD_PARAMS.
"""

from __future__ import annotations

import hashlib
import importlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from npu_abi import C, offsetof, sizeof, view

from npu_device.dram import Dram

IMAGE_VERSION = 1


class BootError(Exception):
    """The core cannot start. `status` is enum npu_boot_status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"boot status {status}")
        self.status = status


def read_image(dram: Dram, pa: int) -> tuple[Callable[[Any], Any], int]:
    """Return entry point and release of the image at physical address `pa`. Raises BootError."""
    header_bytes = sizeof("npu_fw_header")
    try:
        image_size = view("npu_fw_header", dram.view(pa, header_bytes)).image_size
        if not header_bytes <= image_size <= C.NPU_FW_MAX_IMAGE_BYTES:
            raise BootError(C.NPU_BOOT_BAD_IMAGE)
        image = bytearray(dram.view(pa, image_size))
    except ValueError:
        raise BootError(C.NPU_BOOT_BAD_IMAGE) from None
    header = view("npu_fw_header", image)
    crc = header.crc32
    header.crc32 = 0
    if header.magic != C.NPU_FW_IMAGE_MAGIC or header.header_version != IMAGE_VERSION or zlib.crc32(image) != crc:
        raise BootError(C.NPU_BOOT_BAD_IMAGE)
    unused = [version for api in list(header.api_version)[C.NPU_FW_API_COUNT :] for version in api]
    if any(unused) or any(header.reserved0) or any(bytes(header.reserved)):
        raise BootError(C.NPU_BOOT_BAD_IMAGE)
    start = offsetof("npu_fw_header", "entry")
    entry = bytes(image[start : start + 128]).split(b"\0")[0]
    return _resolve(entry, bytes(header.digest)), header.release


def read_params(dram: Dram, pa: int) -> bytes:
    """Return the bytes of struct npu_boot_params at `pa`. Raises BootError."""
    try:
        params = bytes(dram.view(pa, sizeof("npu_boot_params")))
    except ValueError:
        raise BootError(C.NPU_BOOT_BAD_PARAMS) from None
    found = view("npu_boot_params", bytearray(params))
    if found.magic != C.NPU_BOOT_MAGIC or found.boot_type > 1 or found.scheduling_mode:
        raise BootError(C.NPU_BOOT_BAD_PARAMS)
    if found.reserved0 or any(bytes(found.reserved)):
        raise BootError(C.NPU_BOOT_BAD_PARAMS)
    return params


def _resolve(entry: bytes, digest: bytes) -> Callable[[Any], Any]:
    try:
        module_name, function_name = entry.decode("ascii").split(":")
        module = importlib.import_module(module_name)
        function: Callable[[Any], Any] = getattr(module, function_name)
    except (UnicodeDecodeError, ValueError, ImportError, AttributeError, TypeError):
        raise BootError(C.NPU_BOOT_BAD_DIGEST) from None
    folder = Path(str(module.__file__)).parent
    state = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        state.update(path.read_bytes())
    if state.digest() != digest:
        raise BootError(C.NPU_BOOT_BAD_DIGEST)
    return function
