"""The board: a simulated device with its driver, as a machine would find them at start-up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npu_device import Device

from npu_driver.boot import read_image
from npu_driver.inject import lies_in_device
from npu_driver.ioctls import TABLE
from npu_driver.kernel import Kernel
from npu_driver.mmio_trace import TracedDevice
from npu_driver.params import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npu_model.armed import Armed
    from npu_model.profile import Profile


def start(
    profile: Profile,
    *,
    compute: bool,
    numerics: str,
    fidelity: str,
    trace: bool,
    module_params: str = "",
    faults: Iterable[Armed] = (),
    mmio: Callable[[str], object] | None = None,
) -> Kernel:
    """Return the driver of a new device of hardware profile `profile`. EINVAL for `module_params` (params.py), MemoryUnsupported for a
    fidelity "full" without the C helpers. `faults` are armed from the beginning; EINVAL for a kind that cannot strike at its point.
    `mmio` takes a line about each access to a register.
    """
    params = parse(module_params)
    device: Any = Device(profile, compute=compute, numerics=numerics, fidelity=fidelity, trace=trace)
    kernel = Kernel(TracedDevice(device, mmio) if mmio else device, params=params)
    for fault in faults:
        kernel.injection.arm(fault)
    return kernel


def firmware_image() -> bytes:
    """Return the image that is installed. ENODEV when there is none."""
    return read_image()


def check_fault(fault: Armed) -> None:
    """EINVAL for a kind of fault that cannot strike at its point."""
    lies_in_device(fault.point, fault.kind)


def structures() -> dict[int, str | None]:
    """Return request word -> structure of every system call: what a tracer has to know, as strace does."""
    return {request: row.struct for request, row in TABLE.items()}
