"""`npu objdump BLOB`: what is in a blob. Without options a summary; with options the parts that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_abi import C, name_of
from npu_model import dtypes

from libnpu import blob
from libnpu.blob import TASK_SECTIONS, BlobImage, elf
from libnpu.blob.text import task_lines, task_names
from libnpu.tools import cmx_map, source
from libnpu.tools.console import CheckFailed, ToolError, format_bytes, format_count, print_json, print_table
from libnpu.tools.objdump_json import blob_json, flag_names
from libnpu.tools.weights import weights_by_layer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

# Option -> what it prints; shared by the parser and the loop over them.
_PARTS = {
    "sections": "sections of the file",
    "kernels": "kernels of a library, their sizes and parameters",
    "mapped": "struct npu_mapped_inference",
    "tasks": "DMA, DPU and SHAVE tasks, field by field",
    "dpu": "DPU invariants, each with its variants",
    "barriers": "virtual barriers, their producers and consumers",
    "shave": "SHAVE programs, disassembled",
    "cmx": "CMX map over time",
    "cmx_live": "bytes that are live in CMX over time, and the most at once",
    "weights_by_layer": "bytes of the weights section by the layer that loads them",
}
# Those that a kernel library has.
_LIBRARY_PARTS = ("sections", "kernels", "shave")
# Other names of an option, as the structures of the header have them.
_ALIASES = {"mapped": ("--mapped-inference",)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("blob", metavar="BLOB")
    for name, text in _PARTS.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, *_ALIASES.get(name, ()), dest=name, action="store_true", help=text)
    parser.add_argument("--all", action="store_true", help="all of these")
    parser.add_argument(
        "--depth",
        type=source.positive,
        metavar="N",
        help="of --weights-by-layer: take layers together whose names agree up to the Nth '/'",
    )
    parser.add_argument(
        "--text", action="store_true", help="the whole blob in the text form, from which it can be made again"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="check every rule, and prove that tasks which share bytes are ordered; exit status 1 when something is wrong",
    )
    parser.add_argument(
        "--check-flat",
        action="store_true",
        help="check that the lists name every task once: no loop, no choice at run time",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print `options.blob`. Raises ToolError when --verify finds a problem."""
    if source.is_parted(options.blob):
        return _print_parts(options)
    data, image = source.read_blob(options.blob)
    if options.depth and not (options.weights_by_layer or options.all):
        raise ToolError("--depth goes with --weights-by-layer")
    _check_options(options, bool(image.kernels))
    problems = blob.prove(image) if options.verify else []
    if options.check_flat:
        problems += _repeated(image)
    wanted = [name for name in _PARTS if options.all or getattr(options, name)]
    if options.json:
        print_json(blob_json(image, data, problems if options.verify or options.check_flat else None))
    elif options.text:
        print(blob.disassemble(image), end="")
    else:
        if not wanted and not options.verify and not options.check_flat:
            wanted = ["sections", "kernels" if image.kernels else "mapped"]
            if not image.kernels:
                _print_summary(image)
        printers: dict[str, Callable[[BlobImage, bytes], None]] = {
            "sections": _print_sections,
            "kernels": _print_kernels,
            "mapped": _print_mapped,
            "tasks": _print_tasks,
            "dpu": _print_dpu,
            "barriers": _print_barriers,
            "shave": _print_shave,
            "cmx": _print_cmx,
            "cmx_live": _print_cmx_live,
            "weights_by_layer": lambda image, _: _print_weights(image, options.depth),
        }
        for name in wanted:
            if options.all and name not in (_LIBRARY_PARTS if image.kernels else _PARTS):
                continue
            printers[name](image, data)
        for problem in problems:
            print(problem)
    if problems:
        raise CheckFailed(f"{options.blob}: {len(problems)} rules broken, the first: {problems[0]}")
    if options.verify and not options.json:
        print(f"{options.blob}: no rule broken")
    if options.check_flat and not options.json:
        lists = {name: len(array) for name, array in image.tasks.items() if "task_id" in (array.dtype.names or ())}
        print(f"{options.blob}: flat, {sum(lists.values())} tasks in {len(lists)} lists, each once")
    return 0


def _print_parts(options: argparse.Namespace) -> int:
    """Print what a model in parts holds. Raises ToolError for an option that is about one blob."""
    from libnpu.compiler.partition.report import partition_text

    _, model = source.read_parts(options.blob)
    for name in sorted(set(vars(options)) - {"blob", "command", "run", "json", "version"}):
        if getattr(options, name):
            what = "a model in parts; unzip takes its blobs out"
            raise ToolError(f"--{name.replace('_', '-')}: {options.blob} is {what}")
    lines = partition_text(model)
    if options.json:
        print_json({"parts": lines})
    else:
        print("\n".join(lines))
    return 0


def _check_options(options: argparse.Namespace, is_library: bool) -> None:
    """Raise ToolError for an option that names what a file of this kind cannot have."""
    if is_library:
        what, without = (
            "a kernel library, which has no tasks",
            (*_PARTS.keys() - set(_LIBRARY_PARTS), "check_flat"),
        )
    else:
        what, without = "a compiled model, which has no table of kernels", ("kernels",)
    for name in sorted(without):
        if getattr(options, name):
            raise ToolError(f"--{name.replace('_', '-')}: {options.blob} is {what}")


def _repeated(image: BlobImage) -> list[blob.Problem]:
    """Return a problem for every task that the lists name a second time."""
    seen: dict[int, str] = {}
    found = []
    for section, array in image.tasks.items():
        if "task_id" not in (array.dtype.names or ()):
            continue
        for index, task_id in enumerate(array["task_id"].tolist()):
            if task_id in seen:
                found.append(blob.Problem("flat", f"{section}[{index}]", f"task {task_id} is {seen[task_id]} too"))
            seen.setdefault(task_id, f"{section}[{index}]")
    return found


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
        (
            "weights",
            format_bytes(image.weight_bytes) + (", not in the file: a plan" if image.planned_weight_bytes else ""),
        ),
        ("scratch", format_bytes(image.scratch_bytes)),
        ("relocations", str(len(image.relocations))),
    ]
    print_table(image.name, ("", ""), rows)
    print_table("tensors", ("", "name", "type", "size"), _tensors(image), left=3)


def _print_sections(_: BlobImage, data: bytes) -> None:
    rows = [(s.name, f"{s.offset:#x}", str(s.size_bytes), " ".join(flag_names(s.flags)), "no bytes in the file" if s.type == elf.SHT_NOBITS else "") for s in blob.section_table(data)]  # fmt: skip
    print_table("sections", ("name", "offset", "bytes", "flags", ""), rows)


def _print_mapped(image: BlobImage, _: bytes) -> None:
    rows = [(field, name, str(len(image.tasks.get(name, ())))) for name, field in elf.MAPPED_REFS.items()]
    title = f"MappedInference: tiles {image.tile_count}, barriers {image.barrier_count}"
    print_table(title, ("list", "section", "entries"), rows, left=2)


def _print_kernels(image: BlobImage, _: bytes) -> None:
    if not image.kernels:
        return
    rows = [
        (
            k.name,
            str(k.code_bytes),
            f"{k.text_offset:#x}",
            str(k.max_grid or "any"),
            ", ".join(p.name for p in k.params),
        )
        for k in image.kernels
    ]
    print_table(f"kernel library {image.name}", ("kernel", "code bytes", "at", "blocks", "parameters"), rows)


def _print_tasks(image: BlobImage, _: bytes) -> None:
    pending = {(r.section, r.offset): r for r in image.relocations}
    for section in TASK_SECTIONS:
        if section in image.tasks and section != ".npu.barriers":
            print(f"{section}: {len(image.tasks[section])} entries")
            for line in task_lines(image.tasks[section], section, pending, task_names(image)):
                print(line)


def _print_dpu(image: BlobImage, _: bytes) -> None:
    invariants = image.tasks.get(".npu.tasks.dpu_invariant", ())
    variants = image.tasks.get(".npu.tasks.dpu_variant", ())
    names = task_names(image)
    operations = {
        code: name_of("npu_dpu_op", code).removeprefix("NPU_DPU_") for code in range(C.NPU_DPU_ELTWISE_MUL + 1)
    }
    for index in range(len(invariants)):
        entry = invariants[index]
        task_id, first, n = (int(entry[f]) for f in ("task_id", "variant_first", "variant_count"))
        name = names[task_id] if task_id < len(names) else f"task {task_id}"
        operation = operations.get(int(entry["op"]), f"op {entry['op']}")
        shapes = [" x ".join(str(entry[f"{side}_{axis}"]) for axis in "yxz") for side in ("in", "out")]
        print(f"invariant {index}: {operation} {shapes[0]} -> {shapes[1]}, {n} variants   # {name}")
        for number in range(first, min(first + n, len(variants))):
            v = variants[number]
            start, size = (" ".join(f"{axis}={v[f'{what}_{axis}']}" for axis in "yxz") for what in ("start", "size"))
            print(f"    variant {number}: from {start}, size {size}")


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
    if image.kernels:
        for kernel in image.kernels:
            _print_program(f"kernel {kernel.name}", image.text, kernel.text_offset, kernel.code_bytes)
        return
    ranges = image.tasks.get(".npu.tasks.shave_range", ())
    starts = {r.offset: r.addend for r in image.relocations if r.section == ".npu.tasks.shave_range"}
    for index in range(len(ranges)):
        start = starts.get(index * ranges[index].dtype.itemsize, 0)
        _print_program(f"program {index}", image.text, start, int(ranges[index]["code_bytes"]))


def _print_program(title: str, text: bytes, start: int, code_bytes: int) -> None:
    from npu_model import shave_isa

    code = text[start : start + code_bytes]
    print(f"{title}: {len(code)} bytes at {start:#x}")
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


def _print_weights(image: BlobImage, depth: int | None) -> None:
    found = weights_by_layer(image, depth)
    loads = sum(layer.loads for layer in found)
    title = f"{image.weight_bytes} bytes of weights, {loads} transfers of them"
    print_table(title, ("layer", "bytes", "transfers"), [(w.name, str(w.nbytes), str(w.loads)) for w in found])


def _print_cmx_live(image: BlobImage, _: bytes) -> None:
    found = cmx_map.placements(image)
    for tile in range(image.tile_count):
        steps = cmx_map.live_bytes([p for p in found if p.tile == tile])
        if not steps:
            continue
        most = max(steps, key=lambda step: step.live_bytes)
        rows = [(str(s.task), str(s.live_bytes), str(s.buffers)) for s in steps]
        print_table(f"live in CMX of tile {tile}", ("from task", "bytes", "buffers"), rows)
        print(f"most at once: {most.live_bytes} bytes from task {most.task}; all weights: {image.weight_bytes} bytes\n")
