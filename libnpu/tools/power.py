"""`npu power MODEL|BLOB`: where the energy of an inference goes, and how much work a watt does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from libnpu.tools import source, values
from libnpu.tools.console import PS_PER_S, format_time, print_json, print_table, progress
from libnpu.tools.energy import FJ_PER_J, PARTS, energy_json, format_energy
from libnpu.tools.session import execute

if TYPE_CHECKING:
    import argparse

    from numpy.typing import NDArray

    from libnpu.runtime import TensorInfo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL|BLOB", help="an ONNX file, or what npu compile made of one")
    source.add_compile_arguments(parser, "npu-37xx, or the blob's")
    parser.add_argument(
        "--tokens", type=source.positive, metavar="N", help="that one inference yields: say joules and tokens/s/W"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Run `options.model` once, times only, and print its energy by part. An inference is from its launch to its return to the host."""
    model = source.open_source(options)
    profile = options.profile or model.image.profile
    with progress(f"Running {model.image.name} on {profile}"):
        execution = execute(model.data, model.image, profile, _inputs, compute=False)
    report: dict[str, Any] = {"model": options.model, "name": model.image.name, "profile": profile}
    report |= energy_json(execution.counters, profile)
    joules = report["total_fj"] / FJ_PER_J
    report["inferences_per_second"] = PS_PER_S / report["time_ps"]
    report["inferences_per_joule"] = 1 / joules if joules else None
    if options.tokens:
        report["tokens"] = options.tokens
        report["joules_per_token"] = joules / options.tokens
        report["tokens_per_second_per_watt"] = options.tokens / joules if joules else None
    if options.json:
        print_json(report)
        return 0
    total = report["total_fj"] or 1
    rows = [
        (name, counted, format_energy(fj), f"{fj / total:.1%}")
        for (name, counted), fj in zip(PARTS.items(), report["parts_fj"].values(), strict=True)
    ]
    rows.append(("all", "", format_energy(report["total_fj"]), ""))
    print_table(f"{report['name']} on {profile}", ("part", "counted", "energy", "share"), rows, left=2)
    summary = [
        ("one inference, launch to return", format_time(report["time_ps"])),
        ("average power", f"{report['watts']:.3f} W"),
        ("inferences per joule", _ratio(report["inferences_per_joule"])),
    ]
    if options.tokens:
        summary.append(("energy per token", format_energy(report["total_fj"] / options.tokens)))
        summary.append(("tokens/s/W", _ratio(report["tokens_per_second_per_watt"])))
    print_table("efficiency", ("", ""), summary)
    return 0


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _inputs(tensors: list[TensorInfo]) -> dict[str, NDArray[Any]]:
    return values.random_inputs(tensors, 0)
