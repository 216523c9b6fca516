"""`npu latency MODEL|BLOB`: how long inferences take, how much that varies beside other traffic, and with --breakdown where the time goes."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npu_model.memory import MemoryUnsupported
from npu_model.profile import load_profile

import libnpu
from libnpu.errors import Unsupported
from libnpu.tools import memory_loads, source
from libnpu.tools.console import format_time, print_json, print_table, progress
from libnpu.tools.critical_path import critical_path
from libnpu.trace.slices import Slice, jobs_of, slices_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libnpu.blob import BlobImage


@dataclass(frozen=True, slots=True)
class Inference:
    """One run of many: its job on the device."""

    start_ps: int
    end_ps: int
    slices: list[Slice]

    @property
    def latency_ps(self) -> int:
        """From the job's start to its end."""
        return self.end_ps - self.start_ps


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL|BLOB", help="an ONNX file, or what npu compile made of one")
    source.add_compile_arguments(parser, "npu-37xx, or the blob's")
    parser.add_argument("--breakdown", action="store_true", help="where the time of the run at the median went")
    parser.add_argument(
        "--runs", type=source.positive, metavar="N", default=1, help="inferences, one after the other (default 1)"
    )
    parser.add_argument("--bg", metavar="cpu=GB/s", default="", help="traffic of other clients meanwhile")
    parser.add_argument("--seed", type=source.count, metavar="N", default=1, help="of the traffic (default 1)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Run `options.model`, times only, at fidelity `full`."""
    traffic = memory_loads.parse_traffic(options.bg) if options.bg else {}
    model = source.open_source(options)
    profile = options.profile or model.image.profile
    with progress(f"Running {model.image.name} on {profile}"):
        runs = inferences(model.data, model.image, profile, options.runs, traffic, options.seed)
    report: dict[str, Any] = {"model": options.model, "profile": profile, "background": traffic, "runs": len(runs)}
    report |= statistics([one.latency_ps for one in runs])
    if options.breakdown:
        report["breakdown_ps"] = breakdown(model.image, profile, median_run(runs))
    if options.json:
        print_json(report)
        return 0
    rows = [
        ("median (p50)", format_time(report["p50_ps"])),
        ("p95", format_time(report["p95_ps"])),
        ("shortest, longest", f"{format_time(report['min_ps'])}, {format_time(report['max_ps'])}"),
        ("latency consistency, p95 / p50", f"{report['consistency']:.4f}"),
    ]
    beside = f" beside {options.bg} GB/s" if traffic else ""
    print_table(f"{model.image.name} on {profile}{beside}, {len(runs)} runs", ("", ""), rows)
    if options.breakdown:
        total = sum(report["breakdown_ps"].values())
        parts = [(name, format_time(ps), f"{ps / total:.1%}") for name, ps in report["breakdown_ps"].items()]
        print_table(
            "on the critical path of the median run", ("", "time", "share"), [*parts, ("all", format_time(total), "")]
        )
    return 0


def inferences(
    data: bytes, image: BlobImage, profile: str, count: int, traffic: dict[str, int], seed: int = 1
) -> list[Inference]:
    """Run a blob `count` times on one new device at fidelity `full`, beside traffic that goes on from run to run."""
    found = []
    with libnpu.open(profile, compute=False, fidelity="full", trace=True, where="") as device:
        module = device.load(data)
        buffers = {t.name: device.alloc(max(1, t.size_bytes)) for t in (*module.inputs, *module.outputs)}
        for client, rate in traffic.items():
            device.traffic(client, rate, seed=seed)
        tasks = image.debug.get("tasks", [])
        with device.create_stream() as stream:
            for _ in range(count):
                device.trace()
                stream.launch(
                    module,
                    {t.name: buffers[t.name] for t in module.inputs},
                    {t.name: buffers[t.name] for t in module.outputs},
                )
                stream.synchronize()
                records = device.trace()
                job = jobs_of(records)[-1]
                found.append(
                    Inference(job.start_ps, job.end_ps, slices_of(records, tasks if isinstance(tasks, list) else []))
                )
    return found


def percentile(values: Sequence[int], share: int) -> int:
    """Return the smallest of `values` that at least `share` percent of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(-(-len(ordered) * share // 100) - 1, 0)]


def statistics(latencies_ps: Sequence[int]) -> dict[str, Any]:
    """Return percentiles, extremes and latency consistency."""
    p50, p95 = percentile(latencies_ps, 50), percentile(latencies_ps, 95)
    return {
        "p50_ps": p50,
        "p95_ps": p95,
        "min_ps": min(latencies_ps),
        "max_ps": max(latencies_ps),
        "consistency": p95 / p50 if p50 else 1.0,
    }


def median_run(runs: Sequence[Inference]) -> Inference:
    """Return the run at the 50th percentile, the first of them."""
    p50 = percentile([one.latency_ps for one in runs], 50)
    return next(one for one in runs if one.latency_ps == p50)


def breakdown(image: BlobImage, profile: str, one: Inference) -> dict[str, int]:
    """Return picoseconds of one run by breakdown.PARTS, which add up to its latency."""
    from libnpu.tools.breakdown import Breakdown

    hardware = load_profile(profile)
    path = critical_path(image, one.slices, one.start_ps, one.end_ps, hardware.core.fifo_depth)
    try:
        return Breakdown(image, hardware).of(path)
    except MemoryUnsupported as error:
        raise Unsupported(str(error)) from None
