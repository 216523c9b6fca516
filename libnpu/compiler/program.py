"""Tile program: what the lowering hands to the scheduler. A list of engine operations on buffers, correct when run in list order.

The scheduler may reorder operations as long as every pair that touches the same bytes (one of them writing) keeps its order;
it places each CMX buffer, spills it if it must, and gives each operation its queue. The emitter then turns operations into
descriptors. An operation never names an address, only `Buffer` or `DdrTensor` plus an offset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from libnpu.compiler.kernels.program import ArgsTemplate


class Engine(IntEnum):
    """Which engine runs an operation; the scheduler picks the DMA port, or the tile with its DPU or SHAVE."""

    DMA = 1
    DPU = 2
    SHAVE = 3


class DdrKind(IntEnum):
    """Where a DDR tensor lives in the blob: which section or symbol its addresses are relative to."""

    WEIGHTS = 0
    SCRATCH = 1
    INPUT = 2
    OUTPUT = 3


@dataclass(slots=True, eq=False)
class Buffer:
    """A contiguous range of one tile's CMX, placed by the scheduler (64-byte aligned), possibly elsewhere after a spill.

    With `copies` it is at the same place in so many tiles, which are all: DPUs write all of them and read their own. To others
    its bytes are those of the first tile; an offset of whole tile strides more names another copy.
    """

    name: str
    size_bytes: int
    copies: int = 1


@dataclass(slots=True, eq=False)
class DdrTensor:
    """A contiguous DDR range. `offset` in its section is set by who allocates it (weights and I/O: lowering; scratch: scheduler)."""

    name: str
    size_bytes: int
    kind: DdrKind
    offset: int = 0
    symbol: str = ""  # "in:NAME" / "out:NAME" for I/O; section name otherwise


@dataclass(slots=True, frozen=True)
class Access:
    """Bytes of `target` that an operation reads or writes: `width` contiguous bytes at `offset`, repeated over `dims`.

    `dims` are (count, stride_bytes) pairs, outermost first, as `npu_model.footprint.box` brings them into one form; () = one run.
    """

    target: Buffer | DdrTensor
    offset: int
    width: int
    dims: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True, frozen=True)
class Ref:
    """An address operand: start of `target` plus `offset` bytes."""

    target: Buffer | DdrTensor
    offset: int = 0


@dataclass(slots=True, eq=False)
class DmaPayload:
    """Fields of struct npu_dma_descriptor; the two ends are Refs."""

    src: Ref
    dst: Ref
    length: int
    num_planes: int = 1
    src_plane_stride: int = 0
    dst_plane_stride: int = 0
    src_width: int = 0  # 0 = length
    src_stride: int = 0
    dst_width: int = 0  # 0 = length
    dst_stride: int = 0


@dataclass(slots=True, eq=False)
class DpuPayload:
    """Fields of struct npu_dpu_invariant (addresses as Refs under their field names) and of its variants."""

    refs: dict[str, Ref]  # act_addr, act2_addr, wt_addr, wt_table_addr, out_addr
    invariant: dict[str, Any]
    variants: list[dict[str, Any]]


FAR = {
    "act_addr": 1,
    "wt_addr": 2,
    "act2_addr": 2,
    "out_addr": 4,
}  # operands of a DPU task, as bits of TileOp.far_ps' indices


@dataclass(slots=True, eq=False)
class ShavePayload:
    """A program (`code`, shared between operations when equal) and its argument block, made when addresses are known."""

    code: bytes
    refs: list[Ref]  # operands, in DDR only what the program reads row by row
    args: ArgsTemplate  # addresses of `refs`, in order -> argument block


@dataclass(slots=True, eq=False)
class TileOp:
    """One task. `cost_ps` is the predicted duration on an idle engine, `path_ps` how long a transfer keeps the path to DDR from others.

    Of a DPU task `far_ps` has it by what lies in another tile's CMX than the DPU's: the sum of FAR of these operands.
    """

    name: str
    layer: str
    engine: Engine
    cost_ps: int
    reads: list[Access]
    writes: list[Access]
    payload: DmaPayload | DpuPayload | ShavePayload
    attrs: dict[str, Any] = field(default_factory=dict)  # for dumps: tile, what it is
    far_ps: tuple[int, ...] = ()  # empty: `cost_ps` everywhere
    path_ps: int = 0


@dataclass(slots=True, eq=False)
class TileProgram:
    """Operations in an order that is correct when run one after the other, and the tensors they use."""

    name: str
    ops: list[TileOp]
    ddr: list[DdrTensor]  # weights, inputs, outputs; scratch tensors of intermediate activations
    constants: list[tuple[int, Callable[[], bytes]]]  # content of the WEIGHTS tensors, with its offset; empty in a plan
    macs: int = 0
    weight_bytes: int = 0  # of the WEIGHTS tensors
    leaves_few: bool = False  # elements to one unit of an engine that more could share

    @property
    def weights(self) -> bytearray:
        """The content of all WEIGHTS tensors; empty in a plan."""
        found = bytearray(self.weight_bytes if self.constants else 0)
        for offset, content in self.constants:
            part = content()
            found[offset : offset + len(part)] = part
        return found
