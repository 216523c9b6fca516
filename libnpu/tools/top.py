"""`npu top`: a dashboard of the device: how busy engines are, what memory moves, credits in use, misses, and who uses it.

Of npud's device (NPU_DEVICE=unix:PATH), live; or of a model that runs here, whose virtual time is played back frame by frame.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from npu_abi import C

import libnpu
from libnpu.daemon.client import Door
from libnpu.syscalls import remote_path
from libnpu.tools import memory_loads, monitor, smi, source
from libnpu.tools.console import PS_PER_S, ToolError, format_bytes, format_time, print_json, progress
from libnpu.tools.snapshots import Snapshot, is_own, snapshot, units_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import RenderableType

    from libnpu.runtime import Device

GB = 10**9
BAR = 40  # columns
LIVE_S, PLAY_S = 1.0, 0.1  # chosen: wall-clock time between frames of npud's device, and of a run


@dataclass(frozen=True, slots=True)
class Frame:
    """What happened from one look to the next. Shares are 0 to 1; memory's are None at fidelity `fast`, which has none."""

    time_ps: int  # of the end
    span_ps: int  # on the device's clock
    utilisation: dict[str, float]  # of all units of an engine
    mac_util: float  # of the multiplications that busy DPUs could have done
    npu_bytes: int  # that DDR moved for the NPU
    other_bytes: int | None  # of others
    credits: dict[str, float] | None  # client -> of its fullest port, in use on average
    rows: dict[str, int] | None  # accesses of DDR that found their row open (hits), or did not (misses, conflicts)
    tlb_misses: int
    code_bytes: int  # that instruction caches missed and fetched
    mem_stall: dict[str, float]  # engine -> of its units' time, in which they waited for memory

    def rate(self, nbytes: int) -> float:
        """Return bytes of the span as gigabytes per second."""
        return nbytes * PS_PER_S / self.span_ps / GB if self.span_ps else 0.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "model", metavar="MODEL|BLOB", nargs="?", help="run this and play it back (default: npud's device, live)"
    )
    source.add_compile_arguments(parser, "npu-37xx, or the blob's")
    parser.add_argument("--once", action="store_true", help="one frame: the whole run, or npud's device since its boot")
    parser.add_argument(
        "-n", "--frames", type=source.positive, metavar="N", help="end after N (default: of the run, or never)"
    )
    parser.add_argument(
        "-d",
        "--delay",
        type=_seconds,
        metavar="S",
        help=f"between frames (default {LIVE_S:g} s; of a run {PLAY_S:g} s)",
    )
    parser.add_argument(
        "--period-ns",
        type=source.positive,
        metavar="N",
        help=f"of a run: a frame for N ns (default: {monitor.SAMPLES})",
    )
    parser.add_argument("--bg", metavar="cpu=GB/s", default="", help="of a run: traffic of other clients meanwhile")
    parser.add_argument("--json", action="store_true", help="print JSON, one object a frame")


def run(options: argparse.Namespace) -> int:
    """Show frames until there are no more, or Ctrl-C."""
    where = os.environ.get("NPU_DEVICE", "")
    if options.once and options.frames:
        raise ToolError(f"--once is one frame; --frames {options.frames} is another number")
    if options.model is None and not where:
        raise ToolError("give a model or a blob to run, or NPU_DEVICE=unix:PATH of the npud whose device to look at")
    if options.model is None and (options.bg or options.period_ns):
        raise ToolError("--bg and --period-ns are of a run of a model")
    played = _run_frames(options) if options.model else _live_frames(where, options)
    pause = options.delay if options.delay is not None else PLAY_S if options.model else LIVE_S
    try:
        _show(_limited(played, options.frames), pause if options.model else 0.0, options.json)
    except KeyboardInterrupt:  # how one leaves it
        print(file=sys.stderr)
    return 0


Shown = tuple[str, Frame, "list[dict[str, Any]]"]  # title, frame, contexts


def _run_frames(options: argparse.Namespace) -> Iterator[Shown]:
    traffic = memory_loads.parse_traffic(options.bg) if options.bg else {}
    model = source.open_source(options)
    profile = options.profile or model.image.profile
    with progress(f"Running {model.image.name} on {profile}"):
        looks = monitor.watch(model.data, model.image, profile, options.period_ns, traffic)
    units = units_of(looks[0].profile, model.image.tile_count)
    for before, now in [(looks[0], looks[-1])] if options.once else pairwise(looks):
        yield f"{model.image.name} on {profile}", frame(before, now, units), []


def _live_frames(where: str, options: argparse.Namespace) -> Iterator[Shown]:
    with _as_it_is(where) as device:
        profile = device.profile
        units = units_of(profile, profile.tiles)
        before = snapshot(device)
        if options.once:
            before = replace(before, counters=dict.fromkeys(before.counters, 0), memory=None)
        while True:
            if not options.once:
                time.sleep(LIVE_S if options.delay is None else options.delay)
            now = snapshot(device)
            (info,) = smi.records(device.node, C.NPU_INFO_DEVICE, "npu_device_info")
            contexts = smi.records(device.node, C.NPU_INFO_CONTEXTS, "npu_context_info")
            found = frame(before, replace(now, time_ps=info["now_ps"]), units)
            yield f"{where}: {profile.name}", found, [c for c in contexts if c["pid"] != os.getpid()]
            if options.once:
                return
            before = now


def _as_it_is(where: str) -> Device:
    """Open npud's device, whatever it is."""
    door = Door(remote_path(where))
    found = door.greeting
    door.close()
    return libnpu.open(
        where=where, compute=found.compute, numerics=found.numerics, fidelity=found.fidelity, trace=found.trace
    )


def frame(before: Snapshot, now: Snapshot, units: dict[str, int]) -> Frame:
    """Return what happened between two looks."""
    cycles = now.since(before, "CYCLES")
    seen = now.memory_since(before)
    slots = now.since(before, "DPU_MAC_SLOTS")
    own, others, credits, rows = now.since(before, "DDR_MOVED"), None, None, None
    if seen is not None and seen.cycles:
        moved = {name: counts["bytes_moved"] for name, counts in seen.clients.items()}
        own = sum(count for name, count in moved.items() if is_own(name))
        others = sum(moved.values()) - own
        places = seen.cycles * now.profile.memory_system.noc.credits
        credits = dict.fromkeys(seen.clients, 0.0)
        for port in seen.ports:
            credits[port.client] = max(credits[port.client], port.occupancy / places)
        rows = {name: seen.channel_sum(name) for name in ("hits", "misses", "conflicts")}
    return Frame(
        time_ps=now.time_ps,
        span_ps=cycles * PS_PER_S // now.profile.dpu.clock_hz,
        utilisation=now.utilisation(before, units),
        mac_util=now.since(before, "DPU_MACS") / slots if slots else 0.0,
        npu_bytes=own,
        other_bytes=others,
        credits=credits,
        rows=rows,
        tlb_misses=now.since(before, "TLB_MISS"),
        code_bytes=now.since(before, "CODE_LOAD"),
        mem_stall={
            name: now.since(before, f"{name}_MEM_STALL") / (cycles * count) if cycles else 0.0
            for name, count in units.items()
        },
    )


def _limited(frames: Iterable[Shown], count: int | None) -> Iterator[Shown]:
    for number, one in enumerate(frames, 1):
        yield one
        if number == count:
            return


def _show(frames: Iterable[Shown], pause: float, as_json: bool) -> None:
    """Print each frame; on a terminal in the place of the one before."""
    if as_json:
        for title, one, contexts in frames:
            print_json(frame_json(title, one, contexts))
        return
    from rich.console import Console
    from rich.live import Live

    from libnpu.tools.console import PIPE_WIDTH

    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    if not console.is_terminal:
        for shown in frames:
            console.print(_dashboard(*shown))
        return
    with Live(console=console, auto_refresh=False) as live:
        for shown in frames:
            live.update(_dashboard(*shown), refresh=True)
            time.sleep(pause)


def frame_json(title: str, one: Frame, contexts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a frame for JSON."""
    return {
        "title": title,
        "time_ps": one.time_ps,
        "span_ps": one.span_ps,
        "utilisation": one.utilisation,
        "mac_util": one.mac_util,
        "gb_per_s": {
            "npu": one.rate(one.npu_bytes),
            "others": None if one.other_bytes is None else one.rate(one.other_bytes),
        },
        "credits": one.credits,
        "misses": {"tlb": one.tlb_misses, "rows": one.rows, "code_bytes": one.code_bytes},
        "mem_stall": one.mem_stall,
        "contexts": contexts,
    }


def _dashboard(title: str, one: Frame, contexts: list[dict[str, Any]]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    lines = [f"{title}   {format_time(one.time_ps)}, the last {format_time(one.span_ps)}"]
    for name, share in one.utilisation.items():
        lines.append(f"{name:<8}{_bar(share)} {share:6.1%}   waits for memory {one.mem_stall[name]:.1%}")
    lines.append(f"{'MACs':<8}{_bar(one.mac_util)} {one.mac_util:6.1%}   of what busy DPUs can do")
    others = "" if one.other_bytes is None else f", others {one.rate(one.other_bytes):.2f} GB/s"
    lines.append(f"DDR     NPU {one.rate(one.npu_bytes):.2f} GB/s{others}")
    if one.credits is None or one.rows is None:
        lines.append("credits and rows are counted at fidelity full, when something has moved")
    else:
        used = ", ".join(f"{client} {share:.1%}" for client, share in one.credits.items())
        lines.append(f"credits of the fullest port   {used}")
        lines.append("rows    " + ", ".join(f"{count:,} {name}" for name, count in one.rows.items()))
    lines.append(f"misses  TLB {one.tlb_misses:,}, instruction caches fetched {format_bytes(one.code_bytes)}")
    lines += [
        f"  {c['name']} (pid {c['pid']}): {format_bytes(c['memory_bytes'])}, {c['jobs_in_flight']} jobs in flight, {c['jobs_done']} done"
        for c in contexts
    ]
    return Group(*map(Text, lines), "")


def _bar(share: float) -> str:
    full = round(min(max(share, 0.0), 1.0) * BAR)
    return f"|{'#' * full}{'.' * (BAR - full)}|"


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 3600:
        raise argparse.ArgumentTypeError(f"expected seconds, 0 to 3600, found {text!r}")
    return found
