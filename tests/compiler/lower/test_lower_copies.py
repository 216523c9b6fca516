"""Views and the DMA descriptors that copy between them, against NumPy and a naive walk of the descriptor's definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libnpu.compiler.lower.copy import copies
from libnpu.compiler.lower.view import dense, merge_dims
from libnpu.compiler.program import Buffer

U16 = np.dtype(np.uint16)


def walk(ref, planes, plane_stride, length, width, stride):
    """Byte addresses in the order of npu_blob.h: planes, rows, bytes."""
    return [
        ref.offset + p * plane_stride + r * stride + i
        for p in range(planes)
        for r in range(length // width)
        for i in range(width)
    ]


def run_copies(dst, src, memory):
    out = np.full(dst.target.size_bytes, 255, np.uint8)
    written = []
    count = 0
    for payload, _, _ in copies(dst, src):
        count += 1
        p = payload
        reads = walk(p.src, p.num_planes, p.src_plane_stride, p.length, p.src_width, p.src_stride)
        writes = walk(p.dst, p.num_planes, p.dst_plane_stride, p.length, p.dst_width, p.dst_stride)
        out[writes] = memory[reads]
        written += writes
    assert len(set(written)) == len(written)
    return out, count


@st.composite
def permuted_boxes(draw):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    starts = [draw(st.integers(0, n - 1)) for n in shape]
    sizes = [draw(st.integers(1, n - a)) for n, a in zip(shape, starts, strict=True)]
    order_src, order_dst = draw(st.permutations(range(len(shape)))), draw(st.permutations(range(len(shape))))
    return shape, starts, sizes, tuple(order_src), tuple(order_dst)


@given(permuted_boxes())
def test_any_box_in_any_order_arrives(problem):
    shape, starts, sizes, order_src, order_dst = problem
    array = np.arange(np.prod(shape), dtype=U16).reshape(shape)
    memory = np.ascontiguousarray(array.transpose(order_src)).view(np.uint8).reshape(-1)
    src = dense(Buffer("src", array.nbytes), shape, U16, order_src).sliced(starts, sizes)
    dst = dense(Buffer("dst", int(np.prod(sizes)) * 2), sizes, U16, order_dst)
    out, _ = run_copies(dst, src, memory)
    box = array[tuple(slice(a, a + n) for a, n in zip(starts, sizes, strict=True))]
    assert out.tobytes() == np.ascontiguousarray(box.transpose(order_dst)).tobytes()


@pytest.mark.parametrize(
    ("shape", "order_src", "order_dst", "descriptors"),
    [
        ((1, 3, 8, 9), (0, 1, 2, 3), (0, 2, 3, 1), 1),  # [C][HW] -> [HW][C] is one 3-D descriptor
        ((1, 3, 8, 9), (0, 2, 3, 1), (0, 1, 2, 3), 1),
        ((4, 5, 6, 7), (0, 1, 2, 3), (0, 1, 2, 3), 1),  # dense is 1-D
        ((2, 3, 8, 9), (0, 1, 2, 3), (0, 2, 3, 1), 1),  # pixels are planes, images and channels rows
        ((2, 3, 4, 5), (0, 1, 2, 3), (3, 2, 1, 0), 6),  # two levels too many: the smallest are unrolled
    ],
)
def test_a_permutation_needs_few_descriptors(shape, order_src, order_dst, descriptors):
    size = int(np.prod(shape)) * 2
    src, dst = dense(Buffer("src", size), shape, U16, order_src), dense(Buffer("dst", size), shape, U16, order_dst)
    _, count = run_copies(dst, src, np.zeros(size, np.uint8))
    assert count == descriptors


def test_a_repeated_source_has_stride_zero():
    src = dense(Buffer("row", 8), (4,), U16).broadcast((3, 4))
    out, count = run_copies(dense(Buffer("dst", 24), (3, 4), U16), src, np.arange(8, dtype=np.uint8))
    assert (out.tolist(), count) == (list(range(8)) * 3, 1)


@given(permuted_boxes(), st.data())
def test_reshape_is_a_view_exactly_when_numpy_needs_no_copy(problem, data):
    shape, _, _, order, _ = problem
    size = int(np.prod(shape))
    factors = data.draw(st.lists(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]), max_size=3))
    new = [*factors, size // int(np.prod(factors))] if size % int(np.prod(factors)) == 0 else [size]
    array = np.arange(size, dtype=U16)
    backwards = np.argsort(order)
    ordered = array.reshape([shape[k] for k in order]).transpose(backwards)
    view = dense(Buffer("v", size * 2), shape, U16, order).reshaped(new)
    reshaped = ordered.reshape(new)
    if view is None:
        assert not np.shares_memory(reshaped, ordered)
    else:
        strided = np.ndarray(new, U16, array.tobytes(), view.offset, view.strides)
        assert strided.tolist() == reshaped.tolist()


def test_dims_merge_only_when_every_operand_walks_them_as_one():
    assert merge_dims((2, 3, 4), [(24, 8, 2), (24, 8, 2)]) == ([24], [[2], [2]])
    assert merge_dims((2, 3, 4), [(24, 8, 2), (8, 0, 2)]) == ([2, 3, 4], [[24, 8, 2], [8, 0, 2]])
    assert merge_dims((1, 1), [(0, 0)]) == ([1], [[0]])
