"""A blob in memory: what the compiler fills in and the container stores. No ELF here (see `elf.py`), no loading (runtime).

Task lists are NumPy record arrays of the header's structures (`npu_abi.dtype`). Fields that hold device virtual addresses of
DDR stay zero and have a `Relocation`; CMX addresses are final.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Sections that hold task lists: name -> structure. Order is file order.
TASK_SECTIONS = {
    ".npu.tasks.dma0": "npu_dma_task",
    ".npu.tasks.dma1": "npu_dma_task",
    ".npu.tasks.dpu_invariant": "npu_dpu_invariant",
    ".npu.tasks.dpu_variant": "npu_dpu_variant",
    ".npu.tasks.shave_range": "npu_shave_range",
    ".npu.tasks.shave_invocation": "npu_shave_invocation",
    ".npu.barriers": "npu_barrier_config",
}


class BlobError(ValueError):
    """A blob that cannot be trusted: names the section, the offset, what was found and what was expected."""


@dataclass(frozen=True, slots=True)
class Relocation:
    """Patch `width` bytes at `offset` of `section` with the device address of `symbol` plus `addend`.

    Symbols: a section's name, or "in:NAME" / "out:NAME" for a network input or output.
    """

    section: str
    offset: int
    symbol: str
    addend: int
    width: int = 8


@dataclass(frozen=True, slots=True)
class IoTensor:
    """A network input or output as the caller sees it: dense, row-major, `dtype` an enum npu_dtype code."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class KernelParam:
    """A parameter of a kernel: `kind` of enum npu_arg_kind, `direction` of enum npu_arg_direction (scalars: IN).

    `dtype` of enum npu_dtype: a buffer's elements; I64 for an integer, F32 for a float.
    """

    name: str
    kind: int
    direction: int
    dtype: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """A SHAVE program that is launched by name: `code_bytes` at `text_offset` of .text.shave.

    `flags` of enum npu_kernel_flag; `max_grid` is the most blocks that make sense, 0 = any number.
    """

    name: str
    params: tuple[KernelParam, ...]
    text_offset: int
    code_bytes: int
    flags: int = 0
    max_grid: int = 0


@dataclass(slots=True, eq=False)
class BlobImage:
    """A compiled model, or a kernel library, which has kernels and their text and nothing else.

    `tasks` has one record array per entry of TASK_SECTIONS (absent = empty).
    """

    name: str
    profile: str
    tile_count: int
    cmx_bytes: int
    barrier_count: int
    inputs: list[IoTensor]
    outputs: list[IoTensor]
    tasks: dict[str, NDArray[np.void]]
    text: bytes = b""  # .text.shave
    shave_args: bytes = b""  # .data.shave_args
    weights: bytes = b""  # .data.weights
    planned_weight_bytes: int = 0  # of .data.weights in a plan, which has no values: `weights` is empty then
    scratch_bytes: int = 0  # .bss.scratch
    relocations: list[Relocation] = field(default_factory=list)
    macs: int = 0
    kernels: list[Kernel] = field(default_factory=list)  # not empty = a kernel library
    debug: dict[str, Any] = field(default_factory=dict)  # "tasks": [{"name", "op"}] by task_id; "stats"; free-form

    @property
    def weight_bytes(self) -> int:
        """Size of .data.weights."""
        return self.planned_weight_bytes or len(self.weights)

    def __eq__(self, other: object) -> bool:
        """Compare content: absent and empty task lists are the same, the order of relocations does not count."""
        if not isinstance(other, BlobImage):
            return NotImplemented
        names = [f.name for f in fields(self) if f.name not in ("tasks", "relocations")]
        return (
            all(getattr(self, name) == getattr(other, name) for name in names)
            and sorted(self.relocations, key=_relocation_key) == sorted(other.relocations, key=_relocation_key)
            and all(_equal_records(self.tasks.get(s), other.tasks.get(s)) for s in {*self.tasks, *other.tasks})
        )

    __hash__ = None  # type: ignore[assignment]  # mutable


def _relocation_key(relocation: Relocation) -> tuple[str, int, str, int]:
    return relocation.section, relocation.offset, relocation.symbol, relocation.addend


def _equal_records(a: NDArray[np.void] | None, b: NDArray[np.void] | None) -> bool:
    """Compare every named field bit by bit, so that NaN equals itself."""
    if a is None or b is None:
        return (a is None or not len(a)) and (b is None or not len(b))
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return all(a[name].tobytes() == b[name].tobytes() for name in a.dtype.names or ())
