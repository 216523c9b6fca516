"""`npu objdump --json`: everything in a blob but constants and code, as one value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npu_abi import C, name_of
from npu_model import dtypes

from libnpu import blob
from libnpu.blob import BlobImage, elf

if TYPE_CHECKING:
    from collections.abc import Sequence


def blob_json(image: BlobImage, data: bytes, problems: Sequence[blob.Problem] | None) -> dict[str, Any]:
    """Return `image`, read from the file `data`, with tasks field by field; `problems` are None when none were looked for."""
    found: dict[str, Any] = {
        "name": image.name,
        "profile": image.profile,
        "tile_count": image.tile_count,
        "cmx_bytes": image.cmx_bytes,
        "barrier_count": image.barrier_count,
        "macs": image.macs,
        "weight_bytes": image.weight_bytes,
        "scratch_bytes": image.scratch_bytes,
        "inputs": [_tensor_json(t) for t in image.inputs],
        "outputs": [_tensor_json(t) for t in image.outputs],
        "sections": [
            {"name": s.name, "offset": s.offset, "bytes": s.size_bytes, "flags": flag_names(s.flags)}
            for s in blob.section_table(data)
        ],
        "tasks": {
            section: [dict(zip(array.dtype.names or (), row, strict=True)) for row in array.tolist()]
            for section, array in image.tasks.items()
        },
        "mapped_inference": None if image.kernels else _mapped_json(image),
        "kernels": [kernel_json(kernel) for kernel in image.kernels],
        "relocations": [
            {"section": r.section, "offset": r.offset, "symbol": r.symbol, "addend": r.addend, "width": r.width}
            for r in image.relocations
        ],
        "debug": image.debug,
    }
    if problems is not None:
        found["problems"] = [_problem_json(problem) for problem in problems]
    return found


def _mapped_json(image: BlobImage) -> dict[str, Any]:
    return {
        "api_version": C.NPU_MI_API_VERSION,
        "tile_count": image.tile_count,
        "barrier_count": image.barrier_count,
        **{field: len(image.tasks.get(name, ())) for name, field in elf.MAPPED_REFS.items()},
    }


def kernel_json(kernel: blob.Kernel) -> dict[str, Any]:
    """Return a kernel of a library for JSON."""
    return {
        "name": kernel.name,
        "text_offset": kernel.text_offset,
        "code_bytes": kernel.code_bytes,
        "flags": kernel.flags,
        "max_grid": kernel.max_grid,
        "params": [
            {
                "name": p.name,
                "kind": name_of("npu_arg_kind", p.kind),
                "direction": name_of("npu_arg_direction", p.direction),
                "dtype": dtypes.name(p.dtype),
            }
            for p in kernel.params
        ],
    }


def _problem_json(problem: blob.Problem) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rule": problem.rule,
        "kind": problem.kind,
        "where": problem.where,
        "message": problem.message,
    }
    if problem.other:
        found["other"] = problem.other
    if problem.place:
        found |= {"place": problem.place, "first": problem.first, "past": problem.past}
    return found


def _tensor_json(tensor: blob.IoTensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dtype": dtypes.name(tensor.dtype),
        "shape": list(tensor.shape),
        "bytes": tensor.size_bytes,
    }


def flag_names(flags: int) -> list[str]:
    """Return what the flags of a section mean."""
    names = {
        elf.SHF_WRITE: "write",
        elf.SHF_ALLOC: "alloc",
        elf.SHF_EXECINSTR: "code",
        C.NPU_SHF_IO_INPUT: "input",
        C.NPU_SHF_IO_OUTPUT: "output",
        C.NPU_SHF_LOW: "low",
    }
    return [name for bit, name in names.items() if flags & bit]
