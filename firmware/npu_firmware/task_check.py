"""Validation of task lists in bulk: everything that a descriptor can have wrong, short of unmapped DDR.

Ranges are computed in int64 behind a magnitude check in float64, so that no hostile stride wraps around.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from npu_abi import C, sizeof
from npu_model import descriptors, dtypes
from npu_model.profile import Profile

from npu_firmware.errors import ParseError

Records = np.ndarray[Any, np.dtype[np.void]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

WEIGHT_ENTRY_BYTES = sizeof("npu_dpu_weight_entry")
VA_END = 1 << int(C.NPU_VA_BITS)
LOW_END = int(C.NPU_VA_LOW_END)
CMX_BASE, CMX_END, CMX_STRIDE = int(C.NPU_CMX_BASE), int(C.NPU_CMX_END), int(C.NPU_CMX_TILE_STRIDE)


def refuse(bad: Flags, code: int, number: int) -> None:
    """Raise ParseError for the first true element, if any."""
    if bad.any():
        raise ParseError(code, int(np.argmax(bad)) | number << 32)


def outside_tiles(profile: Profile, tiles: int, low: Ints, high: Ints) -> Flags:
    """Return where [low, high) is not inside the workspace of one of the job's tiles."""
    tile, offset = (low - CMX_BASE) // CMX_STRIDE, (low - CMX_BASE) % CMX_STRIDE
    bad: Flags = (low < CMX_BASE) | (tile >= tiles) | (offset + (high - low) > profile.cmx.workspace_bytes)
    return bad


def dma(profile: Profile, tiles: int, records: Records, number: int) -> None:
    """Check records of npu_dma_task (or descriptors under the same names)."""
    if not len(records):
        return
    bad_code = int(C.NPU_PARSE_BAD_DMA)
    length, planes = _int(records, "transaction_length"), _int(records, "transaction_num_planes")
    refuse(
        (length < 1) | (planes < 1) | (records["transaction_cfg"] != 0),
        bad_code,
        number,
    )
    for end in ("src", "dst"):
        width, stride = _int(records, f"transaction_{end}_width"), _int(records, f"transaction_{end}_stride")
        plane_stride = _int(records, f"transaction_{end}_plane_stride")
        refuse((width < 1) | (length % np.maximum(width, 1) != 0), bad_code, number)
        rows = length // width
        refuse(records[f"transaction_{end}"] >= np.uint64(VA_END), bad_code, number)
        reach = (rows - 1).astype(np.float64) * np.abs(stride) + (planes - 1).astype(np.float64) * np.abs(plane_stride)
        refuse(reach + width > VA_END, bad_code, number)
        base = _int(records, f"transaction_{end}")
        row_reach, plane_reach = (rows - 1) * stride, (planes - 1) * plane_stride
        low = base + np.minimum(row_reach, 0) + np.minimum(plane_reach, 0)
        high = base + np.maximum(row_reach, 0) + np.maximum(plane_reach, 0) + width
        refuse((low < 0) | (high > VA_END), bad_code, number)
        on_chip = (low < CMX_END) & (high > CMX_BASE)
        refuse(on_chip & outside_tiles(profile, tiles, low, high), bad_code, number)
        if end == "dst":
            refuse(_rows_overlap(rows, np.abs(stride), planes, np.abs(plane_stride), width), bad_code, number)


def _rows_overlap(rows: Ints, stride: Ints, planes: Ints, plane_stride: Ints, width: Ints) -> Flags:
    """Return where two rows of a destination share a byte."""
    swap = stride > plane_stride
    inner, inner_count = np.where(swap, plane_stride, stride), np.where(swap, planes, rows)
    outer, outer_count = np.where(swap, stride, plane_stride), np.where(swap, rows, planes)
    extent = np.where(inner_count > 1, (inner_count - 1) * inner + width, width)
    bad: Flags = ((inner_count > 1) & (inner < width)) | ((outer_count > 1) & (outer < extent))
    return bad


def dpu(profile: Profile, tiles: int, records: Records, variants: Records, number: int, variant_number: int) -> None:
    """Check invariants and their variants; each variant belongs to the invariant that lists it."""
    if not len(records) and not len(variants):
        return
    bad_code = int(C.NPU_PARSE_BAD_DPU)
    first, count = _int(records, "variant_first"), _int(records, "variant_count")
    refuse((count < 1) | (first + count > len(variants)), bad_code, number)
    if int(count.sum()) != len(variants):  # with invariant_index: each variant belongs to one invariant
        raise ParseError(bad_code, min(int(count.sum()), len(variants)) | variant_number << 32)
    if not len(records):
        return
    op = _int(records, "op")
    refuse((op > C.NPU_DPU_ELTWISE_MUL) | (_int(records, "ppe_fn") > C.NPU_PPE_LRELU), bad_code, number)
    refuse((_int(records, "flags") & ~descriptors.DPU_FLAGS) != 0, bad_code, number)
    refuse((_int(records, "tile") >= tiles) | (_int(records, "mpe_grid") > C.NPU_MPE_4X16), bad_code, number)
    refuse(_int(records, "out_tiles") >> tiles != 0, bad_code, number)
    refuse(_bad_types(profile, records, op), bad_code, number)
    window = ~_one_of(op, (descriptors.MATMUL, *descriptors.ELTWISE))
    for axis in "xyz":
        refuse((records["in_" + axis] == 0) | (records["out_" + axis] == 0), bad_code, number)
    for name in ("kernel_x", "kernel_y", "stride_x", "stride_y", "dilation_x", "dilation_y"):
        refuse(window & (records[name] == 0), bad_code, number)
    array_op = _one_of(op, (descriptors.CONV, descriptors.MATMUL))
    in_z, out_z, groups = _int(records, "in_z"), _int(records, "out_z"), _int(records, "groups")
    refuse((op == descriptors.CONV) & (groups == 0), bad_code, number)
    groups = np.maximum(groups, 1)
    refuse(np.where(array_op, (in_z % groups != 0) | (out_z % groups != 0), in_z != out_z), bad_code, number)
    small = _int(records, "flags") & C.NPU_DPU_FLAG_WEIGHTS_4BIT != 0
    taps = np.where(window, _int(records, "kernel_x") * _int(records, "kernel_y"), 1)
    of_bytes = _one_of(_int(records, "act_dtype"), (dtypes.I8, dtypes.U8))
    refuse(small & ~(array_op & of_bytes & (taps * (in_z // groups) % 2 == 0)), bad_code, number)
    _operands(profile, tiles, records, op, array_op, window, groups, number)
    owner = np.repeat(np.arange(len(records)), count)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    owners = np.empty(len(variants), dtype=np.int64)
    owners[place] = owner
    refuse(np.bincount(place, minlength=len(variants)) != 1, bad_code, variant_number)
    _variants(records, variants, owners, window, variant_number)
    pads = np.zeros(len(variants), dtype=bool)
    for name in ("pad_left", "pad_right", "pad_top", "pad_bottom"):
        pads |= variants[name] != 0
    refuse(pads & _one_of(op, descriptors.ELTWISE)[owners], bad_code, variant_number)
    terms = np.where(window, _int(records, "kernel_x") * _int(records, "kernel_y"), 1) * np.where(array_op, in_z, 1)
    work = terms[owners].astype(np.float64)
    for axis in "xyz":
        work *= variants["size_" + axis]
    refuse(work > descriptors.MAX_TASK_WORK, bad_code, variant_number)


def _bad_types(profile: Profile, records: Records, op: Ints) -> Flags:
    """Return where operand and result types are not the DPU's, or this profile's."""
    act, weight, out = (_int(records, name + "_dtype") for name in ("act", "wt", "out"))
    floats = (dtypes.F16, dtypes.BF16, dtypes.F32)
    weighted = _one_of(op, descriptors.WEIGHTED)
    bad: Flags = ~_one_of(act, (*floats, dtypes.I8, dtypes.U8))
    bad |= ~_one_of(out, (*floats, dtypes.I8, dtypes.U8, dtypes.I16, dtypes.U16, dtypes.I32))
    is_float = _one_of(act, floats)
    bad |= weighted & np.where(is_float, weight != act, ~_one_of(weight, (dtypes.I8, dtypes.U8)))
    array_rates = [dtypes.code_of_name(name) for name, rate in profile.dpu.macs_per_cycle.items() if rate]
    other_rates = [dtypes.code_of_name(name) for name, rate in profile.dpu.dw_macs_per_cycle.items() if rate]
    operand = np.where(weighted, weight, act)
    array_op = _one_of(op, (descriptors.CONV, descriptors.MATMUL))
    eltwise = _one_of(op, descriptors.ELTWISE)
    bad |= ~eltwise & np.where(array_op, ~_one_of(operand, array_rates), ~_one_of(operand, other_rates))
    for field, kind in (("act_zero_point", act), ("wt_zero_point", operand)):
        point = _int(records, field)
        signed = kind == dtypes.I8
        bad |= ~is_float & ((point < np.where(signed, -128, 0)) | (point > np.where(signed, 127, 255)))
    return bad


def _operands(
    profile: Profile,
    tiles: int,
    records: Records,
    op: Ints,
    array_op: Flags,
    window: Flags,
    groups: Ints,
    number: int,
) -> None:
    """Check that every operand lies in the CMX of one tile of the job."""
    bad_code = int(C.NPU_PARSE_BAD_DPU)
    sizes = np.array([dtypes.size_bytes(code) for code in range(C.NPU_DT_COUNT)], dtype=np.int64)
    in_x, in_y, in_z = (_int(records, "in_" + axis) for axis in "xyz")
    out_x, out_y, out_z = (_int(records, "out_" + axis) for axis in "xyz")
    act, weight, out = (sizes[records[name + "_dtype"] % C.NPU_DT_COUNT] for name in ("act", "wt", "out"))
    taps = np.where(window, _int(records, "kernel_x") * _int(records, "kernel_y"), 1)
    everything = np.ones(len(records), dtype=bool)
    eltwise = _one_of(op, descriptors.ELTWISE)

    def tensor(name: str, x: Ints, y: Ints, z: Ints, size: Ints, present: Flags) -> None:
        stride_x, stride_y = _int(records, f"{name}_stride_x"), _int(records, f"{name}_stride_y")
        extent = (x - 1) * stride_x.astype(np.float64) + (y - 1) * stride_y.astype(np.float64) + z * size
        _inside(profile, tiles, _int(records, f"{name}_addr"), extent, present, bad_code, number)
        if name != "act2":  # which may broadcast
            refuse(_rows_overlap(x, stride_x, y, stride_y, z * size), bad_code, number)

    tensor("act", in_x, in_y, in_z, act, everything)
    tensor("act2", in_x, in_y, in_z, act, eltwise)
    tensor("out", out_x, out_y, out_z, out, everything)
    depth = np.where(array_op, in_z // groups, 1)
    weights = out_z.astype(np.float64) * taps * depth * weight
    weights = np.where(_int(records, "flags") & C.NPU_DPU_FLAG_WEIGHTS_4BIT, weights / 2, weights)
    weighted = _one_of(op, descriptors.WEIGHTED)
    _inside(profile, tiles, _int(records, "wt_addr"), weights, weighted, bad_code, number)
    table = out_z.astype(np.float64) * WEIGHT_ENTRY_BYTES
    has_table = records["wt_table_addr"] != 0
    _inside(profile, tiles, _int(records, "wt_table_addr"), table, has_table, bad_code, number)


def _inside(profile: Profile, tiles: int, base: Ints, extent: Any, present: Flags, code: int, number: int) -> None:
    refuse(present & (extent > CMX_STRIDE), code, number)
    high = base + np.minimum(extent, CMX_STRIDE).astype(np.int64)
    refuse(present & outside_tiles(profile, tiles, base, high), code, number)


def _variants(records: Records, variants: Records, owner: Ints, window: Flags, number: int) -> None:
    bad_code = int(C.NPU_PARSE_BAD_DPU)
    refuse(_int(variants, "invariant_index") != owner, bad_code, number)
    pads = {"x": ("pad_left", "pad_right"), "y": ("pad_top", "pad_bottom"), "z": ()}
    windowed = window[owner]
    for axis, names in pads.items():
        start, size = _int(variants, "start_" + axis), _int(variants, "size_" + axis)
        refuse((size < 1) | (start + size > _int(records, "out_" + axis)[owner]), bad_code, number)
        if not names:
            continue
        kernel, stride, dilation = (
            np.where(windowed, _int(records, f"{name}_{axis}")[owner], 1) for name in ("kernel", "stride", "dilation")
        )
        gaps = (dilation != 1) | (stride > kernel)
        refuse(gaps & (size * kernel > descriptors.MAX_TAPS), bad_code, number)
        needed = (start + size - 1) * stride + (kernel - 1) * dilation + 1
        padded = _int(records, "in_" + axis)[owner] + sum(_int(variants, name) for name in names)
        refuse(needed > padded, bad_code, number)


def shave(profile: Profile, tiles: int, invocations: Records, ranges: Records, number: int, range_number: int) -> None:
    """Check programs and invocations."""
    if not len(invocations) and not len(ranges):
        return
    bad_code = int(C.NPU_PARSE_BAD_SHAVE)
    size = _int(ranges, "code_bytes")
    text = ranges["text_va"]
    refuse((size < 16) | (size % 16 != 0) | (text % np.uint64(16) != 0), bad_code, range_number)
    refuse(text > np.uint64(LOW_END), bad_code, range_number)
    refuse(_int(ranges, "text_va") + size > LOW_END, bad_code, range_number)
    refuse(_int(invocations, "range_index") >= len(ranges), bad_code, number)
    refuse(_int(invocations, "tile") >= tiles, bad_code, number)
    refuse(_int(invocations, "shave") >= profile.shaves_per_tile, bad_code, number)
    refuse(_int(invocations, "args_va") + _int(invocations, "args_bytes") > LOW_END, bad_code, number)


def _one_of(codes: Ints, allowed: Iterable[int]) -> Flags:
    """Return which one-byte codes are allowed; a table, because np.isin costs more than the rest of the checks."""
    table = np.zeros(256, dtype=bool)
    table[list(allowed)] = True
    return table[codes]


def _int(records: Records, field: str) -> Ints:
    values: Ints = records[field].astype(np.int64)
    return values
