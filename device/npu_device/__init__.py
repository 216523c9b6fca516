"""The simulated silicon: clock, memories, engines, registers and the management core. `Device` is the whole of it.

The kernel-mode driver sees registers, DRAM and the interrupt line; the firmware sees the hal of management_core.py.
"""

from npu_device.device import Device
from npu_device.faults import MemoryFault

__all__ = ["Device", "MemoryFault"]
