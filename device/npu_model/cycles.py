"""What DMA and DPU tasks cost, from their descriptors: vectorised over record arrays, the same for device and compiler.

Cycles are engine cycles of the unit alone: no waiting for barriers, no sharing of DDR (dma_ddr_bytes feeds that), no
memory latency. Costs come out of how the engine works on a descriptor, with the profile's figures:

1. A DMA port moves runs of contiguous bytes; the end (source or destination) with the shorter runs sets the pace.
2. A DPU covers each workload with blocks of 16 pixels x 16 channels. A block takes ceil(K / MACs per position) cycles per
   kernel tap, K being the input channels of its group, whether the block is full or ragged.
3. Blocks are walked in contexts (enum npu_mpe_grid): within one, operands are read from CMX once. Reading, multiplying,
   post-processing and writing overlap, so a workload lasts as long as the slowest of the four.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from npu_abi import C

from npu_model import descriptors, dtypes
from npu_model.descriptors import DescriptorError, Dma
from npu_model.profile import Profile

Cycles: TypeAlias = npt.NDArray[np.int64]
Records: TypeAlias = npt.NDArray[np.void]

WORK_LIMIT = 1 << 48
MPE_POSITIONS = 256  # MAC positions of the array: 4 x 4 pixels x 16 channels
BLOCK_PIXELS, BLOCK_CHANNELS = 4, 16
# Context of each grid: pixels along y, pixels along x, channels. 16 blocks of pixels by 4 of channels, 8 by 8, 4 by 16.
_CONTEXTS = {C.NPU_MPE_16X16: (16, 16, 64), C.NPU_MPE_8X16: (8, 16, 128), C.NPU_MPE_4X16: (4, 16, 256)}


def dma_cycles(profile: Profile, tasks: Records) -> Cycles:
    """Return the cycles that one port needs for each descriptor (records of npu_dma_task or npu_dma_descriptor)."""
    dma, prefix = profile.dma, _prefix(tasks)
    length, planes = _int(tasks, prefix + "length"), _int(tasks, prefix + "num_planes")
    worst = np.zeros(len(tasks), dtype=np.int64)
    for end in ("src", "dst"):
        width, stride = _int(tasks, f"{prefix}{end}_width"), _int(tasks, f"{prefix}{end}_stride")
        plane_stride = _int(tasks, f"{prefix}{end}_plane_stride")
        rows = length // np.maximum(width, 1)
        row_runs = np.where((rows <= 1) | (stride == width), 1, rows)
        run_bytes = np.where(row_runs == 1, length, width)
        one_run = (row_runs == 1) & ((planes <= 1) | (plane_stride == length))
        run_count = np.where(one_run, 1, row_runs * planes)
        run_bytes = np.where(one_run, run_bytes * planes, run_bytes)
        moved = run_count * np.maximum(run_bytes, dma.min_run_bytes)
        worst = np.maximum(worst, _ceil_div(moved, dma.bytes_per_cycle) + (run_count - 1) * dma.run_cycles)
    return worst + dma.setup_cycles


def dma_cycles_of(profile: Profile, dma: Dma) -> int:
    """Return what `dma_cycles` does for one descriptor, without arrays."""
    figures, worst = profile.dma, 0
    for width, stride, plane_stride in (
        (dma.src_width, dma.src_stride, dma.src_plane_stride),
        (dma.dst_width, dma.dst_stride, dma.dst_plane_stride),
    ):
        rows = dma.length // width
        if rows > 1 and stride != width:
            run_count, run_bytes = rows * dma.num_planes, width
        elif dma.num_planes == 1 or plane_stride == dma.length:
            run_count, run_bytes = 1, dma.length * dma.num_planes
        else:
            run_count, run_bytes = dma.num_planes, dma.length
        moved = run_count * max(run_bytes, figures.min_run_bytes)
        worst = max(worst, -(-moved // figures.bytes_per_cycle) + (run_count - 1) * figures.run_cycles)
    return worst + figures.setup_cycles


def dma_bytes(tasks: Records) -> Cycles:
    """Return the bytes that each descriptor moves."""
    prefix = _prefix(tasks)
    return _int(tasks, prefix + "length") * _int(tasks, prefix + "num_planes")


def dma_ddr_bytes(tasks: Records) -> tuple[Cycles, Cycles]:
    """Return the bytes that each descriptor reads from DDR and writes to DDR: all or none, by its addresses."""
    moved, prefix = dma_bytes(tasks), _prefix(tasks)
    return tuple(  # type: ignore[return-value]
        np.where(_in_cmx(tasks[prefix + end]), 0, moved) for end in ("src", "dst")
    )


def dpu_macs(invariants: Records, variants: Records) -> Cycles:
    """Return the multiply-accumulates of each invariant: convolutions and matmuls; pooling and eltwise have none."""
    owner = _owners(invariants, variants)
    op = _int(invariants, "op")
    taps, depth = _taps(invariants), _group_in_z(invariants)
    per_output = np.select(
        [np.isin(op, (descriptors.CONV, descriptors.MATMUL)), op == descriptors.DWCONV], [taps * depth, taps], 0
    )
    return _sum_by_owner(_outputs(variants) * per_output[owner], owner, len(invariants))


def dpu_cycles(profile: Profile, invariants: Records, variants: Records) -> Cycles:
    """Return the cycles of each invariant with all its variants.

    `variants` are the variants of these invariants and of no others, in the order of `invariants`. DescriptorError for
    an operand type that the profile's DPU does not multiply, and for more work than operands in CMX can make.
    """
    dpu = profile.dpu
    owner = _owners(invariants, variants)
    inv = invariants[owner]
    _check_work(inv, variants)
    op = _int(inv, "op")
    array_op = np.isin(op, (descriptors.CONV, descriptors.MATMUL))
    eltwise = np.isin(op, descriptors.ELTWISE)
    outputs = _outputs(variants)
    busy = np.select(
        [array_op, eltwise],
        [
            _array_cycles(inv, variants, _rate(dpu.macs_per_cycle, inv, array_op)),
            _ceil_div(outputs, dpu.eltwise_elements_per_cycle),
        ],
        _ceil_div(outputs * _taps(inv), _rate(dpu.dw_macs_per_cycle, inv, ~array_op & ~eltwise)),
    )
    read = _ceil_div(dpu_read_bytes(inv, variants), dpu.cmx_read_bytes_per_cycle)
    write = _ceil_div(outputs * _sizes(inv, "out_dtype"), dpu.cmx_write_bytes_per_cycle)
    ppe = _ceil_div(outputs, dpu.ppe_elements_per_cycle)
    cycles = dpu.workload_cycles + np.maximum.reduce([busy, read, write, ppe])
    return _sum_by_owner(cycles, owner, len(invariants)) + dpu.startup_cycles


def dpu_read_bytes(inv: Records, variants: Records) -> Cycles:
    """Return the operand bytes that each variant reads from CMX, `inv` being its own invariant, record by record."""
    op = _int(inv, "op")
    array_op = np.isin(op, (descriptors.CONV, descriptors.MATMUL))
    size_x, size_y, size_z = (_int(variants, "size_" + axis) for axis in "xyz")
    grid = np.minimum(_int(inv, "mpe_grid"), len(_CONTEXTS) - 1)
    contexts = np.array([_CONTEXTS[code] for code in sorted(_CONTEXTS)], dtype=np.int64)[grid]
    pixels_y, pixels_x, channels = contexts[:, 0], contexts[:, 1], contexts[:, 2]
    matmul = op == descriptors.MATMUL
    rows = np.where(matmul, 1, pixels_y)
    columns = np.where(matmul, pixels_y * pixels_x, pixels_x)
    window = _context_inputs(inv, "x", size_x, columns) * _context_inputs(inv, "y", size_y, rows)
    depth, act, weight = _group_in_z(inv), _sizes(inv, "act_dtype"), _sizes(inv, "wt_dtype")
    channel_contexts = _ceil_div(size_z, channels)
    pixel_contexts = _ceil_div(size_x, columns) * _ceil_div(size_y, rows)
    # With groups each context of channels reads the channels of its groups; the union is what one pass reads.
    group_out = np.maximum(_int(inv, "out_z") // np.maximum(_int(inv, "groups"), 1), 1)
    groups_read = np.where(array_op, _ceil_div(size_z, group_out), 1)
    array_read = (
        window * depth * act * np.maximum(groups_read, channel_contexts)
        + pixel_contexts * size_z * _taps(inv) * depth * weight
    )
    weights = np.where(op == descriptors.DWCONV, pixel_contexts * _taps(inv) * size_z * weight, 0)
    channel_read = window * size_z * act * np.where(np.isin(op, descriptors.ELTWISE), 2, 1) + weights
    read: Cycles = np.where(array_op, array_read, channel_read)
    return read


def _array_cycles(inv: Records, variants: Records, rate: Cycles) -> Cycles:
    size_x, size_y, size_z = (_int(variants, "size_" + axis) for axis in "xyz")
    square = _ceil_div(size_x, BLOCK_PIXELS) * _ceil_div(size_y, BLOCK_PIXELS)
    line = _ceil_div(
        size_x * size_y, BLOCK_PIXELS * BLOCK_PIXELS
    )  # a matmul has rows only: they fill a block as a line
    pixel_blocks = np.where(_int(inv, "op") == descriptors.MATMUL, line, square)
    group_out = np.maximum(_int(inv, "out_z") // np.maximum(_int(inv, "groups"), 1), 1)
    channel_blocks = np.where(  # a block of channels works on one group's input
        group_out >= size_z,
        _ceil_div(size_z, BLOCK_CHANNELS),
        _ceil_div(size_z, group_out) * _ceil_div(group_out, BLOCK_CHANNELS),
    )
    per_block = _ceil_div(_group_in_z(inv) * MPE_POSITIONS, rate) * _taps(inv)
    cycles: Cycles = pixel_blocks * channel_blocks * per_block
    return cycles


def _context_inputs(inv: Records, axis: str, size: Cycles, context: Cycles) -> Cycles:
    """Return the input positions along `axis` that all contexts read together, overlaps counted, padding included."""
    windowed = _windowed(inv)
    stride = np.where(windowed, _int(inv, "stride_" + axis), 1)
    reach = np.where(windowed, (_int(inv, "kernel_" + axis) - 1) * _int(inv, "dilation_" + axis), 0)
    used = np.minimum(stride, reach + 1)  # inputs between windows that do not touch are not read
    full, rest = size // context, size % context
    inputs: Cycles = full * ((context - 1) * used + reach + 1) + np.where(rest > 0, (rest - 1) * used + reach + 1, 0)
    return inputs


def _rate(table: dict[str, int], inv: Records, relevant: npt.NDArray[np.bool_]) -> Cycles:
    """Return the rate of each record's operand type; 1 where not `relevant`."""
    operand = np.where(np.isin(_int(inv, "op"), descriptors.WEIGHTED), _int(inv, "wt_dtype"), _int(inv, "act_dtype"))
    rates = np.zeros(256, dtype=np.int64)
    for name, rate in table.items():
        rates[dtypes.code_of_name(name)] = rate
    found = np.where(relevant, rates[operand], 1)
    if not found.all():
        code = int(operand[np.flatnonzero(found == 0)[0]])
        raise DescriptorError(f"the DPU of this profile has no rate for operand type {code} of enum npu_dtype")
    return found


def _check_work(inv: Records, variants: Records) -> None:
    """Keep the products below within int64."""
    taps, depth = inv["kernel_x"].astype(np.float64) * inv["kernel_y"], inv["in_z"].astype(np.float64)
    outputs = variants["size_x"].astype(np.float64) * variants["size_y"] * variants["size_z"]
    if (np.maximum(taps, 1) * np.maximum(depth, 1) * outputs > WORK_LIMIT).any():
        raise DescriptorError(f"a DPU variant asks for more than {WORK_LIMIT} terms")


def _owners(invariants: Records, variants: Records) -> Cycles:
    counts = _int(invariants, "variant_count")
    if int(counts.sum()) != len(variants):
        raise ValueError(f"{len(variants)} variants given, the invariants have {int(counts.sum())}")
    return np.repeat(np.arange(len(invariants), dtype=np.int64), counts)


def _sum_by_owner(values: Cycles, owner: Cycles, count: int) -> Cycles:
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, owner, values)
    return total


def _windowed(inv: Records) -> npt.NDArray[np.bool_]:
    return ~np.isin(_int(inv, "op"), (descriptors.MATMUL, *descriptors.ELTWISE))


def _taps(inv: Records) -> Cycles:
    return np.where(_windowed(inv), _int(inv, "kernel_x") * _int(inv, "kernel_y"), 1)


def _group_in_z(inv: Records) -> Cycles:
    return _int(inv, "in_z") // np.maximum(_int(inv, "groups"), 1)


def _outputs(variants: Records) -> Cycles:
    return _int(variants, "size_x") * _int(variants, "size_y") * _int(variants, "size_z")


def _sizes(inv: Records, field: str) -> Cycles:
    table = np.ones(256, dtype=np.int64)
    for code in range(C.NPU_DT_COUNT):
        table[code] = dtypes.size_bytes(code)
    sizes: Cycles = table[inv[field]]
    return sizes


def _in_cmx(addr: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    return (addr >= C.NPU_CMX_BASE) & (addr < C.NPU_CMX_END)


def _prefix(tasks: Records) -> str:
    return "transaction_" if "transaction_src" in (tasks.dtype.names or ()) else ""


def _int(records: Records, field: str) -> Cycles:
    values: Cycles = records[field].astype(np.int64)
    return values


def _ceil_div(a: Cycles, b: int | Cycles) -> Cycles:
    return -(-a // b)
