"""Entry of the firmware: what the boot ROM calls."""

from __future__ import annotations

from npu_firmware.core import Core
from npu_firmware.hal import Hal


def entry(hal: Hal) -> Core:
    """Return the firmware's state machine; its first step announces BOOT_DONE."""
    return Core(hal)
