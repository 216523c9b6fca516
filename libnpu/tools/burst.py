"""`npu burst`: load a tile of a two-dimensional array in memory, row by row, and count what its accesses move beside what was asked for."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from npu_model.memory import MemoryUnsupported
from npu_model.memory_cycles import CycleMemory
from npu_model.memory_ranges import problem
from npu_model.memory_runs import NO_RUNS
from npu_model.profile import load_profile

from libnpu.errors import Unsupported
from libnpu.tools import memory_loads, source
from libnpu.tools.console import ToolError, format_time, print_json, print_table, progress

if TYPE_CHECKING:
    from npu_model.memory import MemorySystem

BITS = {"int4": 4, "int8": 8, "int16": 16, "fp16": 16, "fp32": 32}
BASE = 1 << 32  # of the array: chosen, aligned to pages
MAX_ARRAY_BYTES = 1 << 26  # chosen
MAX_TILES = 1 << 16  # of the whole array: chosen, seconds
CLIENT = "npu_dma"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What loads counted: bytes asked and moved, accesses of DDR, and the time from the first to the end of the last."""

    asked: int
    moved: int
    accesses: int
    time_ps: int

    @property
    def waste(self) -> float:
        """The share of moved bytes that nobody asked for."""
        return 1 - self.asked / self.moved


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--shape", type=_pair, metavar="ROWSxCOLUMNS", default=(32, 32), help="of the array, row-major (default 32x32)"
    )
    parser.add_argument("--tile", type=_pair, metavar="ROWSxCOLUMNS", default=(4, 4), help="of the tile (default 4x4)")
    parser.add_argument(
        "--offset", type=_offset, metavar="ROW[,COLUMN]", default=(0, 0), help="where the tile begins (default 0,0)"
    )
    parser.add_argument(
        "--dtype", type=_dtypes, metavar="LIST", default=["int8"], help=f"some of {','.join(BITS)} (default int8)"
    )
    parser.add_argument(
        "--burst",
        type=source.positive,
        metavar="BYTES",
        help="that one command moves (default: the memory system's, and one of all channels together)",
    )
    memory_loads.add_profile_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Load one tile, and then the whole array tile by tile, with each size of a burst and each type."""
    system = load_profile(options.profile).memory_system
    dram = system.dram
    sizes = (
        [options.burst] if options.burst else list(dict.fromkeys((dram.access_bytes, dram.burst_bytes * dram.channels)))
    )
    found = []
    for size in sizes:
        memory = with_burst(system, size)
        for dtype in options.dtype:
            with progress(f"Loading {dtype} in bursts of {size} bytes"):
                found.append((size, dtype, *_experiment(memory, dtype, options)))
    if options.json:
        print_json(_json(options, found))
        return 0
    columns = ("burst", "type", "asked", "bursts", "moved", "waste", "time")
    shape, tile = ("x".join(map(str, pair)) for pair in (options.shape, options.tile))
    where = ",".join(map(str, options.offset))
    title = f"a tile of {tile} at {where} of an array of {shape} on {options.profile}"
    print_table(title, columns, [_row(size, dtype, one) for size, dtype, one, _ in found], left=2)
    print_table(f"the array, {tile} after {tile}", columns, [_row(s, d, one) for s, d, _, one in found], left=2)
    return 0


def with_burst(system: MemorySystem, nbytes: int) -> MemorySystem:
    """Return `system` with commands that move `nbytes`, in chained bursts. Raises ToolError where it has none of that size."""
    shortest = system.dram.burst_bytes
    if nbytes % shortest:
        raise ToolError(
            f"--burst {nbytes}: the shortest burst of {system.name} is {shortest} bytes; a multiple is needed"
        )
    changed = msgspec.structs.replace(
        system, dram=msgspec.structs.replace(system.dram, chained_bursts=nbytes // shortest)
    )
    if why := problem(changed):
        raise ToolError(f"--burst {nbytes}: {why}")
    return changed


def _experiment(system: MemorySystem, dtype: str, options: argparse.Namespace) -> tuple[Loaded, Loaded]:
    """Return what one tile counts, and all tiles of the array, each in a memory of its own."""
    (rows, columns), (tile_rows, tile_columns), (row, column) = options.shape, options.tile, options.offset
    bits = BITS[dtype]
    if row + tile_rows > rows or column + tile_columns > columns:
        raise ToolError(
            f"--tile {tile_rows}x{tile_columns} at {row},{column}: ends outside of an array of {rows}x{columns}"
        )
    for what, number in (("--shape", columns), ("--tile", tile_columns), ("--offset", column)):
        if number * bits % 8:
            raise ToolError(f"{what}: {number} columns of {dtype} are {number * bits} bits, which are no whole bytes")
    if rows * columns * bits // 8 > MAX_ARRAY_BYTES:
        raise ToolError(f"--shape {rows}x{columns}: {rows * columns * bits // 8} bytes; at most {MAX_ARRAY_BYTES}")
    tiles = -(-rows // tile_rows) * -(-columns // tile_columns)
    if tiles > MAX_TILES:
        raise ToolError(f"--tile {tile_rows}x{tile_columns}: the array has {tiles} of them; at most {MAX_TILES}")
    pitch = columns * bits // 8

    def runs(first: int, left: int) -> list[tuple[int, int]]:
        width = min(tile_columns, columns - left) * bits // 8
        last = min(first + tile_rows, rows)
        return [(BASE + y * pitch + left * bits // 8, width) for y in range(first, last)]

    every = [runs(y, x) for y in range(0, rows, tile_rows) for x in range(0, columns, tile_columns)]
    return load(system, [runs(row, column)]), load(system, every)


def load(system: MemorySystem, transfers: list[list[tuple[int, int]]]) -> Loaded:
    """Read transfers, lists of (address, bytes), one after the other with the DMA of a new memory. Raises Unsupported without the C helpers."""
    import numpy as np

    try:
        memory = CycleMemory(system)
    except MemoryUnsupported as error:
        raise Unsupported(str(error)) from None
    client, now_ps = system.client(CLIENT), 0
    for runs in transfers:
        memory.submit(client, now_ps, np.array(runs, np.int64), NO_RUNS, 0)
        end = memory.advance()
        assert end is not None
        now_ps = end[1]
    counted = memory.counters.clients[client]
    accesses = sum(memory.counters.channels[n].reads for n in range(system.dram.channels))
    return Loaded(counted.bytes_asked, counted.bytes_moved, accesses, now_ps)


def _json(options: argparse.Namespace, found: list[tuple[int, str, Loaded, Loaded]]) -> dict[str, Any]:
    def loaded(one: Loaded) -> dict[str, Any]:
        return {
            "asked_bytes": one.asked,
            "bursts": one.accesses,
            "moved_bytes": one.moved,
            "waste": one.waste,
            "time_ps": one.time_ps,
        }

    return {
        "profile": options.profile,
        "shape": options.shape,
        "tile": options.tile,
        "offset": options.offset,
        "loads": [
            {"burst_bytes": size, "dtype": dtype, "tile": loaded(tile), "array": loaded(every)}
            for size, dtype, tile, every in found
        ],
    }


def _row(size: int, dtype: str, one: Loaded) -> tuple[str, ...]:
    counts = (f"{one.asked} B", str(one.accesses), f"{one.moved} B")
    return f"{size} B", dtype, *counts, f"{one.waste:.2%}", format_time(one.time_ps)


def _pair(text: str) -> tuple[int, int]:
    words = text.split("x")
    if len(words) != 2:
        raise argparse.ArgumentTypeError(f"expected ROWSxCOLUMNS, such as 32x32, found {text!r}")
    return source.positive(words[0]), source.positive(words[1])


def _offset(text: str) -> tuple[int, int]:
    words = text.split(",")
    if len(words) > 2:
        raise argparse.ArgumentTypeError(f"expected ROW[,COLUMN], such as 2,0, found {text!r}")
    row, column = (*map(source.count, words), 0)[:2]
    return row, column


def _dtypes(text: str) -> list[str]:
    found = text.split(",")
    for name in found:
        if name not in BITS:
            raise argparse.ArgumentTypeError(f"no type {name!r}; there are {', '.join(BITS)}")
    return found
