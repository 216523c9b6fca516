"""The board: a simulated device with its driver, as a machine would find them at start-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_device import Device

from npu_driver.kernel import Kernel
from npu_driver.params import parse

if TYPE_CHECKING:
    from npu_model.profile import Profile


def start(profile: Profile, *, compute: bool, numerics: str, trace: bool, module_params: str = "") -> Kernel:
    """Return the driver of a new device of hardware profile `profile`. EINVAL for `module_params` (params.py)."""
    return Kernel(Device(profile, compute=compute, numerics=numerics, trace=trace), params=parse(module_params))
