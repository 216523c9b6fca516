"""Sections in buffer objects, and relocations: every width and alignment, and each way to be wrong."""

from __future__ import annotations

import struct

import pytest

import libnpu
from libnpu.blob import Relocation
from libnpu.runtime.placement import Patch, layout, split_relocations

ARGS = ".data.shave_args"


def image_with_args(image, nbytes, relocations):
    made = image()
    made.shave_args = bytes(nbytes)
    made.relocations = relocations
    return made


def test_sections_are_64_byte_aligned_in_order_and_empty_ones_absent():
    found = layout([("a", b"1"), ("b", b""), ("c", b"23" * 40), ("d", b"4")])
    assert (found.offsets, found.size) == ({"a": 0, "c": 64, "d": 192}, 193)
    memory = bytearray(b"\xff" * 200)
    found.copy_to(memoryview(memory))
    assert bytes(memory) == b"1" + bytes(63) + b"23" * 40 + bytes(48) + b"4" + b"\xff" * 7


def test_each_relocation_writes_symbol_plus_addend(image):
    relocations = [
        Relocation(ARGS, 0, "a", 5),
        Relocation(ARGS, 8, "b", -1, 4),
        Relocation(ARGS, 16, "b", 0),
        Relocation(ARGS, 27, "a", 1, 4),  # not aligned
        Relocation(ARGS, 33, "a", 2),  # not aligned
    ]
    made = image_with_args(image, 64, relocations)
    found = layout([(ARGS, made.shave_args)])
    memory = bytearray(64)
    Patch(found, relocations, made).apply(memoryview(memory), {"a": 0x80001000, "b": 0x2000})
    expected = bytearray(64)
    struct.pack_into("<Q", expected, 0, 0x80001005)
    struct.pack_into("<I", expected, 8, 0x1FFF)
    struct.pack_into("<Q", expected, 16, 0x2000)
    struct.pack_into("<I", expected, 27, 0x80001001)
    struct.pack_into("<Q", expected, 33, 0x80001002)
    assert memory == expected


def test_a_32_bit_relocation_above_4_gib_is_refused(image):
    relocations = [Relocation(ARGS, 0, "a", 0, 4)]
    made = image_with_args(image, 8, relocations)
    patch = Patch(layout([(ARGS, made.shave_args)]), relocations, made)
    with pytest.raises(libnpu.NpuError, match="above 4 GiB"):
        patch.apply(memoryview(bytearray(8)), {"a": 1 << 32})


@pytest.mark.parametrize(("offset", "width"), [(1, 8), (5, 4), (-1, 4), (8, 8), (1 << 62, 8)])
def test_a_relocation_outside_of_its_section_is_refused(image, offset, width):
    relocations = [Relocation(ARGS, offset, "a", 0, width)]
    made = image_with_args(image, 8, relocations)
    with pytest.raises(libnpu.NpuError, match="leaves section"):
        Patch(layout([(ARGS, made.shave_args)]), relocations, made)


def test_a_shared_section_cannot_refer_to_what_a_launch_brings(image):
    with pytest.raises(libnpu.Unsupported, match="in:x"):
        split_relocations(image_with_args(image, 8, [Relocation(ARGS, 0, "in:x", 0)]))


def test_relocations_are_sorted_by_when_they_apply(image):
    made = image(through_scratch=True)
    shared, at_making, at_launch = split_relocations(made)
    assert shared == []
    assert {r.symbol for r in at_making} == {".bss.scratch", ".npu.tasks.dma0", ".npu.barriers"}
    assert [r.symbol for r in at_launch] == ["in:x", "out:y"]
    assert {r.section for r in at_launch} == {".npu.tasks.dma0"}
