"""`npu explain npu-vs-gpu` (`attention` is in `explain_attention.py`): how the device differs from a GPU, in three blocks, with figures of runs of one model.

What a GPU's host does, a launch for each operation, is done here too: in one stream with one wait at the end, and with the host
in between. Beside it the whole model is one blob, whose tasks the management core hands out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npu_model.profile import load_profile
from npu_model.vocabulary import load_vocabulary

from libnpu.tools import explain_attention, networks, source
from libnpu.tools.compare import Run, run_way
from libnpu.tools.console import format_bytes, format_time, print_json, print_table, progress
from libnpu.tools.session import DDR
from libnpu.tools.timeline_report import print_vocabulary, vocabulary_json

if TYPE_CHECKING:
    import argparse

    from libnpu.compiler.pipeline import Compiled

TOPICS = ("npu-vs-gpu", "attention")
NETWORK, ROWS = "bert-layer", 16  # what runs when no model is given: chosen, operations that are short beside a launch
CMX = ("SRAM_READ", "SRAM_WRITE")
TEXTS = {
    "scheduling": (
        "A GPU's host launches kernels, and hardware gives their blocks to cores while they run. Here the order is fixed at compile time: the host rings once, "
        "and the management core hands tasks out as barriers allow."
    ),
    "memory hierarchy": (
        "Kernels leave results in memory, behind caches, for the next one. Here the compiler plans the scratchpad for the whole model, so what fits "
        "never leaves it; DMA brings what comes from DDR before an engine wants it."
    ),
    "programming interface": (
        "A GPU's program is kernels and a host that calls them in order. Here it is a blob with all tasks, memory and barriers, called once for an inference."
    ),
}


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run the model: what was measured, and the blobs it takes."""

    run: Run
    blobs: list[Compiled]
    waits: int  # of the host

    @property
    def blob_bytes(self) -> int:
        """Bytes of all files that are loaded."""
        return sum(len(blob.blob) for blob in self.blobs)

    def counted(self, names: tuple[str, ...]) -> int:
        """Return the sum of counters."""
        return sum(self.run.counters[name] for name in names)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("topic", choices=TOPICS, help="what is explained")
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help=f"an ONNX file (default: {NETWORK} of {ROWS} rows, see npu roofline)"
    )
    source.add_compile_arguments(parser)
    explain_attention.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Run the model in three ways, times only, and print the blocks; or say how attention is computed."""
    if options.topic == "attention":
        return explain_attention.run(options)
    explain_attention.refuse(options)
    name, profile, ways = measure(options)
    blocks = {
        "scheduling": _scheduling(profile, ways),
        "memory hierarchy": _memory(ways),
        "programming interface": _interface(ways),
    }
    vocabulary = load_vocabulary("gpu")
    if options.json:
        print_json(
            {"model": name, "profile": profile, "ways": [way.run.name for way in ways]}
            | {title: {"text": TEXTS[title], "figures": rows} for title, rows in blocks.items()}
            | {"vocabulary": vocabulary_json(vocabulary)}
        )
        return 0
    for title, rows in blocks.items():
        print(f"{TEXTS[title]}\n")
        print_table(
            f"{title}: {name} on {profile}", ("", *(way.run.name for way in ways)), [_row(*row) for row in rows.items()]
        )
    print_vocabulary(vocabulary)
    return 0


def measure(options: argparse.Namespace) -> tuple[str, str, list[Way]]:
    """Return the model's name, the profile, and what each way costs."""
    from libnpu.compiler import compile_model
    from libnpu.compiler.layers import compile_layers

    wanted = source.compile_options(options)
    if options.model is None:
        model = networks.network_model(NETWORK, ROWS)
        with progress(f"Compiling {NETWORK}"):
            whole = compile_model(model, wanted)
    else:
        source.check_model(options.model)
        model, whole = options.model, source.compile_source(options)
    with progress("Compiling each operation"):
        layers = list(compile_layers(model, wanted).blobs)
    profile = whole.image.profile

    def way(name: str, blobs: list[Compiled], wait_each: bool = False) -> Way:
        measured = run_way(name, profile, [blob.blob for blob in blobs], None, wait_each=wait_each)
        return Way(measured, blobs, len(blobs) if wait_each else 1)

    ways = [
        way("one blob", [whole]),
        way("a launch each", layers),
        way("a launch each, host in between", layers, wait_each=True),
    ]
    return whole.image.name, profile, ways


def _scheduling(profile: str, ways: list[Way]) -> dict[str, list[int]]:
    engine_hz = load_profile(profile).dpu.clock_hz  # counters have its cycles
    return {
        "launches": [way.run.launches for way in ways],
        "doorbells": [way.run.doorbells for way in ways],
        "interrupts": [way.run.interrupts for way in ways],
        "host busy, ps": [way.run.host_busy_ps for way in ways],
        "host blocked, ps": [way.run.host_blocked_ps for way in ways],
        "management core busy, ps": [way.run.counters["CORE_BUSY"] * 10**12 // engine_hz for way in ways],
        "first start to last end on the device, ps": [way.run.makespan_ps for way in ways],
        "first launch to wake-up, ps": [way.run.wall_ps for way in ways],
    }


def _memory(ways: list[Way]) -> dict[str, list[int]]:
    return {
        "between device and DDR, bytes": [way.counted(DDR) for way in ways],
        "of which are weights, bytes": [sum(len(blob.image.weights) for blob in way.blobs) for way in ways],
        "between engines and scratchpad, bytes": [way.counted(CMX) for way in ways],
        "DMA transfers busy, cycles": [way.run.counters["DMA_BUSY"] for way in ways],
    }


def _interface(ways: list[Way]) -> dict[str, list[int]]:
    return {
        "files to load": [len(way.blobs) for way in ways],
        "in them, bytes": [way.blob_bytes for way in ways],
        "calls for an inference": [way.run.launches + way.waits for way in ways],
        "tasks that the device executed": [way.run.counters["TASKS"] for way in ways],
        "barriers in the task lists": [sum(_barriers(blob) for blob in way.blobs) for way in ways],
    }


def _barriers(blob: Compiled) -> int:
    return len(blob.image.tasks.get(".npu.barriers", ()))


def _row(what: str, values: list[int]) -> tuple[str, ...]:
    label, _, unit = what.rpartition(", ")
    if unit == "ps":
        return label, *map(format_time, values)
    if unit == "bytes":
        return label, *map(format_bytes, values)
    return what, *(f"{value:,}" for value in values)
