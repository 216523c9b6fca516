"""Kernel libraries: round trips, symbols, silent readelf, verification, and one message per kind of damage."""

import io
import struct
import subprocess

import pytest
from elftools.elf.elffile import ELFFile
from npu_abi import C

from libnpu.blob import (
    BlobError,
    BlobImage,
    IoTensor,
    Kernel,
    KernelParam,
    KernelSource,
    assemble,
    disassemble,
    kernel_library,
    read,
    verify,
    write,
)

OUT = KernelParam("out", C.NPU_ARG_BUFFER, C.NPU_ARG_OUT, C.NPU_DT_F32)
COUNT = KernelParam("count", C.NPU_ARG_INT, C.NPU_ARG_IN, C.NPU_DT_I64)
SCALE = KernelParam("scale", C.NPU_ARG_FLOAT, C.NPU_ARG_IN, C.NPU_DT_F32)
FIRST = KernelSource("ld.i64 r6, r1, 0\nst.i64 r2, r6, 0\nhalt", (OUT, COUNT), max_grid=4)
SECOND = KernelSource("halt", (SCALE,), flags=C.NPU_KERNEL_COOPERATIVE)
TABLE, DESC, PARAMS = 0, 16, 16 + 2 * 160  # offsets in .npu.kernels


@pytest.fixture
def library():
    return kernel_library("mine", {"first": FIRST, "second": SECOND})


def section(data, name):
    return ELFFile(io.BytesIO(data)).get_section_by_name(name)


def test_a_library_comes_back_as_it_was_written(library):
    image = read(library)
    assert (image.name, image.profile, image.tile_count, image.inputs, image.tasks) == ("mine", "any", 0, [], {})
    assert image.kernels == [
        Kernel("first", (OUT, COUNT), 0, 48, 0, 4),
        Kernel("second", (SCALE,), 64, 16, C.NPU_KERNEL_COOPERATIVE, 0),
    ]
    assert write(image) == library


def test_the_text_form_of_a_library_survives(library):
    text = disassemble(read(library))
    assert text.splitlines()[:8] == [
        'blob "mine" abi=1.0',
        'profile "any"',
        'kernel "first" text=0x0 bytes=48 max_grid=4 flags=0',
        '  param "out" buffer out f32',
        '  param "count" int in i64',
        'kernel "second" text=0x40 bytes=16 max_grid=0 flags=1',
        '  param "scale" float in f32',
        "section .text.shave shave",
    ]
    assert write(assemble(text)) == library


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("text=0x0", "text=zero", r"line 3: 'kernel .* expected kernel \"NAME\" text=0xOFFSET"),
        ("buffer out f32", "buffer out", r"line 4: 'param .* expected param \"NAME\" KIND DIRECTION TYPE"),
        ("buffer out f32", "tensor out f32", "line 4: 'tensor'; expected buffer, int, float"),
        ("buffer out f32", "buffer away f32", "line 4: 'away'; expected in, out, inout"),
        ("buffer out f32", "buffer out f31", "line 4: .*f31"),
    ],
)
def test_text_that_is_no_library(library, old, new, message):
    with pytest.raises(BlobError, match=message):
        assemble(disassemble(read(library)).replace(old, new))


def test_an_independent_elf_reader_sees_sections_and_symbols(library):
    elf = ELFFile(io.BytesIO(library))
    assert [s.name for s in elf.iter_sections()][1:] == [
        ".note.npu.abi", ".npu.platform", ".npu.netdesc", ".text.shave", ".npu.kernels", ".npu.digest", ".symtab", ".strtab",
        ".shstrtab",
    ]  # fmt: skip
    found = {s.name: s for s in elf.get_section_by_name(".symtab").iter_symbols() if s.name}
    places = {name: (s["st_info"]["type"], s["st_value"], s["st_size"]) for name, s in found.items()}
    assert places == {"kernel:first": ("STT_FUNC", 0, 48), "kernel:second": ("STT_FUNC", 64, 16)}
    assert elf.get_section(found["kernel:first"]["st_shndx"]).name == ".text.shave"


def test_readelf_prints_no_warning(library, tmp_path):
    path = tmp_path / "mine.npu"
    path.write_bytes(library)
    run = subprocess.run(["readelf", "-a", "-W", path], capture_output=True, text=True, check=True)
    assert run.stderr == ""
    assert "arning" not in run.stdout and "rror" not in run.stdout
    assert "kernel:second" in run.stdout


def test_verify_checks_the_code(library):
    image = read(library)
    assert verify(image) == []
    image.text = image.text[:16] + b"\xff" * 16 + image.text[32:]
    assert [(p.rule, p.where) for p in verify(image)] == [("shave-code", "kernel 'first'")]


@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        ({}, "library 'mine': no kernels; expected at least 1"),
        ({"k": KernelSource("fly", ())}, "kernel 'k': line 1: no instruction 'fly'"),
        ({"k": KernelSource(b"", ())}, r"kernel 'k': no instruction in its text"),
        ({"k": KernelSource(b"\0" * 8, ())}, r"kernel 'k': 8 bytes at 0x0"),
        ({"k": KernelSource(bytes((1 << 20) + 16), ())}, "kernel 'k': 1048592 bytes of code; expected at most 1048576"),
        ({"": FIRST}, r"kernel name '' has 0 bytes; expected 1 to 127"),
        ({"k" * 128: FIRST}, r"kernel name .* has 128 bytes; expected 1 to 127"),
        ({"k": KernelSource("halt", (OUT, OUT))}, "kernel 'k': two parameters have one name"),
        ({"k": KernelSource("halt", (), flags=2)}, "kernel 'k': flags 0x2; expected bits of enum npu_kernel_flag"),
        ({"k": KernelSource("halt", (), max_grid=1025)}, "kernel 'k': max_grid 1025; expected 0 to 1024"),
        ({"k": KernelSource("halt", (KernelParam("x", 9, 1, 10),))}, "parameter 'x': kind 9; expected an enum npu_arg_kind"),
        ({"k": KernelSource("halt", (KernelParam("x", C.NPU_ARG_INT, 2, 10),))}, "parameter 'x': direction 2, dtype 10; expected 1 and 10"),
        ({"k": KernelSource("halt", (KernelParam("x", C.NPU_ARG_BUFFER, 4, 0),))}, "parameter 'x': direction 4"),
        ({"k": KernelSource("halt", (KernelParam("x", C.NPU_ARG_BUFFER, 1, 13),))}, "parameter 'x': dtype 13"),
        ({"k": KernelSource("halt", tuple(KernelParam(f"p{i}", C.NPU_ARG_INT, 1, 10) for i in range(513)))}, "513 parameters; expected at most 512"),
    ],
)  # fmt: skip
def test_kernels_that_are_refused(kernels, message):
    with pytest.raises(BlobError, match=message):
        kernel_library("mine", kernels)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tile_count": 1}, r"tiles, CMX bytes, barriers are \(1, 0, 0\); expected 0 of a kernel library"),
        ({"profile": "unit"}, r"profile 'unit'; expected 'any' of a kernel library"),
        ({"weights": b"1"}, r"\.data\.weights: a kernel library has none"),
        ({"inputs": [IoTensor("x", C.NPU_DT_U8, (1,), 1)]}, r"\.npu\.io\.input: a kernel library has none"),
        ({"kernels": [Kernel("a", (), 0, 32), Kernel("b", (), 0, 16)]}, r"kernel 'b': 16 bytes at 0x0; .* behind 0x20"),
        ({"kernels": [Kernel("a", (), 0, 16), Kernel("a", (), 64, 16)]}, r"two kernels are named 'a'"),
        ({"kernels": [Kernel("a", (), 64, 32)]}, r"kernel 'a': 32 bytes at 0x40; .* within the 80 bytes"),
    ],
)
def test_write_refuses_a_library_with_more_or_less(library, change, message):
    image = read(library)
    for field, value in change.items():
        setattr(image, field, value)
    with pytest.raises(BlobError, match=message):
        write(image)


def test_a_blob_without_tasks_and_without_kernels_is_refused(library, image):
    image.kernels = read(library).kernels
    with pytest.raises(BlobError, match="a kernel library has none"):
        write(image)
    assert isinstance(image, BlobImage)


@pytest.mark.parametrize(
    ("at", "fmt", "value", "message"),
    [
        (TABLE, "<I", 0, r"kernel_count is 0; expected 1 to 1024"),
        (TABLE, "<I", 1025, r"kernel_count is 1025"),
        (TABLE, "<I", 3, r"\.npu\.kernels: 768 bytes; expected 928"),
        (TABLE + 4, "<I", 4, r"\.npu\.kernels: 768 bytes; expected 912"),
        (TABLE + 12, "<I", 1, r"\.npu\.kernels\+0x8: reserved field is \[0, 1\]; expected 0"),
        (DESC, "<B", 0, r"\.npu\.kernels\+16: name .*; expected UTF-8 text"),
        (DESC + 127, "<B", 1, r"then NULs to the field's end"),
        (DESC, "<8s", b"second", r"two kernels are named 'second'"),
        (DESC + 128, "<I", 16, r"kernel 'first': 48 bytes at 0x10; expected a multiple of 16 at a multiple of 64"),
        (DESC + 132, "<I", 40, r"kernel 'first': 40 bytes at 0x0"),
        (DESC + 132, "<I", 1 << 31, r"kernel 'first': 2147483648 bytes at 0x0; .* within the 80 bytes"),
        (DESC + 136, "<I", 1, r"kernel 'first' has 2 parameters from 1; expected them from 0, within 3"),
        (DESC + 140, "<I", 9, r"kernel 'first' has 9 parameters from 0"),
        (DESC + 160 + 140, "<I", 0, r"param_count is 3; the kernels have 2 parameters"),
        (DESC + 144, "<I", 2, r"kernel 'first': flags 0x2"),
        (DESC + 148, "<I", 1025, r"kernel 'first': max_grid 1025"),
        (DESC + 156, "<I", 1, r"\.npu\.kernels\+0xa8: reserved field is \[0, 1\]"),
        (PARAMS + 128, "<I", 0, r"parameter 'out': kind 0"),
        (PARAMS + 132, "<I", 0, r"parameter 'out': direction 0"),
        (PARAMS + 136, "<I", 99, r"parameter 'out': dtype 99"),
        (PARAMS + 140, "<I", 1, r"\.npu\.kernels\+0x1dc: reserved field is \[1\]"),
        (PARAMS + 144 + 136, "<I", 0, r"parameter 'count': direction 1, dtype 0; expected 1 and 10 of a scalar"),
        (PARAMS, "<8s", b"count", r"kernel 'first': two parameters have one name"),
    ],
)
def test_a_damaged_table_is_refused(library, seal, at, fmt, value, message):
    damaged = bytearray(library)
    struct.pack_into(fmt, damaged, section(library, ".npu.kernels")["sh_offset"] + at, value)
    with pytest.raises(BlobError, match=message):
        read(seal(damaged))


def test_symbols_that_do_not_follow_from_the_table_are_refused(library, seal):
    damaged = bytearray(library)
    damaged[section(library, ".symtab")["sh_offset"] + 2 * 24 + 16] ^= 16  # size of the first function
    with pytest.raises(BlobError, match=r"\.symtab: not the symbols that the sections and \.npu\.kernels imply"):
        read(seal(damaged))


def test_a_library_for_one_device_is_refused(library, seal):
    damaged = bytearray(library)
    at = section(library, ".npu.platform")["sh_offset"]
    damaged[at : at + 4] = b"unit"
    with pytest.raises(BlobError, match=r"profile 'unit'; expected 'any' of a kernel library"):
        read(seal(damaged))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5, {"k": SECOND}), "the name of a library must be a str, not int"),
        (("m", [SECOND]), "kernels must be a mapping of names to KernelSource, not list"),
        (("m", None), "kernels must be a mapping of names to KernelSource, not NoneType"),
        (("m", {5: SECOND}), "the name of a kernel must be a str, not int"),
        (("m", {"k": "halt"}), "kernel 'k' must be a KernelSource, not str"),
        (("m", {"k": KernelSource(None, ())}), "the text of kernel 'k' must be a str or bytes, not NoneType"),
        (("m", {"k": KernelSource("halt", 5)}), "the params of kernel 'k' must be a tuple of KernelParam, not int"),
        (("m", {"k": KernelSource("halt", "ab")}), "the params of kernel 'k' must be a tuple of KernelParam, not str"),
        (("m", {"k": KernelSource("halt", (5,))}), "a parameter of kernel 'k' must be a KernelParam, not int"),
        (
            ("m", {"k": KernelSource("halt", (KernelParam(5, 1, 0, 0),))}),
            "the name of a parameter of kernel 'k' must be a str, not int",
        ),
        (("m", {"k": KernelSource("halt", (), "x")}), "the flags of kernel 'k' must be an integer, not str"),
        (("m", {"k": KernelSource("halt", (), 0, 1.5)}), "max_grid of kernel 'k' must be an integer, not float"),
    ],
)
def test_a_wrong_type_is_named_with_what_is_expected(arguments, message):
    with pytest.raises(TypeError) as caught:
        kernel_library(*arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment", "label:", b""])
def test_a_kernel_without_instructions_is_refused_by_name(text):
    with pytest.raises(BlobError, match=r"^kernel 'k': no instruction in its text; expected at least 1$"):
        kernel_library("m", {"k": KernelSource(text, ())})


@pytest.mark.parametrize(
    ("name", "kernel", "param", "what"),
    [
        ("m" * 128, "k", "p", "network name 'm+' has 128 bytes"),
        ("m", "ü" * 64, "p", "kernel name 'ü+' has 128 bytes"),
        ("m", "k", "p" * 300, "parameter name 'p+' has 300 bytes"),
        ("", "k", "p", "network name '' has 0 bytes"),
        ("m", "", "p", "kernel name '' has 0 bytes"),
        ("m", "k", "", "parameter name '' has 0 bytes"),
    ],
)
def test_names_are_not_cut(name, kernel, param, what):
    scale = KernelParam(param, C.NPU_ARG_FLOAT, C.NPU_ARG_IN, C.NPU_DT_F32)
    with pytest.raises(BlobError, match=rf"{what}; expected 1 to 127, without NUL$"):
        kernel_library(name, {kernel: KernelSource("halt", (scale,))})


def test_names_of_127_bytes_come_back_whole():
    scale = KernelParam("p" * 127, C.NPU_ARG_FLOAT, C.NPU_ARG_IN, C.NPU_DT_F32)
    image = read(kernel_library("m" * 127, {"k" * 127: KernelSource("halt", (scale,))}))
    assert (image.name, image.kernels[0].name, image.kernels[0].params) == ("m" * 127, "k" * 127, (scale,))


@pytest.mark.parametrize("source", [None, 5, b"", bytearray()])
def test_what_is_no_text_is_not_assembled(source):
    with pytest.raises(TypeError, match=f"^source must be a str, not {type(source).__name__}$"):
        assemble(source)
