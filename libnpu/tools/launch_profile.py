"""`npu launch-profile KERNEL`: the five steps of a launch, and how the instruction cache changes them.

The steps: the host packs the arguments, the host submits them, the management core picks a SHAVE, the SHAVE loads the
program into its instruction cache, the SHAVE executes it. Of a launch in several blocks, the last three are those of the
block that ended last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import libnpu
from libnpu.tools import problems, source
from libnpu.tools.console import ToolError, format_bytes, format_time, print_json, print_table, progress

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from libnpu.runtime import Device, Stream
    from libnpu.tools.problems import KernelProblem

STEPS = {
    "pack": "host: pack the arguments",
    "submit": "host: submit",
    "pick": "core: pick a SHAVE",
    "load": "SHAVE: load instructions",
    "execute": "SHAVE: execute",
}
SIZE, SMALLEST, LARGEST = 8, 8, 512  # of one launch, and of a sweep: chosen
SHOWN_RUNS = 3  # in the table, and the last one; more are too wide


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch that was waited for; times in ps. `wall_ps`: from the call to the wake-up of the host."""

    steps: dict[str, int]  # by the names of `STEPS`
    wall_ps: int
    blocks: int
    loaded_bytes: int  # into instruction caches, of all blocks
    cached_bytes: int  # that were there
    load_cycles: int  # in which SHAVEs filled their caches

    @property
    def largest(self) -> str:
        """The step that took longest."""
        return max(self.steps, key=lambda name: self.steps[name])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("kernel", metavar="KERNEL", help="a built-in kernel, see npu kernels list")
    parser.add_argument(
        "--code",
        type=source.byte_size,
        metavar="64K",
        help="bytes of its program, padded at the end with code that is loaded and never executed (default: its own)",
    )
    parser.add_argument(
        "--size",
        type=source.positive,
        metavar="N",
        help=f"images and matrices of N x N, N x N elements (default {SIZE}; of a sweep the largest, {LARGEST})",
    )
    parser.add_argument("--runs", type=source.positive, metavar="N", help="launches, one after the other (default 2)")
    parser.add_argument(
        "--sweep", action="store_true", help=f"the first launch for sizes {SMALLEST}, {2 * SMALLEST}, ..."
    )
    parser.add_argument("--profile", default="npu-37xx", metavar="NAME", help="hardware profile (default npu-37xx)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    return _sweep(options) if options.sweep else _single(options)


def launch(device: Device, problem: KernelProblem, stream: Stream) -> Launch:
    """Launch once, wait, and return what it took."""
    before = device.counters()["CODE_LOAD_CYCLES"]
    job = problem.launch(stream)
    stream.synchronize()
    woken_ps, steps = device.now_ps, job.steps
    return Launch(
        steps={name: getattr(steps, f"{name}_ps") for name in STEPS},
        wall_ps=woken_ps - job.enqueue_ps,
        blocks=len(job.blocks),
        loaded_bytes=sum(block.loaded_bytes for block in job.blocks),
        cached_bytes=sum(block.cached_bytes for block in job.blocks),
        load_cycles=device.counters()["CODE_LOAD_CYCLES"] - before,
    )


def measure(options: argparse.Namespace, size: int, runs: int) -> tuple[list[Launch], int]:
    """Return `runs` launches on a fresh device, and the bytes of the program."""
    with progress(f"{options.kernel}, size {size}"), libnpu.open(options.profile) as device:
        problem = problems.make(device, options.kernel, size, options.code)
        stream = device.create_stream()
        stream.fill(problem.arguments[0], 0)  # the first job of a queue registers it, and costs more
        stream.synchronize()
        return [launch(device, problem, stream) for _ in range(runs)], problem.kernel.code_bytes


def _single(options: argparse.Namespace) -> int:
    size = options.size or SIZE
    launches, code_bytes = measure(options, size, options.runs or 2)
    if options.json:
        about = {"kernel": options.kernel, "profile": options.profile, "size": size, "code_bytes": code_bytes}
        print_json(about | {"runs": [_json(found) for found in launches]})
        return 0
    shown = {f"run {n}": one for n, one in enumerate(launches, 1) if n <= SHOWN_RUNS or one is launches[-1]}
    columns = ["step", *(word for name in shown for word in (name, "share"))]
    rows = []
    for step, what in STEPS.items():
        shares = [(found.steps[step], found.steps[step] / (sum(found.steps.values()) or 1)) for found in shown.values()]
        rows.append((what, *(text for ps, share in shares for text in (format_time(ps), f"{share:.1%}"))))
    rows.append(
        ("call to wake-up of the host", *(text for f in shown.values() for text in (format_time(f.wall_ps), "")))
    )
    rows.append(("largest step", *(text for found in shown.values() for text in (found.largest, ""))))
    print_table(
        f"{options.kernel}, {format_bytes(code_bytes)} of code, size {size} on {options.profile}", columns, rows
    )
    print_table(
        "instruction caches",
        ("run", "blocks", "loaded", "hits", "hit rate", "iload_cycles"),
        [_cache_row(name, found) for name, found in shown.items()],
    )
    return 0


def _sweep(options: argparse.Namespace) -> int:
    largest = options.size or LARGEST
    if options.runs:
        raise ToolError("--runs: a sweep measures the first launch of each size")
    if largest < SMALLEST:
        raise ToolError(f"--size {largest}: a sweep begins at {SMALLEST}")
    sizes = [SMALLEST << n for n in range(largest.bit_length()) if SMALLEST << n <= largest]
    problems.check(options.kernel, sizes[-1], options.profile)
    found: dict[int, Launch] = {}
    for size in sizes:
        (found[size],), code_bytes = measure(options, size, 1)
    beyond = crossover([found[size].steps["execute"] > found[size].steps["load"] for size in sizes])
    where = sizes[beyond] if beyond else None  # between it and the size before
    if options.json:
        about = {
            "kernel": options.kernel,
            "profile": options.profile,
            "code_bytes": code_bytes,
            "crossover_size": where,
        }
        print_json(about | {"sizes": [{"size": size, **_json(found[size])} for size in sizes]})
        return 0
    rows = [
        (str(size), *(format_time(one.steps[step]) for step in STEPS), format_time(one.wall_ps), one.largest)
        for size, one in found.items()
    ]
    columns = ("size", *STEPS, "call to wake-up", "largest")
    print_table(f"{options.kernel}, {format_bytes(code_bytes)} of code on {options.profile}", columns, rows, left=0)
    print(_crossover_line(sizes, beyond))
    return 0


def _crossover_line(sizes: Sequence[int], beyond: int | None) -> str:
    """Say what was measured: a cross-over only when it lies between two of the sizes."""
    if beyond is None:
        return f"at size {sizes[-1]} it takes longer to load the program than to execute it"
    if beyond == 0:
        return "at every measured size it takes longer to execute the program than to load it"
    return f"from size {sizes[beyond]} on it takes longer to execute the program than to load it"


def crossover(holds: Sequence[bool]) -> int | None:
    """Return the first index from which on all of `holds` are true; None when the last is not."""
    last_false = max((index for index, value in enumerate(holds) if not value), default=-1)
    return last_false + 1 if last_false + 1 < len(holds) else None


def _json(found: Launch) -> dict[str, Any]:
    return {
        "steps_ps": found.steps,
        "largest": found.largest,
        "wall_ps": found.wall_ps,
        "blocks": found.blocks,
        "loaded_bytes": found.loaded_bytes,
        "cached_bytes": found.cached_bytes,
        "iload_cycles": found.load_cycles,
    }


def _cache_row(name: str, found: Launch) -> tuple[str, ...]:
    loaded, cached = found.loaded_bytes, found.cached_bytes
    rate = f"{cached / (loaded + cached):.1%}" if loaded + cached else "-"
    return name, str(found.blocks), format_bytes(loaded), format_bytes(cached), rate, str(found.load_cycles)
