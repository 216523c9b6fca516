"""Hardware profiles: everything that differs between devices, as validated data. Units are in the names.

A profile is a JSON file in `profiles/` (or a path of the user's). Every number has an entry in `sources`: a document, or
"chosen" and why. Pure data: no code path depends on a vendor's name.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from npu_model.data_file import read_data
from npu_model.memory import MemorySystem, MemorySystemError, load_memory
from npu_model.memory_ranges import problem as memory_problem
from npu_model.profile_ranges import problem

FOLDER = Path(__file__).parent / "profiles"


class Dpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Matrix engine, one per tile."""

    clock_hz: int
    macs_per_cycle: dict[str, int]  # by weight dtype: "u8", "i8", "f16", "bf16", "f32"
    startup_cycles: int  # per task (invariant)
    workload_cycles: int  # per workload: a variant, or `dw_channels` of one
    context_cycles: int  # to change the accumulators of the MAC array to another context
    ppe_elements_per_cycle: int  # post-processing, of operands that are integers
    ppe_float_elements_per_cycle: int  # of operands that are floating point
    cmx_read_bytes_per_cycle: int  # all read ports together
    act_read_bytes_per_cycle: dict[str, int]  # by grid ("16x16", "8x16", "4x16"): the side of the pixels
    wt_read_bytes_per_cycle: dict[str, int]  # by grid: weights, or the second tensor of an element-wise operation
    cmx_write_bytes_per_cycle: int
    dw_macs_per_cycle: dict[str, int]  # depthwise and pooling, which cannot fill the MAC array
    dw_channels: int  # of a workload of depthwise or pooling: a variant of more is several
    dw_block_cycles: int  # that depthwise begins each line of a block with
    dw_stride_percent: int  # that it reads slower at stride 2, of pixels of one line; of several, so many times less
    dw_row_columns: int  # that a block reads of a row for three depthwise taps; 0: each tap reads its own four
    eltwise_elements_per_cycle: int  # of a sum or product of two tensors


class Shave(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Vector cores, several per tile."""

    clock_hz: int
    lanes: dict[str, int]  # elements per cycle by type: "f32", "f16", "i32"
    special_cycles: dict[str, int]  # per lane group, by type, of exp, log, sigmoid, tanh, erf, sin, cos, div, sqrt
    load_bytes_per_cycle: int  # of the memory unit, which loads and stores share
    store_bytes_per_cycle: int
    strided_elements_per_cycle: int  # when the inner stride is not the element size
    latency_cycles: int  # from the start of a vector instruction to its first results
    scalar_cycles: int  # per scalar instruction
    startup_cycles: int  # per invocation
    max_cycles: int  # watchdog of one program
    icache_line_bytes: int  # instruction cache of one SHAVE: a power of two
    icache_ways: int  # lines of a set
    icache_sets: int
    fetch_bytes_per_cycle: int  # at which it is filled from DDR, when nothing else wants the memory


class Dma(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Copy engine ports between DDR and CMX."""

    clock_hz: int
    bytes_per_cycle: int  # of one port
    cmx_bytes_per_cycle: int  # of one port when both ends are in CMX
    setup_cycles: int  # per descriptor
    run_cycles: int  # per contiguous run beyond the first
    min_run_bytes: int  # shorter runs cost as much as this many bytes
    grant_bytes: int  # after as many of a descriptor the port serves another job that waits


class Core(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Management core: what its actions cost."""

    clock_hz: int
    fetch_cycles: int  # read one task descriptor
    dispatch_cycles: int  # put it in an engine FIFO
    barrier_cycles: int  # load one barrier
    job_cycles: int  # parse a command buffer and a MappedInference
    command_cycles: int  # one other command
    message_cycles: int
    fence_cycles: int
    block_cycles: int  # choose a SHAVE for a block of a kernel, or note its end
    ready_cycles: int  # look at one task of a dynamic inference
    fifo_depth: int  # tasks an engine FIFO holds, the running one not counted
    starvation_cycles: int  # a job that has waited for this long counts as of one priority band more
    drain_cycles: int  # in an engine reset: a task that does not end in this time hangs


class Ddr(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """External memory, shared by all DMA ports, as fidelity `fast` and the compiler see it: what the memory system gives."""

    capacity_bytes: int
    bytes_per_second: int
    latency_ns: float  # until the first data of a transfer is there


class Cmx(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """On-chip scratchpad of one tile."""

    workspace_bytes: int
    alignment_bytes: int
    latency_cycles: int  # of the DMA clock


class Energy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What operations and bytes cost, in femtojoules, and power whether anything happens or not."""

    mac_fj: dict[str, int]  # of a multiply-accumulate by weight dtype, as dpu.macs_per_cycle
    lane_fj: int  # of an element in a lane of a SHAVE for a cycle
    cmx_byte_fj: int  # read or written
    noc_byte_fj: int  # between the NPU and the DDR controller
    ddr_byte_fj: int  # controller, pins and memory
    static_mw: int


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What host-side steps cost on the virtual clock."""

    api_call_ns: float
    ioctl_ns: float
    mmio_ns: float
    interrupt_ns: float
    copy_bytes_per_ns: float
    sync_line_ns: float  # to write back or drop a line of 64 bytes of the CPU's cache


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device."""

    name: str
    description: str
    aliases: list[str]
    tiles: int
    shaves_per_tile: int
    dma_ports: int
    barriers_per_tile: int
    channel_alignment: int  # output channels of a DPU tile are multiples of this, except the last
    dpu: Dpu
    shave: Shave
    dma: Dma
    core: Core
    ddr: Ddr
    memory: str | MemorySystem  # the name of a shipped one, or itself; in a file also a path from its folder
    cmx: Cmx
    energy: Energy
    host: Host
    sources: dict[str, str]  # dotted field name or group -> where the value comes from

    @property
    def memory_system(self) -> MemorySystem:
        """What fidelity `full` runs cycle by cycle."""
        return load_memory(self.memory) if isinstance(self.memory, str) else self.memory


class ProfileError(ValueError):
    """A profile that does not exist or does not validate; the message names the field."""


def names() -> list[str]:
    """Return the names of the shipped profiles, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load_profile(name_or_path: str) -> Profile:
    """Return the shipped profile of that name or alias, or the one in the JSON file at that path, as it is now.

    "NAME+MEMORY" is a profile with another memory system, a name or path as well. Raises ProfileError.
    """
    path = Path(name_or_path)
    if "+" in name_or_path and not (path.suffix == ".json" and _exists(path)):
        device, _, memory = name_or_path.partition("+")
        return _with_memory(load_profile(device), memory)
    if path.suffix == ".json":
        return _read(path)
    for profile in _shipped():
        if name_or_path == profile.name or name_or_path in profile.aliases:
            return profile
    raise ProfileError(
        f"no hardware profile named {name_or_path!r}; there are {', '.join(names())}, or give a .json file"
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _with_memory(profile: Profile, memory: str) -> Profile:
    """Return `profile` with that memory system, and what it gives to the DMA ports."""
    try:
        system = load_memory(memory)
    except MemorySystemError as error:
        raise ProfileError(str(error)) from None
    client = "npu_dma"
    ddr = msgspec.structs.replace(
        profile.ddr, bytes_per_second=system.bytes_per_second(client), latency_ns=round(system.latency_ns(client), 3)
    )
    combined = msgspec.structs.replace(
        profile,
        name=f"{profile.name}+{system.name}",
        description=f"{profile.description}; {system.description}",
        aliases=[],
        ddr=ddr,
        memory=system,
        sources=profile.sources | {"ddr.bytes_per_second": f"memory system {system.name}, in closed form",
                                   "ddr.latency_ns": f"memory system {system.name}, in closed form",
                                   "memory": "chosen"},
    )  # fmt: skip
    why = problem(combined)
    if why is not None:
        raise ProfileError(f"{combined.name}: {why}")
    return combined


@cache
def _shipped() -> list[Profile]:
    return [_read(path) for path in sorted(FOLDER.glob("*.json"))]


def _read(path: Path) -> Profile:
    try:
        profile = read_data(path, Profile, "profile file")
    except ValueError as error:
        raise ProfileError(str(error)) from None
    profile = _check_memory(profile, path)
    why = problem(profile)
    if why is not None:
        raise ProfileError(f"{path.name}: {why}")
    return profile


def _check_memory(profile: Profile, path: Path) -> Profile:
    """Return the profile out of the file at `path` with a memory system that exists; one out of a file becomes a part of it."""
    memory = profile.memory
    if isinstance(memory, MemorySystem):
        why = memory_problem(memory)
        if why is not None:
            raise ProfileError(f"{path.name}: memory.{why}")
        return profile
    is_file = memory.endswith(".json")
    try:
        system = load_memory(str(path.parent / memory) if is_file else memory)
    except MemorySystemError as error:
        raise ProfileError(f"{path.name}: memory: {error}") from None
    return msgspec.structs.replace(profile, memory=system) if is_file else profile
