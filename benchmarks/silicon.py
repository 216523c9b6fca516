"""Figures that are quoted for an edge device and its memory, beside what the model gives, and how halving a cause moves each.

    python -m benchmarks.silicon              the tables of docs/silicon.md
    python -m benchmarks.silicon --update     write them there

Every figure is an experiment on a memory system, `edge-soc`: transfers and traffic cycle by cycle, and models that are shapes alone. The table says which three
parameters were set from a figure, and under which conditions a figure was computed. A second table has the loss of the NPU beside
the CPU by how much of the NPU's may wait, there and in the queue model of queue_model.py. A test compares the page with what this
prints.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from npu_model.memory import MemorySystem, load_memory
from npu_model.memory_cycles import Background, CycleMemory
from npu_model.memory_runs import NO_RUNS
from npu_model.profile import load_profile

from benchmarks import whole_models
from benchmarks.queue_model import Share
from benchmarks.queue_model import share as share_queue
from libnpu.blob import BlobImage
from libnpu.compiler import CompileOptions, compile_model
from libnpu.compiler.pipeline import Compiled
from libnpu.runtime import TensorInfo
from libnpu.tools import cli
from libnpu.tools.roofline_points import Roofline, measure
from libnpu.tools.session import execute
from libnpu.tools.shapes import llama7b, resnet50
from libnpu.tools.weights import weights_by_layer

PAGE = Path(__file__).resolve().parents[1] / "docs" / "silicon.md"
END = "<!-- end -->"
MIB, GB = 1 << 20, 10**9
BASE, FAR = 1 << 32, 1 << 28  # of the NPU's transfers, and of the CPU's traffic
NPU_FLITS, CPU_FLITS = 0.40, 0.72  # a cycle, that the two ask for where they share a link (B24)
TOPS = 30e12  # of the device that the figures are quoted for
TASKS = (".npu.tasks.dma0", ".npu.tasks.dma1", ".npu.tasks.dpu_invariant", ".npu.tasks.shave_invocation")


def changed(
    system: MemorySystem, *, dram: dict | None = None, noc: dict | None = None, npu: dict | None = None
) -> MemorySystem:
    """Return a memory system with fields replaced; `npu` of the client npu_dma."""
    replace = msgspec.structs.replace
    clients = [replace(c, **(npu or {})) if c.name == "npu_dma" else c for c in system.clients]
    return replace(
        system, dram=replace(system.dram, **dram or {}), noc=replace(system.noc, **noc or {}), clients=clients
    )


def move(
    memory: CycleMemory,
    runs: list[tuple[int, int]],
    *,
    write: bool = False,
    read: bool = True,
    at_ps: int = 0,
    pace_ps: int = 0,
) -> int:
    """Move runs with the NPU's DMA, and return the time of the end."""
    array = np.array(runs, np.int64).reshape(-1, 2)
    client = memory.system.client("npu_dma")
    memory.submit(
        client, at_ps, array if read else NO_RUNS, array + np.array([1 << 30, 0]) if write else NO_RUNS, pace_ps
    )
    end = memory.advance(10**12)
    assert end is not None
    return end[1]


def stream(system: MemorySystem) -> float:
    """Bytes per second of one long read."""
    return 2 * MIB / move(CycleMemory(system), [(BASE, 2 * MIB)]) * 1e12


def copy_ms(system: MemorySystem) -> float:
    """Milliseconds in which 512 MiB are read and written, from a part of it."""
    return move(CycleMemory(system), [(BASE, 2 * MIB)], write=True) * 256 / 1e9


def random_4k(system: MemorySystem) -> float:
    """Gigabytes per second of blocks of 4 KiB at random, one after the other, each with one request outstanding."""
    memory, at = CycleMemory(changed(system, npu={"requests": 1})), 0
    for block in np.random.default_rng(0).integers(0, 1 << 18, 150):
        at = move(memory, [(BASE + int(block) * 4096, 4096)], at_ps=at)
    return 150 * 4096 / at * 1000


def waste(system: MemorySystem) -> float:
    """Share of moved bytes that nobody asked for: a tile of 4 x 4 bytes of rows 32 bytes apart."""
    memory = CycleMemory(system)
    move(memory, [(BASE + 32 * row + 8, 4) for row in range(4)])
    counted = memory.counters.clients[system.client("npu_dma")]
    return 1 - counted.bytes_asked / counted.bytes_moved


def narrow_tiles(system: MemorySystem) -> float:
    """Time of 4-bit over that of 16-bit elements: 2000 rows of four elements, 512 bytes apart."""
    times = [move(CycleMemory(system), [(BASE + 512 * n, bits // 2) for n in range(2000)]) for bits in (4, 16)]
    return times[0] / times[1]


def narrow_stream(system: MemorySystem) -> float:
    """The same of 2^20 elements in one run."""
    times = [move(CycleMemory(system), [(BASE, MIB * bits // 8)]) for bits in (4, 16)]
    return times[0] / times[1]


def share_link(system: MemorySystem, cpu_flits: float, priority: int = 0, refresh: bool = False) -> Share:
    """Return what the NPU gets of the link that it shares with the CPU, and how full its port is there."""
    system = changed(system, dram={} if refresh else {"trefi_ns": 0.0}, npu={"priority": priority})
    memory, rate = CycleMemory(system), system.noc.link_bytes_per_second
    memory.set_background(Background("cpu", round(cpu_flits * rate), address=FAR))
    move(memory, [(BASE, MIB)], pace_ps=round(MIB / (NPU_FLITS * rate) * 1e12))
    cycles, hops = memory.counters.cycles, len(memory.counters.ports) // (2 * len(memory.counters.clients))
    port = memory.counters.ports[
        (len(memory.counters.clients) + system.client("npu_dma")) * hops
    ]  # first on the way back
    return Share(MIB / system.noc.flit_bytes / cycles, port.occupancy / cycles / system.noc.credits)


def loss(system: MemorySystem, refresh: bool = False) -> float:
    """What the NPU loses beside the CPU, of what it asks for."""
    return 1 - share_link(system, CPU_FLITS, refresh=refresh).flits / NPU_FLITS


def loss_at_92(share: Callable[[float], Share]) -> tuple[float, float]:
    """Return the load of the CPU at which the NPU's port is 92 % full, and the NPU's loss there; nan where it never is.

    `share` is tried in steps of 0.02 flits a cycle; between two of them both are taken to change evenly.
    """
    before = share(0.40)
    for load in range(42, 82, 2):
        after = share(load / 100)
        if before.full <= 0.92 <= after.full:
            part = (0.92 - before.full) / (after.full - before.full)
            return load / 100 - 0.02 * (1 - part), 1 - (before.flits + part * (after.flits - before.flits)) / NPU_FLITS
        before = after
    return math.nan, math.nan


def resnet(system: MemorySystem, times: int = 1) -> Roofline:
    """Run ResNet-50's shapes in int8 on `aie-like` with a memory system, times only; with so many times its memory on chip."""
    return _resnet(msgspec.json.encode(system), times)


@cache
def _resnet(system: bytes, times: int) -> Roofline:
    device = load_profile("aie-like")
    cmx = msgspec.structs.replace(device.cmx, workspace_bytes=device.cmx.workspace_bytes * times)
    with tempfile.TemporaryDirectory() as folder:
        planned, run_on = (Path(folder) / f"{name}.json" for name in ("planned", "aie-like"))
        planned.write_bytes(msgspec.json.encode(msgspec.structs.replace(device, cmx=cmx)))
        memory = msgspec.json.decode(system, type=MemorySystem)
        run_on.write_bytes(msgspec.json.encode(msgspec.structs.replace(device, cmx=cmx, memory=memory)))
        plan = plan_resnet(planned.read_bytes())
        run = execute(plan.blob, plan.image, str(run_on), zeros, compute=False, fidelity="full")
        return measure(plan.image, str(run_on), run)


@cache
def plan_resnet(device: bytes) -> Compiled:
    """Return the plan for a device, which all memory systems run."""
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "aie-like.json"
        profile.write_bytes(device)
        return compile_model(resnet50(), CompileOptions(precision="int8", profile=str(profile), plan_only=True))


def zeros(tensors: list[TensorInfo]) -> dict[str, np.ndarray]:
    return {tensor.name: np.zeros(tensor.shape, tensor.numpy_dtype) for tensor in tensors}


@cache
def plan_7b() -> BlobImage:
    """Return the plan of a decoder of 7e9 parameters in int8 on `npu-37xx`. Its number of tasks does not depend on edge-soc."""
    return compile_model(llama7b(), CompileOptions(precision="int8", profile="npu-37xx", plan_only=True)).image


def tasks_7b(_: MemorySystem) -> float:
    return sum(len(plan_7b().tasks[name]) for name in TASKS)


def layer_7b_mib(_: MemorySystem) -> float:
    """Mebibytes of the weight matrices of one layer, by the tasks that load them."""
    layers = weights_by_layer(plan_7b())
    return sum(w.nbytes for w in layers if w.name.startswith("layers.0/") and "norm" not in w.name) / MIB


def intensity(system: MemorySystem, *operation: str, ideal: bool = False) -> float:
    """Operations per byte that `npu roofline` prints of an operation on `npu-37xx` with a memory system: of the bytes that moved, or if
    all moved once.
    """
    found = _roofline(msgspec.json.encode(system), operation)
    return found["ideal_intensity"] if ideal else found["whole"]["intensity"]


@cache
def _roofline(system: bytes, operation: tuple[str, ...]) -> Any:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
        memory = Path(folder) / "memory.json"
        memory.write_bytes(system)
        status = cli.main(["roofline", *operation, "--profile", f"npu-37xx+{memory}", "--json"])
    if status:
        raise RuntimeError(f"npu roofline {' '.join(operation)} returned {status}")
    return json.loads(printed.getvalue())


@dataclass(frozen=True)
class Figure:
    """`quoted` as (low, high), nan where no value can be given; `note` says what was set from it, and under which conditions it was computed."""

    number: str
    what: str
    quoted: tuple[float, float]
    kind: str  # M: arithmetic or mechanism, C: a measurement, X: cannot be
    predict: Callable[[MemorySystem], float]
    note: str = ""


GIVEN = "loads given; without refresh"
STREAM = "not independent: the stream of B17"
VADD, SQUARE = ("--op", "vadd"), ("--op", "matmul", "--size", "1024")
FEED_FORWARD = ("--op", "matmul", "--size", "64,3072,768")
FIGURES = [
    Figure("B02", "tasks of a decoder of 7e9 parameters, int8", (1000, 20000), "M", tasks_7b, "npu-37xx, 4 MiB of CMX in two tiles"),
    Figure("B03", "weights of one of its layers, MiB", (193, 193), "M", layer_7b_mib),
    Figure("B04", "copy of a KV cache of 512 MiB, ms", (17.9, 23.9), "M", copy_ms, STREAM),
    Figure("B05", "weights of a language model's head, 131 MB, ms", (2.62, 2.62), "M", lambda s: 131.072e6 / stream(s) * 1e3, STREAM),
    Figure("B10", "ResNet-50, int8, aie-like: operations a byte", (171, 223), "M", lambda s: resnet(s).whole.intensity),
    Figure("B10", "of 30 TOPS that memory allows at that", (0.28, 0.40), "M", lambda s: resnet(s).whole.intensity * stream(s) / TOPS, "not independent: the row above and the stream of B17"),
    Figure("B10", "of 30 TOPS that it reaches", (0.28, 0.40), "M", lambda s: (r := resnet(s)).whole.rate / r.peak, "not met: see ResNet-50"),
    Figure("B10", "the same with 1 MiB on chip", (0.28, 0.40), "M", lambda s: (r := resnet(s, 2)).whole.rate / r.peak, "another device: twice the memory on chip"),
    Figure("B11", "tiles of 4 x 4: time of 4-bit over 16-bit elements", (1, 1), "M", narrow_tiles),
    Figure("B11", "a stream: the same", (0.25, 0.25), "M", narrow_stream),
    Figure("B12", "a sum of two fp32 vectors: operations a byte", (0.083, 0.083), "M", lambda s: intensity(s, *VADD), "npu-37xx; exactly 1/12"),
    Figure("B13", "fp32 product of 1024 x 1024 x 1024: the same", (167, 167), "M", lambda s: intensity(s, *SQUARE, ideal=True), "if all moved once; exactly 512/3, 167 is of rounded numbers"),
    Figure("B13", "the same, of the bytes that moved", (167, 167), "M", lambda s: intensity(s, *SQUARE), "npu-37xx; less, as operands are loaded more than once"),
    Figure("B14", "fp32 product of 64 x 3072 x 768: operations a byte", (20, 40), "M", lambda s: intensity(s, *FEED_FORWARD, ideal=True), "if all moved once"),
    Figure("B14", "the same, of the bytes that moved", (20, 40), "M", lambda s: intensity(s, *FEED_FORWARD), "npu-37xx"),
    Figure("B15", "30 TOPS of int8 as operations of floating point", (math.nan, math.nan), "X", lambda _: math.nan, "no value: `npu roofline` draws a roof for each type"),
    Figure("B16", "the pins, GB/s", (60, 60), "M", lambda s: s.dram.pin_bytes_per_second / GB),
    Figure("B17", "a long stream, GB/s", (45, 52), "C", lambda s: stream(s) / GB, "set from it: noc.clock_hz"),
    Figure("B18", "ridge of 30 TOPS, operations per byte", (577, 667), "M", lambda s: TOPS / stream(s), STREAM),
    Figure("B19", "1.01e12 bytes, s", (0.042, 0.042), "X", lambda s: 1.01136e12 / stream(s), "counts a line for each load of the CPU"),
    Figure("B20", "idle at 0.012 operations per byte", (0.98, 0.98), "X", lambda s: 1 - 0.012 * stream(s) / TOPS, "is 1 - intensity / ridge"),
    Figure("B21", "16 beats of 64 bits, bytes", (128, 128), "M", lambda s: s.dram.burst_bytes * s.dram.channels, "all channels; one moves 32"),
    Figure("B22", "waste of a 4 x 4 tile of bytes", (0.875, 0.875), "M", waste),
    Figure("B23", "random 4 KiB, GB/s", (8.31, 8.31), "C", random_4k, "set from it: noc.hop_cycles"),
    Figure("B24", "loss of the NPU beside the CPU", (0.25, 0.35), "C", loss, GIVEN),
    Figure("B24", "the same with refresh", (0.25, 0.35), "C", lambda s: loss(s, refresh=True), "loads given; not met: see what may wait"),
    Figure("B25", "loss where the port is 92 % full", (0.08, 0.08), "C", lambda s: loss_at_92(lambda cpu: share_link(s, cpu))[1], "without refresh; not met: see what may wait"),
    Figure("B26", "the port without the CPU, full", (0.41, 0.41), "C", lambda s: share_link(s, 0.0).full, f"set from it: noc.credit_return_cycles; {GIVEN}"),
    Figure("B26", "the port with priority 7, full", (0.41, 0.41), "C", lambda s: share_link(s, CPU_FLITS, 7).full, GIVEN),
]  # fmt: skip
HALVES: dict[str, Callable[[MemorySystem], MemorySystem]] = {
    "DDR rate / 2": lambda s: changed(s, dram={"transfers_per_second": s.dram.transfers_per_second // 2}),
    "burst / 2": lambda s: changed(s, dram={"burst_transfers": s.dram.burst_transfers // 2}),
    "credits / 2": lambda s: changed(s, noc={"credits": s.noc.credits // 2}),
}


def error(figure: Figure, value: float) -> str:
    """Return how far `value` is from what is quoted, or from the nearer end of a range; "within" a range."""
    low, high = figure.quoted
    if figure.kind == "X":
        return "cannot be"
    nearest = min(max(value, low), high)
    return "within" if low < high and nearest == value else f"{value / nearest - 1:+.1%}"


def shown(value: float, digits: int = 5) -> str:
    """Return a cell of the table; nan is a point that is not reached, or a value that does not exist."""
    return "-" if math.isnan(value) else f"{value:.{digits}g}"


def table() -> list[str]:
    """Return the lines of the table."""
    system = load_memory("edge-soc")
    columns = ("number", "what", "quoted", "model", "error", "class", "note", *HALVES)
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for figure in FIGURES:
        low, high = figure.quoted
        quoted = f"{low:.4g} to {high:.4g}" if low < high else shown(low, 4)
        value = figure.predict(system)
        halves = [figure.predict(half(system)) for half in HALVES.values()]
        cells = (figure.number, figure.what, quoted, shown(value), error(figure, value), figure.kind, figure.note)
        lines.append(f"| {' | '.join([*cells, *map(shown, halves)])} |")
    return lines


def waiting() -> list[str]:
    """Return the lines of the table of what the NPU loses, by how much of its own may wait for the link."""
    system, no_refresh = load_memory("edge-soc"), {"trefi_ns": 0.0}
    cases: list[tuple[str, Callable[[float], Share]]] = [
        (f"queue model: {'any number of' if room is None else room} flits in front of the port", partial(share_queue, NPU_FLITS, waiting=room))
        for room in (0, 16, 32, 64, None)
    ]  # fmt: skip
    for refresh in (False, True):
        for requests in (4, 8, 10, 16, 32):
            changes = changed(system, dram={} if refresh else no_refresh, npu={"requests": requests})
            what = f"edge-soc, {'with' if refresh else 'without'} refresh: {requests} requests of 16 flits outstanding"
            cases.append((what, partial(share_link, changes, refresh=refresh)))
    lines = [
        "| what may wait | loss at 92 % full | load of the CPU there | loss at 0.72 | full there |",
        "|---" * 5 + "|",
    ]
    for what, share in cases:
        load, lost = loss_at_92(share)
        most = share(CPU_FLITS)
        there = ("-", "-") if math.isnan(lost) else (f"{lost:.1%}", f"{load:.2f}")
        lines.append(f"| {what} | {' | '.join(there)} | {1 - most.flits / NPU_FLITS:.1%} | {most.full:.1%} |")
    return lines


TABLES = {
    "<!-- python -m benchmarks.silicon --update -->": table,
    "<!-- the same command: what may wait -->": waiting,
    "<!-- the same command: whole models -->": whole_models.table,
    "<!-- the same command: whole models in int8 -->": whole_models.planned,
}


def update(text: str) -> str:
    """Return the page `text` with the tables as they are now."""
    for begin, lines in TABLES.items():
        before, _, rest = text.partition(begin)
        text = "\n".join([before + begin, *lines(), END + rest.partition(END)[2]])
    return text


def main() -> None:
    """Print the tables, or write them to the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the tables to docs/silicon.md")
    if parser.parse_args().update:
        PAGE.write_text(update(PAGE.read_text()))
    else:
        print("\n\n".join("\n".join(lines()) for lines in TABLES.values()))


if __name__ == "__main__":
    main()
