"""The kernel-mode driver: `Kernel(device)` is the node of one device, and `Kernel.syscall` the only way in."""

from npu_driver.kernel import Kernel

__all__ = ["Kernel"]
