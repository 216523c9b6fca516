"""What DMA and DPU tasks cost, from their descriptors: vectorised over record arrays, the same for device and compiler.

Cycles are engine cycles of the unit alone: no waiting for barriers, no sharing of DDR (dma_ddr_bytes feeds that), no
memory latency. Costs come out of how the engine works on a descriptor, with the profile's figures:

1. A DMA port moves runs of contiguous bytes; the end (source or destination) with the shorter runs sets the pace. With both
   ends in CMX reads and writes share the way there (`cmx_bytes_per_cycle`).
2. A DPU walks each workload in blocks and contexts (dpu_walk.py). A convolution takes ceil(K / MACs per position) cycles
   per block and kernel tap, K being the input channels of its group, and `context_cycles` to change the context. A tap at
   which a block sees nothing but padding multiplies nothing; its weights are read all the same.
3. Depthwise convolution, pooling and element-wise operations use one MAC of a position, so that reading bounds them. Of more than
   `dw_channels`, depthwise and pooling are several workloads. Depthwise begins with each line of a block anew, and where every
   other pixel is read, of one line each, reads meet in banks.
4. One stream reads at most `act_read_bytes_per_cycle` (pixels), the other `wt_read_bytes_per_cycle` (weights, the second
   tensor of an element-wise operation), by grid: how the ports are divided. Both together read what all ports give.
5. Reading, multiplying, post-processing and writing overlap: a workload lasts as long as the slowest of them, and then
   writes what its last context holds; of an element-wise operation, whose blocks are done one by one, its last block.
   Post-processing has a rate for integers and one for floating point.
6. Between tiles goes a line a cycle: for pixels, for weights or the second tensor, and for results. Of results profiled
   workloads tell; that reads are alike is chosen.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from npu_abi import C

from npu_model import descriptors, dtypes
from npu_model.descriptors import DescriptorError, Dma
from npu_model.dpu_walk import (
    GRIDS,
    LINE_BYTES,
    Cycles,
    Records,
    Walk,
    among,
    ceil_div,
    group_in_z,
    ints,
    lines,
    sizes,
    taps,
)
from npu_model.profile import Profile

WORK_LIMIT = 1 << 48
_FLOATS = [code for code in range(C.NPU_DT_COUNT) if dtypes.is_float(code)]
MPE_POSITIONS = 256  # MAC positions of the array: 4 x 4 pixels x 16 channels


def dma_cycles(profile: Profile, tasks: Records) -> Cycles:
    """Return the cycles that one port needs for each descriptor (records of npu_dma_task or npu_dma_descriptor)."""
    dma, prefix = profile.dma, _prefix(tasks)
    inside = _in_cmx(tasks[prefix + "src"]) & _in_cmx(tasks[prefix + "dst"])
    rate = np.where(inside, min(dma.bytes_per_cycle, dma.cmx_bytes_per_cycle), dma.bytes_per_cycle)
    worst = np.zeros(len(tasks), dtype=np.int64)
    for end in ("src", "dst"):
        run_count, run_bytes, _ = _dma_runs(tasks, end)
        moved = run_count * np.maximum(run_bytes, dma.min_run_bytes)
        worst = np.maximum(worst, ceil_div(moved, rate) + (run_count - 1) * dma.run_cycles)
    return worst + dma.setup_cycles


def dma_cycles_of(profile: Profile, dma: Dma) -> int:
    """Return what `dma_cycles` does for one descriptor, without arrays."""
    figures, worst = profile.dma, 0
    rate = figures.bytes_per_cycle
    if C.NPU_CMX_BASE <= dma.src < C.NPU_CMX_END and C.NPU_CMX_BASE <= dma.dst < C.NPU_CMX_END:
        rate = min(rate, figures.cmx_bytes_per_cycle)
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
        worst = max(worst, -(-moved // rate) + (run_count - 1) * figures.run_cycles)
    return worst + figures.setup_cycles


def dma_alone_ps(profile: Profile, tasks: Records) -> Cycles:
    """Return the picoseconds from start to end of each descriptor that shares nothing: latency, then port or DDR."""
    (read, written), clock_hz = dma_ddr_bytes(tasks), profile.dma.clock_hz
    cmx_ps = _picoseconds(np.int64(profile.cmx.latency_cycles), clock_hz)
    latency_ps = np.where(read + written > 0, round(profile.ddr.latency_ns * 1000), cmx_ps)
    port_ps = _picoseconds(dma_cycles(profile, tasks), clock_hz)
    found: Cycles = latency_ps + np.maximum(port_ps, dma_path_ps(profile, tasks))
    return found


def dma_path_ps(profile: Profile, tasks: Records) -> Cycles:
    """Return how long each descriptor keeps the path to DDR busy, whichever port it is on: whole accesses, of a run that is short too."""
    access = profile.memory_system.dram.access_bytes
    moved = np.zeros(len(tasks), dtype=np.int64)
    for end, own in zip(("src", "dst"), dma_ddr_bytes(tasks), strict=True):
        run_count, run_bytes, stride = _dma_runs(tasks, end)
        accessed = run_count * np.minimum(ceil_div(run_bytes, access) * access, np.maximum(stride, run_bytes))
        moved += np.where((own > 0) & (run_count > 1), accessed, own)
    return _picoseconds(moved, profile.ddr.bytes_per_second)


def _dma_runs(tasks: Records, end: str) -> tuple[Cycles, Cycles, Cycles]:
    """Return of one end of each descriptor the runs of bytes that lie together, the bytes of one, and how far apart most of them begin."""
    prefix = _prefix(tasks)
    length, planes = ints(tasks, prefix + "length"), ints(tasks, prefix + "num_planes")
    width, stride = ints(tasks, f"{prefix}{end}_width"), ints(tasks, f"{prefix}{end}_stride")
    plane_stride = ints(tasks, f"{prefix}{end}_plane_stride")
    rows = length // np.maximum(width, 1)
    row_runs = np.where((rows <= 1) | (stride == width), 1, rows)
    run_bytes = np.where(row_runs == 1, length, width)
    one_run = (row_runs == 1) & ((planes <= 1) | (plane_stride == length))
    run_count = np.where(one_run, 1, row_runs * planes)
    return run_count, np.where(one_run, run_bytes * planes, run_bytes), np.where(row_runs > 1, stride, plane_stride)


def dma_bytes(tasks: Records) -> Cycles:
    """Return the bytes that each descriptor moves."""
    prefix = _prefix(tasks)
    return ints(tasks, prefix + "length") * ints(tasks, prefix + "num_planes")


def dma_ddr_bytes(tasks: Records) -> tuple[Cycles, Cycles]:
    """Return the bytes that each descriptor reads from DDR and writes to DDR: all or none, by its addresses."""
    moved, prefix = dma_bytes(tasks), _prefix(tasks)
    return tuple(  # type: ignore[return-value]
        np.where(_in_cmx(tasks[prefix + end]), 0, moved) for end in ("src", "dst")
    )


def dpu_macs(invariants: Records, variants: Records) -> Cycles:
    """Return the multiply-accumulates of each invariant: convolutions and matmuls; pooling and eltwise have none."""
    owner = _owners(invariants, variants)
    op = ints(invariants, "op")
    kernel, depth = taps(invariants), group_in_z(invariants)
    per_output = np.select(
        [among(op, (descriptors.CONV, descriptors.MATMUL)), op == descriptors.DWCONV], [kernel * depth, kernel], 0
    )
    return _sum_by_owner(_outputs(variants) * per_output[owner], owner, len(invariants))


def dpu_read_bytes(invariants: Records, variants: Records) -> Cycles:
    """Return the bytes that each invariant with all its variants reads from CMX at most: of depthwise some profiles read less."""
    owner = _owners(invariants, variants)
    walk = Walk(invariants[owner], variants)
    acts, weights = walk.reads(walk.tap_blocks()[0], 0)
    return _sum_by_owner(acts + weights, owner, len(invariants))


def dpu_cycles(profile: Profile, invariants: Records, variants: Records, write_tiles: int = 1) -> Cycles:
    """Return the cycles of each invariant with all its variants; `dpu_costs` has the rest."""
    return dpu_costs(profile, invariants, variants, write_tiles)[0]


def fastest_grids(profile: Profile, invariants: Records, variants: Records) -> Cycles:
    """Return for each invariant the value of enum npu_mpe_grid with which it takes the fewest cycles, of equals the first."""
    asked, counts = invariants.copy(), []
    for grid in GRIDS:
        asked["mpe_grid"] = grid
        counts.append(dpu_cycles(profile, asked, variants))
    found: Cycles = np.array(list(GRIDS), dtype=np.int64)[np.argmin(counts, axis=0)]
    return found


def dpu_costs(
    profile: Profile, invariants: Records, variants: Records, write_tiles: int = 1
) -> tuple[Cycles, Cycles, Cycles]:
    """Return of each invariant with all its variants the cycles, and the bytes that it reads from and writes to CMX.

    `variants` are the variants of these invariants and of no others, in the order of `invariants`. `write_tiles`: tiles
    that an output is written to, where the descriptors do not say it; if there are several, a line leaves each cycle. What lies in another tile than `tile` says moves by the line as well; addresses outside CMX are of no tile.
    DescriptorError for an operand type that the profile's DPU does not multiply, and for more work than operands in CMX
    can make.
    """
    dpu = profile.dpu
    owner = _owners(invariants, variants)
    inv = invariants[owner]
    _check_work(inv, variants)
    walk = Walk(inv, variants)
    array_rate = _rate(dpu.macs_per_cycle, inv, walk.array)
    other_rate = _rate(dpu.dw_macs_per_cycle, inv, ~walk.array & ~walk.eltwise)
    outputs = walk.pixels * walk.channels
    live, dead = walk.tap_blocks()
    acts, weights = walk.reads(live, dpu.dw_row_columns)
    wt_rate = np.array([dpu.wt_read_bytes_per_cycle[name] for name in GRIDS.values()], dtype=np.int64)[walk.grid]
    act_rate = np.array([dpu.act_read_bytes_per_cycle[name] for name in GRIDS.values()], dtype=np.int64)[walk.grid]
    act_rate = _from_tile(act_rate, inv, "act_addr")
    wt_rate = _from_tile(_from_tile(wt_rate, inv, "wt_addr"), inv, "act2_addr")
    busy = np.select(
        [walk.array, walk.eltwise],
        [
            live * walk.channel_blocks * ceil_div(walk.depth * MPE_POSITIONS, array_rate)
            + (weights / wt_rate * (dead / np.maximum(live + dead, 1))).astype(np.int64)
            + walk.pixel_contexts * walk.channel_contexts * dpu.context_cycles,
            ceil_div(outputs, dpu.eltwise_elements_per_cycle),
        ],
        ceil_div(outputs * taps(inv), other_rate),
    )
    rate = dpu.cmx_write_bytes_per_cycle if write_tiles == 1 else min(LINE_BYTES, dpu.cmx_write_bytes_per_cycle)
    write_rate = _from_tile(np.full(len(inv), rate, dtype=np.int64), inv, "out_addr")
    copies = _out_tiles(inv)
    write_rate = np.where(copies > 1, np.minimum(write_rate, LINE_BYTES), write_rate)
    ppe_rate = np.where(among(inv["act_dtype"], _FLOATS), dpu.ppe_float_elements_per_cycle, dpu.ppe_elements_per_cycle)
    out_size = sizes(inv, "out_dtype")
    pixel_lines = lines(walk.channels * sizes(inv, "act_dtype")) // LINE_BYTES
    begun = np.where(walk.depthwise, walk.pixel_blocks * pixel_lines * dpu.dw_block_cycles, 0)
    met = np.where(walk.depthwise & (ints(inv, "stride_x") > 1), acts * dpu.dw_stride_percent // (100 * pixel_lines), 0)
    workloads = np.where(walk.array | walk.eltwise, 1, ceil_div(walk.channels, dpu.dw_channels))
    read = acts + weights
    slowest = np.maximum.reduce(
        [
            busy,
            ceil_div(acts + met, act_rate) + begun,
            ceil_div(weights, wt_rate),
            ceil_div(read + met, dpu.cmx_read_bytes_per_cycle) + begun,
            ceil_div(walk.pixels * lines(walk.channels * out_size), write_rate),
            ceil_div(outputs, ppe_rate),
        ]
    )
    drain = walk.last_pixels * lines(walk.last_channels * out_size) // write_rate
    cycles, read, written = (
        _sum_by_owner(column, owner, len(invariants))
        for column in (dpu.workload_cycles * workloads + slowest + drain, read, outputs * out_size * copies)
    )
    return cycles + dpu.startup_cycles, read, written


def _rate(table: dict[str, int], inv: Records, relevant: npt.NDArray[np.bool_]) -> Cycles:
    """Return the rate of each record's operand type; 1 where not `relevant`."""
    operand = np.where(among(ints(inv, "op"), descriptors.WEIGHTED), ints(inv, "wt_dtype"), ints(inv, "act_dtype"))
    rates = np.zeros(256, dtype=np.int64)
    for name, rate in table.items():
        rates[dtypes.code_of_name(name)] = rate
    found = np.where(relevant, rates[operand], 1)
    if not found.all():
        code = int(operand[np.flatnonzero(found == 0)[0]])
        raise DescriptorError(f"the DPU of this profile has no rate for operand type {code} of enum npu_dtype")
    return found


def _out_tiles(inv: Records) -> Cycles:
    """Return the number of tiles that each record's output is written to."""
    own = (ints(inv, "out_addr") - C.NPU_CMX_BASE) // C.NPU_CMX_TILE_STRIDE
    asked, found = ints(inv, "out_tiles"), np.ones(len(inv), dtype=np.int64)
    for tile in range(int(asked.max(initial=0)).bit_length()):
        found += (asked >> tile & 1) & (own != tile)
    return found


def _from_tile(rates: Cycles, inv: Records, field: str) -> Cycles:
    """Return the rates of an operand where it is: in another tile's CMX a line a cycle at most."""
    address = ints(inv, field)
    far = _in_cmx(inv[field]) & ((address - C.NPU_CMX_BASE) // C.NPU_CMX_TILE_STRIDE != ints(inv, "tile"))
    found: Cycles = np.where(far, np.minimum(rates, LINE_BYTES), rates)
    return found


def _check_work(inv: Records, variants: Records) -> None:
    """Keep the products below within int64."""
    taps, depth = inv["kernel_x"].astype(np.float64) * inv["kernel_y"], inv["in_z"].astype(np.float64)
    outputs = variants["size_x"].astype(np.float64) * variants["size_y"] * variants["size_z"]
    if (np.maximum(taps, 1) * np.maximum(depth, 1) * outputs > WORK_LIMIT).any():
        raise DescriptorError(f"a DPU variant asks for more than {WORK_LIMIT} terms")


def _owners(invariants: Records, variants: Records) -> Cycles:
    counts = ints(invariants, "variant_count")
    if int(counts.sum()) != len(variants):
        raise ValueError(f"{len(variants)} variants given, the invariants have {int(counts.sum())}")
    return np.repeat(np.arange(len(invariants), dtype=np.int64), counts)


def _sum_by_owner(values: Cycles, owner: Cycles, count: int) -> Cycles:
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, owner, values)
    return total


def _outputs(variants: Records) -> Cycles:
    return ints(variants, "size_x") * ints(variants, "size_y") * ints(variants, "size_z")


def _in_cmx(addr: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    return (addr >= C.NPU_CMX_BASE) & (addr < C.NPU_CMX_END)


def _picoseconds(count: Cycles | np.int64, per_second: int) -> Cycles:
    """Return how long `count` takes; in floats, as an int64 has room for ten million of something only."""
    found: Cycles = np.rint(count * 1e12 / per_second).astype(np.int64)
    return found


def _prefix(tasks: Records) -> str:
    return "transaction_" if "transaction_src" in (tasks.dtype.names or ()) else ""
