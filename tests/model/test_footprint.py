"""Byte ranges of descriptors, against sets of single addresses."""

import itertools

import npu_abi
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from npu_abi import C
from npu_model.descriptors import DescriptorError
from npu_model.footprint import Box, DpuFootprints, any_overlap, box, dma_footprint, dpu_footprint, overlaps, runs


def addresses(addr, width, dims):
    return {
        addr + sum(i * stride for i, (_, stride) in zip(index, dims, strict=True)) + byte
        for index in itertools.product(*(range(count) for count, _ in dims))
        for byte in range(width)
    }


def covered(*boxes):
    return {a for one in boxes for first, end in runs(one).tolist() for a in range(first, end)}


dims = st.lists(st.tuples(st.integers(1, 5), st.integers(-40, 40)), max_size=3)
any_box = st.tuples(st.integers(500, 700), st.integers(1, 12), dims)


@given(any_box)
def test_box_and_runs_cover_exactly_the_bytes(shape):
    one = box(*shape)
    want = addresses(*shape)
    assert covered(one) == want
    assert (one.addr, one.end) == (min(want), max(want) + 1)
    table = runs(one)
    assert (table[1:, 0] > table[:-1, 1]).all()


@given(any_box, any_box)
def test_overlap_is_a_shared_byte(a, b):
    assert overlaps(box(*a), box(*b)) == bool(addresses(*a) & addresses(*b))


@st.composite
def tensor_blocks(draw):
    """Two blocks of one dense tensor [y, x, z]."""
    sizes = [draw(st.integers(1, 6)) for _ in range(3)]
    strides = (sizes[1] * sizes[2], sizes[2], 1)
    found = []
    for _ in range(2):
        starts = [draw(st.integers(0, size - 1)) for size in sizes]
        counts = [draw(st.integers(1, size - start)) for size, start in zip(sizes, starts, strict=True)]
        addr = 1000 + sum(s * stride for s, stride in zip(starts, strides, strict=True))
        found.append((addr, counts[2], [(counts[0], strides[0]), (counts[1], strides[1])]))
    return found


@given(tensor_blocks())
def test_overlap_of_blocks_of_one_tensor(blocks):
    a, b = blocks
    assert overlaps(box(*a), box(*b)) == bool(addresses(*a) & addresses(*b))


def test_dense_dims_merge_into_one_run():
    assert box(64, 16, [(4, 64), (4, 16)]) == Box(64, 256)
    assert box(64, 16, [(4, 100), (2, 16)]) == Box(64, 32, ((4, 100),))
    assert box(64, 16, [(3, 64), (2, 32)]) == Box(64, 16, ((6, 32),))
    assert box(64, 16, [(4, -16)]) == Box(16, 64)
    assert box(64, 16, [(9, 0), (1, 5)]) == Box(64, 16)


def test_size_counts_each_run():
    assert box(0, 16, [(4, 100), (2, 16)]).size_bytes == 128


@given(
    st.tuples(*[st.tuples(st.integers(0, 90), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4))] * 2),
    st.tuples(st.integers(2, 9), st.integers(2, 9)),
)
def test_overlap_of_boxes_with_rows_at_one_distance(blocks, steps):
    """Rows of 40 bytes; within a row, runs at a step of their own."""
    a, b = (
        (at, min(width, step), [(rows, 40), (count, step)])
        for (at, width, rows, count), step in zip(blocks, steps, strict=True)
    )
    assert overlaps(box(*a), box(*b)) == bool(addresses(*a) & addresses(*b))


def test_any_overlap_asks_every_pair():
    a = [box(0, 4), box(100, 4)]
    assert any_overlap(a, [box(50, 10), box(103, 2)])
    assert not any_overlap(a, [box(50, 10), box(104, 2)])


def test_large_strided_boxes_of_different_shape():
    a, b = box(0, 8, [(100_000, 16)]), box(8, 8, [(60_000, 32)])
    assert not overlaps(a, b)
    assert overlaps(a, box(7, 8, [(60_000, 32)]))


def dma(**fields):
    one = np.zeros(1, npu_abi.dtype("npu_dma_task"))
    for name, value in fields.items():
        one["transaction_" + name] = value
    return one[0]


def test_dma_rows_of_a_channel_slice():
    record = dma(
        src=0x100000000, dst=C.NPU_CMX_BASE, length=64, num_planes=3,
        src_width=16, src_stride=64, src_plane_stride=1024, dst_width=64, dst_stride=0, dst_plane_stride=64,
    )  # fmt: skip
    assert dma_footprint(record) == (
        [Box(0x100000000, 16, ((3, 1024), (4, 64)))],
        [Box(C.NPU_CMX_BASE, 192)],
    )


ACT, ACT2, WT, TABLE, OUT = 0x10000, 0x20000, 0x30000, 0x40000, 0x50000


def dpu(op, shape, out_z, *, kernel=(1, 1), stride=(1, 1), dilation=(1, 1), groups=1, pad=(0, 0, 0, 0), **fields):
    in_y, in_x, in_z = shape
    out_y = (in_y + pad[2] + pad[3] - (kernel[0] - 1) * dilation[0] - 1) // stride[0] + 1
    out_x = (in_x + pad[0] + pad[1] - (kernel[1] - 1) * dilation[1] - 1) // stride[1] + 1
    values = {
        "op": op, "act_addr": ACT, "act2_addr": ACT2, "wt_addr": WT, "out_addr": OUT,
        "in_y": in_y, "in_x": in_x, "in_z": in_z, "out_y": out_y, "out_x": out_x, "out_z": out_z,
        "act_stride_x": in_z * 2, "act_stride_y": in_x * in_z * 2, "out_stride_x": out_z * 2, "out_stride_y": out_x * out_z * 2,
        "act2_stride_x": in_z * 2, "act2_stride_y": in_x * in_z * 2, "groups": groups,
        "kernel_y": kernel[0], "kernel_x": kernel[1], "stride_y": stride[0], "stride_x": stride[1],
        "dilation_y": dilation[0], "dilation_x": dilation[1],
    } | fields  # fmt: skip
    one = np.zeros(1, npu_abi.dtype("npu_dpu_invariant"))
    for name, value in values.items():
        one[name] = value
    return one[0]


def variant(y, size_y, x, size_x, z, size_z, pad=(0, 0, 0, 0)):
    one = np.zeros(1, npu_abi.dtype("npu_dpu_variant"))
    values = (x, y, z, size_x, size_y, size_z, *pad)
    for name, value in zip(one.dtype.names, values, strict=False):
        one[name] = value
    return one


def test_matmul_reads_its_rows_and_columns():
    record = dpu(C.NPU_DPU_MATMUL, (1, 10, 8), 20, wt_table_addr=TABLE)
    reads, writes = dpu_footprint(record, variant(0, 1, 2, 3, 4, 5))
    assert reads == [Box(ACT + 2 * 16, 3 * 16), Box(WT + 4 * 16, 5 * 16), Box(TABLE + 4 * 16, 5 * 16)]
    assert writes == [Box(OUT + 2 * 40 + 4 * 2, 10, ((3, 40),))]


def test_weights_of_4_bits_are_two_to_a_byte():
    fields = {"flags": C.NPU_DPU_FLAG_WEIGHTS_4BIT, "act_dtype": C.NPU_DT_I8, "wt_dtype": C.NPU_DT_I8}
    record = dpu(C.NPU_DPU_CONV, (4, 4, 10), 20, kernel=(3, 3), **fields)
    reads, _ = dpu_footprint(record, variant(0, 2, 0, 2, 4, 5))
    assert reads[1] == Box(WT + 4 * 45, 5 * 45)


def test_an_output_for_several_tiles_is_written_in_each():
    stride, out = C.NPU_CMX_TILE_STRIDE, C.NPU_CMX_BASE + C.NPU_CMX_TILE_STRIDE + 64
    record = dpu(C.NPU_DPU_MATMUL, (1, 10, 8), 20, out_addr=out, out_tiles=0b111)
    _, writes = dpu_footprint(record, variant(0, 1, 0, 10, 0, 20))
    assert writes == [Box(place, 400) for place in (out, out - stride, out + stride)]


def test_convolution_reads_halo_but_no_padding():
    pad = (1, 1, 1, 1)
    record = dpu(C.NPU_DPU_CONV, (8, 8, 4), 16, kernel=(3, 3), pad=pad)
    reads, _ = dpu_footprint(record, variant(0, 4, 0, 8, 0, 16, pad))
    assert reads == [Box(ACT, 5 * 64), Box(WT, 16 * 9 * 8)]
    reads, _ = dpu_footprint(record, variant(4, 4, 2, 2, 0, 16, pad))
    assert reads[0] == Box(ACT + 3 * 64 + 8, 32, ((5, 64),))


def test_grouped_convolution_reads_the_channels_of_its_groups():
    record = dpu(C.NPU_DPU_CONV, (2, 2, 8), 12, groups=4)
    reads, _ = dpu_footprint(record, variant(0, 2, 0, 2, 4, 4))  # output channels 4..7: groups 1 and 2, input 2..5
    assert reads == [Box(ACT + 4, 8, ((4, 16),)), Box(WT + 4 * 4, 4 * 4)]


def test_stride_larger_than_kernel_skips_columns_and_rows():
    record = dpu(C.NPU_DPU_CONV, (7, 7, 4), 2, stride=(2, 2))
    reads, _ = dpu_footprint(record, variant(0, 4, 0, 4, 0, 2))
    assert reads[0] == Box(ACT, 8, ((4, 2 * 56), (4, 16)))


def test_broadcast_operand_is_read_once():
    record = dpu(C.NPU_DPU_ELTWISE_ADD, (4, 4, 8), 8, act2_stride_x=0, act2_stride_y=0)
    reads, _ = dpu_footprint(record, variant(0, 4, 0, 4, 0, 8))
    assert reads == [Box(ACT, 256), Box(ACT2, 16)]


def test_depthwise_reads_its_slice_of_every_tap():
    record = dpu(C.NPU_DPU_DWCONV, (5, 5, 32), 32, kernel=(3, 3))
    reads, _ = dpu_footprint(record, variant(0, 3, 0, 3, 16, 16))
    assert reads[1] == Box(WT + 32, 32, ((9, 64),))


def test_equal_ranges_of_several_variants_appear_once():
    record = dpu(C.NPU_DPU_CONV, (4, 4, 4), 32)
    both = np.concatenate([variant(0, 4, 0, 4, 0, 16), variant(0, 4, 0, 4, 16, 16)])
    reads, writes = dpu_footprint(record, both)
    assert reads == [Box(ACT, 128), Box(WT, 128), Box(WT + 128, 128)]
    assert len(writes) == 2
    assert not overlaps(*writes)


@given(
    size=st.integers(1, 12), kernel=st.integers(1, 4), stride=st.integers(1, 5), dilation=st.integers(1, 3),
    pads=st.tuples(st.integers(0, 3), st.integers(0, 3)), data=st.data(),
)  # fmt: skip
def test_rows_and_columns_are_those_that_taps_name(size, kernel, stride, dilation, pads, data):
    outputs = (size + sum(pads) - (kernel - 1) * dilation - 1) // stride + 1
    if outputs < 1:
        return
    start = data.draw(st.integers(0, outputs - 1))
    count = data.draw(st.integers(1, outputs - start))
    pad = (*pads, *pads)
    record = dpu(
        C.NPU_DPU_MAXPOOL, (size, size, 1), 1, kernel=(kernel, kernel), stride=(stride, stride), dilation=(dilation, dilation),
        pad=pad, act_stride_x=2, act_stride_y=size * 2,
    )  # fmt: skip
    positions = {o * stride - pads[0] + k * dilation for o in range(start, start + count) for k in range(kernel)} & set(
        range(size)
    )
    want = {ACT + (y * size + x) * 2 + byte for y in positions for x in positions for byte in (0, 1)}
    reads, _ = dpu_footprint(record, variant(start, count, start, count, 0, 1, pad))
    assert covered(*reads) == want


@pytest.mark.parametrize("field", ["length", "num_planes"])
def test_empty_dma_has_no_footprint(field):
    fields = {"length": 64, "num_planes": 1, "src_width": 64, "dst_width": 64} | {field: 0}
    with pytest.raises(ValueError, match=f"{field} 0"):
        dma_footprint(dma(**fields))


def test_work_beyond_what_cmx_can_hold_is_refused():
    record = dpu(C.NPU_DPU_MATMUL, (1, 1 << 20, 1 << 14), 1 << 10, act_stride_y=0, act2_stride_y=0)
    with pytest.raises(ValueError, match=f"{1 << 44} terms, the limit is {1 << 36}"):
        dpu_footprint(record, variant(0, 1, 0, 1 << 20, 0, 1 << 10))
    wide = dpu(C.NPU_DPU_MAXPOOL, (1, 1 << 22, 1), 1, kernel=(1, 3), dilation=(1, 2))
    with pytest.raises(ValueError, match="4194300 outputs under a kernel of 3"):
        dpu_footprint(wide, variant(0, 1, 0, (1 << 22) - 4, 0, 1))


def test_footprints_of_a_list_are_those_of_each_task():
    """Tasks that are alike at other places, in another tile, with operands that are one, and with and without a table."""
    stride, cmx = C.NPU_CMX_TILE_STRIDE, C.NPU_CMX_BASE
    places = [
        {"act_addr": cmx + 64 * k, "act2_addr": cmx + 64 * k, "wt_addr": cmx + stride - 64 * k, "wt_table_addr": TABLE * (k % 2),
         "out_addr": cmx + stride * (k % 3) + 64 * k, "out_tiles": 0b111, "task_id": k, "sched_start_after": k}
        for k in range(6)
    ]  # fmt: skip
    kinds = [(C.NPU_DPU_MATMUL, (1, 10, 8), 20), (C.NPU_DPU_ELTWISE_ADD, (1, 10, 20), 20)]
    records = np.array([dpu(*kind, **place, variant_count=2) for kind in kinds for place in places])
    records["variant_first"] = 2 * np.arange(len(records))
    both = np.concatenate([variant(0, 1, 0, 10, 0, 16), variant(0, 1, 0, 10, 16, 4)])
    variants = np.tile(both, len(records))
    variants["invariant_index"] = np.repeat(np.arange(len(records)), 2)
    found = DpuFootprints(records, variants)
    assert [found.of(k) for k in range(len(records))] == [dpu_footprint(record, both) for record in records]
    records[3]["in_z"] = 7  # not as many channels as the output of a sum has
    records[3]["op"] = C.NPU_DPU_ELTWISE_MUL
    with pytest.raises(DescriptorError, match="in_z 7 and out_z 20"):
        DpuFootprints(records, variants).of(3)
