"""Costs of DMA and DPU tasks: closed forms on the teaching device, mechanism on the others."""

import msgspec
import npu_abi
import numpy as np
import pytest
from npu_abi import C
from npu_model.cycles import (
    dma_alone_ps,
    dma_bytes,
    dma_cycles,
    dma_cycles_of,
    dma_ddr_bytes,
    dma_path_ps,
    dpu_costs,
    dpu_cycles,
    dpu_macs,
)
from npu_model.descriptors import DescriptorError, Dma
from npu_model.dpu_walk import Walk
from npu_model.profile import load_profile

DDR = 0x100000000


def dma(*tasks):
    records = np.zeros(len(tasks), npu_abi.dtype("npu_dma_task"))
    for record, fields in zip(records, tasks, strict=True):
        length = fields["length"]
        values = {"src": DDR, "dst": C.NPU_CMX_BASE, "num_planes": 1, "src_width": length, "dst_width": length}
        for name, value in (values | fields).items():
            record["transaction_" + name] = value
    return records


def dpu(op, size, out_z, in_z=None, kernel=(1, 1), **fields):
    """Return one invariant with one variant that makes size = (y, x) outputs by out_z."""
    invariant = np.zeros(1, npu_abi.dtype("npu_dpu_invariant"))
    variant = np.zeros(1, npu_abi.dtype("npu_dpu_variant"))
    values = {
        "op": op, "out_y": size[0], "out_x": size[1], "out_z": out_z, "in_z": in_z or out_z, "groups": 1,
        "in_y": size[0] + kernel[0] - 1, "in_x": size[1] + kernel[1] - 1, "kernel_y": kernel[0], "kernel_x": kernel[1],
        "stride_y": 1, "stride_x": 1, "dilation_y": 1, "dilation_x": 1, "variant_count": 1,
    }  # fmt: skip
    for name, value in (values | fields).items():
        invariant[name] = value
    variant["size_y"], variant["size_x"], variant["size_z"] = *size, out_z
    return invariant, variant


def read_bytes(profile, invariant, variant):
    return dpu_costs(profile, invariant, variant)[1]


UNIT, NPU37, NPU40 = load_profile("unit"), load_profile("npu-37xx"), load_profile("npu-40xx")


def test_unit_moves_1024_bytes_a_cycle():
    tasks = dma(*({"length": n} for n in (1, 1024, 1025, 2048, 10240)))
    assert dma_cycles(UNIT, tasks).tolist() == [1, 1, 2, 2, 10]


def test_descriptor_records_work_as_task_records_do():
    record = np.zeros(1, npu_abi.dtype("npu_dma_descriptor"))
    for name, value in {"length": 4096, "num_planes": 2, "src_width": 4096, "dst_width": 4096}.items():
        record[name] = value
    assert dma_cycles(UNIT, record).tolist() == [8]


@pytest.mark.parametrize(
    ("fields", "cycles"),
    [
        ({"length": 4096}, 4 + 128),
        ({"length": 4096, "src_width": 64, "src_stride": 64}, 4 + 128),  # rows that touch are one run
        ({"length": 4096, "src_width": 64, "src_stride": 128}, 4 + 128 + 63),  # 64 runs
        ({"length": 4096, "dst_width": 16, "dst_stride": 64}, 4 + 256 + 255),  # 256 runs, each as long as 32 bytes
        ({"length": 4096, "src_width": 64, "src_stride": 128, "dst_width": 16, "dst_stride": 64}, 4 + 256 + 255),
        ({"length": 1024, "num_planes": 4, "src_plane_stride": 1024, "dst_plane_stride": 1024}, 4 + 128),
        ({"length": 1024, "num_planes": 4, "src_plane_stride": 2048, "dst_plane_stride": 1024}, 4 + 128 + 3),
        ({"length": 64, "num_planes": 4, "src_width": 16, "src_stride": 32, "src_plane_stride": 128, "dst_plane_stride": 64}, 4 + 16 + 15),
    ],
)  # fmt: skip
def test_e091_dma_pays_for_runs_at_the_worse_end(fields, cycles):
    tasks = dma(fields)
    assert dma_cycles(NPU37, tasks).tolist() == [cycles]
    assert dma_cycles_of(NPU37, Dma.decode(tasks[0])) == cycles


def test_inside_cmx_reads_and_writes_share_the_way():
    tasks = dma({"length": 4096, "src": C.NPU_CMX_BASE}, {"length": 4096, "src": C.NPU_CMX_BASE, "dst": DDR})
    assert dma_cycles(NPU37, tasks).tolist() == [4 + 4096 // 16, 4 + 4096 // 32]
    assert dma_cycles_of(NPU37, Dma.decode(tasks[0])) == 4 + 4096 // 16


def test_a_transfer_alone_has_its_latency_and_the_slower_of_port_and_ddr():
    tasks = dma({"length": 32 << 20}, {"length": 64}, {"length": 64, "src": C.NPU_CMX_BASE})
    big, small, inside = dma_alone_ps(NPU37, tasks).tolist()
    assert big == 956_000 + round((32 << 20) * 1e12 / 27e9)  # DDR is slower than the port
    assert small == 956_000 + round((4 + 2) * 1e12 / 975e6)
    assert inside == round(16 * 1e12 / 975e6) + round((4 + 4) * 1e12 / 975e6)


def test_ddr_that_takes_no_time_for_a_few_bytes_has_its_latency_all_the_same():
    quick = msgspec.structs.replace(NPU37, ddr=msgspec.structs.replace(NPU37.ddr, bytes_per_second=10**15))
    assert dma_alone_ps(quick, dma({"length": 64})).tolist() == [956_000 + round((4 + 2) * 1e12 / 975e6)]


@pytest.mark.parametrize(
    ("fields", "accessed"),
    [
        ({"length": 4000}, 4000),
        ({"length": 256, "src_width": 16, "src_stride": 512}, 16 * 64),
        ({"length": 256, "src_width": 16, "src_stride": 48}, 16 * 48),  # runs share accesses
        ({"length": 400, "src_width": 100, "src_stride": 512}, 4 * 128),
        ({"length": 64, "num_planes": 3, "src_plane_stride": 1024}, 3 * 64),
        ({"length": 256, "src": C.NPU_CMX_BASE, "src_width": 16, "src_stride": 512}, 0),
        ({"length": 256, "src_width": 16, "src_stride": 512, "dst": DDR}, 16 * 64 + 256),
    ],
)
def test_short_runs_keep_the_path_to_ddr_for_whole_accesses(fields, accessed):
    assert dma_path_ps(NPU37, dma(fields)).tolist() == [round(accessed * 1e12 / 27e9)]


def test_ddr_bytes_are_those_of_the_sides_outside_cmx():
    tasks = dma(
        {"length": 100, "num_planes": 2},
        {"length": 100, "src": C.NPU_CMX_BASE, "dst": DDR},
        {"length": 100, "src": C.NPU_CMX_BASE},
        {"length": 100, "dst": DDR},
        {"length": 100, "dst": C.NPU_CMX_END},
    )
    read, written = dma_ddr_bytes(tasks)
    assert read.tolist() == [200, 0, 0, 100, 100]
    assert written.tolist() == [0, 100, 0, 100, 100]
    assert dma_bytes(tasks).tolist() == [200, 100, 100, 100, 100]


@pytest.mark.parametrize(
    ("op", "size", "out_z", "in_z", "cycles"),
    [
        (C.NPU_DPU_CONV, (4, 4), 16, 4, 1),
        (C.NPU_DPU_MATMUL, (1, 16), 16, 4, 1),
        (C.NPU_DPU_CONV, (8, 8), 32, 64, 128),
        (C.NPU_DPU_MATMUL, (1, 64), 64, 64, 256),
        (C.NPU_DPU_CONV, (1, 1), 1, 1, 1),  # a ragged block costs as much as a full one
        (C.NPU_DPU_CONV, (5, 4), 17, 5, 2 * 1 * 2 * 2),
        (C.NPU_DPU_MATMUL, (1, 17), 16, 4, 2),
        (C.NPU_DPU_ELTWISE_ADD, (4, 16), 16, 16, 1),
        (C.NPU_DPU_MAXPOOL, (4, 16), 16, 16, 1),
    ],
)
def test_unit_does_1024_macs_a_cycle_when_the_grid_is_full(op, size, out_z, in_z, cycles):
    assert dpu_cycles(UNIT, *dpu(op, size, out_z, in_z)).tolist() == [cycles]


def test_groups_fill_blocks_alone():
    # 4 groups of 8 channels: 4 half-empty blocks per 16 pixels, 8 input channels each
    assert dpu_cycles(UNIT, *dpu(C.NPU_DPU_CONV, (4, 4), 32, 32, groups=4)).tolist() == [4 * 2]


def test_macs_are_what_the_arithmetic_needs():
    assert dpu_macs(*dpu(C.NPU_DPU_CONV, (5, 7), 17, 6, (3, 3), groups=1)).tolist() == [5 * 7 * 17 * 6 * 9]
    assert dpu_macs(*dpu(C.NPU_DPU_CONV, (5, 7), 18, 6, (3, 3), groups=3)).tolist() == [5 * 7 * 18 * 2 * 9]
    assert dpu_macs(*dpu(C.NPU_DPU_DWCONV, (5, 7), 17, 17, (3, 3))).tolist() == [5 * 7 * 17 * 9]
    assert dpu_macs(*dpu(C.NPU_DPU_MATMUL, (1, 7), 17, 6)).tolist() == [7 * 17 * 6]
    assert dpu_macs(*dpu(C.NPU_DPU_AVGPOOL, (5, 7), 17, 17, (3, 3))).tolist() == [0]


def test_workloads_add_up_and_pay_their_start():
    invariant, variant = dpu(C.NPU_DPU_CONV, (16, 16), 64, 128)
    one = dpu_cycles(NPU37, invariant, variant)[0]
    # blocks of pixels x blocks of channels x 128 channels, 4 a cycle (f16); one context; 256 pixels of 128 bytes to write
    assert one == 200 + 16 * 4 * 128 // 4 + 50 + 256 * 128 // 64
    invariants = np.concatenate([invariant, invariant])
    invariants["variant_count"] = [1, 2]
    assert dpu_cycles(NPU37, invariants, np.concatenate([variant] * 3)).tolist() == [one, 2 * one]


def test_slow_reads_and_writes_set_the_pace():
    fully_connected = dpu(C.NPU_DPU_MATMUL, (1, 1), 1024, 1024)
    weights, acts = 1024 * 1024 * 2, 16 * 1024 * 2 * 16  # a block of 16 rows; 16 contexts of 64 channels
    assert read_bytes(NPU37, *fully_connected).tolist() == [weights + acts]
    assert dpu_cycles(NPU37, *fully_connected).tolist() == [200 + weights // 32 + 64 * 2 // 64]
    deep = dpu(C.NPU_DPU_MATMUL, (1, 1), 1024, 1024, mpe_grid=C.NPU_MPE_4X16)
    assert dpu_cycles(NPU37, *deep).tolist() == [200 + weights // 64 + 256 * 2 // 64]  # twice the words a cycle
    u8 = {"act_dtype": C.NPU_DT_U8, "wt_dtype": C.NPU_DT_U8}
    wide = dpu(C.NPU_DPU_CONV, (64, 64), 64, 1, out_dtype=C.NPU_DT_F32, **u8)
    assert dpu_cycles(NPU37, *wide).tolist() == [200 + 64 * 64 * 64 * 4 // 64 + 256 * 64 * 4 // 64]


def test_weights_of_4_bits_are_read_in_half_the_time():
    u8 = {"act_dtype": C.NPU_DT_U8, "wt_dtype": C.NPU_DT_U8}
    acts = 16 * 1024 * 16  # a block of 16 rows; 16 contexts of 64 channels
    for flags, weights in ((0, 1024 * 1024), (C.NPU_DPU_FLAG_WEIGHTS_4BIT, 1024 * 512)):
        task = dpu(C.NPU_DPU_MATMUL, (1, 1), 1024, 1024, flags=flags, out_dtype=C.NPU_DT_F16, **u8)
        assert read_bytes(NPU37, *task).tolist() == [weights + acts]
        assert dpu_cycles(NPU37, *task).tolist() == [200 + weights // 32 + 64 * 2 // 64]
    odd = dpu(C.NPU_DPU_CONV, (4, 4), 16, 66, kernel=(3, 3), flags=C.NPU_DPU_FLAG_WEIGHTS_4BIT, **u8)
    assert read_bytes(NPU37, *odd).tolist() == [16 * 9 * 96 + 16 * 9 * 64]  # a line more for the pixels alone


def test_an_output_that_goes_to_several_tiles_leaves_by_the_line():
    task = dpu(C.NPU_DPU_CONV, (112, 112), 16, 32, act_dtype=C.NPU_DT_U8, wt_dtype=C.NPU_DT_U8, out_dtype=C.NPU_DT_U8)
    one, four = (int(dpu_cycles(NPU40, *task, write_tiles=tiles)[0]) for tiles in (1, 4))
    assert one == 160 + 28 * 28 * 4 + 49 * 25 + 256 * 32 // 128  # the array is the slowest
    assert four == 160 + 112 * 112 + 256


FAR = C.NPU_CMX_BASE + C.NPU_CMX_TILE_STRIDE
HERE = {"act_addr": C.NPU_CMX_BASE, "act2_addr": C.NPU_CMX_BASE + 4096, "out_addr": C.NPU_CMX_BASE + 8192}


def eltwise_costs(**where):
    task = dpu(C.NPU_DPU_ELTWISE_ADD, (64, 64), 64, act_dtype=C.NPU_DT_U8, out_dtype=C.NPU_DT_U8, **HERE | where)
    cycles, _, written = dpu_costs(NPU37, *task)
    return int(cycles[0]), int(written[0])


def test_between_tiles_goes_a_line_a_cycle():
    """A sum of 64 x 64 x 64 bytes: 36 of them a cycle, and a last block of 16 lines."""
    size = 64 * 64 * 64
    near, written = eltwise_costs()
    assert written == size
    assert near == 200 + -(-size // 36) + 16 * 32 // 64
    assert near == eltwise_costs(tile=1, **{name: value + C.NPU_CMX_TILE_STRIDE for name, value in HERE.items()})[0]
    assert eltwise_costs(act_addr=FAR)[0] == eltwise_costs(act2_addr=FAR)[0] == 200 + size // 32 + 8
    assert eltwise_costs(out_addr=FAR)[0] == 200 + size // 32 + 16


def test_results_of_floating_point_take_longer_to_post_process():
    """One context of 16384 results: their multiplications take 256 cycles in fp16 and 128 in 8 bits."""
    u8 = dict.fromkeys(("act_dtype", "wt_dtype", "out_dtype"), C.NPU_DT_U8)
    drain = 256 * 64 // 64
    assert dpu_cycles(NPU37, *dpu(C.NPU_DPU_CONV, (16, 16), 64, 16)).tolist() == [200 + -(-16384 // 13) + 2 * drain]
    assert dpu_cycles(NPU37, *dpu(C.NPU_DPU_CONV, (16, 16), 64, 16, **u8)).tolist() == [200 + 16384 // 64 + drain]


def test_an_output_for_all_tiles_leaves_by_the_line_and_counts_in_each():
    near, written = eltwise_costs()
    assert eltwise_costs(out_tiles=1) == (near, written)  # its own
    cycles, twice = eltwise_costs(out_tiles=3)
    assert twice == 2 * written
    assert cycles == eltwise_costs(out_addr=FAR)[0]


def test_grid_trades_weight_reads_for_activation_reads():
    grids = (C.NPU_MPE_16X16, C.NPU_MPE_8X16, C.NPU_MPE_4X16)
    reads = [int(read_bytes(NPU37, *dpu(C.NPU_DPU_CONV, (16, 16), 256, 64, mpe_grid=grid))[0]) for grid in grids]
    act, weights = 256 * 64 * 2, 256 * 64 * 2
    assert reads == [4 * act + weights, 2 * act + 2 * weights, act + 4 * weights]


@pytest.mark.parametrize(("channels", "lines"), [(16, 1), (32, 2), (128, 8)])
def test_depthwise_begins_each_line_of_a_block_and_reads_every_other_pixel_slower(channels, lines):
    acts, weights, drain = 16 * 9 * 16 * 32 * lines, 9 * 32 * lines, 256 * 32 * min(lines, 4) // 64
    begun, workloads = 3 * 16 * lines, -(-channels // 64)
    for stride, met in ((1, 0), (2, acts * 10 // (100 * lines))):
        task = dpu(C.NPU_DPU_DWCONV, (16, 16), channels, kernel=(3, 3), stride_x=stride)
        assert dpu_cycles(NPU37, *task).tolist() == [200 * workloads + -(-(acts + weights + met) // 94) + begun + drain]


def test_every_tap_reads_its_pixels_again_and_a_pixel_is_a_line_at_least():
    u8 = {"act_dtype": C.NPU_DT_U8, "wt_dtype": C.NPU_DT_U8}
    for channels, line in ((16, 32), (32, 32), (33, 64)):
        reads = read_bytes(NPU37, *dpu(C.NPU_DPU_MAXPOOL, (8, 8), channels, kernel=(3, 3), **u8))
        assert reads.tolist() == [64 * 9 * line]
    both = read_bytes(NPU37, *dpu(C.NPU_DPU_ELTWISE_ADD, (8, 8), 64, **u8))
    assert both.tolist() == [2 * 64 * 64]


@pytest.mark.parametrize(
    ("profile", "channels", "kernel", "stride", "columns"),
    [("npu-40xx", 32, 3, 1, 7), ("npu-40xx", 64, 3, 1, 12), ("npu-40xx", 32, 3, 2, 12), ("npu-40xx", 32, 5, 1, 20), ("npu-37xx", 32, 3, 1, 12)],
)  # fmt: skip
def test_a_depthwise_kernel_of_three_columns_keeps_its_rows(profile, channels, kernel, stride, columns):
    u8 = {"act_dtype": C.NPU_DT_U8, "wt_dtype": C.NPU_DT_U8, "stride_x": stride}
    reads = read_bytes(load_profile(profile), *dpu(C.NPU_DPU_DWCONV, (4, 4), channels, kernel=(3, kernel), **u8))
    assert reads.tolist() == [4 * columns * 3 * channels + 3 * kernel * channels]


@pytest.mark.parametrize(
    ("rows", "top", "bottom", "live"),
    [
        (1, 1, 0, 2),  # one row: the row of taps above it sees padding only
        (5, 0, 1, 5),  # the fifth row is alone in its block, the taps below it see padding
        (5, 1, 0, 6),  # the first row shares its block with three others
        (4, 1, 1, 3),
    ],
)
def test_taps_at_which_a_block_sees_padding_only_are_skipped(rows, top, bottom, live):
    invariant, variant = dpu(C.NPU_DPU_CONV, (rows, 64), 64, 64, (3, 3))
    invariant["in_y"], invariant["in_x"] = rows + 2 - top - bottom, 66
    variant["pad_top"], variant["pad_bottom"] = top, bottom
    found, skipped = Walk(invariant, variant).tap_blocks()
    assert found.tolist() == [16 * 3 * live]
    assert (found + skipped).tolist() == [16 * 9 * -(-rows // 4)]
    variant["start_y"], variant["size_y"] = rows - 1, 1  # a workload that is the last row only
    assert Walk(invariant, variant).tap_blocks()[0].tolist() == [16 * 3 * (3 - bottom - (top if rows == 1 else 0))]


def test_type_that_the_array_does_not_multiply_is_refused():
    with pytest.raises(DescriptorError, match="no rate for operand type 8"):
        dpu_cycles(UNIT, *dpu(C.NPU_DPU_CONV, (4, 4), 16, wt_dtype=C.NPU_DT_I32))


def test_work_that_no_cmx_holds_is_refused():
    with pytest.raises(DescriptorError, match="more than 281474976710656 terms"):
        dpu_cycles(UNIT, *dpu(C.NPU_DPU_CONV, (1 << 20, 1 << 20), 1 << 20, 1 << 20))


def test_variants_of_other_invariants_are_refused():
    invariant, variant = dpu(C.NPU_DPU_CONV, (4, 4), 16)
    with pytest.raises(ValueError, match="2 variants given, the invariants have 1"):
        dpu_cycles(UNIT, invariant, np.concatenate([variant, variant]))
