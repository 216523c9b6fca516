"""The board: a simulated device with its driver, as a machine would find them at start-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_device import Device

from npu_driver.kernel import Kernel

if TYPE_CHECKING:
    from npu_model.profile import Profile


def start(profile: Profile, *, compute: bool, numerics: str, trace: bool) -> Kernel:
    """Return the driver of a new device of hardware profile `profile`."""
    return Kernel(Device(profile, compute=compute, numerics=numerics, trace=trace))
