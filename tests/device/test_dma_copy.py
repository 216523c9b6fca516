"""DMA descriptors as copies of bytes, against loops over single bytes."""

import npu_abi
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from npu_device.dma_copy import Move
from npu_device.faults import MemoryFault
from npu_model.descriptors import DescriptorError
from npu_model.footprint import dma_footprint, runs

BASE, SIZE = 0x1000, 4096


def record(**fields):
    one = np.zeros(1, npu_abi.dtype("npu_dma_descriptor"))
    length = fields["length"]
    values = {"src": BASE, "dst": BASE, "num_planes": 1, "src_width": length, "dst_width": length} | fields
    for name, value in values.items():
        one[name] = value
    return one[0]


def over(memory):
    def view(address, size, write):
        if address < BASE or address + size > BASE + len(memory):
            raise MemoryFault(address, write=write)
        return memory[address - BASE : address - BASE + size]

    return view


def addresses(rec, end):
    width, stride = int(rec[f"{end}_width"]), int(rec[f"{end}_stride"])
    for plane in range(int(rec["num_planes"])):
        for row in range(int(rec["length"]) // width):
            start = int(rec[end]) + plane * int(rec[f"{end}_plane_stride"]) + row * stride
            yield from range(start, start + width)


def counting():
    return np.arange(SIZE, dtype=np.uint32).view(np.uint8)[::3][:SIZE].copy()


def copied_by_loops(rec):
    source, target = counting(), np.zeros(SIZE, np.uint8)
    for a, b in zip(addresses(rec, "src"), addresses(rec, "dst"), strict=True):
        target[b - BASE] = source[a - BASE]
    return target


def copied(rec):
    target = np.zeros(SIZE, np.uint8)
    move = Move.decode(rec)
    move.scatter(over(target), move.gather(over(counting()), np.empty(move.size_bytes, np.uint8)))
    return target


CASES = {
    "linear": record(length=100, src=BASE + 3, dst=BASE + 9),
    "rows to dense": record(length=64, src_width=16, src_stride=40, dst_width=64),
    "dense to rows": record(length=64, dst_width=8, dst_stride=24),
    "rows to other rows": record(length=48, src_width=16, src_stride=32, dst_width=8, dst_stride=12),
    "planes": record(length=32, num_planes=3, src_width=16, src_stride=64, src_plane_stride=256, dst_width=32, dst_plane_stride=32),
    "planes interleaved": record(length=32, num_planes=4, src_width=32, src_plane_stride=32, dst_width=8, dst_stride=32, dst_plane_stride=8),
    "broadcast row": record(length=64, src_width=16, src_stride=0),
    "broadcast plane": record(length=16, num_planes=5, dst_plane_stride=16),
    "backwards": record(length=64, src=BASE + 640, src_width=16, src_stride=-32),
    "planes backwards": record(length=16, num_planes=4, src_plane_stride=16, dst=BASE + 100, dst_plane_stride=-20),
    "odd bytes": record(length=21, src=BASE + 1, src_width=3, src_stride=5, dst=BASE + 2, dst_width=7, dst_stride=9),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_copy_moves_the_bytes_that_the_header_says(case):
    np.testing.assert_array_equal(copied(CASES[case]), copied_by_loops(CASES[case]))


@given(
    width=st.sampled_from([1, 2, 4, 6, 8, 16]),
    rows=st.integers(1, 6),
    planes=st.integers(1, 4),
    gap=st.integers(0, 9),
    split=st.booleans(),
    start=st.integers(0, 70),
    stride=st.integers(-40, 40),
    plane_stride=st.integers(-60, 60),
)
def test_copy_and_footprint_agree_with_single_bytes(width, rows, planes, gap, split, start, stride, plane_stride):
    length = width * rows
    dst_width = width if split else length
    dst_stride = dst_width + gap
    rec = record(
        length=length,
        num_planes=planes,
        src=BASE + 1000 + start,
        src_width=width,
        src_stride=stride,
        src_plane_stride=plane_stride,
        dst=BASE + start,
        dst_width=dst_width,
        dst_stride=dst_stride,
        dst_plane_stride=dst_stride * (length // dst_width) + gap,
    )
    np.testing.assert_array_equal(copied(rec), copied_by_loops(rec))
    for boxes, end in zip(dma_footprint(rec), ("src", "dst"), strict=True):
        touched = {address for box in boxes for first, last in runs(box) for address in range(first, last)}
        assert touched == set(addresses(rec, end))


@pytest.mark.parametrize(
    ("fields", "address"),
    [
        ({"length": 64, "src": BASE + SIZE - 63}, BASE + SIZE - 63),
        ({"length": 64, "src": BASE - 1}, BASE - 1),
        ({"length": 64, "src": BASE, "src_width": 16, "src_stride": -16}, BASE - 48),
        ({"length": 64, "src": BASE, "src_width": 1, "src_stride": 66}, BASE),
    ],
)
def test_source_outside_memory_faults(fields, address):
    with pytest.raises(MemoryFault) as fault:
        Move.decode(record(**fields)).gather(over(counting()), np.empty(SIZE, np.uint8))
    assert fault.value.address == address
    assert not fault.value.write


def test_destination_outside_memory_faults_and_writes_nothing():
    memory = np.zeros(SIZE, np.uint8)
    rec = record(length=64, dst=BASE + SIZE - 100, dst_width=16, dst_stride=32)
    with pytest.raises(MemoryFault) as fault:
        Move.decode(rec).scatter(over(memory), np.ones(64, np.uint8))
    assert fault.value.write
    assert not memory.any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length": 64, "src_width": 48}, "src_width 48 does not divide length 64"),
        ({"length": 64, "dst_width": 0}, "dst_width 0 does not divide length 64"),
        ({"length": 64, "num_planes": 0}, "num_planes 0"),
        ({"length": 64, "dst_width": 16, "dst_stride": 0}, "destination stride 0 is smaller than the 16 bytes"),
        ({"length": 64, "num_planes": 2, "dst_plane_stride": 63}, "destination stride 63 is smaller than the 64 bytes"),
    ],
)
def test_impossible_descriptor_is_refused_by_name(fields, message):
    with pytest.raises(DescriptorError, match=message):
        copied(record(**fields))
