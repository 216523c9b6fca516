"""npu.h: initialisation, devices, virtual time. Arguments are as C passed them, pointers as integers."""

from __future__ import annotations

import npu_abi

from libnpu.capi.door import require
from libnpu.capi.library import Library
from libnpu.capi.refusal import Refusal
from libnpu.errors import NpuError

MAX_DELAY_NS = 10**15
MAX_TIME_PS = 1 << 61  # chosen: half of the clock, so that no call after a delay comes to its end
MIN_CALL_NS = 1


def npu_init(library: Library, flags: int) -> None:
    """Count one more user of the library."""
    if flags:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"flags is {flags:#x}, and none is defined")
    library.open()


def npu_shutdown(library: Library) -> None:
    """Count one user less; the last one ends everything."""
    if library.users == 1:
        library.close()
    else:
        library.users -= 1


def npu_get_device_count(library: Library, count: int) -> None:
    """Write how many devices there are."""
    require(count, "count")
    library.door.write_integer(count, len(library.profiles), 4)


def npu_set_device(library: Library, device: int) -> None:
    """Make a device the thread's current one."""
    library.select(device)


def npu_get_device(library: Library, device: int) -> None:
    """Write the thread's current device."""
    require(device, "device")
    library.door.write_integer(device, library.current, 4)


def npu_get_device_properties(library: Library, properties: int, device: int) -> None:
    """Write what a device is, as its driver says."""
    found = library.door.new_struct("npu_device_properties", properties, "properties")
    library.check_index(device)
    info = library.device(device).device.info()
    found.tile_count = info.tiles
    found.shaves_per_tile = info.shaves_per_tile
    found.dma_port_count = info.dma_ports
    found.barrier_count = info.barriers
    found.cmx_bytes_per_tile = info.cmx_bytes_per_tile
    found.ddr_bytes = info.ddr_bytes
    found.clock_hz = info.clock_hz
    found.profile = info.profile.encode()[:63]
    library.door.write(properties, npu_abi.pack(found))


def npu_synchronize_device(library: Library) -> None:
    """Wait for every stream of the current device; the first error comes out after all have been waited for."""
    first: NpuError | None = None
    device = library.device()
    for entry in device.streams:
        try:
            entry.stream.synchronize()
        except NpuError as error:
            first = first or error
    if first is not None:
        raise first
    device.check_usable()


def npu_get_time_ps(library: Library, time_ps: int) -> None:
    """Write the host's position on the current device's clock."""
    require(time_ps, "time_ps")
    device = library.device().device
    device.host_delay(max(MIN_CALL_NS, device.profile.host.api_call_ns))  # so that a loop that waits for a time ends
    library.door.write_integer(time_ps, device.now_ps, 8)


def npu_host_delay(library: Library, duration_ns: int) -> None:
    """Move the host's position."""
    if duration_ns > MAX_DELAY_NS:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"duration_ns is {duration_ns}, above 10^15")
    device = library.device().device
    if device.now_ps + 1000 * duration_ns > MAX_TIME_PS:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"the clock is at {device.now_ps} ps and would pass 2^61 ps")
    device.host_delay(duration_ns)
