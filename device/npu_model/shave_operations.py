"""Descriptors of the operations that a SHAVE program starts: from bytes in memory to checked records that engines take.

The rules are those of the firmware for task lists, for one operation at a time. docs/shave-isa.md says what a descriptor of a
program may not have: barriers, a start condition, another tile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from npu_abi import C, codec, dtype, sizeof

from npu_model import descriptors, dtypes, footprint
from npu_model.descriptors import DescriptorError, Dma, Invariant, check_disjoint
from npu_model.footprint import Box

Records = np.ndarray[Any, np.dtype[np.void]]

DMA_BYTES = sizeof("npu_dma_descriptor")
INVARIANT_BYTES, VARIANT_BYTES = sizeof("npu_dpu_invariant"), sizeof("npu_dpu_variant")
MAX_VARIANTS = 1 << 10  # of one operation; chosen: more than any tensor in CMX is cut into
_DMA = codec("npu_dma_descriptor", *Dma._fields, "cfg", "reserved")
VA_END = 1 << int(C.NPU_VA_BITS)
CMX_BASE, CMX_END, CMX_STRIDE = int(C.NPU_CMX_BASE), int(C.NPU_CMX_END), int(C.NPU_CMX_TILE_STRIDE)


def dma_descriptor(raw: bytes, workspace_bytes: int, tiles: int) -> Dma:
    """Return the checked descriptor in the bytes of struct npu_dma_descriptor. DescriptorError names what is wrong.

    The CMX window shows `tiles` tiles, of which each has `workspace_bytes`.
    """
    *values, cfg, reserved = _DMA.unpack(raw)
    if any(reserved):
        raise DescriptorError("DMA reserved is not zero")
    if cfg:
        raise DescriptorError(f"DMA cfg {cfg:#x} is reserved and must be 0")
    dma = Dma.of(values)
    reads, writes = footprint.dma_boxes(dma)
    for end, box in (("src", reads[0]), ("dst", writes[0])):
        _check_range(f"DMA {end}", box, workspace_bytes, tiles, on_chip=False)
    rows = dma.length // dma.dst_width
    check_disjoint("DMA dst", dma.dst_width, (rows, dma.dst_stride), (dma.num_planes, dma.dst_plane_stride))
    return dma


def variant_count(raw: bytes) -> int:
    """Return how many variants follow the invariant in `raw`. DescriptorError when there is none or too many."""
    count = int(np.frombuffer(raw, dtype("npu_dpu_invariant"))["variant_count"][0])
    if not 1 <= count <= MAX_VARIANTS:
        raise DescriptorError(f"DPU variant_count {count} is not in [1, {MAX_VARIANTS}]")
    return count


def dpu_records(
    raw: bytes, raw_variants: bytes, workspace_bytes: int, tiles: int, tile: int
) -> tuple[Records, Records]:
    """Return struct npu_dpu_invariant[1] and its variants. DescriptorError names what is wrong.

    As `dma_descriptor`; `tile` is the tile of the window that the SHAVE belongs to.
    """
    invariants = _checked("npu_dpu_invariant", raw, "DPU")
    variants = _checked("npu_dpu_variant", raw_variants, "DPU variant")
    record = invariants[0]
    expected = {
        "barriers_wait_mask": 0,
        "barriers_post_mask": 0,
        "sched_start_after": int(C.NPU_BARRIER_NONE),
        "variant_first": 0,
        "tile": tile,
    }
    for name, value in expected.items():
        if int(record[name]) != value:
            raise DescriptorError(f"DPU {name} {int(record[name]):#x} of an operation of a program must be {value:#x}")
    if int(record["flags"]) & ~descriptors.DPU_FLAGS:
        raise DescriptorError(f"DPU flags {int(record['flags']):#x} has bits that are not in enum npu_dpu_flag")
    if int(record["mpe_grid"]) > C.NPU_MPE_4X16:
        raise DescriptorError(f"DPU mpe_grid {int(record['mpe_grid'])} is not in enum npu_mpe_grid")
    invariant = Invariant.decode(record)
    for variant in variants:
        if int(variant["invariant_index"]):
            raise DescriptorError("DPU invariant_index of a variant of a program must be 0")
        pads = [int(variant["pad_" + side]) for side in ("left", "right", "top", "bottom")]
        if invariant.op in descriptors.ELTWISE and any(pads):
            raise DescriptorError(f"DPU pads {pads} of an element-wise operation must be 0")
    reads, writes = footprint.dpu_footprint(record, variants)
    for box in (*reads, *writes):
        _check_range("DPU operand", box, workspace_bytes, tiles, on_chip=True)
    _check_pixels("DPU act", invariant.in_x, invariant.in_y, invariant.in_z, invariant.act_dtype, record, "act")
    _check_pixels("DPU out", invariant.out_x, invariant.out_y, invariant.out_z, invariant.out_dtype, record, "out")
    return invariants, variants


def _checked(struct: str, raw: bytes, what: str) -> Records:
    full = np.frombuffer(raw, dtype(struct, reserved=True))
    for name in full.dtype.names or ():
        if "reserved" in name and full[name].any():
            raise DescriptorError(f"{what} {name} is not zero")
    return np.frombuffer(raw, dtype(struct))


def _check_range(what: str, box: Box, workspace_bytes: int, tiles: int, on_chip: bool) -> None:
    if box.addr < 0 or box.end > VA_END:
        raise DescriptorError(f"{what} [{box.addr:#x}, {box.end:#x}) is not inside 48 bits")
    if not on_chip and (box.end <= CMX_BASE or box.addr >= CMX_END):
        return
    tile, offset = divmod(box.addr - CMX_BASE, CMX_STRIDE)
    if not 0 <= tile < tiles or offset + box.end - box.addr > workspace_bytes:
        raise DescriptorError(f"{what} [{box.addr:#x}, {box.end:#x}) is not inside the CMX of one of the {tiles} tiles")


def _check_pixels(what: str, x: int, y: int, z: int, type_: int, record: Any, name: str) -> None:
    strides = int(record[name + "_stride_x"]), int(record[name + "_stride_y"])
    check_disjoint(what, z * dtypes.size_bytes(type_), (x, strides[0]), (y, strides[1]))
