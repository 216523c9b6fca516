"""The text form: assemble(disassemble(x)) == x, what it looks like, and errors with a line number."""

import npu_abi
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from npu_abi import C

from libnpu.blob import (
    TASK_SECTIONS,
    BlobError,
    BlobImage,
    IoTensor,
    Relocation,
    assemble,
    disassemble,
    read,
    verify,
    write,
)


def test_a_whole_image_survives(image):
    assert assemble(disassemble(image)) == image


def test_the_file_that_is_assembled_equals_the_file_that_was_disassembled(image):
    data = write(image)
    assert write(assemble(disassemble(read(data)))) == data


def test_weights_by_digest_need_the_same_bytes_beside_the_text(image):
    text = disassemble(image, weights="digest")
    assert "base64" not in text
    assert assemble(text, image.weights) == image
    with pytest.raises(BlobError, match=r"line \d+: the text names its weights by digest"):
        assemble(text)
    with pytest.raises(BlobError, match=r"line \d+: the weights beside the text are bytes=99"):
        assemble(text, image.weights[:-1])


def test_what_a_text_looks_like(image):
    lines = disassemble(image).splitlines()
    assert lines[:10] == [
        'blob "tiny" abi=1.0',
        'profile "npu-37xx"',
        "resources tiles=1 cmx_bytes=1024 barriers=2 scratch_bytes=4096 macs=1",
        'input "x" f16 [1,16,1,2]',
        'output "y:0" f32 [16]',
        'output "empty" f32 [0]',
        "section .npu.tasks.dma0",
        '  0: transaction_src=@"in:x" transaction_dst=0x2e000000 transaction_length=64 transaction_num_planes=1 '
        "transaction_src_width=64 transaction_dst_width=64 barriers_post_mask=0x1 sched_start_after=none   # load \\u00e9",
        '  1: transaction_src=0x2e000200 transaction_dst=@"out:y:0" transaction_length=64 transaction_num_planes=1 '
        "transaction_src_width=64 transaction_dst_width=64 barriers_wait_mask=0x1 barriers_post_mask=0x2 sched_start_after=1 task_id=4",
        "section .npu.tasks.dma1",
    ]
    assert "reloc .data.shave_args+0x0 @.data.weights+0x40 width=8" in lines


def test_shave_code_is_assembly_and_illegal_code_is_hex(image):
    assert "section .text.shave shave" in disassemble(image)
    image.text = b"\xff" * 32
    assert "section .text.shave hex" in disassemble(image)
    assert assemble(disassemble(image)) == image


def test_relocations_that_are_not_a_zero_field_keep_their_own_line(image):
    image.tasks[".npu.tasks.dma1"]["transaction_src"] = 5
    image.relocations.append(Relocation(".npu.tasks.dma1", 33, "in:x", -7, 4))
    text = disassemble(image)
    assert "reloc .npu.tasks.dma1+0x0 @.data.weights+0x20 width=8" in text
    assert 'reloc .npu.tasks.dma1+0x21 @"in:x"-0x7 width=4' in text
    assert assemble(text) == image


@pytest.mark.parametrize("bits", [0x7FC00001, 0xFFC00000, 0x80000000, 0x00000001, 0x3DCCCCCD, 0x7F800000, 0xFF7FFFFF])
def test_floats_survive_bit_by_bit(image, bits):
    image.tasks[".npu.tasks.dpu_invariant"]["ppe_bias"] = np.uint32(bits).view(np.float32)
    assert image.tasks[".npu.tasks.dpu_invariant"]["ppe_bias"].view(np.uint32) == bits
    assert assemble(disassemble(image)) == image


@pytest.mark.parametrize("name", ['quo"te', "a b", "x#y", "back\\slash", "é\n", "@.data.weights", "in:in:"])
def test_any_tensor_name_survives(make, name):
    image = make()
    image.inputs = [IoTensor(name, C.NPU_DT_F16, (32,), 64)]
    image.relocations[0] = Relocation(".npu.tasks.dma0", 0, f"in:{name}", 3)
    assert assemble(disassemble(image)) == image


@st.composite
def images(draw):
    """Images whose task lists are any bytes in the named fields."""
    tasks = {}
    for section in draw(st.lists(st.sampled_from(sorted(TASK_SECTIONS)), unique=True)):
        dtype = npu_abi.dtype(TASK_SECTIONS[section])
        raw = draw(st.binary(min_size=dtype.itemsize, max_size=3 * dtype.itemsize))
        count = len(raw) // dtype.itemsize
        tasks[section] = np.frombuffer(raw[: count * dtype.itemsize], dtype).copy()
    debug = draw(
        st.dictionaries(st.text(max_size=5), st.lists(st.integers() | st.text(max_size=5), max_size=3), max_size=3)
    )
    return BlobImage(
        "n", "unit", 1, 0, 0, [], [], tasks, weights=draw(st.binary(max_size=200)), shave_args=draw(st.binary(max_size=70)), debug=debug
    )  # fmt: skip


@given(images())
def test_any_image_survives_text_and_file(image):
    assert assemble(disassemble(image)) == image
    assert read(write(image)) == image
    assert isinstance(verify(image), list)  # whatever it finds


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_edited_text_assembles_or_says_why(image, data):
    text = disassemble(image)
    at = data.draw(st.integers(0, len(text)))
    edited = text[:at] + data.draw(st.text(max_size=4)) + text[at + data.draw(st.integers(0, 40)) :]
    try:
        assemble(edited)
    except BlobError as error:
        assert str(error).startswith("line ")


@pytest.mark.parametrize(
    ("find", "replace", "message"),
    [
        ("section .npu.tasks.dma1", "section .npu.foo", r"line 10: section \.npu\.foo"),
        ("transaction_length=64", "transaction_size=64", r"line 8: transaction_size: no such field of struct npu_dma_task"),
        ("transaction_length=64", "transaction_length=4294967296", r"line 8: transaction_length=4294967296; expected 0 to 4294967295"),
        ("transaction_length=64", "transaction_length=abc", r"line 8: transaction_length=abc; expected a number"),
        ("  1: ", "  2: ", r"line 9: entry 2; expected entry 1"),
        ("f16 [1", "f17 [1", r"line 4: .*expected an element type"),
        ("tiles=1", "tile=1", r"line 3: 'tile=1'; expected numbers"),
        ("abi=1.0", "abi=9.0", r"line 1: 'abi=9.0'; expected abi=1.0"),
        ("resources tiles=1", "# tiles=1", r"and no tile_count"),
        ("halt", "hault", r"line \d+: .*hault"),
        ("\nend\nreloc", "\nreloc", r"expected `end`|in the section that ends here"),
    ],
)  # fmt: skip
def test_errors_name_the_line(image, find, replace, message):
    with pytest.raises(BlobError, match=message):
        assemble(disassemble(image).replace(find, replace, 1))
