"""Entry of the firmware: what the boot ROM calls."""

from __future__ import annotations

from npu_abi import C

from npu_firmware.core import Core
from npu_firmware.hal import Hal


def entry(hal: Hal) -> Core:
    """Return the firmware's state machine; its first step announces BOOT_DONE. An image does what its release could."""
    if hal.release >= C.NPU_FW_COHERENT_DMA:
        hal.enable_snooping()
    return Core(hal)
