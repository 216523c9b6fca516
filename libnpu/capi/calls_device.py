"""npu.h: initialisation, devices, virtual time. Arguments are as C passed them, pointers as integers."""

from __future__ import annotations

import gc

import npu_abi
from npu_abi import C

from libnpu.capi.calls_host import check_version
from libnpu.capi.library import Library
from libnpu.capi.refusal import Refusal

MAX_DELAY_NS = 10**15
MAX_TIME_PS = 1 << 61  # chosen: half of the clock, so that no call after a delay comes to its end
MIN_CALL_NS = 1
CACHE_LINE_BYTES = 64  # of x86-64 and AArch64 hosts; what npu_flush works on


def npu_init(library: Library, flags: int) -> None:
    """Count one more user of the library."""
    if flags:
        check_version(flags)
    library.open()


def npu_shutdown(library: Library) -> None:
    """Count one user less; the last one ends everything."""
    if library.users == 1:
        library.close()
        gc.collect()  # a machine is a cycle of objects, with memory and descriptors of the process
    else:
        library.users -= 1


def npu_get_device_count(library: Library, count: int) -> None:
    """Write how many devices there are."""
    library.door.probe(count, 4, "count")
    library.door.write_integer(count, len(library.profiles), 4)


def npu_set_device(library: Library, device: int) -> None:
    """Make a device the thread's current one."""
    library.select(device)


def npu_get_device(library: Library, device: int) -> None:
    """Write the thread's current device."""
    library.door.probe(device, 4, "device")
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


def npu_device_get_attribute(library: Library, value: int, attribute: int, device: int) -> None:
    """Write one property of a device."""
    library.door.probe(value, 8, "value")
    if attribute not in range(C.NPU_ATTR_COUNT):
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"attribute {attribute} is none of enum npu_attribute")
    library.check_index(device)
    info = library.device(device).device.info()
    major, minor = map(int, info.firmware_api[C.NPU_FW_API_JSM].split("."))
    found = {
        C.NPU_ATTR_TILES: info.tiles,
        C.NPU_ATTR_SHAVES: info.tiles * info.shaves_per_tile,
        C.NPU_ATTR_DMA_PORTS: info.dma_ports,
        C.NPU_ATTR_BARRIERS: info.barriers,
        C.NPU_ATTR_CMX_BYTES: info.tiles * info.cmx_bytes_per_tile,
        C.NPU_ATTR_DDR_BYTES: info.ddr_bytes,
        C.NPU_ATTR_CLOCK_HZ: info.clock_hz,
        C.NPU_ATTR_CACHE_LINE_BYTES: CACHE_LINE_BYTES,
        C.NPU_ATTR_COHERENT: 1,  # the driver refuses NPU_BO_NON_SNOOPED
        C.NPU_ATTR_MAX_STREAMS: info.max_queues,
        C.NPU_ATTR_MAX_CONTEXTS: info.max_contexts,
        C.NPU_ATTR_QUEUE_DEPTH: info.queue_depth,
        C.NPU_ATTR_FIRMWARE_VERSION: major << 16 | minor,
    }
    library.door.write_integer(value, found[attribute], 8)


def npu_reset_device(library: Library) -> None:
    """End all contexts of the current device and begin anew."""
    library.reset(library.device())
    gc.collect()  # what the contexts held


def npu_synchronize_device(library: Library) -> None:
    """Wait for all work of the current device; the first error comes out after all has been waited for."""
    library.device().device.synchronize()


def npu_get_time_ps(library: Library, time_ps: int) -> None:
    """Write the host's position on the current device's clock."""
    library.door.probe(time_ps, 8, "time_ps")
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
