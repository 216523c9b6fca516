"""`npu info`: hardware profiles and the versions of everything that speaks to something else."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import msgspec
from npu_abi import C
from npu_model.memory import MemorySystem, load_memory, memory_names
from npu_model.profile import Profile, load_profile, names

import libnpu
from libnpu.kernels.params import Unit
from libnpu.runtime.schedule import KINDS
from libnpu.runtime.semantics import PROFILES
from libnpu.tools import arithmetic
from libnpu.tools.console import ToolError, format_bytes, format_count, print_json, print_table
from libnpu.tools.work import roofs

if TYPE_CHECKING:
    import argparse

SCHEDULES = (*KINDS, "seed:N", "hold:...")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--profile", metavar="NAME", help="every number of one profile (name, alias or .json file)")
    parser.add_argument(
        "--peak",
        action="store_true",
        help="with --profile: operations a second by element type, and what they come from",
    )
    parser.add_argument("--memory", metavar="NAME", help="every number of one memory system (name or .json file)")
    parser.add_argument(
        "--ddr",
        action="store_true",
        help="what the pins of memory carry, from rate and width: of all memory systems, or with --profile or --memory of one",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON; of one profile or memory system, a file that loads as it"
    )


def run(options: argparse.Namespace) -> int:
    """Print profiles, memory systems and versions, or one profile or memory system."""
    _check_options(options)
    if options.ddr:
        return _print_ddr(options)
    if options.memory is not None:
        system = load_memory(options.memory)
        if options.json:
            print_json(msgspec.to_builtins(system))
        else:
            rows = _rows("", _memory_rows(system), system.sources)
            print_table(f"{system.name}: {system.description}", ("field", "value", "source"), rows, left=3)
        return 0
    if options.profile is not None:
        profile = load_profile(options.profile)
        if options.peak:
            _print_peak(profile, options.json)
        elif options.json:
            print_json(msgspec.to_builtins(profile))
        else:
            derived = {"memory": profile.memory_system.name, "n_units": Unit.of(profile).shaves}  # --memory shows it
            fields = msgspec.to_builtins(profile) | derived
            rows = _rows("", fields, {"n_units": "tiles times shaves_per_tile"} | profile.sources)
            print_table(f"{profile.name}: {profile.description}", ("field", "value", "source"), rows, left=3)
        return 0
    profiles = [load_profile(name) for name in names()]
    if options.json:
        choices = {"semantics": list(PROFILES), "schedules": list(SCHEDULES)}
        derived = {"n_units": {p.name: Unit.of(p).shaves for p in profiles}}
        print_json({"versions": _versions(), "profiles": msgspec.to_builtins(profiles), "derived": derived, **choices})
        return 0
    print_table("versions", ("what", "version"), _versions().items(), left=2)
    columns = (
        "profile",
        "tiles",
        "SHAVEs",
        "DMA",
        "CMX per tile",
        "barriers",
        "clock",
        "MACs/cycle f16",
        "DDR",
        "also called",
    )
    print_table("hardware profiles", columns, [_profile_row(p) for p in profiles])
    memory = ("memory system", "channels", "pins", "access", "page", "link", "a port's credits", "clients")
    print_table("memory systems", memory, [_memory_row(load_memory(name)) for name in memory_names()])
    units = ("profile", "SHAVE units", "a block's CMX", "instruction cache of each", "lines", "ways", "fill")
    print_table("units that kernels run on", units, [_units_row(p) for p in profiles])
    rules = [
        ("semantics", ", ".join(PROFILES), "libnpu.open(semantics=...), NPU_SEMANTICS for C"),
        ("schedule", ", ".join(SCHEDULES), "Device.set_schedule, NPU_SCHEDULE"),
        ("synchronous mode", "off, on", "libnpu.open(launch_blocking=...), NPU_LAUNCH_BLOCKING"),
    ]
    print_table("host API", ("what", "there are", "chosen by"), rules, left=3)
    return 0


def _check_options(options: argparse.Namespace) -> None:
    """Raise ToolError for options of which one would say nothing."""
    if options.peak and options.profile is None:
        raise ToolError("--peak goes with --profile")
    if options.peak and options.ddr:
        raise ToolError("--peak and --ddr: one of them at a time")
    if options.profile is not None and options.memory is not None:
        raise ToolError(
            f"--memory {options.memory}: one of --profile and --memory at a time; a profile may be NAME+MEMORY"
        )


def _print_ddr(options: argparse.Namespace) -> int:
    """Print what the pins of memory systems carry, and what it comes from."""
    if options.profile is not None:
        systems = [load_profile(options.profile).memory_system]
    else:
        systems = [load_memory(name) for name in ([options.memory] if options.memory is not None else memory_names())]
    if options.json:
        print_json({"memory": [_ddr_json(system) for system in systems]})
        return 0
    columns = ("memory system", "transfers/s of a pin", "channels", "width", "the pins carry")
    rows = [
        (
            found["name"],
            f"{found['transfers_per_second'] / 10**6:g} MT/s",
            f"{found['channels']} of {found['channel_bits']} bit",
            f"{found['width_bits']} bit",
            format_count(found["pin_bytes_per_second"], "B/s"),
        )
        for found in map(_ddr_json, systems)
    ]
    print_table("memory: transfers a second times width, 8 bit a byte", columns, rows)
    return 0


def _ddr_json(system: MemorySystem) -> dict[str, Any]:
    dram = system.dram
    return {
        "name": system.name,
        "transfers_per_second": dram.transfers_per_second,
        "channels": dram.channels,
        "channel_bits": dram.channel_bits,
        "width_bits": dram.channels * dram.channel_bits,
        "pin_bytes_per_second": dram.pin_bytes_per_second,
    }


def _print_peak(profile: Profile, as_json: bool) -> None:
    dpu, peaks = profile.dpu, roofs(profile)
    if as_json:
        print_json({"profile": profile.name, "operations_per_second": peaks})
        return
    shave = f"{profile.tiles * profile.shaves_per_tile} units at {format_count(profile.shave.clock_hz, 'Hz')}"
    rows = [
        (kind, format_count(peak, "op/s"), f"{profile.tiles} x {dpu.macs_per_cycle[kind]} MAC x 2 x {dpu.clock_hz} Hz" if kind in dpu.macs_per_cycle else shave)
        for kind, peak in peaks.items()
    ]  # fmt: skip
    print_table(f"peak of {profile.name}", ("type", "peak", "units"), rows, left=3)


def _versions() -> dict[str, str]:
    import numpy as np

    return {
        "libnpu": libnpu.__version__,
        "ioctl interface": f"{C.NPU_UAPI_MAJOR}.{C.NPU_UAPI_MINOR}",
        "blob format": f"{C.NPU_BLOB_ABI_MAJOR}.{C.NPU_BLOB_ABI_MINOR}",
        "firmware boot interface": f"{C.NPU_FW_BOOT_API_MAJOR}.{C.NPU_FW_BOOT_API_MINOR}",
        "firmware job interface": f"{C.NPU_FW_JSM_API_MAJOR}.{C.NPU_FW_JSM_API_MINOR}",
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "BLAS": arithmetic.blas(),
        "C helpers of the device": arithmetic.helpers(),
    }


def _profile_row(profile: Profile) -> tuple[str, ...]:
    return (
        profile.name,
        str(profile.tiles),
        str(profile.tiles * profile.shaves_per_tile),
        str(profile.dma_ports),
        format_bytes(profile.cmx.workspace_bytes),
        str(profile.tiles * profile.barriers_per_tile),
        format_count(profile.dpu.clock_hz, "Hz"),
        str(profile.dpu.macs_per_cycle.get("f16", "")),
        format_count(profile.ddr.bytes_per_second, "B/s"),
        ", ".join(profile.aliases),
    )


def _memory_row(system: MemorySystem) -> tuple[str, ...]:
    dram, noc = system.dram, system.noc
    return (
        system.name,
        f"{dram.channels} of {dram.channel_bits} bit",
        format_count(dram.pin_bytes_per_second, "B/s"),
        format_bytes(dram.access_bytes),
        format_bytes(dram.page_bytes),
        format_count(noc.link_bytes_per_second, "B/s"),
        format_count(noc.port_bytes_per_second, "B/s"),
        ", ".join(client.name for client in system.clients),
    )


def _memory_rows(system: MemorySystem) -> dict[str, Any]:
    """Return all fields; clients by their names, for the table."""
    found: dict[str, Any] = msgspec.to_builtins(system)
    return found | {"clients": {client["name"]: client for client in found["clients"]}}


def _units_row(profile: Profile) -> tuple[str, ...]:
    shave = profile.shave
    lines = shave.icache_sets * shave.icache_ways
    return (
        profile.name,
        str(Unit.of(profile).shaves),
        format_bytes(Unit.of(profile).cmx_bytes),
        format_bytes(lines * shave.icache_line_bytes),
        f"{lines} of {shave.icache_line_bytes} B",
        str(shave.icache_ways),
        f"{shave.fetch_bytes_per_cycle} B/cycle",
    )


def _rows(prefix: str, value: dict[str, Any], sources: dict[str, str]) -> list[tuple[str, str, str]]:
    """Return (dotted field, value, source); a group's source stands for its fields."""
    found = []
    for key, member in value.items():
        name = f"{prefix}{key}"
        if prefix == "" and key in ("sources", "description"):
            continue
        if isinstance(member, dict):
            found += _rows(f"{name}.", member, sources)
        else:
            source = next((sources[n] for n in _prefixes(name) if n in sources), "")
            found.append((name, ", ".join(member) if isinstance(member, list) else str(member), source))
    return found


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
