"""`npu explain attention`: which path an attention takes, by phase, length and what the kernels can do, and where its data flow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.tools.console import ToolError, print_json, print_table

if TYPE_CHECKING:
    import argparse

ONLY_HERE = ("phase", "long", "cap")  # options that other topics do not have
# path -> (what happens, engine, from, to) of each step
FLOWS = {
    "decompose": (
        ("QK^T, scaled as it drains", "DPU", "q, k", "scores"),
        ("mask added", "DPU or SHAVE", "scores, mask", "scores"),
        ("softmax", "SHAVE", "scores", "weights"),
        ("PV", "DPU", "weights, transposed v", "result"),
    ),
    "flash": (
        ("QK^T of a tile", "DPU", "q, tile of k", "tile of scores in CMX"),
        ("flash_sdpa: mask, exponentials, running maximum, sum and output", "SHAVE", "tile of scores, mask", "tile of weights in CMX"),
        ("PV of the tile", "DPU", "tile of weights, of transposed v", "part of the output in CMX"),
        ("after the last tile: output / sum", "SHAVE", "output, sum in CMX", "result"),
    ),
    "incremental": (
        ("incremental_sdpa: q times k, mask, online softmax, times v", "SHAVE", "q, run of k and v, mask", "result, or running state in CMX"),
    ),
}  # fmt: skip
SCORES = {
    "decompose": "scores and weights are whole tensors: in CMX where they fit, else they go to DDR and come back",
    "flash": "scores never leave CMX",
    "incremental": "scores never leave the registers of a SHAVE",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the topic."""
    parser.add_argument(
        "--phase", choices=("prefill", "decode"), help="of attention: several queries, or one (default prefill)"
    )
    parser.add_argument("--long", choices=("yes", "no"), help="of attention: scores do not live in CMX (default yes)")
    parser.add_argument("--cap", choices=("yes", "no"), help="of attention: the kernels can do it (default yes)")


def refuse(options: argparse.Namespace) -> None:
    """Raise ToolError for an option that belongs to this topic alone."""
    for name in ONLY_HERE:
        if getattr(options, name) is not None:
            raise ToolError(f"--{name}: is of the topic attention")


def run(options: argparse.Namespace) -> int:
    """Print the path and its data flow."""
    from libnpu.compiler.attention import select_path

    if options.model is not None:
        raise ToolError("attention: takes no model; npu compile MODEL --dump-pass SelectAttentionPath tells of one")
    phase = options.phase or "prefill"
    path = select_path(phase == "prefill", options.long != "no", options.cap != "no")
    if options.json:
        steps = [dict(zip(("step", "engine", "from", "to"), step, strict=True)) for step in FLOWS[path]]
        print_json({"path": path, "steps": steps, "scores": SCORES[path]})
        return 0
    print_table(f"{phase}: {path}", ("step", "engine", "from", "to"), list(FLOWS[path]), left=4)
    print(SCORES[path])
    return 0
