"""The main job on real input: magika names the type of three files of this repository, then ResNet-50 runs.

Each model is compiled, loaded, submitted and computed by the simulated device; the table says where the time went, and how far
the values are from onnxruntime's. Timelines go to `out/demo/`; ui.perfetto.dev opens them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import models
import numpy as np
from numpy.typing import NDArray

from libnpu.compiler import CompileOptions, compile_model
from libnpu.tools import reference, run_report, session, timeline
from libnpu.tools.console import format_bytes, format_time, print_table, progress

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out" / "demo"
PROFILE = "npu-37xx"
# A file that one can look at, and what a person would say it is.
FILES = {"README.md": "markdown", "libnpu/__init__.py": "python", "include/npu_abi/npu_hw.h": "c"}


def magika_input(path: Path, config: dict[str, Any]) -> NDArray[np.int32]:
    """Return magika's features of a file, [1, beg_size + end_size] int32: its first and last bytes without white space.

    The rule is magika 1.0's: at most `block_size` bytes from each end, stripped, then `beg_size` from the front padded at
    the back, and `end_size` from the back padded at the front, with `padding_token`.
    """
    data = path.read_bytes()
    block, padding = config["block_size"], config["padding_token"]
    whole = len(data) <= block
    first = data.strip() if whole else data[:block].lstrip()
    last = data.strip() if whole else data[-block:].rstrip()
    begin = list(first[: config["beg_size"]])
    end = list(last[-config["end_size"] :])
    begin += [padding] * (config["beg_size"] - len(begin))
    end = [padding] * (config["end_size"] - len(end)) + end
    return np.array([begin + end], np.int32)


def run(title: str, path: Path, compiled: Any, inputs: dict[str, NDArray[Any]]) -> tuple[list[str], NDArray[Any]]:
    """Run one input; return its row of the table and the first output."""
    execution = session.execute(compiled.blob, compiled.image, PROFILE, lambda _: inputs)
    span_ps = execution.end_ps - execution.start_ps
    usage = {u.name: u for u in timeline.usage(execution.slices, span_ps, execution.units)}
    trace = OUT / f"{Path(title).name}.json"
    run_report.write_timeline(str(trace), compiled.image, PROFILE, execution)
    _, expected = reference.reference_outputs(str(path), inputs)
    (comparison, *_) = reference.compare(execution.outputs, expected)
    (output, *_) = execution.outputs.values()
    counters = execution.counters
    macs = counters["DPU_MACS"] / (span_ps * 1e-12) / 1e9
    row = [
        title,
        format_time(span_ps),
        *(f"{format_time(usage[e].busy_ps)} ({usage[e].utilisation:.0%})" for e in ("DMA", "DPU", "SHAVE")),
        format_bytes(counters["DMA_DDR_READ"] + counters["DMA_DDR_WRITE"]),
        f"{macs:.1f} GMAC/s",
        f"{comparison.max_relative_error:.1e}",
        trace.name,
    ]
    return row, output


def main() -> int:
    OUT.mkdir(parents=True, exist_ok=True)
    rows: list[list[str]] = []
    wrong = 0
    with progress("Compiling magika"):
        config = json.loads(models.fetch_file(models.MAGIKA_CONFIG, "magika.config.json").read_text())
        path = models.fetch("magika")
        compiled = compile_model(path, CompileOptions(profile=PROFILE, shapes=models.shapes("magika")))
    for name, expected in FILES.items():
        with progress(f"Running magika on {name}"):
            row, scores = run(name, path, compiled, {"bytes": magika_input(ROOT / name, config)})
        label = config["target_labels_space"][int(scores.argmax())]
        wrong += label != expected
        rows.append([row[0], f"{label} ({scores.max():.0%})", *row[1:]])
    with progress("Compiling ResNet-50"):
        path = models.seeded("resnet50")
        compiled = compile_model(path, CompileOptions(profile=PROFILE))
    with progress("Running ResNet-50"):
        row, scores = run("resnet50", path, compiled, models.inputs(path))
    rows.append([row[0], f"class {int(scores.argmax())}", *row[1:]])
    facts = (
        "answer",
        "latency",
        "DMA busy",
        "DPU busy",
        "SHAVE busy",
        "DDR bytes",
        "rate",
        "largest error",
        "timeline",
    )
    columns = ("", *(row[0] for row in rows))
    print_table(f"libnpu on {PROFILE}, fp16", columns, list(zip(facts, *(row[1:] for row in rows), strict=True)))
    print("largest error: against onnxruntime, relative to its largest value; busy: time, and share of the latency")
    print(f"timelines: {OUT.relative_to(ROOT)}/ (open in ui.perfetto.dev)")
    if wrong:
        print(f"demo: {wrong} of {len(FILES)} files were named wrongly", file=sys.stderr)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
