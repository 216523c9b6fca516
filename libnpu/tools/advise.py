"""`npu advise`: when to wait for launches. --sweep size measures a kernel of growing size, used in three ways; a trace file of
a program (Device.export_trace, with its profiler started) is looked through for the same mistakes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import libnpu
from libnpu.tools import problems, source
from libnpu.tools.console import ToolError, format_time, print_json, print_table, progress
from libnpu.tools.launch_profile import crossover
from libnpu.tools.program_trace import read_program

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from libnpu.runtime import Job
    from libnpu.tools.program_trace import ProgramTrace

WAYS = ("sync each", "async", "two streams")
SMALLEST, LARGEST = 8, 256  # of the sweep; chosen: the cross-over lies between
KERNEL, PROFILE = "relu", "npu-37xx"
LAUNCHES = 16  # chosen: enough for a steady state
COPIES_SHARE = 0.1  # of the time in which a program's host is blocked, from which on waits for copies are told: chosen


@dataclass(frozen=True, slots=True)
class Measured:
    """Launches of one size in one way; times in ps. `wall_ps`: from the first call to the last wake-up of the host."""

    size: int
    way: str
    launches: int
    syncs: int  # calls that wait for the device
    wall_ps: int
    host_busy_ps: int
    host_blocked_ps: int
    executing_ps: int  # in which a SHAVE executes a kernel

    @property
    def per_launch_ps(self) -> float:
        """Time of one launch."""
        return self.wall_ps / self.launches

    @property
    def overhead(self) -> float:
        """Share of time in which no kernel executes: what launching and waiting cost, 0 to 1."""
        return 1 - self.executing_ps / self.wall_ps


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("trace", nargs="?", metavar="TRACE", help="file that a program wrote with Device.export_trace")
    parser.add_argument(
        "--sweep", choices=("size",), help=f"launch a kernel of sizes {SMALLEST}, {2 * SMALLEST}, ... in three ways"
    )
    parser.add_argument("--kernel", metavar="NAME", help=f"of the sweep (default {KERNEL})")
    parser.add_argument("--size", type=source.positive, metavar="N", help=f"largest of the sweep (default {LARGEST})")
    parser.add_argument("--launches", type=source.positive, metavar="N", help=f"of each point (default {LAUNCHES})")
    parser.add_argument("--profile", metavar="NAME", help=f"hardware profile of the sweep (default {PROFILE})")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print what was found, and the advice."""
    if options.trace is None and options.sweep is None:
        raise ToolError("expected a trace file or --sweep size")
    if options.trace is not None and options.sweep is not None:
        raise ToolError(
            f"--sweep measures a kernel, and reads no trace file; leave out one of --sweep and {options.trace}"
        )
    return _sweep(options) if options.sweep else _program(options)


def sync_advice(launches: int, syncs: int, what: str) -> list[str]:
    """Return the advice about the number of synchronisation points of `what`: [] when they are at most half the launches."""
    if 2 * syncs <= launches:
        return []
    return [
        f"{what}: {syncs} synchronisation points for {launches} launches; keep them few: one behind the last launch, "
        "and events where a stream needs another one's results"
    ]


# ---- the sweep ----


def _sweep(options: argparse.Namespace) -> int:
    options.kernel, options.profile = options.kernel or KERNEL, options.profile or PROFILE
    largest = options.size or LARGEST
    if largest < SMALLEST:
        raise ToolError(f"--size {largest}: a sweep begins at {SMALLEST}")
    sizes = [SMALLEST << n for n in range(largest.bit_length()) if SMALLEST << n <= largest]
    problems.check(options.kernel, sizes[-1], options.profile)
    found = {size: [_measure(options, size, way) for way in WAYS] for size in sizes}
    beyond = crossover([found[size][0].overhead < 0.5 for size in sizes])
    advice = _sweep_advice(sizes, found, beyond)
    if options.json:
        points = [_json(measured) for size in sizes for measured in found[size]]
        where = sizes[beyond] if beyond else None  # between it and the size before
        about = {"kernel": options.kernel, "profile": options.profile, "crossover_size": where}
        print_json(about | {"points": points, "advice": advice})
        return 0
    columns = ["size", *(word for way in WAYS for word in (way, "overhead")), "blocked, sync each", "bound by"]
    rows = []
    for index, size in enumerate(sizes):
        each = found[size][0]
        cells = [text for m in found[size] for text in (format_time(m.per_launch_ps), f"{m.overhead:.1%}")]
        bound = "launch" if beyond is None or index < beyond else "work"
        rows.append((str(size), *cells, format_time(each.host_blocked_ps / each.launches), bound))
    print_table(f"{options.kernel} on {options.profile}: time per launch", columns, rows, left=0)
    _print_advice(advice)
    return 0


def _sweep_advice(sizes: Sequence[int], found: dict[int, list[Measured]], beyond: int | None) -> list[str]:
    """Return what the points say, a line each."""

    advice = []
    small = sizes if beyond is None else sizes[:beyond]
    if small:
        each, at_once, _ = found[small[-1]]
        advice.append(
            f"small, up to size {small[-1]}: launching and waiting cost more than the work. Wait for a single launch, "
            f"{format_time(each.per_launch_ps)}; of many, launch asynchronously, {format_time(at_once.per_launch_ps)} each, "
            "or merge them"
        )
    if beyond is not None:
        each = found[sizes[beyond]][0]
        advice.append(
            f"large, from size {sizes[beyond]} on: the work takes longer, and each wait blocks the host for "
            f"{format_time(each.host_blocked_ps / each.launches)} and more, in which it could work: launch asynchronously, "
            "and synchronise once"
        )
    each = found[sizes[-1]][0]
    return advice + sync_advice(each.launches, each.syncs, each.way)


def _measure(options: argparse.Namespace, size: int, way: str) -> Measured:
    """Launch the kernel on a warm, fresh device. The first launch of each stream, which costs more, is not counted."""
    launches = options.launches or LAUNCHES
    with progress(f"{options.kernel}, size {size}, {way}"), libnpu.open(options.profile) as device:
        streams = [device.create_stream() for _ in range(2 if way == "two streams" else 1)]
        work = [problems.make(device, options.kernel, size) for _ in streams]
        for stream, problem in zip(streams, work, strict=True):
            problem.launch(stream)
        device.synchronize()
        profiler = device.profiler
        profiler.start()
        start_ps, (busy, blocked) = device.now_ps, device.host_times()
        jobs = []
        for number in range(launches):
            index = number % len(streams)
            jobs.append(work[index].launch(streams[index]))
            if way == "sync each":
                streams[index].synchronize()
        if way != "sync each":
            for stream in streams:
                stream.synchronize()
        end_ps, host = device.now_ps, device.host_times()
        profiler.stop()
        return Measured(
            size=size,
            way=way,
            launches=len(profiler.records),
            syncs=sum("synchronize" in call.name for call in profiler.calls),
            wall_ps=end_ps - start_ps,
            host_busy_ps=host[0] - busy,
            host_blocked_ps=host[1] - blocked,
            executing_ps=_covered_ps(jobs),
        )


def _covered_ps(jobs: Iterable[Job]) -> int:
    """Return how long at least one block of the jobs executed."""
    covered = past = 0
    for start, end in sorted((block.start_ps, block.end_ps) for job in jobs for block in job.blocks):
        covered += max(0, end - max(start, past))
        past = max(past, end)
    return covered


def _json(measured: Measured) -> dict[str, Any]:
    return {
        "size": measured.size,
        "way": measured.way,
        "launches": measured.launches,
        "syncs": measured.syncs,
        "time_per_launch_ps": measured.per_launch_ps,
        "overhead": measured.overhead,
        "host_busy_us": measured.host_busy_ps / 10**6,
        "host_blocked_us": measured.host_blocked_ps / 10**6,
    }


# ---- a program ----


def _program(options: argparse.Namespace) -> int:
    for name in ("kernel", "size", "launches", "profile"):
        if getattr(options, name) is not None:
            raise ToolError(f"--{name}: only with --sweep")
    program = read_program(options.trace)
    advice = _program_advice(program)
    if options.json:
        print_json(
            {
                "trace": options.trace,
                "launches": program.launches,
                "syncs": program.syncs,
                "span_ps": program.span_ps,
                "running_ps": program.running_ps,
                "enqueue_ps": program.enqueue_ps,
                "host_blocked_us": program.blocked_ps / 10**6,
                "host_blocked_on_copies_us": program.blocked_on_copies_ps / 10**6,
                "advice": advice,
            }
        )
        return 0
    rows = [
        ("launches", str(program.launches), ""),
        ("synchronisation points", str(program.syncs), ""),
        ("first call to last", format_time(program.span_ps), ""),
        ("operations running", format_time(program.running_ps), f"{program.running_ps / program.span_ps:.1%}"),
        ("host blocked", format_time(program.blocked_ps), f"{program.blocked_ps / program.span_ps:.1%}"),
        (
            "  on copies before a launch",
            format_time(program.blocked_on_copies_ps),
            f"{_copies_share(program):.1%} of that",
        ),
        ("one launch: the call", format_time(program.enqueue_ps / program.launches), ""),
        ("one launch: the device", format_time(program.launch_ps / program.launches), ""),
    ]
    print_table(options.trace, ("", "", "share"), rows)
    _print_advice(advice)
    return 0


def _program_advice(program: ProgramTrace) -> list[str]:
    advice = sync_advice(program.launches, program.syncs, "this program")
    if 2 * program.running_ps < program.span_ps:
        advice.append(
            f"no operation runs for {1 - program.running_ps / program.span_ps:.1%} of the time: merge small kernels, or "
            "launch them as a command list or a graph"
        )
    if _copies_share(program) >= COPIES_SHARE:
        advice.append(
            f"RESPONSIBILITY: for {_copies_share(program):.1%} of the time in which the host is blocked, nothing but copies of "
            "its own memory is on the device, and launches follow: enqueue copy and launch in one stream, or with an event "
            "between two; the device knows when the data is there"
        )
    return advice


def _copies_share(program: ProgramTrace) -> float:
    """Return the part of the host's blocked time that it waits for copies alone before a launch, 0 to 1."""
    return program.blocked_on_copies_ps / program.blocked_ps if program.blocked_ps else 0.0


def _print_advice(advice: Sequence[str]) -> None:
    for line in advice or ["nothing to say"]:
        print(f"- {line}")
