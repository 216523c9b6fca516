"""Loads of DMA ports in a pattern, run on a device at fidelity `full`, beside traffic of other clients: what memory gives.

The loads are descriptors of a blob as a compiler makes them, from scratch memory to CMX, in turn on all ports.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import libnpu
from libnpu.tools.console import PS_PER_S, ToolError
from libnpu.tools.memory_counters import Look, look
from libnpu.trace.slices import slices_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npu_model.profile import Profile

    from libnpu.blob import BlobImage
    from libnpu.runtime import Device

DEFAULT_PROFILE = "npu-37xx+edge-soc"
MIB = 1 << 20
SPAN_BYTES = 32 * MIB  # of memory that patterns touch: chosen, many pages of each bank
GB = 10**9


@dataclass(frozen=True, slots=True)
class Load:
    """One descriptor: `rows` runs of `width` bytes, `stride` bytes apart, from `offset` on."""

    offset: int
    width: int
    stride: int
    rows: int

    @property
    def asked(self) -> int:
        """Bytes that arrive in CMX."""
        return self.width * self.rows


def add_profile_argument(parser: argparse.ArgumentParser) -> None:
    """Declare --profile, of tools whose subject is memory."""
    parser.add_argument(
        "--profile",
        metavar="NAME",
        default=DEFAULT_PROFILE,
        help=f"device, and its memory system behind a + (default {DEFAULT_PROFILE})",
    )


def sequential(piece_bytes: int) -> list[Load]:
    """8 MiB, one byte after the other, in pieces of at most so many bytes."""
    size = min(MIB // 4, piece_bytes)
    return [Load(at, size, size, 1) for at in range(0, 8 * MIB, size)]


def strided(piece_bytes: int) -> list[Load]:
    """256 bytes of every 4 KiB."""
    rows = min(256, piece_bytes // 256)
    return [Load(at, 256, 4096, rows) for at in range(0, 16 * MIB, 4096 * rows)]


def random_4k(piece_bytes: int) -> list[Load]:
    """1000 blocks of 4 KiB at seeded random places."""
    import numpy as np

    return [
        Load(int(at) * 4096, 4096, 4096, 1) for at in np.random.default_rng(0).integers(0, SPAN_BYTES // 4096, 1000)
    ]


def bursts_of_16(piece_bytes: int) -> list[Load]:
    """16 bytes of every 128."""
    rows = min(1024, piece_bytes // 16)
    return [Load(at, 16, 128, rows) for at in range(0, MIB, 128 * rows)]


PATTERNS: dict[str, Callable[[int], list[Load]]] = {
    "seq": sequential,
    "strided": strided,
    "rand4k": random_4k,
    "burst16": bursts_of_16,
}


@dataclass(frozen=True, slots=True)
class Measured:
    """What a pattern did. `asked` and `moved` are bytes of the DMA ports, `counters` of all clients while it ran."""

    pattern: str
    asked: int
    moved: int
    span_ps: int  # from the start of the first descriptor to the end of the last
    peak: int  # bytes per second of the pins
    counters: Look

    @property
    def waste(self) -> float:
        """The share of moved bytes that nobody asked for; below 0 where neighbouring runs shared an access."""
        return 1 - self.asked / self.moved

    @property
    def bytes_per_second(self) -> float:
        """What was asked for, over the span."""
        return self.asked * PS_PER_S / self.span_ps


def run_pattern(
    profile: str, pattern: str, traffic: dict[str, int], priorities: dict[str, int] | None = None, seed: int = 1
) -> Measured:
    """Run a pattern of PATTERNS once on a new device. `traffic`: client -> bytes per second; `priorities`: client, or npu, -> 0 to 7."""
    with libnpu.open(profile, compute=False, fidelity="full", trace=True, where="") as device:
        loads = PATTERNS[pattern](device.profile.cmx.workspace_bytes // device.profile.dma_ports)
        for client, priority in (priorities or {}).items():
            device.set_noc_priority(client, priority)
        for client, rate in traffic.items():
            device.traffic(client, rate, seed=seed)
        return _measure(device, pattern, loads)


def _measure(device: Device, pattern: str, loads: Sequence[Load]) -> Measured:
    from libnpu.blob import write

    module = device.load(write(load_image(device.profile, loads)))
    with device.create_stream() as stream:
        device.trace()
        before = look(device)
        stream.launch(module, {}, {})
        stream.synchronize()
        counted = look(device).since(before)
        slices = [s for s in slices_of(device.trace()) if s.engine == "DMA"]
    module.unload()
    ports = counted.clients["npu_dma"]
    return Measured(
        pattern,
        ports["bytes_asked"],
        ports["bytes_moved"],
        max(s.end_ps for s in slices) - min(s.start_ps for s in slices),
        device.profile.memory_system.dram.pin_bytes_per_second,
        counted,
    )


def load_image(profile: Profile, loads: Sequence[Load]) -> BlobImage:
    """Return a blob that does `loads`, in turn on the ports; each port's arrive in a part of CMX of its own."""
    import numpy as np
    from npu_abi import C, dtype

    from libnpu.blob import BlobImage, Relocation

    record = dtype("npu_dma_task")
    part = profile.cmx.workspace_bytes // profile.dma_ports
    tasks: dict[str, Any] = {}
    relocations = []
    for port in range(profile.dma_ports):
        own = loads[port :: profile.dma_ports]
        section = f".npu.tasks.dma{port}"
        entries = np.zeros(len(own), record)
        entries["transaction_dst"] = C.NPU_CMX_BASE + port * part
        entries["transaction_length"] = entries["transaction_dst_width"] = [load.asked for load in own]
        entries["transaction_num_planes"] = 1
        entries["transaction_src_width"] = [load.width for load in own]
        entries["transaction_src_stride"] = [load.stride for load in own]
        entries["sched_start_after"] = C.NPU_BARRIER_NONE
        entries["task_id"] = range(port, len(loads), profile.dma_ports)
        tasks[section] = entries
        relocations += [
            Relocation(section, n * record.itemsize, ".bss.scratch", load.offset) for n, load in enumerate(own)
        ]
    return BlobImage(
        name="loads",
        profile=profile.name,
        tile_count=1,
        cmx_bytes=profile.cmx.workspace_bytes,
        barrier_count=0,
        inputs=[],
        outputs=[],
        tasks=tasks,
        scratch_bytes=SPAN_BYTES,
        relocations=relocations,
    )


def parse_priority(text: str) -> int:
    """Return a priority of the network on chip, 0 to 7: a type of argparse."""
    if text not in "01234567" or len(text) != 1:
        raise argparse.ArgumentTypeError(f"expected a priority, 0 to 7, found {text!r}")
    return int(text)


def parse_traffic(text: str) -> dict[str, int]:
    """Return client -> bytes per second of "cpu=20,gpu=1.5", gigabytes per second. Raises ToolError."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, equals, rate = part.partition("=")
        try:
            gigabytes = float(rate) if equals and name and name not in found else -1.0
        except ValueError:
            gigabytes = -1.0
        if not 0 <= gigabytes <= 1000:
            raise ToolError(f"--bg {text}: expected CLIENT=GB/s of 0 to 1000, each client once, such as cpu=20")
        found[name] = round(gigabytes * GB)
    return found
