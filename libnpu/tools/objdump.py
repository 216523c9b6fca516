"""`npu objdump BLOB`: what is in a blob. Without options a summary; with options the parts that they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_abi import C
from npu_model import dtypes

from libnpu import blob
from libnpu.blob import TASK_SECTIONS, BlobImage, elf
from libnpu.blob.text import task_lines, task_names
from libnpu.tools import cmx_map
from libnpu.tools.console import ToolError, format_bytes, format_count, print_json, print_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

# Option -> what it prints; shared by the parser and the loop over them.
_PARTS = {
    "sections": "sections of the file",
    "mapped": "struct npu_mapped_inference",
    "tasks": "DMA, DPU and SHAVE tasks, field by field",
    "barriers": "virtual barriers, their producers and consumers",
    "shave": "SHAVE programs, disassembled",
    "cmx": "CMX map over time",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("blob", metavar="BLOB")
    for name, text in _PARTS.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument("--all", action="store_true", help="all of these")
    parser.add_argument(
        "--text", action="store_true", help="the whole blob in the text form, from which it can be made again"
    )
    parser.add_argument("--verify", action="store_true", help="check every rule; exit status 1 when one is broken")
    parser.add_argument(
        "--hazards", action="store_true", help="with --verify: also find conflicting tasks that nothing orders"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print `options.blob`. Raises ToolError when --verify finds a problem."""
    data = Path(options.blob).read_bytes()
    image = blob.read(data)
    if options.hazards and not options.verify:
        raise ToolError("--hazards goes with --verify")
    problems = blob.verify(image) if options.verify else []
    if options.hazards and not problems:
        problems = blob.hazards(image)
    wanted = [name for name in _PARTS if options.all or getattr(options, name)]
    if options.json:
        print_json(_json(image, data, [str(p) for p in problems] if options.verify else None))
    elif options.text:
        print(blob.disassemble(image), end="")
    else:
        if not wanted and not options.verify:
            wanted = ["sections", "mapped"]
            _print_summary(image)
        printers: dict[str, Callable[[BlobImage, bytes], None]] = {
            "sections": _print_sections,
            "mapped": _print_mapped,
            "tasks": _print_tasks,
            "barriers": _print_barriers,
            "shave": _print_shave,
            "cmx": _print_cmx,
        }
        for name in wanted:
            printers[name](image, data)
        for problem in problems:
            print(problem)
    if problems:
        raise ToolError(f"{options.blob}: {len(problems)} rules broken, the first: {problems[0]}")
    if options.verify and not options.json:
        print(f"{options.blob}: no rule broken")
    return 0


def _tensors(image: BlobImage) -> list[tuple[str, str, str, str]]:
    return [
        (kind, t.name, f"{dtypes.name(t.dtype)} {list(t.shape)}", format_bytes(t.size_bytes))
        for kind, tensors in (("input", image.inputs), ("output", image.outputs))
        for t in tensors
    ]


def _print_summary(image: BlobImage) -> None:
    rows = [
        ("profile", image.profile),
        ("tiles", str(image.tile_count)),
        ("CMX used per tile", format_bytes(image.cmx_bytes)),
        ("physical barriers", str(image.barrier_count)),
        ("work", format_count(image.macs, "MAC")),
        ("weights", format_bytes(len(image.weights))),
        ("scratch", format_bytes(image.scratch_bytes)),
        ("relocations", str(len(image.relocations))),
    ]
    print_table(image.name, ("", ""), rows)
    print_table("tensors", ("", "name", "type", "size"), _tensors(image), left=3)


def _print_sections(_: BlobImage, data: bytes) -> None:
    rows = [(s.name, f"{s.offset:#x}", str(s.size_bytes), _flags(s.flags), "no bytes in the file" if s.type == elf.SHT_NOBITS else "") for s in blob.section_table(data)]  # fmt: skip
    print_table("sections", ("name", "offset", "bytes", "flags", ""), rows)


def _flags(flags: int) -> str:
    names = {
        elf.SHF_WRITE: "write",
        elf.SHF_ALLOC: "alloc",
        elf.SHF_EXECINSTR: "code",
        C.NPU_SHF_IO_INPUT: "input",
        C.NPU_SHF_IO_OUTPUT: "output",
        C.NPU_SHF_LOW: "low",
    }
    return " ".join(name for bit, name in names.items() if flags & bit)


def _print_mapped(image: BlobImage, _: bytes) -> None:
    rows = [(field, name, str(len(image.tasks.get(name, ())))) for name, field in elf.MAPPED_REFS.items()]
    title = f"MappedInference: tiles {image.tile_count}, barriers {image.barrier_count}"
    print_table(title, ("list", "section", "entries"), rows, left=2)


def _print_tasks(image: BlobImage, _: bytes) -> None:
    pending = {(r.section, r.offset): r for r in image.relocations}
    for section in TASK_SECTIONS:
        if section in image.tasks and section != ".npu.barriers":
            print(f"{section}: {len(image.tasks[section])} entries")
            for line in task_lines(image.tasks[section], section, pending, task_names(image)):
                print(line)


def _print_barriers(image: BlobImage, _: bytes) -> None:
    posts, waits = _users(image)
    array = image.tasks.get(".npu.barriers", ())
    rows = []
    for index in range(len(array)):
        entry = array[index]
        following = "last" if entry["next_same_id"] == C.NPU_BARRIER_NONE else str(entry["next_same_id"])
        counts = str(entry["producer_count"]), str(entry["consumer_count"])
        rows.append((str(index), str(entry["real_id"]), *counts, following))
    print_table(f"{len(rows)} virtual barriers", ("index", "id", "producers", "consumers", "next on the id"), rows)
    users = [(str(i), str(posts.get(i, 0)), str(waits.get(i, 0))) for i in range(image.barrier_count)]
    print_table("physical ids", ("id", "tasks that post", "tasks that wait"), users)


def _users(image: BlobImage) -> tuple[dict[int, int], dict[int, int]]:
    """Return how many tasks post and wait per physical id."""
    posts: dict[int, int] = {}
    waits: dict[int, int] = {}
    for array in image.tasks.values():
        if "barriers_post_mask" in (array.dtype.names or ()):
            for found, field in ((posts, "barriers_post_mask"), (waits, "barriers_wait_mask")):
                for mask in array[field].tolist():
                    for bit in range(C.NPU_MAX_BARRIER_IDS):
                        if mask >> bit & 1:
                            found[bit] = found.get(bit, 0) + 1
    return posts, waits


def _print_shave(image: BlobImage, _: bytes) -> None:
    from npu_model import shave_isa

    ranges = image.tasks.get(".npu.tasks.shave_range", ())
    starts = {r.offset: r.addend for r in image.relocations if r.section == ".npu.tasks.shave_range"}
    for index in range(len(ranges)):
        start = starts.get(index * ranges[index].dtype.itemsize, 0)
        code = image.text[start : start + int(ranges[index]["code_bytes"])]
        print(f"program {index}: {len(code)} bytes at {start:#x}")
        try:
            for line in shave_isa.disassemble(code).splitlines():
                print(f"    {line}")
        except (shave_isa.ShaveFault, shave_isa.AssemblyError) as error:
            print(f"    not a program: {error}")


def _print_cmx(image: BlobImage, _: bytes) -> None:
    found = cmx_map.placements(image)
    for tile in range(image.tile_count):
        here = [p for p in found if p.tile == tile]
        if not here:
            continue
        print(f"CMX of tile {tile}, {format_bytes(image.cmx_bytes)}: addresses down, tasks across")
        for line in cmx_map.draw(here, image.cmx_bytes):
            print(line)
        rows = [
            (cmx_map.letter(i), p.name, f"{p.offset:#x}", str(p.size_bytes), f"{p.first} to {p.last}")
            for i, p in enumerate(here)
        ]
        print_table("buffers", ("", "buffer", "offset", "bytes", "tasks"), rows, left=2)


def _json(image: BlobImage, data: bytes, problems: list[str] | None) -> dict[str, Any]:
    """Return everything but constants and code, with tasks field by field."""
    found: dict[str, Any] = {
        "name": image.name,
        "profile": image.profile,
        "tile_count": image.tile_count,
        "cmx_bytes": image.cmx_bytes,
        "barrier_count": image.barrier_count,
        "macs": image.macs,
        "weight_bytes": len(image.weights),
        "scratch_bytes": image.scratch_bytes,
        "inputs": [_tensor_json(t) for t in image.inputs],
        "outputs": [_tensor_json(t) for t in image.outputs],
        "sections": [
            {"name": s.name, "offset": s.offset, "bytes": s.size_bytes, "flags": _flags(s.flags).split()}
            for s in blob.section_table(data)
        ],
        "tasks": {
            section: [dict(zip(array.dtype.names or (), row, strict=True)) for row in array.tolist()]
            for section, array in image.tasks.items()
        },
        "relocations": [
            {"section": r.section, "offset": r.offset, "symbol": r.symbol, "addend": r.addend, "width": r.width}
            for r in image.relocations
        ],
        "debug": image.debug,
    }
    if problems is not None:
        found["problems"] = problems
    return found


def _tensor_json(tensor: blob.IoTensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dtype": dtypes.name(tensor.dtype),
        "shape": list(tensor.shape),
        "bytes": tensor.size_bytes,
    }
