"""The image file npu_fw.bin: `python -m npu_firmware.image` writes it anew. Header only; the code is this package's sources."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

from npu_abi import C, new, pack

FOLDER = Path(__file__).parent
PATH = FOLDER / "npu_fw.bin"
ENTRY = b"npu_firmware.boot:entry"
RELEASE = 2, 2, 0
VERSION = b"libnpu firmware %d.%d.%d" % RELEASE


def build() -> bytes:
    """Return the image for the sources as they are."""
    state = hashlib.sha256()
    for path in sorted(FOLDER.glob("*.py")):
        state.update(path.read_bytes())
    header = new(
        "npu_fw_header",
        magic=C.NPU_FW_IMAGE_MAGIC,
        header_version=1,
        entry=ENTRY,
        version=VERSION,
        digest=state.digest(),
    )
    header.release = RELEASE[0] << 16 | RELEASE[1] << 8 | RELEASE[2]
    header.preemption_buffer_size = C.NPU_PREEMPT_STATE_BYTES
    header.image_size = len(pack(header))
    header.api_version[C.NPU_FW_API_BOOT] = (C.NPU_FW_BOOT_API_MAJOR, C.NPU_FW_BOOT_API_MINOR)
    header.api_version[C.NPU_FW_API_JSM] = (C.NPU_FW_JSM_API_MAJOR, C.NPU_FW_JSM_API_MINOR)
    header.crc32 = zlib.crc32(pack(header))
    return pack(header)


if __name__ == "__main__":
    PATH.write_bytes(build())
