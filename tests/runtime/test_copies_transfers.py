"""DMA descriptors of copies as data: every byte once, within the fields' limits; overlap of rows against sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from libnpu.runtime.transfers import Rows, copy_descriptors, fill_descriptors, overlap


def bytes_of(rows):
    return {rows.start + row * rows.pitch + at for row in range(rows.height) for at in range(rows.width)}


@given(
    width=st.integers(1, 6),
    height=st.integers(1, 8),
    starts=st.tuples(st.integers(0, 90), st.integers(0, 90)),
    gaps=st.tuples(st.integers(0, 24), st.integers(0, 24)),
)
def test_overlap_counts_rows_and_not_gaps(width, height, starts, gaps):
    a, b = (Rows(start, width, height, width + gap) for start, gap in zip(starts, gaps, strict=True))
    assert overlap(a, b) == bool(bytes_of(a) & bytes_of(b))


def test_overlap_of_very_many_rows_takes_no_time():
    a, b = Rows(0, 1, 1 << 40, 6), Rows(3, 1, 1 << 40, 9)
    assert overlap(a, b)  # 12 = 2 * 6 = 3 + 9
    assert not overlap(a, Rows(1, 1, 1 << 40, 6))


def test_five_gib_are_cut_into_pieces_for_both_ports():
    records = copy_descriptors(Rows(1 << 40, (5 << 30) + 1), Rows(1 << 36, (5 << 30) + 1), ports=2)
    assert len(records) % 2 == 0
    assert int(records["length"].astype(int).sum()) == (5 << 30) + 1
    ends = records["dst"].astype(int) + records["length"].astype(int)
    assert ends[:-1].tolist() == records["dst"].astype(int)[1:].tolist()
    assert (records["dst"].astype(int) - (1 << 40)).tolist() == (records["src"].astype(int) - (1 << 36)).tolist()
    assert records["length"].max() <= 16 << 20


def test_a_small_copy_is_one_descriptor():
    (record,) = copy_descriptors(Rows(0x2000, 100), Rows(0x1000, 100), ports=2).tolist()
    #              src     dst     length planes plane strides  widths and strides
    assert record[:10] == (0x1000, 0x2000, 100, 1, 0, 0, 100, 0, 100, 0)


def test_rows_are_one_descriptor_for_each_port():
    records = copy_descriptors(Rows(0x20000, 100, 101, 128), Rows(0x10000, 100, 101, 256), ports=2).tolist()
    assert [record[:10] for record in records] == [
        (0x10000, 0x20000, 5100, 1, 0, 0, 100, 256, 100, 128),
        (0x10000 + 51 * 256, 0x20000 + 51 * 128, 5000, 1, 0, 0, 100, 256, 100, 128),
    ]


def test_a_pitch_beyond_31_bits_is_a_descriptor_for_each_row():
    records = copy_descriptors(Rows(0, 8, 3, 1 << 31), Rows(1 << 36, 8, 3, 8), ports=2)
    assert records["dst"].tolist() == [0, 1 << 31, 1 << 32]
    assert records["src"].tolist() == [1 << 36, (1 << 36) + 8, (1 << 36) + 16]
    assert records["length"].tolist() == [8, 8, 8]
    assert set(records["dst_stride"].tolist()) == {0}


def test_rows_longer_than_a_piece_are_copied_one_by_one():
    width = (16 << 20) + 128
    records = copy_descriptors(Rows(0, width, 2, 1 << 25), Rows(1 << 36, width, 2, 1 << 25), ports=2)
    assert records["dst"].tolist() == [0, width // 2, 1 << 25, (1 << 25) + width // 2]
    assert records["length"].tolist() == [width // 2] * 4


def test_a_fill_reads_its_pattern_again_and_again():
    records = fill_descriptors(0x10001, 3000, 0x5000, ports=2).tolist()
    assert [record[:10] for record in records] == [
        (0x5000, 0x10001, 2048, 1, 0, 0, 1024, 0, 2048, 0),
        (0x5000, 0x10801, 952, 1, 0, 0, 952, 0, 952, 0),
    ]
