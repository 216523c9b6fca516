"""`npu monitor MODEL|BLOB`: how busy engines and memory were over virtual time, sampled from the device's counters while a model runs."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import libnpu
from libnpu.tools import memory_loads, source
from libnpu.tools.console import PS_PER_S, ToolError, format_time, print_json, print_table, progress
from libnpu.tools.files import check_targets, write_file
from libnpu.tools.snapshots import Snapshot, is_own, snapshot, units_of
from libnpu.tools.svg import Axis, Picture
from libnpu.trace.slices import ENGINES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libnpu.blob import BlobImage

SAMPLES = 100  # of a run, when no period is given: chosen
MAX_SAMPLES = 100_000
GB = 10**9
NS_PER_PS = 1000


@dataclass(frozen=True, slots=True)
class Sample:
    """What happened in one period. Utilisation is of all units of an engine, 0 to 1; bytes are those that DDR moved."""

    start_ps: int  # since the launch
    end_ps: int
    utilisation: dict[str, float]
    npu_bytes: int
    other_bytes: int  # of clients that are no part of the NPU

    def rate(self, nbytes: int) -> float:
        """Return bytes of the period as bytes per second."""
        return nbytes * PS_PER_S / (self.end_ps - self.start_ps)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL|BLOB", help="an ONNX file, or what npu compile made of one")
    source.add_compile_arguments(parser, "npu-37xx, or the blob's")
    parser.add_argument("--csv", metavar="FILE", help="write the samples, a line each")
    parser.add_argument("--svg", metavar="FILE", help="write a picture of them")
    parser.add_argument(
        "--period-ns",
        type=source.positive,
        metavar="N",
        help=f"from one look to the next (default: for {SAMPLES} in a run)",
    )
    parser.add_argument("--bg", metavar="cpu=GB/s", default="", help="traffic of other clients meanwhile")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Run `options.model`, times only, at fidelity `full`, and write samples."""
    check_targets({"--csv": options.csv, "--svg": options.svg}, source.files_read(options))
    traffic = memory_loads.parse_traffic(options.bg) if options.bg else {}
    model = source.open_source(options)
    profile = options.profile or model.image.profile
    with progress(f"Running {model.image.name} on {profile}"):
        samples = monitor(model.data, model.image, profile, options.period_ns, traffic)
    if options.csv:
        write_file(options.csv, csv_text(samples).encode())
    if options.svg:
        write_file(options.svg, picture(f"{model.image.name} on {profile}", samples).text().encode())
    report = summary(samples)
    if options.json:
        print_json({"model": options.model, "profile": profile, "samples": len(samples), **report})
        return 0
    rows: list[tuple[str, ...]] = [
        (name, f"{mean:.1%}", f"{most:.1%}") for name, (mean, most) in report["utilisation"].items()
    ]
    rows += [
        (f"DDR, {who}", *(f"{rate / GB:.2f} GB/s" for rate in rates))
        for who, rates in report["bytes_per_second"].items()
    ]
    over = format_time(samples[-1].end_ps)
    print_table(f"{model.image.name} on {profile}: {len(samples)} samples over {over}", ("", "mean", "most"), rows)
    return 0


def monitor(
    data: bytes, image: BlobImage, profile: str, period_ns: int | None = None, traffic: dict[str, int] | None = None
) -> list[Sample]:
    """Run a blob on a new device and look at its counters, as `watch` does."""
    return [_sample(image, *pair) for pair in pairwise(watch(data, image, profile, period_ns, traffic))]


def watch(
    data: bytes, image: BlobImage, profile: str, period_ns: int | None = None, traffic: dict[str, int] | None = None
) -> list[Snapshot]:
    """Run a blob on a new device and return its counters at the launch, and until the inference has ended, `period_ns` after each
    look, which takes the host some time too. Times are from the launch on.

    None: as often as SAMPLES of a run before it. Raises ToolError for more than MAX_SAMPLES.
    """
    with libnpu.open(profile, compute=False, fidelity="full", where="") as device, device.create_stream() as stream:
        module = device.load(data)
        names = [t.name for t in (*module.inputs, *module.outputs)]
        buffers = {t.name: device.alloc(max(1, t.size_bytes)) for t in (*module.inputs, *module.outputs)}
        ins, outs = names[: len(module.inputs)], names[len(module.inputs) :]
        for client, rate in (traffic or {}).items():
            device.traffic(client, rate)

        def launch() -> Any:
            return stream.launch(module, {n: buffers[n] for n in ins}, {n: buffers[n] for n in outs})

        job = launch()
        stream.synchronize()
        lasts_ns = (job.end_ps - job.start_ps) // NS_PER_PS
        period = period_ns or max(lasts_ns // SAMPLES, 1)
        if lasts_ns // period > MAX_SAMPLES:
            raise ToolError(f"--period-ns {period}: a run of {lasts_ns} ns has more than {MAX_SAMPLES} samples")
        start_ps = device.now_ps
        found = [snapshot(device, start_ps)]
        launch()
        while not stream.query():
            device.host_delay(period)
            found.append(snapshot(device, start_ps))
    return found


def _sample(image: BlobImage, before: Snapshot, now: Snapshot) -> Sample:
    seen = now.memory_since(before)
    assert seen is not None  # at fidelity full
    moved = {name: counts["bytes_moved"] for name, counts in seen.clients.items()}
    own = sum(count for name, count in moved.items() if is_own(name))
    units = units_of(now.profile, image.tile_count)
    return Sample(before.time_ps, now.time_ps, now.utilisation(before, units), own, sum(moved.values()) - own)


def csv_text(samples: Sequence[Sample]) -> str:
    """Return a table with a head: the end of each period in microseconds, shares of busy time, gigabytes per second."""
    lines = [",".join(("time_us", *(name.lower() for name in ENGINES), "ddr_gb_per_s", "others_gb_per_s"))]
    for s in samples:
        shares = (f"{s.utilisation[name]:.6f}" for name in ENGINES)
        rates = (f"{s.rate(moved) / GB:.6f}" for moved in (s.npu_bytes, s.other_bytes))
        lines.append(",".join((f"{s.end_ps / 10**6:.6f}", *shares, *rates)))
    return "\n".join([*lines, ""])


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return (mean, most) of each engine's utilisation and of memory's bytes per second, over the samples."""
    span_ps = samples[-1].end_ps - samples[0].start_ps
    rates: dict[str, list[float]] = {}
    for who, moved in (("NPU", [s.npu_bytes for s in samples]), ("others", [s.other_bytes for s in samples])):
        each = [s.rate(nbytes) for s, nbytes in zip(samples, moved, strict=True)]
        rates[who] = [sum(moved) * PS_PER_S / span_ps, max(each)]
    return {
        "span_ps": span_ps,
        "utilisation": {
            name: [
                sum(s.utilisation[name] * (s.end_ps - s.start_ps) for s in samples) / span_ps,
                max(s.utilisation[name] for s in samples),
            ]
            for name in ENGINES
        },
        "bytes_per_second": rates,
    }


def picture(title: str, samples: Sequence[Sample]) -> Picture:
    """Return utilisation and memory's rate over time; the rate as a share of its highest sample."""
    most = max(max(s.rate(s.npu_bytes + s.other_bytes) for s in samples), 1.0)
    plot = Picture(
        title, Axis("microseconds since the launch", 0.0, samples[-1].end_ps / 10**6), Axis("share", 0.0, 1.0)
    )
    for name in ENGINES:
        plot.curve(name, _steps(samples, [s.utilisation[name] for s in samples]))
    for who, moved in (("DDR, NPU", [s.npu_bytes for s in samples]), ("DDR, others", [s.other_bytes for s in samples])):
        if any(moved):
            shares = [s.rate(nbytes) / most for s, nbytes in zip(samples, moved, strict=True)]
            plot.curve(f"{who}, of {most / GB:.2f} GB/s", _steps(samples, shares))
    return plot


def _steps(samples: Sequence[Sample], shares: Sequence[float]) -> list[tuple[float, float]]:
    """Return a line that is level in each period."""
    return [(at / 10**6, share) for s, share in zip(samples, shares, strict=True) for at in (s.start_ps, s.end_ps)]
